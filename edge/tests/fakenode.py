"""A node behind an edge: it stores nothing, and answers as a test wants."""

from __future__ import annotations

import array
import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from delayedge import Edge, Event, Rows

T = TypeVar("T")

ENQUEUE = "/delay.v1.DelayService/Enqueue"
ENQUEUE_STREAM = "/delay.v1.DelayService/EnqueueStream"
UNARY = ("Echo", "Fail", "Hold", "Big", "Told", "Who")
STREAMS = ("Chat", "Download", "Last", "HoldStream", "FailLate")
UID = 77
DETAILS = bytes(range(256))
EXPIRED = b"\x1a\x02hi"  # one detail


def column(code: str, data: Any) -> list[int]:
    return array.array(code, bytes(data)).tolist()


class FakeNode:
    """Runs its event loop in a thread. `hold`: rows are kept in `groups` until release()."""

    service = "test.Test"
    unary: tuple[str, ...] = UNARY
    streams: tuple[str, ...] = STREAMS

    def __init__(self, **limits: int) -> None:
        self.edge = Edge(
            "127.0.0.1:0", rows={ENQUEUE: "unary", ENQUEUE_STREAM: "stream"},
            unary=[f"/{self.service}/{name}" for name in self.unary],
            streams=[f"/{self.service}/{name}" for name in self.streams], expired=EXPIRED, **limits,
        )  # fmt: skip
        self.hold = False
        self.identities: dict[str, object] = {}  # by authorization; those that are not here wait
        self.seconds_left: float | None = None  # of them
        self.forwards = False
        self.take_bytes = 16 << 20
        self.groups: list[Rows] = []
        self.events: list[Event] = []
        self.faults: list[BaseException] = []
        self.next_seq: dict[tuple[str, int], int] = {}
        self._writes: dict[int, deque[bytes]] = {}
        self._methods: dict[int, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.looking(True)

    # ------------------------------------------------------------------------------------------ for tests

    def on_loop(self, what: Callable[[], T]) -> T:
        async def call() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def looking(self, on: bool) -> None:
        """Whether the node takes what comes."""
        if on:
            self.on_loop(lambda: self._loop.add_reader(self.edge.fileno(), self._look))
        else:
            self.on_loop(lambda: self._loop.remove_reader(self.edge.fileno()))

    def release(self) -> None:
        """Answer what was held."""
        self.hold = False
        self.on_loop(self._answer_all)

    def channel(self, *options: tuple[str, Any]) -> grpc.Channel:
        own = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
        return grpc.insecure_channel(
            f"127.0.0.1:{self.edge.port}", (*own, ("grpc.max_send_message_length", -1), *options)
        )

    def wait(self, what: Callable[[], Any], seconds: float = 20.0) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, f"not within {seconds} s; {self.edge.figures()}"
            time.sleep(0.01)

    def wait_at_rest(self, seconds: float = 20.0) -> None:
        names = ("connections", "calls", "rows", "rows_bytes", "calls_bytes", "unread_bytes", "waiting")
        self.wait(lambda: not any(self.edge.figures()[name] for name in names), seconds)

    def kinds(self, token: int | None = None) -> list[str]:
        return [event.kind for event in self.events if token is None or event.token == token]

    def begun(self, name: str) -> list[Event]:
        return [event for event in self.events if event.kind == "call" and (event.method or "").endswith("/" + name)]

    def gone(self) -> list[str]:
        return [event.reason for event in self.events if event.kind == "gone"]

    def stop(self) -> None:
        self.looking(False)
        self.edge.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # ------------------------------------------------------------------------------------------- the node

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _look(self) -> None:
        try:
            groups, events = self.edge.take(self.take_bytes)
            self.groups += groups
            if not self.hold:
                self._answer_all()
            for event in events:
                self.events.append(event)
                self._serve(event)
        except BaseException as fault:
            self.faults.append(fault)

    def _answer_all(self) -> None:
        groups, self.groups = self.groups, []
        for group in groups:
            self.answer(group)

    def answer(self, group: Rows) -> None:
        """due: what a request asked for, and 1000 more where it is relative; a number of 13 is a duplicate."""
        count, first = column("I", group.count), array.array("q")
        seq = self.next_seq.get((group.topic, group.queue), 0)
        for messages in count:
            first.append(seq)
            seq += messages
        self.next_seq[group.topic, group.queue] = seq
        relative, due = bytes(group.relative), None
        if relative:
            due = array.array("q", [t + 1000 * r for t, r in zip(column("q", group.time), relative, strict=True)])
        duplicate = array.array("B", [number == 13 for number in column("Q", group.number)])
        token = array.array("Q", bytes(group.token))
        self.edge.answer_rows(token, array.array("I", count), UID, first, due, duplicate)

    def _serve(self, event: Event) -> None:
        if event.kind == "call":
            assert event.method is not None
            self._methods[event.token] = event.method.rpartition("/")[2]
        name = self._methods.get(event.token, "")
        serve = getattr(self, f"_{event.kind}_{name}", None)
        if serve is not None:
            serve(event)
        elif event.kind == "writable":
            self._write_on(event.token)
        elif event.kind == "identify":
            self.identify(event)
        elif event.kind == "gone":
            self._writes.pop(event.token, None)

    def identify(self, event: Event) -> None:
        found = self.identities.get(event.authorization or "")
        if isinstance(found, str):
            self.edge.identify(event.token, found, self.seconds_left, forwards=self.forwards)
        elif found is not None:
            self.edge.refuse_caller(event.token, 16, "not known", DETAILS)

    def _call_Who(self, event: Event) -> None:
        self.edge.respond(event.token, f"{event.listener} {event.identity} {event.forwarded}".encode())

    def _call_Enqueue(self, event: Event) -> None:
        self.edge.refuse_row(event.token, 3, "bad columns", DETAILS, b"\x08\x03\x1a\x03bad")

    _call_EnqueueStream = _call_Enqueue

    def _call_Echo(self, event: Event) -> None:
        self.edge.respond(event.token, b"none" if event.body is None else event.body)

    def _call_Told(self, event: Event) -> None:
        self.edge.respond(event.token, bytes(int(event.body or b"0")), tell=True)

    def _call_Fail(self, event: Event) -> None:
        self.edge.end(event.token, 5, "100% weg: é\n", DETAILS)

    def _call_Big(self, event: Event) -> None:
        self.edge.respond(event.token, bytes(int(event.body or b"0")))

    def _message_Chat(self, event: Event) -> None:
        self.edge.write(event.token, event.body or b"")
        self.edge.more(event.token)

    def _half_closed_Chat(self, event: Event) -> None:
        self.edge.end(event.token)

    def _message_FailLate(self, event: Event) -> None:
        self.edge.write(event.token, b"one")
        self.edge.end(event.token, 9, "no more")

    def _message_Download(self, event: Event) -> None:
        messages, size = map(int, (event.body or b"").split())
        self._writes[event.token] = deque([bytes(size)] * messages)
        self._write_on(event.token)

    def _message_Last(self, event: Event) -> None:
        messages, size = map(int, (event.body or b"").split())
        self.edge.write(event.token, b"first")
        self.edge.write_last(event.token, [bytes(size)] * messages)
        self.edge.end(event.token, 9, "it has ended")

    def _write_on(self, token: int) -> None:
        writes = self._writes.get(token)
        while writes:
            if not self.edge.write(token, writes.popleft()):
                return
        if writes is not None:
            del self._writes[token]
            self.edge.end(token)
