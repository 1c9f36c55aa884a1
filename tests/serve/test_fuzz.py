"""Random requests, from random bytes to almost right ones: a clear error or a right answer, and the node goes on.

What was stored is counted along the way: at the end each message is pending, released or cancelled, also after a
kill -9, so nothing that was accepted made the log unreadable.
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
from delayclient.proto.delay.v1 import delay_pb2 as pb
from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster

from tests.serve.client import DAY_MS, METHODS, Client, Failure, Msg, Shard, crc, now_ms, request

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_CASES", "2400"))
WORKERS = 6

CLEAR = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
QUEUES = 2
BORDERS = [
    0, 1, 2, 3, 5, 16, 127, 255, 256, 1_000, 65_535, 65_536, 65_537, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**62, 2**63 - 1,
]  # fmt: skip
NAMES = ["", "g", "h", "group", "\0", "\u00e9" * 127, "x" * 255, "x" * 256, "\U0001f600", "a/b\n", "y" * 9_000]


class Ledger:
    """What became of the messages, by the node's own answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored = self.cancelled = self.answered = self.refused = 0
        self.handles: list[tuple[int, int, int]] = [(0, 0, 0)]  # queue, due, seq

    def note(self, method: str, asked: Any, answer: Any) -> None:
        with self._lock:
            self.answered += 1
            if method == "Enqueue" and not answer.duplicate:
                self.stored += answer.count
                due = answer.due or asked.time
                self.handles.append((asked.queue, int(np.frombuffer(due, "<i8")[0]), answer.first_seq))
            elif method == "Cancel":
                self.cancelled += answer.outcome.count(pb.CANCELLED)
            elif method == "Reschedule":
                for due, seq, outcome in zip(
                    np.frombuffer(answer.due, "<i8").tolist(), np.frombuffer(asked.seq, "<i8").tolist(), answer.outcome,
                    strict=True,
                ):  # fmt: skip
                    if outcome == pb.MOVED:
                        self.handles.append((asked.queue, due, seq))


class Maker:
    """Random requests. Most fields are right, so that the others are looked at."""

    def __init__(self, seed: int, uids: list[int], ledger: Ledger) -> None:
        self.choose = random.Random(seed)
        self.uids = uids
        self.ledger = ledger

    def number(self, low: int, high: int) -> int:
        """Of a field that holds low..high; mostly small."""
        kind = self.choose.random()
        if kind < 0.5:
            return self.choose.randrange(0, 20)
        if kind < 0.6:
            return self.choose.randrange(low, high + 1)
        value = self.choose.choice(BORDERS) * self.choose.choice((1, 1, -1))
        return min(max(value, low), high)

    def i64(self) -> int:
        return self.number(-(2**63), 2**63 - 1)

    def u32(self) -> int:
        return self.number(0, 2**32 - 1)

    def time(self, wrong: float = 0.2) -> int:
        """A due, now and then one that is out of the question."""
        if self.choose.random() < wrong:
            return self.choose.choice((self.i64(), now_ms() + 41 * DAY_MS))
        return now_ms() + self.choose.choice((-5_000, 0, 50, 1_000, 90_000, 3_600_000, DAY_MS, 39 * DAY_MS))

    def column(self, make: Any, dtype: str, rows: int) -> bytes:
        if self.choose.random() < 0.1:
            rows = self.choose.choice((0, 1, rows + 1, max(0, rows - 1), 70_000))
        if rows > 1_000:
            data = bytes(rows * np.dtype(dtype).itemsize)
        else:
            limits = np.iinfo(dtype)
            data = np.array([min(max(make(), limits.min), limits.max) for _ in range(rows)], dtype).tobytes()
        if self.choose.random() < 0.05:
            data = data[: self.choose.randrange(len(data) + 1)]
        return data

    def name(self) -> str:
        return "g" if self.choose.random() < 0.6 else self.choose.choice(NAMES)

    def place(self) -> dict[str, Any]:
        if self.choose.random() < 0.04:
            return {"topic": self.choose.choice(NAMES), "queue": self.u32()}
        return {"topic": "t", "queue": self.choose.randrange(QUEUES)}

    def handle_columns(self, place: dict[str, Any]) -> dict[str, Any]:
        rows = self.choose.choice((1, 1, 2, 5, 30))
        known = [self.choose.choice(self.ledger.handles) for _ in range(rows)]
        if self.choose.random() < 0.7:
            due = np.array([one[1] for one in known], "<i8").tobytes()
            seq = np.array([one[2] for one in known], "<i8").tobytes()
        else:
            due, seq = self.column(self.time, "<i8", rows), self.column(self.i64, "<i8", rows)
        uid = self.uids[place["queue"] % QUEUES] if self.choose.random() < 0.9 else self.number(0, 2**64 - 1)
        return {"uid": uid, "due": due, "seq": seq}

    def enqueue(self) -> Any:
        choose = self.choose
        rows = choose.choice((1, 1, 2, 3, 50, 200))
        wrong = 0.0 if choose.random() < 0.8 else 1 / rows
        bodies = [
            Msg(choose.randbytes(choose.randrange(200)), key=choose.choice("abc"), tag="t").record()
            for _ in range(rows)
        ]
        asked = pb.EnqueueRequest(
            **self.place(), count=rows, time=np.array([max(0, self.time(wrong)) for _ in range(rows)], "<i8").tobytes(),
            size=np.array(list(map(len, bodies)), "<u4").tobytes(), records=b"".join(bodies),
            key_hash=np.array([crc(choose.choice("abc")) for _ in range(rows)], "<u4").tobytes(),
        )  # fmt: skip
        for _ in range(choose.choice((0, 0, 1, 2))):
            match choose.randrange(8):
                case 0:
                    asked.count = self.u32()
                case 1:
                    asked.time = self.column(self.time, "<i8", rows)
                case 2:
                    asked.relative = self.column(lambda: choose.choice((0, 0, 1, 1, 2)), "u1", rows)
                case 3:
                    asked.size = self.column(self.u32, "<u4", rows)
                case 4:
                    asked.tag_hash = self.column(self.u32, "<u4", rows)
                case 5:
                    asked.records = asked.records[: choose.randrange(len(asked.records) + 1)]
                case 6:
                    asked.producer_id, asked.number = choose.randrange(3), choose.choice((0, 0, 1, 2, 2**64 - 1))
                case 7:
                    asked.key_hash = self.column(self.u32, "<u4", rows)
        return asked

    def call(self) -> tuple[str, Any]:
        choose = self.choose
        method = choose.choice([*METHODS, "Enqueue", "Cancel", "Reschedule", "Receive", "Ack", "Nack"])
        place, group = self.place(), self.name()
        match method:
            case "Enqueue":
                return method, self.enqueue()
            case "QueryRoute":
                return method, pb.QueryRouteRequest(topic=choose.choice(["", "t", *NAMES]))
            case "Fetch":
                fields: dict[str, Any] = {
                    "offset": self.i64(), "max_messages": self.u32(), "max_bytes": self.u32(),
                    "wait_ms": choose.choice((0, 0, 5)), "group": choose.choice(("", group)),
                }  # fmt: skip
            case "Receive":
                fields = {
                    "group": group, "max_messages": self.u32(), "max_bytes": self.u32(),
                    "wait_ms": choose.choice((0, 0, 5)), "invisible_ms": self.u32(), "from_end": choose.random() < 0.1,
                    "tags": [] if choose.random() < 0.9 else choose.choices(NAMES, k=choose.choice((1, 2, 70))),
                }  # fmt: skip
            case "Ack":
                rows = choose.choice((1, 1, 3, 40))
                fields = {"group": group, "start": self.column(self.i64, "<i8", rows)}
                fields["end"] = self.column(self.i64, "<i8", rows)
                if choose.random() < 0.4:  # ranges that make sense
                    cuts = np.unique([choose.randrange(500) for _ in range(2 * rows)])
                    cuts = cuts[: len(cuts) // 2 * 2].astype("<i8")
                    fields["start"], fields["end"] = cuts[::2].tobytes(), cuts[1::2].tobytes()
            case "Nack":
                rows = choose.choice((1, 1, 3, 40))
                fields = {
                    "group": group, "offset": self.column(self.i64, "<i8", rows),
                    "attempt": self.column(lambda: choose.choice((1, 1, 2, self.u32())), "<u4", rows),
                    "backoff_ms": choose.choice((0, -1, 10, self.i64())),
                }  # fmt: skip
            case "Cancel" | "Reschedule":
                fields = self.handle_columns(place)
                rows = len(fields["due"]) // 8
                if method == "Reschedule":
                    fields["time"] = self.column(self.time, "<i8", rows)
                    fields["relative"] = b"" if choose.random() < 0.7 else self.column(lambda: 1, "u1", rows)
                elif choose.random() < 0.3:
                    fields = {"key": choose.choice(["a", "b", *NAMES]), "from_ms": self.time(), "to_ms": self.time()}
            case "ListPending":
                fields = {
                    "from_ms": self.time(), "to_ms": self.time(), "after_due": self.i64(), "after_seq": self.i64(),
                    "limit": self.u32(), "with_records": choose.random() < 0.3,
                }  # fmt: skip
                if choose.random() < 0.5:
                    fields = {"limit": self.u32()}
            case "GetWheel":
                fields = {"from_ms": self.i64(), "to_ms": self.i64()}
            case "ListDeadLetters":
                fields = {"group": group, "after_offset": self.i64(), "limit": self.u32()}
            case "ResolveDeadLetters":
                fields = {"group": group, "action": choose.randrange(4), "offset": self.column(self.i64, "<i8", 3)}
            case _:
                fields = {"group": group}
        return method, METHODS[method][0](**place, **fields)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    topics = [TopicSpec("t", QUEUES, max_attempts=4)]
    with LocalCluster(tmp_path_factory.mktemp("fuzz"), nodes=1, topics=topics) as running:
        running.wait_ready()
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
    """What of the groups has to survive. A filter moves a floor without a frame: it moves again."""
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
                assert answer.code in CLEAR, f"{answer} for {bytes(data)!r}"
                assert answer.reason
        with pytest.raises(Failure) as caught:
            client.raw(method, b"\x0a\xff\xff\xff\xff\x0f")
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
        assert method in caught.value.message
        with pytest.raises(Failure) as caught:
            client.raw(method, b"\x0a\x02\xff\xfe")  # a topic that is no UTF-8
        assert caught.value.reason == "BAD_REQUEST"
        if method not in ("Receive",):  # a group may be made
            assert accounts(client) == before
    check_alive(node, pid)


def test_a_request_over_the_transports_limit_is_refused(node: LocalCluster) -> None:
    pid = node.pids["n0"]
    with Client(node.endpoints[0]) as client, pytest.raises(Failure, match="larger than max") as caught:
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
                    assert answer.code in CLEAR, f"{answer} for {method} {asked}"
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
    node.wait_ready()
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
                    assert answer.error.code in {code.value[0] for code in CLEAR}
                elif not answer.duplicate:
                    ledger.stored += answer.count
        assert sum(accounts(client)) == before + ledger.stored
    check_alive(node, pid)
