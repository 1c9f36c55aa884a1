"""Real flights through each door while a node is killed: each is stored once and delivered, none early."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from delayapi.proto.delay.v1 import messages_pb2 as rows
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from demo.flights import flight_body, flight_key, read_rows, table_path
from tests.doors.support.asking import Asking, CallFailed, Node, Wire
from tests.serve.support.client import wait_served

FLIGHTS, BATCH = 3_000, 20
WIRES: tuple[Wire, ...] = ("grpc", "json", "proto")
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


def test_flights_through_each_door_are_accounted_for_while_a_node_is_killed(tmp_path: Path) -> None:
    flights = list(itertools.islice(read_rows(table_path()), FLIGHTS))
    due = int(time.time() * 1_000) + 4_000
    topics = [TopicSpec("flights", 6, deduplicate=True)]
    with LocalCluster(tmp_path, nodes=3, replicas=2, topics=topics, lease_seconds=2) as cluster:
        wait_served(cluster)
        nodes = [Node(*pair) for pair in zip(cluster.endpoints, cluster.http, strict=True)]
        acknowledged: list[str] = []
        delivered: list[tuple[str, int, int]] = []  # the flight, its due and when it came
        sent = threading.Event()

        def send(number: int) -> None:
            client = Client(nodes[number:] + nodes[:number], WIRES[number])
            mine = list(enumerate(flights))[number :: len(WIRES)]
            for at in range(0, len(mine), BATCH):
                batch = [outgoing(index, row, due + index) for index, row in mine[at : at + BATCH]]
                while batch:
                    results = client.call("Send", topic="flights", messages=batch).results
                    acknowledged.extend(one.message_id for one, it in zip(batch, results, strict=True) if it.handle)
                    batch = [one for one, it in zip(batch, results, strict=True) if not it.handle]

        def consume(number: int) -> None:
            client = Client(nodes[number:] + nodes[:number], WIRES[number])
            last = time.monotonic() + 60
            while time.monotonic() < last and not (sent.is_set() and len({one[0] for one in delivered}) >= FLIGHTS):
                found = client.call("Receive", topic="flights", group="g", max_messages=50, wait=WAIT).deliveries
                now = int(time.time() * 1_000)
                delivered.extend((one.message_id, one.due.ToMilliseconds(), now) for one in found)
                if found:
                    client.call("Ack", receipts=[one.receipt for one in found])

        with ThreadPoolExecutor(6) as pool:
            consumers = [pool.submit(consume, number) for number in range(3)]
            senders = [pool.submit(send, number) for number in range(3)]
            time.sleep(1.0)
            cluster.kill("n1")
            for one in senders:
                one.result()
            sent.set()
            for one in consumers:
                one.result()
    assert sorted(acknowledged, key=int) == [str(at) for at in range(FLIGHTS)], "each was told once"
    came = Counter(name for name, _, _ in delivered)
    assert came.keys() == set(acknowledged), f"{FLIGHTS - len(came)} are missing"
    assert all(now >= at for _, at, now in delivered), "none is early"
    assert sum(came.values()) - FLIGHTS < FLIGHTS / 3, "what comes again is what the killed node had handed out"


WAIT = rows.ReceiveMessagesRequest().wait
WAIT.FromSeconds(1)


def outgoing(index: int, row: dict[str, str], due_ms: int) -> rows.OutgoingMessage:
    message = rows.OutgoingMessage(key=flight_key(row), body=flight_body(row), message_id=str(index))
    message.at.FromMilliseconds(due_ms)
    return message
