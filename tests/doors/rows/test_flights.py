"""Real flights through each door while a node is killed: each is stored and delivered, none early.

A quarter of them is sent by each of gRPC, HTTP with JSON, HTTP with proto, and RocketMQ's official Java client. Two
groups receive all: one by long polls and streams of the first three doors, one by RocketMQ's.
DELAY_DOOR_FLIGHTS=336776 for the whole year.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayclient.sync import SyncAdmin
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from demo.flights import flight_body, flight_key, read_rows, table_path
from tests.doors.rocketmq.support.judges import Judge, start_judge, wait
from tests.doors.support.asking import Asking, CallFailed, Node, Wire
from tests.serve.support.client import wait_served

FLIGHTS, BATCH = int(os.environ.get("DELAY_DOOR_FLIGHTS", "3000")), 20
WIRES: tuple[Wire, ...] = ("grpc", "json", "proto")
DOORS = len(WIRES) + 1
QUEUES = 6
GIVEN_UP_S = 60.0


class Client:
    """Asks one node after the other until one answers, as any client of a Service does."""

    def __init__(self, nodes: list[Node], wire: Wire) -> None:
        self._nodes, self._wire = itertools.cycle(nodes), wire
        self._at = Asking(next(self._nodes), wire)

    def call(self, method: str, **fields: Any) -> Any:
        ends = time.monotonic() + GIVEN_UP_S
        while True:
            try:
                return self._at.call(method, **fields)
            except Exception as error:
                known = isinstance(error, CallFailed) and error.code not in ("unavailable", "deadline_exceeded")
                if known or time.monotonic() > ends:
                    raise
            self._at.close()
            self._at = Asking(next(self._nodes), self._wire)
            time.sleep(0.1)


class Progress:
    """Of a count that only grows, however fast the machine lets it."""

    def __init__(self, count: Callable[[], int], what: str) -> None:
        self._count, self._what = count, what
        self._seen = 0, time.monotonic()

    def demand(self) -> None:
        """Raises AssertionError once the count has not grown for GIVEN_UP_S."""
        now, count = time.monotonic(), self._count()
        if count > self._seen[0]:
            self._seen = count, now
        assert now - self._seen[1] < GIVEN_UP_S, f"{self._what} stand at {count} for {GIVEN_UP_S:.0f} s"


@pytest.fixture
def judges(tmp_path: Path) -> Iterator[Callable[[str], Judge]]:
    """Starts the official Java client."""
    started: list[Judge] = []

    def start(endpoint: str) -> Judge:
        (directory := tmp_path / f"judge{len(started)}").mkdir()
        started.append(start_judge("java", directory, endpoint))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.mark.timeout(300 + FLIGHTS / 20)
def test_flights_through_each_door_are_accounted_for_while_a_node_is_killed(
    tmp_path: Path, judges: Callable[[str], Judge]
) -> None:
    flights = list(itertools.islice(read_rows(table_path()), FLIGHTS))
    topics = [TopicSpec("flights", QUEUES, deduplicate=True)]
    with LocalCluster(tmp_path / "cluster", nodes=3, replicas=2, topics=topics, lease_seconds=2) as cluster:
        wait_served(cluster)
        nodes = [Node(*pair) for pair in zip(cluster.endpoints, cluster.http, strict=True)]
        acknowledged: list[str] = []
        delivered: list[tuple[str, int, int]] = []  # the flight, its due and when it came
        came: set[str] = set()  # the flights delivered
        ended: list[Exception] = []  # of streams
        sent = threading.Event()

        def send(number: int) -> None:
            client = Client(nodes[number:] + nodes[:number], WIRES[number])
            mine = list(enumerate(flights))[number::DOORS]
            for at in range(0, len(mine), BATCH):
                batch = [outgoing(index, row, due + index) for index, row in mine[at : at + BATCH]]
                while batch:
                    results = client.call("Send", topic="flights", messages=batch).results
                    acknowledged.extend(one.message_id for one, it in zip(batch, results, strict=True) if it.handle)
                    batch = [one for one, it in zip(batch, results, strict=True) if not it.handle]

        def send_by_rocketmq(client: Judge) -> None:
            for index, row in list(enumerate(flights))[len(WIRES) :: DOORS]:
                fields = flight_body(row).decode(), due + index, "", flight_key(row), "flight", index
                while client.tell("send", "flights", *fields)[0] != "stored":
                    time.sleep(0.1)
                acknowledged.append(str(index))

        def over() -> bool:
            return sent.is_set() and len(came) >= FLIGHTS

        def note(client: Client, deliveries: Sequence[Any]) -> None:
            now = int(time.time() * 1_000)
            delivered.extend((one.properties["flight"], one.due.ToMilliseconds(), now) for one in deliveries)
            came.update(one.properties["flight"] for one in deliveries)
            if deliveries:
                try:
                    client.call("Ack", receipts=[one.receipt for one in deliveries])
                except CallFailed as error:  # all leases may have ended on a slow machine: they come again
                    if error.reason != "LEASE_OVER":
                        raise

        def poll(number: int) -> None:
            client = Client(nodes[number:] + nodes[:number], WIRES[number])
            while not over():
                progress.demand()
                note(client, client.call("Receive", **ASKED, wait=WAIT).deliveries)

        def stream(number: int) -> None:
            """One that ends is begun again, at the next node."""
            client = Client(nodes[number:] + nodes[:number], WIRES[number])
            for at in itertools.cycle([*range(number, len(nodes)), *range(number)]):
                asking = Asking(nodes[at], WIRES[number])
                try:
                    for found in asking.stream(seconds=10, **ASKED):
                        note(client, found.deliveries)
                        if over():
                            return
                except Exception as error:
                    if isinstance(error, CallFailed) and error.code not in ("unavailable", "deadline_exceeded"):
                        raise
                    ended.append(error)
                finally:
                    asking.close()
                if over():
                    return
                progress.demand()

        progress = Progress(lambda: len(acknowledged) + len(came), "flights acknowledged and delivered")
        sender, receiver = (judges(cluster.endpoints[0]) for _ in range(2))
        sender.ask("producer", "flights")
        receiver.ask("push", "flights", "rocket", "*")
        with SyncAdmin(cluster.endpoints[0]) as admin:  # a group gets what is kept when it is new
            wait(lambda: sum(one.group == "rocket" for one in admin.groups("flights")) == QUEUES, "a group", 60)
        due = int(time.time() * 1_000) + 4_000
        with ThreadPoolExecutor(10) as pool:
            consumers = [pool.submit(kind, number) for kind in (poll, stream) for number in range(3)]
            senders = [pool.submit(send, number) for number in range(3)]
            senders.append(pool.submit(send_by_rocketmq, sender))
            time.sleep(1.0)
            cluster.kill("n1")
            for one in senders:
                one.result()
            sent.set()
            for one in consumers:
                one.result()
        theirs = Progress(lambda: FLIGHTS - missing(receiver), "flights delivered by RocketMQ")
        while missing(receiver):
            theirs.demand()
            time.sleep(0.1)
    assert any(not isinstance(error, CallFailed) or error.code == "unavailable" for error in ended), ended
    assert sorted(acknowledged, key=int) == [str(at) for at in range(FLIGHTS)], "each was told once"
    told = [(one.properties.removeprefix("flight="), one.due_ms, one.at_ms) for one in receiver.received]
    for deliveries in (delivered, told):
        times = Counter(name for name, _, _ in deliveries)
        assert times.keys() == set(acknowledged), f"{FLIGHTS - len(times)} are missing"
        assert all(at_ms >= due_ms for _, due_ms, at_ms in deliveries), "none is early"
        assert sum(times.values()) - FLIGHTS < FLIGHTS / 3, "what comes again is what the killed node had handed out"


def missing(receiver: Judge) -> int:
    return FLIGHTS - len({one.properties for one in list(receiver.received)})


WAIT = rows.ReceiveMessagesRequest().wait
WAIT.FromSeconds(1)
ASKED = {"topic": "flights", "group": "g", "max_messages": 50}


def outgoing(index: int, row: dict[str, str], due_ms: int) -> rows.OutgoingMessage:
    message = rows.OutgoingMessage(key=flight_key(row), body=flight_body(row), message_id=str(index))
    message.properties["flight"] = str(index)
    message.at.FromMilliseconds(due_ms)
    return message
