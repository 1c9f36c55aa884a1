"""CallStream: many calls over one stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.limits.budget import Answers, Budget
from delaynode.server import call_stream
from delaynode.server.call_stream import CallStreams
from delaynode.server.edge import Call
from delaynode.server.operations import STREAMED

from tests.serve.support.client import Failure, Msg, Shard, ints


def test_calls_of_one_message_are_all_done_and_answered_by_their_ids(shard: Shard) -> None:
    shard.send(*[Msg(b"now") for _ in range(3)])
    handles = shard.send(*[Msg(b"later", delay_ms=3_600_000) for _ in range(3)])
    uid, due, seq = handles.uid, handles.due, handles.seqs
    got = shard.receive()
    one = {"topic": shard.topic, "queue": shard.queue}
    offsets = [i64(message.offset) for message in got]
    asked = [
        pb.AckRequest(**one, group="g", start=offsets[0], end=i64(got[0].offset + 1)),
        pb.NackRequest(**one, group="g", offset=offsets[1], attempt=(1).to_bytes(4, "little"), backoff_ms=0),
        pb.ExtendRequest(**one, group="g", offset=offsets[2], attempt=(1).to_bytes(4, "little"), invisible_ms=60_000),
        pb.CancelRequest(**one, uid=uid, due=i64(due[0]), seq=i64(seq[0])),
        pb.RescheduleRequest(**one, uid=uid, due=i64(due[1]), seq=i64(seq[1]), time=i64(due[1] + 1)),
    ]
    message = [
        pb.Call(
            id=7 * number, method=type(request).__name__.removesuffix("Request"), request=request.SerializeToString()
        )
        for number, request in enumerate(asked)
    ]
    found = shard.client.call_stream(message)
    assert sorted(found) == [0, 7, 14, 21, 28]
    assert not any(answer.HasField("error") for answer in found.values())
    assert pb.AckResponse.FromString(found[0].response).acknowledged == 1
    assert pb.NackResponse.FromString(found[7].response).retried == 1
    assert list(pb.ExtendResponse.FromString(found[14].response).settlement) == [pb.SETTLED]
    assert list(pb.CancelResponse.FromString(found[21].response).outcome) == [pb.CANCELLED]
    assert ints(pb.RescheduleResponse.FromString(found[28].response).due) == [due[1] + 1]


def test_an_error_is_an_answer_and_ends_nothing(shard: Shard) -> None:
    shard.send(Msg(b"x"))
    (got,) = shard.receive()
    ack = pb.AckRequest(
        topic=shard.topic, queue=shard.queue, group="g", start=i64(got.offset), end=i64(got.offset + 1)
    ).SerializeToString()
    large = bytes(call_stream.MAX_REQUEST_BYTES + 1)
    found = shard.client.call_stream(
        [
            pb.Call(id=1, method="Enqueue", request=b""),
            pb.Call(id=2, method="Ack", request=b"\xff"),
            pb.Call(id=3, method="Ack", request=pb.AckRequest(topic="nobody").SerializeToString()),
            pb.Call(id=4, method="Ack", request=large),
        ],
        [],
        [pb.Call(id=5, method="Ack", request=ack)],
    )
    assert [found[number].error.reason for number in (1, 2, 3, 4)] == [
        "BAD_REQUEST", "BAD_REQUEST", "UNKNOWN_TOPIC", "BAD_REQUEST",
    ]  # fmt: skip
    assert found[1].error.message == "a CallStream carries Ack, Cancel, Extend, Nack, Reschedule, not 'Enqueue'"
    assert found[4].error.message == "the request has 1,048,577 bytes, in a CallStream the limit is 1 MiB"
    assert found[3].error.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert pb.AckResponse.FromString(found[5].response).acknowledged == 1


def test_what_is_no_message_of_calls_ends_the_stream(shard: Shard) -> None:
    with pytest.raises(Failure) as caught:
        shard.client.call_stream(b"\xff")
    assert caught.value.reason == "BAD_REQUEST"


# ---------------------------------------------------------------- the parts
class Stream:
    """A client's side of one stream: what it sends, and whether it is there."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.ends = asyncio.Event()

    async def read(self) -> bytes | None:
        if self.messages:
            return self.messages.pop(0)
        await self.ends.wait()
        return None

    def peer(self) -> str:
        return "a client"

    def forwarded(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def on_done(self, done: Callable[[], None]) -> None:
        pass


def streams(serve: Callable[[bytes], Awaitable[bytes]], limit: int = 1 << 20) -> tuple[CallStreams, Budget]:
    """A node's, of one method, M, and the budget for them."""
    under_way, going_out = Budget("", limit, limit), Budget("", limit, limit)

    async def one(data: bytes, call: Call, answers: Answers) -> bytes:
        assert 0 < (call.time_remaining() or 0) <= 60
        return await serve(data)

    flow = SimpleNamespace(calls=under_way, answers=lambda call: Answers(going_out, call))
    return CallStreams(SimpleNamespace(flow=flow), {"M": one}), under_way


def message(*requests: bytes, first: int = 0) -> bytes:
    each = [pb.Call(id=first + at, method="M", request=data) for at, data in enumerate(requests)]
    return pb.Calls(call=each).SerializeToString()


def test_who_waits_keeps_nobody_else_waiting_and_answers_share_messages() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def serve(data: bytes) -> bytes:
            if data == b"slow":
                await go.wait()
            return data

        client = Stream(message(b"slow", *[b"quick"] * 50), message(b"quick", first=100))
        served, budget = streams(serve)
        found: list[list[int]] = []
        async for data in served.call_stream(client):
            found.append([answer.id for answer in pb.Answers.FromString(data).answer])
            if sum(map(len, found)) == 51:
                go.set()
                client.ends.set()
        assert sorted(number for ids in found for number in ids) == [*range(51), 100]
        assert found[-1] == [0]
        assert len(found) < 20
        assert budget.used == 0

    asyncio.run(main())


def test_no_more_is_read_than_may_be_under_way() -> None:
    async def main() -> None:
        calls_ = [message(*[b"x"] * 100, first=100 * at) for at in range(10)]
        client, under_way, most = Stream(*calls_), 0, 0

        async def serve(data: bytes) -> bytes:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            return data

        served, budget = streams(serve, limit=(call_stream.CALL_BYTES + 1) * 150)
        client.ends.set()
        ids = [a.id async for data in served.call_stream(client) for a in pb.Answers.FromString(data).answer]
        assert sorted(ids) == list(range(1_000))
        assert 100 <= most <= 150
        assert budget.used == 0

    asyncio.run(main())


def test_an_answer_counts_once_whoever_takes_room_for_it() -> None:
    async def main() -> None:
        limit, size = 1 << 20, 300 << 10

        async def one(data: bytes, call: Call, answers: Answers) -> bytes:
            if data == b"passed on":
                await answers.reserve(size)
            return bytes(size)

        async def unused(data: bytes) -> bytes:
            return data

        served, budget = streams(unused, limit)
        served._calls = {"M": one}
        client = Stream(message(b"passed on", b"here"))
        client.ends.set()
        began = time.monotonic()
        ids = [a.id async for data in served.call_stream(client) for a in pb.Answers.FromString(data).answer]
        assert sorted(ids) == [0, 1]
        assert time.monotonic() - began < 30, "neither waits for itself"
        assert budget.used == 0

    asyncio.run(main())


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async def main() -> None:
        begun = ended = 0

        async def serve(data: bytes) -> bytes:
            nonlocal begun, ended
            begun += 1
            try:
                await asyncio.sleep(60)
            finally:
                ended += 1
            return data

        client = Stream(message(*[b"x"] * 9))
        served, budget = streams(serve)
        answering = served.call_stream(client)
        waiting = asyncio.ensure_future(anext(answering))
        await asyncio.sleep(0.05)
        assert budget.used > 0
        waiting.cancel()
        await asyncio.wait([waiting])
        await answering.aclose()  # type: ignore[attr-defined]
        assert (begun, ended, budget.used) == (9, 9, 0)

    asyncio.run(main())


def test_a_call_is_given_up_after_its_time_and_a_fault_is_an_answer() -> None:
    async def main() -> None:
        async def serve(data: bytes) -> bytes:
            if data == b"fault":
                raise ZeroDivisionError("of this program")
            await asyncio.sleep(60)
            return data

        calls_ = [
            pb.Call(id=1, method="M", request=b"late", wait_ms=20),
            pb.Call(id=2, method="M", request=b"fault"),
        ]
        client, began = Stream(pb.Calls(call=calls_).SerializeToString()), time.monotonic()
        served, budget = streams(serve)
        client.ends.set()
        found = [a async for data in served.call_stream(client) for a in pb.Answers.FromString(data).answer]
        assert [(one.id, one.error.message) for one in found] == [(2, "ZeroDivisionError: of this program")]
        assert time.monotonic() - began < 30
        assert budget.used == 0

    asyncio.run(main())


def test_what_streams_carry_is_what_clients_send_in_them() -> None:
    from delayclient.routing.calls import MAX_REQUEST_BYTES, STREAMED_METHODS

    assert set(STREAMED) == STREAMED_METHODS
    assert MAX_REQUEST_BYTES == call_stream.MAX_REQUEST_BYTES


def i64(number: int) -> bytes:
    return int(number).to_bytes(8, "little")
