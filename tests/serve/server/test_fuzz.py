"""Random requests, from random bytes to almost right ones: a clear error or a right answer, and the node goes on.

The test counts the messages that the node stores: at the end each is pending, released or cancelled, also after a
kill -9, so no accepted request made the log unreadable.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.support.client import METHODS, Client, Failure, Msg, Shard, request, wait_served
from tests.serve.support.fuzz_requests import QUEUES, Maker

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_CASES", "2400"))
WORKERS = 6

CLEAR = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def is_clear(failure: Failure) -> bool:
    """Also that ids are not taken yet: the node is some seconds old."""
    return failure.code in CLEAR


class Ledger:
    """Counts of the messages stored, cancelled and so on, by the node's own answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored = self.cancelled = self.answered = self.refused = 0
        self.handles: list[tuple[int, int, int]] = [(0, 0, 0)]  # queue, due, seq

    def note(self, method: str, asked: Any, answer: Any) -> None:
        with self._lock:
            self.answered += 1
            if method == "Enqueue" and not answer.duplicate:
                self.stored += answer.count - sum(answer.repeated)
                due = answer.due or asked.time
                first_seq = int(np.frombuffer(answer.seq, "<i8")[0]) if answer.seq else answer.first_seq
                self.handles.append((asked.queue, int(np.frombuffer(due, "<i8")[0]), first_seq))
            elif method in ("TriggerSchedule", "BackfillSchedule"):
                self.stored += len(answer.firings)
            elif method == "Cancel":
                self.cancelled += answer.outcome.count(pb.CANCELLED)
            elif method == "Reschedule":
                for due, seq, outcome in zip(
                    np.frombuffer(answer.due, "<i8").tolist(), np.frombuffer(asked.seq, "<i8").tolist(), answer.outcome,
                    strict=True,
                ):  # fmt: skip
                    if outcome == pb.MOVED:
                        self.handles.append((asked.queue, due, seq))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[LocalCluster]:
    topics = [TopicSpec("t", QUEUES, max_attempts=4, deduplicate=True)]
    with LocalCluster(tmp_path_factory.mktemp("fuzz"), nodes=1, topics=topics) as running:
        wait_served(running)
        yield running


def log_of(cluster: LocalCluster) -> str:
    return Path(cluster.data / "logs" / "n0.log").read_text()


def check_alive(node: LocalCluster, pid: int) -> None:
    assert node.pids == {"n0": pid}
    log = log_of(node)
    for sign in ("Traceback", "shard-damaged", "never awaited", "never retrieved"):
        assert sign not in log, log[-3_000:]


def accounts(client: Client) -> tuple[int, int]:
    """(messages pending, messages released) of all shards."""
    shards = client.call("GetWheel").shards
    assert len(shards) == QUEUES
    for shard in shards:
        assert sum(np.frombuffer(shard.messages, "<i8").tolist()) == shard.pending
    return sum(shard.pending for shard in shards), sum(shard.released for shard in shards)


def states(shard: Shard) -> list[tuple[object, ...]]:
    """The groups' state that has to survive. A filter moves a floor without a frame, and moves it again later."""
    groups = shard.call("DescribeGroup").groups
    return [(g.group, tuple(g.tags), g.floor if not g.tags else None, g.dead) for g in groups]


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_request(method: str, node: LocalCluster) -> None:
    choose = random.Random(f"{SEED}-{method}")
    pid = node.pids["n0"]
    good = METHODS[method][0]()
    if hasattr(good, "topic"):
        good.topic = "t"
    if method == "Enqueue":
        good = request("t", 0, [Msg(b"x" * 50)] * 3, producer=99, number=7)  # never next: it stays refused
    valid = good.SerializeToString()
    with Client(node.endpoints[0]) as client:
        before = accounts(client)
        for n in range(60):
            data = bytearray(valid * choose.choice((1, 1, 2)) if n % 3 else choose.randbytes(choose.randrange(1, 60)))
            for _ in range(choose.randrange(1, 4)):
                data[choose.randrange(len(data))] = choose.randrange(256)
            if n % 2:
                del data[choose.randrange(len(data)) :]
            answer = client.attempt(method, bytes(data))
            if isinstance(answer, Failure):
                assert is_clear(answer), f"{answer} for {bytes(data)!r}"
                assert answer.reason
        with pytest.raises(Failure) as caught:
            client.raw(method, b"\x0a\xff\xff\xff\xff\x0f")
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
        assert METHODS[method][0].DESCRIPTOR.name in caught.value.message
        with pytest.raises(Failure) as caught:
            client.raw(method, b"\x0a\x02\xff\xfe")  # a topic that is no UTF-8
        assert caught.value.reason == "BAD_REQUEST"
        if method not in ("Receive",):  # a group may be made
            assert accounts(client) == before
    check_alive(node, pid)


def test_a_request_over_the_transports_limit_is_refused(node: LocalCluster) -> None:
    pid = node.pids["n0"]
    with Client(node.endpoints[0]) as client, pytest.raises(Failure, match=r"larger than max|the limit is") as caught:
        client.raw("Enqueue", request("t", 0, [Msg(bytes(33 << 20))]).SerializeToString())
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    check_alive(node, pid)


def test_almost_right_requests_get_clear_answers_and_nothing_is_lost_or_invented(node: LocalCluster) -> None:
    pid, endpoint = node.pids["n0"], node.endpoints[0]
    ledger = Ledger()
    with Client(endpoint) as client:
        uids = [queue.uid for queue in client.call("QueryRoute", topic="t").topics[0].queues]
        pending, released = accounts(client)

        def work(worker: int) -> None:
            maker = Maker(1_000 * SEED + worker, uids, ledger)
            with Client(endpoint) as own:
                for _ in range(CASES // WORKERS):
                    method, asked = maker.call()
                    answer = own.attempt(method, asked.SerializeToString())
                    if isinstance(answer, bytes):
                        ledger.note(method, asked, METHODS[method][1].FromString(answer))
                        continue
                    assert is_clear(answer), f"{answer} for {method} {asked}"
                    assert answer.reason
                    assert answer.message
                    ledger.refused += 1

        with ThreadPoolExecutor(WORKERS) as pool:
            for future in [pool.submit(work, worker) for worker in range(WORKERS)]:
                future.result()
        check_alive(node, pid)
        print(f"fuzz: {ledger.answered} answered, {ledger.refused} refused, {ledger.stored} messages stored")
        assert ledger.answered > CASES // 10
        assert ledger.refused > CASES // 10
        after = accounts(client)
        assert sum(after) == pending + released + ledger.stored - ledger.cancelled

        probe = Shard(client, "t", 0).send(Msg(b"still here"))
        assert probe.seqs
        groups = [states(Shard(client, "t", queue)) for queue in range(QUEUES)]
    node.kill("n0")
    wait_served(node)
    with Client(endpoint) as client:
        assert sum(accounts(client)) == sum(after) + 1
        assert [states(Shard(client, "t", queue)) for queue in range(QUEUES)] == groups


def test_bytes_that_are_no_request_end_a_receive_stream_with_a_clear_error(node: LocalCluster) -> None:
    choose = random.Random(SEED)
    pid = node.pids["n0"]
    with Client(node.endpoints[0]) as client:
        for _ in range(60):
            answers = client.receive_stream([choose.randbytes(choose.randrange(1, 40)) for _ in range(5)])
            with pytest.raises(Failure) as caught:
                list(answers)
            assert caught.value.code in CLEAR
            assert caught.value.reason
    check_alive(node, pid)


def test_streams_of_almost_right_requests_answer_each_in_its_place(node: LocalCluster) -> None:
    pid = node.pids["n0"]
    ledger = Ledger()
    maker = Maker(SEED, [0, 0], ledger)
    with Client(node.endpoints[0]) as client:
        before = sum(accounts(client))
        for _ in range(8):
            asked = [maker.enqueue() for _ in range(60)]
            data = [
                one.SerializeToString()
                if maker.choose.random() < 0.9
                else maker.choose.randbytes(maker.choose.randrange(1, 40))
                for one in asked
            ]
            answers = list(client.stream(data))
            assert len(answers) == len(asked)
            for answer in answers:
                assert answer.HasField("error") == (answer.count == 0)
                if answer.HasField("error"):
                    assert answer.error.reason
                    assert answer.error.message
                    codes = {code.value[0] for code in CLEAR}
                    assert answer.error.code in codes
                elif not answer.duplicate:
                    ledger.stored += answer.count - sum(answer.repeated)
        assert sum(accounts(client)) == before + ledger.stored
    check_alive(node, pid)
