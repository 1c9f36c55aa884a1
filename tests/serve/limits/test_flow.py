"""No client makes a node grow: who never reads, who sends much at once, who sends half, who only is there."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delaylocal.cluster import NODE_COMMAND
from delayregistry.model import TopicSpec

from tests.serve.support.client import (
    CALL_SECONDS,
    SERVICE,
    Client,
    Failure,
    Msg,
    Sent,
    Shard,
    now_ms,
    poll,
    request,
    sent,
    wait_served,
)
from tests.serve.support.http2 import Crowd, message

MIB = 1 << 20
FAR_MS = 3_600_000
CROWD_SECONDS = 60.0  # in which all of a crowd's requests are answered
Start = Callable[..., "Node"]


class Node:
    """A node of the test's own, and what it takes of the machine."""

    def __init__(self, cluster: LocalCluster, client: Client, edge: str) -> None:
        self.cluster = cluster
        self.client = client
        self.edge = edge
        self.endpoint = cluster.endpoints[0]
        self._pid = cluster.pids["n0"]

    def shard(self, queue: int) -> Shard:
        return Shard(self.client, "t", queue)

    def _memory(self, field: str) -> int:
        """MiB."""
        text = Path(f"/proc/{self._pid}/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) >> 10

    @property
    def resident(self) -> int:
        return self._memory("VmRSS")

    @property
    def peak(self) -> int:
        return self._memory("VmHWM")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.cluster.http[0]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture
def start(tmp_path: Path, edge: str) -> Iterator[Start]:
    """start(option, ...): a node with these options, e.g. "--unread-mib=64"."""
    with ExitStack() as stack:

        def start_one(*options: str) -> Node:
            command = (*NODE_COMMAND, *options)
            cluster = LocalCluster(tmp_path / "own", nodes=1, topics=[TopicSpec("t", 4)], node_command=command)
            stack.enter_context(cluster)
            wait_served(cluster)
            return Node(cluster, stack.enter_context(Client(cluster.endpoints[0])), edge)

        yield start_one
    assert "Traceback" not in (tmp_path / "own" / "logs" / "n0.log").read_text()


def batch(queue: int, count: int, size: int, *, delay_ms: int = FAR_MS) -> pb.EnqueueRequest:
    """`count` messages of `size` bytes, with relative times."""
    record = pb.Message(body=os.urandom(size - 20), born_ms=1).SerializeToString()
    return pb.EnqueueRequest(
        topic="t", queue=queue, count=count, time=np.full(count, delay_ms, "<i8").tobytes(), relative=b"\1" * count,
        size=np.full(count, len(record), "<u4").tobytes(), records=record * count,
    )  # fmt: skip


def send_honestly(node: Node, shard: Shard) -> Sent:
    """A message that is due in 20 ms.

    Under grpcio it waits in one line with large requests, and is sent again at its BUSY, for as long as these may take.
    The compiled edge has a line for small ones.
    """
    if node.edge != "grpcio":
        return shard.send(Msg(delay_ms=20))
    messages, deadline = [Msg(delay_ms=20)], time.monotonic() + CROWD_SECONDS
    data = shard.request(*messages).SerializeToString()
    while True:
        try:
            answer = node.client.raw("Enqueue", data, seconds=deadline - time.monotonic())
            return sent(pb.EnqueueResponse.FromString(answer), messages)
        except Failure as failure:
            if failure.reason != "BUSY":
                raise
            time.sleep(int(failure.metadata["retry_after_ms"]) / 1000)


@contextmanager
def working(node: Node, queue: int) -> Iterator[list[float]]:
    """A producer and a consumer at work on a queue: the times in s from a message's due until it was here."""
    shard, late, stop, errors = node.shard(queue), [0.0], threading.Event(), []

    def work() -> None:
        group = "at work"
        try:
            while not stop.is_set():
                stored = send_honestly(node, shard)
                got = shard.receive_all(1, group, seconds=30.0)
                assert [one.seq for one in got] == stored.seqs
                late.append((got[0].received_ms - stored.due[0]) / 1000)
                shard.ack_all(got, group)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield late
    finally:
        stop.set()
        thread.join(CROWD_SECONDS + 30)
        assert not errors, errors


def lasting(seconds: float, condition: Callable[[], bool]) -> Callable[[], bool]:
    """Whether the condition has held for so long."""
    since = time.monotonic()

    def held() -> bool:
        nonlocal since
        if not condition():
            since = time.monotonic()
        return time.monotonic() - since > seconds

    return held


def receive(queue: int, group: str, **fields: int) -> bytes:
    return pb.ReceiveRequest(topic="t", queue=queue, group=group, **fields).SerializeToString()  # type: ignore[arg-type]


# ------------------------------------------------------------ out
@pytest.mark.parametrize("method", ["ReceiveStream", "Receive", "Fetch"])
def test_consumers_that_never_read_cannot_grow_the_node_nor_keep_others_waiting(method: str, start: Start) -> None:
    """200 of them ask for 8 MiB each while 150 MB become due: 3 GB, were their answers made and kept."""
    node = start("--unread-mib=64")
    shard, due, group = node.shard(0), now_ms() + 4_000, "honest"
    for _ in range(19):
        shard.client.raw("Enqueue", batch(0, 128, 65_536, delay_ms=max(0, due - now_ms())).SerializeToString())
    fields = {"max_messages": 1_000, "max_bytes": 8 * MIB, "wait_ms": 30_000}
    if method == "Fetch":
        asked = pb.FetchRequest(topic="t", queue=0, **fields).SerializeToString()
    else:
        asked = receive(0, "deaf", **fields)
    with Crowd(node.endpoint, 200) as deaf, working(node, 1) as late:
        deaf.call(method, message(asked))
        got: list[int] = []
        held = 0.0
        deadline = time.monotonic() + 40
        while len(got) < 19 * 128 and time.monotonic() < deadline:
            part = shard.receive(group, max_messages=128, max_bytes=8 * MIB, wait_ms=5_000)
            got += [one.seq for one in part]
            held = max(held, node.metric('delay_in_flight_bytes{direction="out"}'))
            if part:
                shard.ack_all(part, group)
        assert sorted(got) == list(range(19 * 128))
        assert 32 * MIB < held <= 64 * MIB  # of 100 MiB that they ask for at first
    assert node.peak < 400
    assert max(late) < 15


def test_a_client_that_reads_slowly_keeps_its_connection_while_nobody_waits_for_its_place(start: Start) -> None:
    node = start("--unread-mib=64")
    shard = node.shard(0)
    shard.client.raw("Enqueue", batch(0, 64, 65_536, delay_ms=0).SerializeToString())
    with Crowd(node.endpoint, 1) as slow:
        slow.call("Receive", message(receive(0, "slow", max_messages=64, max_bytes=4 * MIB)))
        poll("it is answered", lambda: node.metric('delay_in_flight_bytes{direction="out"}') > 0)
        time.sleep(4.0)  # longer than one is kept while others wait
        assert slow.closed == 0
        assert node.metric("delay_connections_cut_total") == 0
    poll("its answer is dropped", lambda: node.metric('delay_in_flight_bytes{direction="out"}') == 0)


# ------------------------------------------------------------ in
def test_producers_that_never_read_their_answers_cannot_grow_the_node_nor_hold_others_up(start: Start) -> None:
    """Each answer has half a MiB of dues; a stream has sixteen of them unanswered at most."""
    node = start("--unread-mib=64")
    data = batch(0, 65_536, 64).SerializeToString()
    channels = [grpc.insecure_channel(node.endpoint, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(12)]
    stop = threading.Event()

    def requests() -> Iterator[bytes]:
        for _ in range(30):
            if stop.is_set():
                return
            yield data

    streams = [channel.stream_stream(SERVICE + "EnqueueStream")(requests()) for channel in channels]
    with working(node, 1) as late:
        time.sleep(6)
        honest = batch(2, 65_536, 64).SerializeToString()
        poll(
            "it has its turn, maybe not at once", lambda: isinstance(node.client.attempt("Enqueue", honest), bytes), 15
        )
    stop.set()
    for stream in streams:
        stream.cancel()
    for channel in channels:
        channel.close()
    assert max(late) < 15
    assert node.peak < 600
    poll("nothing is held for them", lambda: node.metric('delay_in_flight_bytes{direction="in"}') == 0)
    poll("nothing is held for them", lambda: node.metric('delay_in_flight_bytes{direction="out"}') == 0)


def test_two_hundred_large_batches_at_once_are_stored_or_refused_within_bounded_memory(start: Start) -> None:
    """The batches are 1.6 GB, which gRPC would take in all together. The node stores no batch that it refuses."""
    node = start()
    data = batch(0, 2, 4_000_000).SerializeToString()
    with Crowd(node.endpoint, 200, window=MIB) as crowd, working(node, 1) as late:
        crowd.call("Enqueue", message(data))
        poll("all are answered", lambda: crowd.over + crowd.closed == 200, seconds=CROWD_SECONDS)
        assert crowd.closed == 0
    stored = node.shard(0).wheel().pending
    assert 0 < stored <= 400
    assert stored % 2 == 0
    assert node.peak < 700
    assert max(late) < 15


@pytest.mark.parametrize("method", ["EnqueueStream", "Enqueue"])
def test_requests_that_do_not_end_cannot_fill_the_node_and_cost_honest_clients_nothing(
    method: str, start: Start, edge: str
) -> None:
    """150 clients send 8 MB of a batch and stop, 20 bytes before its end."""
    node = start("--memory-mib=300")
    data = message(batch(0, 2, 4_000_000).SerializeToString())
    with working(node, 1) as late:
        honest = node.client.channel.stream_stream(SERVICE + "EnqueueStream")
        go = threading.Event()

        def two() -> Iterator[bytes]:
            yield request("t", 2, [Msg(delay_ms=FAR_MS)]).SerializeToString()
            go.wait(60)
            yield request("t", 2, [Msg(delay_ms=FAR_MS)]).SerializeToString()

        answers = honest(two(), timeout=120)
        assert pb.EnqueueResponse.FromString(next(answers)).count == 1
        with Crowd(node.endpoint, 150, window=MIB) as crowd:
            crowd.call(method, data, send=len(data) - 20, end=False)
            small = lasting(2.0, lambda: crowd.stalled == 150 and node.resident < 450)
            poll("all has come that comes, and the node is small", small, seconds=40)
            if method == "EnqueueStream" and edge == "grpcio":
                # Of unary calls few are let in, and the compiled edge opens no windows: there is nothing to cut.
                assert crowd.closed > 0
        go.set()
        assert pb.EnqueueResponse.FromString(next(answers)).count == 1
    assert node.peak < 1_000  # 1.2 GB was sent to 70 MB
    assert max(late) < 15


# ------------------------------------------------------------ many
def round_trip(channel: grpc.Channel) -> None:
    """Returns once the node has taken up the calls that came over this channel before."""
    for _ in range(2):
        channel.unary_unary(SERVICE + "QueryRoute")(b"", timeout=CALL_SECONDS)


def test_two_thousand_idle_connections_and_five_hundred_waiting_consumers_hold(start: Start) -> None:
    node = start()
    node.shard(0).send(Msg(delay_ms=0))
    poll("it is released", lambda: node.shard(0).stored() == (0, 1))
    files, resident = node.files, node.resident
    channels = [grpc.insecure_channel(node.endpoint, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)]
    with Crowd(node.endpoint, 2_000), working(node, 1) as late:
        for group in range(10):  # they make the groups and take the first message
            assert len(node.shard(0).receive(f"g{group}", max_messages=1)) == 1
        calls = [channel.unary_unary(SERVICE + "Receive") for channel in channels]
        asked = [receive(0, f"g{group}", max_messages=1, wait_ms=60_000) for group in range(10)]
        waiting = [(n % 10, calls[n % 10].future(asked[n % 10])) for n in range(500)]
        for channel in channels:
            round_trip(channel)
        poll("all are connected", lambda: node.metric("delay_connections") >= 2_010)
        assert not any(future.done() for _, future in waiting)
        assert node.resident < resident + 200
        sent = node.shard(0).send(*(Msg(delay_ms=300) for _ in range(50)))
        got: dict[int, list[int]] = {group: [] for group in range(10)}
        for group, future in waiting:
            answer = pb.MessageBatch.FromString(future.result(30))
            assert answer.count == 1
            got[group] += np.frombuffer(answer.seq, "<i8").tolist()
        assert all(sorted(seqs) == sent.seqs for seqs in got.values())
    for channel in channels:
        channel.close()
    assert max(late) < 5
    poll("the connections are closed", lambda: node.files <= files + 10)
    assert node.resident < resident + 100


def test_of_five_hundred_consumers_that_wait_each_gets_one_of_what_comes_one_by_one(start: Start) -> None:
    node = start()
    shard = node.shard(0)
    channels = [grpc.insecure_channel(node.endpoint, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(5)]
    shard.receive("g")
    futures = [
        channels[n % 5].unary_unary(SERVICE + "Receive").future(receive(0, "g", max_messages=1, wait_ms=30_000))
        for n in range(500)
    ]
    for channel in channels:
        round_trip(channel)
    shard.send(*(Msg(delay_ms=500 + 10 * n) for n in range(300)))
    seqs: list[int] = []
    poll("300 of them have one", lambda: sum(future.done() for future in futures) >= 300, seconds=20)
    for future in futures:
        if future.done():
            seqs += np.frombuffer(pb.MessageBatch.FromString(future.result()).seq, "<i8").tolist()
        else:
            future.cancel()
    assert sorted(seqs) == list(range(300))

    def comes() -> bool:
        shard.send(Msg(delay_ms=0))
        return len(shard.receive_all(1, "g", seconds=1)) == 1

    # 200 callers went away. The node may not know it of a few yet, and give them a message; it forgets each in the end.
    poll("a message comes to who is there", comes, seconds=10)
    for channel in channels:
        channel.close()


def test_a_request_larger_than_any_batch_is_refused_before_it_is_taken_in(start: Start) -> None:
    node = start()
    with pytest.raises(Failure) as caught:
        node.client.raw("Ack", bytes(13 * MIB))
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert node.shard(0).send(Msg(delay_ms=FAR_MS)).seqs == [0]


def test_a_call_without_a_request_is_refused(start: Start) -> None:
    node = start()
    with pytest.raises(grpc.RpcError) as caught:
        node.client.channel.stream_unary(SERVICE + "Ack")(iter(()), timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
