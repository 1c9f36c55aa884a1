"""Three nodes: any of them takes any call and passes it on, once, with its error unchanged."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.support.client import (
    METHODS,
    Client,
    Failure,
    Msg,
    Shard,
    i64,
    now_ms,
    poll,
    request,
    rows,
    u32,
    wait_served,
)

QUEUES = 12
FORWARDED = (("x-delay-forwarded", "1"),)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("three"), nodes=3, topics=[TopicSpec("t", QUEUES)]) as running:
        wait_served(running)
        yield running


@pytest.fixture(scope="module")
def clients(three: LocalCluster) -> Iterator[list[Client]]:
    made = [Client(endpoint) for endpoint in three.endpoints]
    yield made
    for client in made:
        client.close()


@pytest.fixture(scope="module")
def masters(three: LocalCluster, clients: list[Client]) -> list[int]:
    """Per queue the number of the node that serves it."""

    def known() -> list[int] | None:
        routes = [client.call("QueryRoute", topic="t").topics[0].queues for client in clients]
        good = all(queue.endpoint for route in routes for queue in route)
        return [three.endpoints.index(queue.endpoint) for queue in routes[0]] if good else None

    found: list[int] = poll("every node knows every master", known)
    return found


def elsewhere(masters: list[int], node: int) -> int:
    """A queue that another node serves."""
    return next(queue for queue, master in enumerate(masters) if master != node)


def test_every_node_names_the_same_masters(three: LocalCluster, clients: list[Client], masters: list[int]) -> None:
    assert sorted(set(masters)) == [0, 1, 2]
    assert [masters.count(node) for node in range(3)] == [4, 4, 4]
    routes = [client.call("QueryRoute") for client in clients]
    assert routes[0] == routes[1] == routes[2]
    (topic,) = routes[0].topics
    assert [queue.queue for queue in topic.queues] == list(range(QUEUES))
    for queue in topic.queues:
        assert queue.node == f"n{masters[queue.queue]}"
        assert queue.endpoint == three.endpoints[masters[queue.queue]]
        assert (queue.epoch >= 1, queue.uid > 0) == (True, True)
    assert (topic.max_delay_ms, topic.max_attempts) == (40 * 86_400_000, 16)


def test_any_node_takes_any_call_for_any_queue(clients: list[Client], masters: list[int]) -> None:
    for queue in range(QUEUES):
        ways = [Shard(client, "t", queue) for client in clients]
        stored = [way.send(Msg(b"%d" % n, delay_ms=60_000)) for n, way in enumerate(ways)]
        assert [one.seqs for one in stored] == [[0], [1], [2]]
        assert len({one.uid for one in stored}) == 1
        for way in ways:
            assert len(way.pending(with_records=True)) == 3
            assert (way.wheel().pending, way.wheel().node) == (3, f"n{masters[queue]}")
        assert ways[0].cancel(stored[1]) == [pb.CANCELLED]
        assert ways[1].reschedule(stored[0], 5)[0] == [pb.MOVED]
        (one,) = ways[2].receive(wait_ms=5_000)
        assert one.body == b"0"
        assert [got.body for got in ways[0].fetch(0)] == [b"0"]
        assert ways[1].nack([one], backoff_ms=0).retried == 1
        assert [got.attempt for got in ways[0].receive(wait_ms=5_000)] == [2]
        assert ways[1].ack((0, 1)) == 1
        assert ways[2].group().floor == 1
        ways[0].call("DeleteGroup", group="g")


def test_large_batches_pass_both_ways(clients: list[Client], masters: list[int]) -> None:
    shard = Shard(clients[0], "t", elsewhere(masters, 0))
    body = bytes((4 << 20) - 64)
    shard.receive("large", from_end=True)
    shard.send(Msg(body), Msg(body))
    got = shard.receive_all(2, group="large", max_bytes=8 << 20)
    assert [one.body == body for one in got] == [True, True]


def test_a_long_poll_passes_through(clients: list[Client], masters: list[int]) -> None:
    shard = Shard(clients[1], "t", elsewhere(masters, 1))
    shard.receive_all(10**6, group="poll", seconds=0.5)
    due = shard.send(Msg(b"poll", delay_ms=700)).due[0]
    (one,) = shard.receive("poll", wait_ms=10_000)
    assert one.body == b"poll"
    assert due <= one.received_ms < due + 3_000


def test_refusals_pass_through_unchanged(clients: list[Client], masters: list[int]) -> None:
    queue = elsewhere(masters, 2)
    ways = [Shard(client, "t", queue) for client in clients]
    calls: list[Callable[[Shard], object]] = [
        lambda way: way.send(Msg(delay_ms=10**12)),
        lambda way: way.send(Msg(), producer=77, number=5),
        lambda way: way.call("Ack", group="nobody", start=i64(0), end=i64(1)),
        lambda way: way.call("Cancel", uid=1, due=i64(0), seq=i64(0)),
        lambda way: way.call("Nack", group="g\u00fc\n", offset=i64(0), attempt=u32(1)),
        lambda way: way.call("DescribeGroup", group="\u00fc" * 20_000),
    ]
    for call in calls:
        seen = []
        for way in ways:
            with pytest.raises(Failure) as caught:
                call(way)
            failure = caught.value
            seen.append((failure.code, failure.reason, failure.domain, failure.message, failure.metadata))
        assert seen[0] == seen[1] == seen[2]
        assert seen[0][1]


def test_a_forwarded_call_goes_no_further(three: LocalCluster, clients: list[Client], masters: list[int]) -> None:
    for method, (asked, _) in METHODS.items():
        if method == "QueryRoute":
            continue
        queue = elsewhere(masters, 0)
        data = asked(topic="t", queue=queue)
        if method == "Enqueue":
            data = request("t", queue, [Msg()])
        with pytest.raises(Failure) as caught:
            clients[0].raw(method, data.SerializeToString(), metadata=FORWARDED)
        failure = caught.value
        assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_MASTER")
        assert failure.metadata["endpoint"] == three.endpoints[masters[queue]]
        assert int(failure.metadata["epoch"]) >= 1
        assert three.endpoints[masters[queue]] in failure.message


def test_a_stream_at_one_node_reaches_all_of_them_in_order(clients: list[Client]) -> None:
    begin = now_ms() + 3_600_000
    number = [0] * QUEUES
    requests, expected = [], []
    for n in range(120):
        queue = n * 5 % QUEUES
        wrong = n % 10 == 7
        late = begin + 99 * 86_400_000 if wrong else begin
        requests.append(request("t", queue, [Msg(b"%d" % n, at_ms=late)], producer=41, number=number[queue]))
        expected.append("DELAY_TOO_LONG" if wrong else "")
        number[queue] += not wrong
    answers = list(clients[2].stream(requests))
    assert [answer.error.reason for answer in answers] == expected
    assert all("40 days" in answer.error.message for answer in answers if answer.HasField("error"))
    for queue in range(QUEUES):
        again = request("t", queue, [Msg(b"again", at_ms=begin)], producer=41, number=number[queue] - 1)
        assert pb.EnqueueResponse.FromString(clients[0].raw("Enqueue", again.SerializeToString())).duplicate


def test_a_receive_stream_at_one_node_reaches_all_of_them(clients: list[Client]) -> None:
    asked, expected = [], []
    for queue in range(QUEUES):
        Shard(clients[0], "t", queue).receive("streamed", from_end=True)
        Shard(clients[0], "t", queue).send(Msg(b"for %d" % queue))
        asked.append(pb.ReceiveRequest(topic="t", queue=queue, group="streamed", wait_ms=5_000))
        expected.append(b"for %d" % queue)
    asked.append(pb.ReceiveRequest(topic="t", queue=QUEUES, group="streamed"))
    answers = clients[1].receive_stream(asked)
    assert [rows(next(answers))[0].body for _ in expected] == expected
    with pytest.raises(Failure) as caught:
        next(answers)
    assert caught.value.reason == "UNKNOWN_QUEUE"


def test_the_whole_nodes_wheel_is_never_forwarded(clients: list[Client], masters: list[int]) -> None:
    for node, client in enumerate(clients):
        queues = {shard.queue for shard in client.call("GetWheel").shards}
        assert queues == {queue for queue, master in enumerate(masters) if master == node}


def test_a_node_that_dies_is_unavailable_through_the_others_and_then_there_again(
    three: LocalCluster, clients: list[Client], masters: list[int]
) -> None:
    """Last: the epochs change. Its queues answer UNAVAILABLE, retryable, and nothing else; the others go on."""
    mine, other = masters.index(2), masters.index(1)
    way, side = Shard(clients[0], "t", mine), Shard(clients[0], "t", other)
    way.wheel()
    three.kill("n2", 19)  # SIGSTOP: connections stay open, nothing is answered
    try:
        with pytest.raises(Failure) as caught:
            clients[0].raw("GetWheel", pb.GetWheelRequest(topic="t", queue=mine).SerializeToString(), seconds=0.5)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert side.send(Msg(delay_ms=3_600_000)).seqs
    finally:
        three.kill("n2", 9)
    failures: list[Failure] = []
    begin = time.monotonic()
    while True:
        try:
            answer = way.send(Msg(b"back", delay_ms=3_600_000))
            break
        except Failure as failure:
            failures.append(failure)
        assert time.monotonic() - begin < 30
        time.sleep(0.05)
    assert {failure.code for failure in failures} <= {grpc.StatusCode.UNAVAILABLE}
    assert answer.seqs
    three.wait_ready()
    route = poll("all routes are there", lambda: ready_route(clients[0]))
    assert route[mine].epoch == 2
    assert way.wheel().epoch == 2


def ready_route(client: Client) -> object:
    queues = client.call("QueryRoute", topic="t").topics[0].queues
    return queues if all(queue.endpoint for queue in queues) else None


def test_the_way_to_a_node_that_was_away_for_long_is_found_again(three: LocalCluster, clients: list[Client]) -> None:
    """A channel that failed again and again must not wait for minutes before it tries once more."""
    route = poll("all routes are there", lambda: ready_route(clients[0]))
    way = Shard(clients[0], "t", next(queue.queue for queue in route if queue.node == "n1"))
    stop = threading.Event()

    def keep_killing() -> None:
        while not stop.wait(0.05):
            with contextlib.suppress(ProcessLookupError):
                three.kill("n1")

    killer = threading.Thread(target=keep_killing)
    killer.start()
    asked = pb.GetWheelRequest(topic="t", queue=way.queue).SerializeToString()
    end = time.monotonic() + 5.5
    while time.monotonic() < end:
        clients[0].attempt("GetWheel", asked)
        time.sleep(0.05)
    stop.set()
    killer.join()
    three.wait_ready()
    begin = time.monotonic()
    poll("the way is there again", lambda: isinstance(clients[0].attempt("GetWheel", asked), bytes))
    assert time.monotonic() - begin < 2
