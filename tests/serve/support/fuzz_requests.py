"""Random requests: most fields right, so that the others are looked at; and bytes that are not quite protobuf."""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np
from delayapi.message_ids import hash_id
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delayapi.units import DAY_MS
from google.protobuf.timestamp_pb2 import Timestamp

from tests.serve.support.client import METHODS, Msg, crc, now_ms

QUEUES = 2
BORDERS = [
    0, 1, 2, 3, 5, 16, 127, 255, 256, 1_000, 65_535, 65_536, 65_537, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**62, 2**63 - 1,
]  # fmt: skip
NAMES = ["", "g", "h", "group", "\0", "\u00e9" * 127, "x" * 255, "x" * 256, "\U0001f600", "a/b\n", "y" * 9_000]


class Known(Protocol):
    """The handles of the messages stored so far."""

    handles: list[tuple[int, int, int]]
    """(queue, due ms, seq)."""


SCHEDULES = [name for name in METHODS if "Schedule" in name]


class Maker:
    """Random requests, some of them for messages that were stored before."""

    def __init__(self, seed: int, uids: list[int], known: Known) -> None:
        self.choose = random.Random(seed)
        self.uids = uids
        self.known = known

    def number(self, low: int, high: int) -> int:
        """A number for a field that holds low..high; mostly a small one."""
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
        named = [self.choose.choice(self.known.handles) for _ in range(rows)]
        if self.choose.random() < 0.7:
            due = np.array([one[1] for one in named], "<i8").tobytes()
            seq = np.array([one[2] for one in named], "<i8").tobytes()
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
        if choose.random() < 0.1:  # the node takes any bytes for a record
            bodies[0] = choose.randbytes(choose.randrange(1, 40))
        asked = pb.EnqueueRequest(
            **self.place(), count=rows, time=np.array([max(0, self.time(wrong)) for _ in range(rows)], "<i8").tobytes(),
            size=np.array(list(map(len, bodies)), "<u4").tobytes(), records=b"".join(bodies),
            key_hash=np.array([crc(choose.choice("abc")) for _ in range(rows)], "<u4").tobytes(),
        )  # fmt: skip
        if choose.random() < 0.3:
            asked.message_id = b"".join(hash_id(str(choose.randrange(1_000))) for _ in range(rows))
        for _ in range(choose.choice((0, 0, 1, 2))):
            match choose.randrange(9):
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
                case 8:
                    asked.message_id = choose.randbytes(choose.choice((0, 1, 15, 16, 16 * rows, 16 * rows + 16)))
        return asked

    def schedule(self) -> schedules_pb2.Schedule:
        """One that does not fire while a test runs, unless somebody asks for it."""
        choose = self.choose
        made = schedules_pb2.Schedule(
            id=self.name(), cron=[choose.choice(("0 0 1 1 *", "30 4 29 2 *", "0 0 31 2 *", "61 * * * *", "* *"))],
            zone=choose.choice(("", "Europe/Berlin", "Asia/Kolkata", "Mars/Phobos")), body=choose.randbytes(20),
            overlap=choose.choice((0, 0, 1, 7)), max_firings=choose.choice((0, 0, 3)),
        )  # fmt: skip
        if choose.random() < 0.1:
            made.every.interval.FromSeconds(choose.choice((0, -1, 86_400 * 300)))
        if choose.random() < 0.2:
            made.jitter.FromMilliseconds(choose.choice((0, 5, 10**10)))
        return made

    def schedule_fields(self, method: str) -> dict[str, Any]:
        choose = self.choose
        fields: dict[str, Any] = {"id": self.name()}
        expected = {} if choose.random() < 0.7 else {"expected_version": self.u32()}
        match method:
            case "PutSchedule":
                fields = {"schedule": self.schedule(), **expected}
                if choose.random() < 0.3:
                    fields["paused"] = choose.random() < 0.5
            case "ListSchedules":
                fields = {"page_size": choose.choice((0, 1, 100, self.u32())), "page_token": choose.choice(NAMES)}
            case "PauseSchedule" | "ResumeSchedule" | "DeleteSchedule":
                fields |= expected
            case "TriggerSchedule" | "BackfillSchedule":
                fields |= {} if choose.random() < 0.7 else {"expected_fired": choose.choice((0, 1, self.u32()))}
        if method == "BackfillSchedule" and choose.random() < 0.5:
            fields |= {"from": Timestamp(seconds=10**9), "to": Timestamp(seconds=1_700_000_000)}
        elif method == "BackfillSchedule":
            fields |= {
                name: Timestamp(
                    seconds=choose.choice((0, -5, 10**9, 1_700_000_000, 10**14)), nanos=choose.choice((0, -1))
                )
                for name in ("from", "to")
            }
        return fields

    def attempts(self) -> dict[str, bytes]:
        rows = self.choose.choice((1, 1, 3, 40))
        attempt = self.column(lambda: self.choose.choice((1, 1, 2, self.u32())), "<u4", rows)
        return {"offset": self.column(self.i64, "<i8", rows), "attempt": attempt}

    def call(self) -> tuple[str, Any]:
        choose = self.choose
        method = choose.choice([*METHODS, "Enqueue", "Cancel", "Reschedule", "Receive", "Ack", "Nack", "Extend"])
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
                if choose.random() < 0.4:  # ranges in order that do not overlap
                    cuts = np.unique([choose.randrange(500) for _ in range(2 * rows)])
                    cuts = cuts[: len(cuts) // 2 * 2].astype("<i8")
                    fields["start"], fields["end"] = cuts[::2].tobytes(), cuts[1::2].tobytes()
                elif choose.random() < 0.5:
                    fields = {"group": group, **self.attempts()}
            case "Nack":
                fields = {
                    "group": group, **self.attempts(), "backoff_ms": choose.choice((0, -1, 10, self.i64())),
                    "dead": choose.random() < 0.2, "reason": choose.choice(("", "status 503", "ä" * 512, "x" * 1_025)),
                }  # fmt: skip
            case "Extend":
                fields = {"group": group, **self.attempts(), "invisible_ms": choose.choice((0, 10, self.u32()))}
            case "Cancel" | "Reschedule":
                fields = self.handle_columns(place)
                rows = len(fields["due"]) // 8
                if method == "Reschedule":
                    fields["time"] = self.column(self.time, "<i8", rows)
                    fields["relative"] = b"" if choose.random() < 0.7 else self.column(lambda: 1, "u1", rows)
                elif choose.random() < 0.3:
                    fields = {"key": choose.choice(["a", "b", *NAMES]), "from_ms": self.time(), "to_ms": self.time()}
                    if choose.random() < 0.1:
                        fields = {"key": choose.choice("abc"), "from_ms": 0, "to_ms": 2**63 - 1}
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
            case _ if method in SCHEDULES:
                fields = self.schedule_fields(method)
                if choose.random() < 0.8:
                    place["queue"] = 0
            case _:
                fields = {"group": group}
        return method, METHODS[method][0](**place, **fields)
