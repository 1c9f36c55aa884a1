"""The node's side of the compiled edge: no fault leaves a call without its end, or memory without its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.limits.budget import Answers
from delaynode.replication.transport.until import wait_until
from delaynode.server import compiled_edge
from delaynode.server.compiled_edge import CompiledEdge
from delaynode.server.edge import Call, Methods, Serve, ServeStream, Stream
from delaynode.server.handlers.enqueue import EnqueueCalls
from delaynode.server.handlers.rows import RowCalls
from delaynode.store.errors import Refused
from delaynode.store.merging import MAX_FRAME_REQUESTS
from grpc_health.v1 import health_pb2

from tests.serve.support.client import Msg, i64, request, u32
from tests.serve.support.hosts import node
from tests.serve.support.http2 import Crowd, message
from tests.serve.support.listening import anybody, plain
from tests.serve.support.rows import MIB, Place

pytest.importorskip("delayedge")

S = "delay.v1.DelayService"
HOUR_MS = 3_600_000
LARGE = bytes(900 << 10)  # four of them fill the room for answers


class World:
    """A shard behind the edge, and a client of it. faults: what was reported to the loop."""

    def __init__(self, place: Place, unary: Mapping[str, Serve], streams: Mapping[str, ServeStream]) -> None:
        self.place = place
        self.faults: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, what: self.faults.append(type(what.get("exception")).__name__)
        )
        config: Any = SimpleNamespace(in_flight_bytes=64 * MIB, unread_bytes=4 * MIB, max_connections=100)
        dispatch = place.as_dispatch()
        serves = EnqueueCalls(dispatch)
        methods = Methods(unary, {"Enqueue": serves.enqueue}, {"EnqueueStream": serves.enqueue_stream, **streams})
        rows = RowCalls(dispatch)
        self.edge = CompiledEdge(
            config, place.flow, rows, f"/{S}/Enqueue", f"/{S}/EnqueueStream", {S: methods}, [plain()], anybody(),
            lambda event, **fields: self.faults.append(event),
        )  # fmt: skip
        self.channel: grpc.aio.Channel

    @property
    def figures(self) -> Any:
        return self.place.flow.edge_figures()

    async def start(self) -> None:
        await self.edge.start()
        assert self.edge._edge is not None
        self.target = f"127.0.0.1:{self.edge._edge.port}"
        self.channel = self.connect()

    def connect(self) -> grpc.aio.Channel:
        """A connection of its own."""
        return grpc.aio.insecure_channel(self.target, [("grpc.use_local_subchannel_pool", 1)])

    async def call(self, method: str, data: bytes = b"", seconds: float = 10) -> bytes:
        """Raises grpc.aio.AioRpcError."""
        path = method if "/" in method else f"/{S}/{method}"
        answer: bytes = await self.channel.unary_unary(path)(data, timeout=seconds)
        return answer

    async def code(self, method: str, data: bytes = b"") -> str:
        try:
            await self.call(method, data)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    async def enqueue(self, asked: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse.FromString(await self.call("Enqueue", asked.SerializeToString()))

    @asynccontextmanager
    async def in_one_take(self) -> AsyncIterator[None]:
        """What comes meanwhile is taken at once, afterwards."""
        loop, edge = asyncio.get_running_loop(), self.edge._edge
        assert edge is not None
        loop.remove_reader(edge.fileno())
        yield
        loop.add_reader(edge.fileno(), self.edge._look)


def run(
    directory: Path,
    claim: Any,
    unary: Mapping[str, Serve] | None = None,
    streams: Mapping[str, ServeStream] | None = None,
) -> None:
    async def main() -> None:
        async with node(directory) as made:
            made.hosts["a"].shard.raise_format(2)
            world = World(Place(made, "a"), unary or {}, streams or {})
            await world.start()
            try:
                await claim(world)
            finally:
                await world.channel.close()
                await world.edge.stop(nothing)

    asyncio.run(main())


async def nothing() -> None:
    pass


def bad_columns(messages: int = 1) -> bytes:
    """Relative times, whose dues the answer would have, and records that do not add up."""
    return pb.EnqueueRequest(
        topic="t",
        count=messages,
        time=i64(1) * messages,
        relative=b"\1" * messages,
        size=u32(1) * messages,
        records=b"",
    ).SerializeToString()


def test_refused_requests_hold_no_room_for_answers(tmp_path: Path) -> None:
    """Each held its part for ever: after some hundred of them the node answered nobody."""

    async def claim(world: World) -> None:
        budget = world.place.budget
        assert {await world.code("Enqueue", bad_columns(65_536)) for _ in range(70)} == {"INVALID_ARGUMENT"}
        assert budget.used == 0
        assert not budget._reads, "no client has shown that it reads"

    run(tmp_path, claim)


def test_an_answer_without_room_does_not_show_that_its_client_reads(tmp_path: Path) -> None:
    async def large(_: bytes, __: Call, answers: Answers) -> bytes:
        await answers.reserve(len(LARGE))
        return LARGE

    async def failing(_: bytes, __: Call, answers: Answers) -> bytes:
        await answers.reserve(len(LARGE))
        raise Refused("BAD_REQUEST", "after all")

    async def claim(world: World) -> None:
        budget = world.place.budget
        assert await world.code("Failing") == "INVALID_ARGUMENT"
        with Crowd(world.target, 4) as crowd:  # they do not read, and take all the room
            crowd.call("Large", message(b""))
            async with asyncio.timeout(10):
                await wait_until(lambda: world.figures["unread_bytes"] > 4 * len(LARGE), 0.01)
            held = budget.used
            assert await world.code("Large") == "UNAVAILABLE"
            assert budget.used == held
            assert not budget._reads

    run(tmp_path, claim, {"Large": large, "Failing": failing})


@pytest.mark.parametrize("where", ["the call", "its columns", "its event"])
def test_a_fault_with_one_group_leaves_what_came_with_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail_for_boom(real: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def failing(*given: Any) -> Any:
            if name(*given).endswith("boom"):
                raise KeyError("boom")
            return real(*given)

        return failing

    async def ok(_: bytes, __: Call, ___: Answers) -> bytes:
        return b""

    async def claim(world: World) -> None:
        place = world.place
        place.find_host = fail_for_boom(place.find_host, lambda _, request, *__: request.topic)  # type: ignore[method-assign]
        async with world.in_one_take():
            asked = [request(topic, 0, [Msg()]).SerializeToString() for topic in ("boom", "t")]
            calls = [
                asyncio.create_task(world.code("boom") if where == "its event" else world.code("Enqueue", asked[0])),
                asyncio.create_task(world.code("Enqueue", asked[1])),
                asyncio.create_task(world.code("Ok")),
            ]
            await asyncio.sleep(0.3)
        assert await asyncio.gather(*calls) == ["INTERNAL", "OK", "OK"]
        assert world.faults == ["KeyError"]
        assert (world.figures["rows"], world.figures["rows_bytes"]) == (0, 0)

    if where == "its columns":
        monkeypatch.setattr(compiled_edge, "_group", fail_for_boom(compiled_edge._group, lambda rows, *_: rows.topic))
    begin = fail_for_boom(CompiledEdge._begin, lambda _, event: event.method)
    monkeypatch.setattr(CompiledEdge, "_begin", begin)
    run(tmp_path, claim, {"Ok": ok, "boom": ok})


@pytest.mark.parametrize("raised", [KeyError("fault"), asyncio.CancelledError()], ids=["fault", "cancelled"])
def test_a_call_that_fails_inside_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    async def fail(*_: Any) -> bytes:
        raise raised

    async def claim(world: World) -> None:
        code = "INTERNAL" if isinstance(raised, Exception) else "UNAVAILABLE"
        assert await world.code("Fail") == code
        assert await world.code("Enqueue", bad_columns()) == code
        assert world.figures["rows"] == 0
        assert not world.edge._calls

    monkeypatch.setattr(EnqueueCalls, "enqueue", fail)
    run(tmp_path, claim, {"Fail": fail})


def test_a_retry_with_another_number_of_messages_is_told_what_was_stored(tmp_path: Path) -> None:
    async def claim(world: World) -> None:
        await world.enqueue(request("t", 0, [Msg(delay_ms=HOUR_MS)] * 3, 7, 0))
        again = await world.enqueue(request("t", 0, [Msg(delay_ms=HOUR_MS)], 7, 0))
        assert (again.first_seq, again.count, again.duplicate) == (0, 3, True)

    run(tmp_path, claim)


def test_more_requests_than_a_frame_may_have_come_at_once(tmp_path: Path) -> None:
    """Some with delays, some with dues: each answer has its own, and seqs in the order of the group."""

    async def claim(world: World) -> None:
        due_ms = world.place.node.clock.now_ms() + HOUR_MS
        asked = []
        for number in range(MAX_FRAME_REQUESTS + 476):
            messages = [Msg(b"%d" % number, delay_ms=number)] * (1 + number % 3)
            one = request("t", 0, messages if number % 2 else [Msg(b"%d" % number, at_ms=due_ms)])
            if not number % 2:
                one.relative = b""
            asked.append(one)
        channels = [world.connect(), world.connect()]  # each has 1,000 calls at once at most
        async with world.in_one_take(), asyncio.timeout(20):
            sends = [
                channels[number % 2].unary_unary(f"/{S}/Enqueue")(one.SerializeToString())
                for number, one in enumerate(asked)
            ]
            await wait_until(lambda: world.figures["rows"] == len(asked), 0.01)
        answers = [pb.EnqueueResponse.FromString(await one) for one in sends]
        stored: list[int] = []
        for one, answer in zip(asked, answers, strict=True):
            assert (answer.count, answer.duplicate) == (one.count, False)
            stored += range(answer.first_seq, answer.first_seq + answer.count)
            dues = np.frombuffer(answer.due, "<i8") - world.place.node.clock.now_ms()
            assert len(dues) == (one.count if one.relative else 0)
            if len(dues):
                assert (dues - np.frombuffer(one.time, "<i8") <= 0).all()
        assert sorted(stored) == list(range(world.place.shard_host.shard.next_seq))
        for channel in channels:
            await channel.close()

    run(tmp_path, claim)


def test_a_stream_that_has_ended_says_so_again(tmp_path: Path) -> None:
    async def reading(stream: Stream) -> AsyncGenerator[bytes, None]:
        while await stream.read() is not None:
            pass
        yield repr([await stream.read() for _ in range(3)]).encode()

    async def claim(world: World) -> None:
        call = world.channel.stream_stream(f"/{S}/Reading")(iter([b"1", b"2"]))
        assert [one async for one in call] == [b"[None, None, None]"]

    run(tmp_path, claim, streams={"Reading": reading})


def test_health_knows_no_service_before_it_is_told(tmp_path: Path) -> None:
    async def claim(world: World) -> None:
        asked = health_pb2.HealthCheckRequest(service=S).SerializeToString()
        watch = world.channel.stream_stream("/grpc.health.v1.Health/Watch")(iter([asked]))
        statuses = health_pb2.HealthCheckResponse
        assert statuses.FromString(await watch.read()).status == statuses.SERVICE_UNKNOWN
        assert await world.code("/grpc.health.v1.Health/Check", asked) == "NOT_FOUND"
        await world.edge.tell_health(serving=True)
        assert statuses.FromString(await watch.read()).status == statuses.SERVING
        watch.cancel()

    run(tmp_path, claim)


def test_a_stop_that_fails_halfway_still_ends_all(tmp_path: Path) -> None:
    """Calls have ended, with what they clean up, before the edge is gone; the event loop runs on meanwhile."""
    ended: list[str] = []

    async def waiting(stream: Stream) -> AsyncGenerator[bytes, None]:
        try:
            yield b"here"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append("cleaned up")

    async def claim(world: World) -> None:
        call = world.channel.stream_stream(f"/{S}/Waiting")()
        assert await call.read() == b"here"

        async def meanwhile() -> None:
            raise OSError("the disk")

        with pytest.raises(OSError, match="the disk"):
            await world.edge.stop(meanwhile)
        assert ended == ["cleaned up"]
        assert world.figures["connections"] == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        world.edge.stop = lambda _: nothing()  # type: ignore[method-assign]

    run(tmp_path, claim, streams={"Waiting": waiting})


def test_a_name_that_no_one_knows_is_an_error_in_a_line(tmp_path: Path) -> None:
    async def claim(world: World) -> None:
        for listen in ("nohost.invalid:1", f"127.0.0.1:{world.edge._edge.port if world.edge._edge else 0}"):
            world.edge._listeners = [plain(listen)]
            with pytest.raises(OSError, match=f"^can't listen on {listen}: ") as caught:
                await world.edge.start()
            assert "Errno" not in str(caught.value)

    run(tmp_path, claim)
