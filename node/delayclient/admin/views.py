"""The values that an administrator gets: outcomes, pending messages, wheels and groups, read from the nodes'
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from numpy.typing import NDArray

from delayclient.errors import DelayError
from delayclient.records import decode_record, shown_record


def column(data: bytes, dtype: str, n: int) -> NDArray[Any]:
    """A column of n rows. Raises DelayError when it has another length."""
    if len(data) != n * int(dtype[-1]):
        message = f"a column of {len(data)} bytes for {n} rows"
        raise DelayError(message, code="INTERNAL", reason="BAD_COLUMNS")
    return np.frombuffer(data, dtype)


class Outcome(IntEnum):
    """The outcome of a cancel or a reschedule."""

    CANCELLED = 1
    TOO_LATE = 2
    ALREADY_CANCELLED = 3
    RESCHEDULED = 4
    NOT_FOUND = 5
    MOVED = 6


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """`handle` is the new one, empty unless the outcome is MOVED."""

    outcome: Outcome
    handle: str


@dataclass(frozen=True, slots=True)
class CancelledByKey:
    """A pending message that had the key."""

    handle: str
    due_ms: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class AccessView:
    """Whether `principal` may do what was asked about. `why`: by which rule, or why not."""

    allowed: bool
    why: str
    principal: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's place, clock and disk. `problem`: why it could not be asked; the rest is empty then. `zone`: empty where
    it is not known. `edge`: what carries its clients' calls, grpcio or compiled; empty where it is of an older release.

    clock_disbelieved_ms: how far ahead of now_ms its wall clock is, where that is not believed
    clock_behind_ms: how far now_ms is behind what was released there
    """

    node: str
    endpoint: str = ""
    now_ms: int = 0
    clock_disbelieved_ms: int = 0
    clock_behind_ms: int = 0
    disk_free_bytes: int = 0
    disk_reserve_bytes: int = 0
    not_ready: str = ""
    conditions: tuple[str, ...] = ()
    problem: str = ""
    zone: str = ""
    edge: str = ""


def node_of(state: delay_pb2.NodeState) -> NodeView:
    return NodeView(
        state.node, state.endpoint, state.now_ms, state.clock_disbelieved_ms, state.clock_behind_ms,
        state.disk_free_bytes, state.disk_reserve_bytes, state.not_ready, tuple(state.conditions), zone=state.zone,
        edge=state.edge,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pending:
    """A message not yet released. `record` is the encoded delay.v1.Message, empty unless it was asked for."""

    topic: str
    queue: int
    uid: int
    due_ms: int
    seq: int
    size: int
    record: bytes = b""

    @property
    def handle(self) -> str:
        return Handle(self.topic, self.queue, self.uid, self.due_ms, self.seq).encode()

    def decode(self) -> delay_pb2.Message:
        """Key, tag, properties, body and born_ms. Raises WireError."""
        return decode_record(self.record)

    def shown(self) -> delay_pb2.Message:
        """Likewise for people: what is no message is a body."""
        return shown_record(self.record)


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Messages of one queue, by (due, seq). more: there may be some behind `last`, a (due_ms, seq)."""

    rows: Sequence[Pending]
    more: bool
    last: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Wheel:
    """One shard's load to come; the columns have k slots, ascending, only those that hold messages."""

    topic: str
    queue: int
    node: str
    epoch: int
    slot_start: NDArray[np.int64]
    """ms since 1970 UTC."""
    slot_width: NDArray[np.int64]
    """ms."""
    messages: NDArray[np.int64]
    bytes: NDArray[np.int64]
    watermark_ms: int
    pending: int
    pending_bytes: int
    released: int
    log_end: int
    now_ms: int
    """The node's clock."""
    next_due_ms: int = 0
    """The earliest due time of what is pending in the coming minutes; 0: nothing is due in them."""

    @property
    def late_ms(self) -> int:
        """How long ago the oldest message that is not released yet was due."""
        return max(0, self.now_ms - self.next_due_ms) if self.next_due_ms else 0


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A group's state on one queue."""

    topic: str
    queue: int
    group: str
    tags: tuple[str, ...]
    floor: int
    end_offset: int
    available: int
    in_flight: int
    waiting_retry: int
    dead: int
    redriven: int = 0
    """Dead letters at work again; the three before `dead` count them too."""
    dead_limit: int = 0
    """Counts dead and redriven dead letters together."""
    oldest_age_ms: int | None = None
    """How long ago, about, the oldest message that is not done was released; None: there is none."""

    @property
    def lag(self) -> int:
        """Released and not done."""
        return self.available + self.in_flight + self.waiting_retry

    @property
    def dead_full(self) -> bool:
        """No message becomes a dead letter while this holds: it is delivered again, until dead letters are redriven and
        done, or dropped."""
        return 0 < self.dead_limit <= self.dead + self.redriven


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """The result of a deletion: the queues the group was on, its messages that were not done, its dead letters."""

    queues: int
    unfinished: int
    dead: int


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """What a group has to do on all queues. `unseen`: released messages kept on queues that do not know it yet.
    `oldest_age_ms`: since the release of the oldest message that is not done; None: there is none."""

    group: str
    available: int
    in_flight: int
    waiting_retry: int
    oldest_age_ms: int | None
    unseen: int

    @property
    def lag(self) -> int:
        """Released and not done, on the queues that know it."""
        return self.available + self.in_flight + self.waiting_retry


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """A topic's load to come, all queues together: arrivals[i] messages are released within (i + 1) * bucket_ms from
    now, those of schedules included, at the topic's maxReleasePerSecond. firings: how many of these are of schedules,
    without that rate: each schedule's next one, and the first 1,000 after these."""

    topic: str
    now_ms: int
    bucket_ms: int
    arrivals: NDArray[np.int64]
    pending: int
    groups: dict[str, GroupForecast]
    firings: NDArray[np.int64]


def forecast_of(topic: delay_pb2.TopicForecast, answer: delay_pb2.ForecastResponse) -> Forecast:
    """Raises DelayError when its column does not fit."""
    groups = {
        one.group: GroupForecast(
            one.group, one.available, one.in_flight, one.waiting_retry, one.oldest_age_ms or None, one.unseen
        )
        for one in topic.groups
    }
    arrivals = column(topic.arrivals, "<i8", answer.buckets)
    firings = column(topic.firings, "<i8", answer.buckets) if topic.firings else np.zeros(answer.buckets, np.int64)
    return Forecast(topic.topic, answer.now_ms, answer.bucket_ms, arrivals, topic.pending, groups, firings)


def pending_rows(topic: str, queue: int, batch: delay_pb2.PendingBatch) -> list[Pending]:
    """The rows of a page. Raises DelayError when its columns do not fit together."""
    n = batch.count
    due, seq = column(batch.due, "<i8", n).tolist(), column(batch.seq, "<i8", n).tolist()
    sizes = column(batch.size, "<u4", n).tolist()
    if batch.records and sum(sizes) != len(batch.records):
        raise DelayError(f"{topic}-{queue}: the sizes do not add up to {len(batch.records)} bytes", code="INTERNAL")
    rows = []
    start = 0
    for due_ms, number, size in zip(due, seq, sizes, strict=True):
        record = batch.records[start : start + size]
        start += size
        rows.append(Pending(topic, queue, batch.uid, due_ms, number, size, record))
    return rows


def wheel_of(wheel: delay_pb2.ShardWheel, now_ms: int) -> Wheel:
    """A shard's wheel. Raises DelayError when its columns do not fit together."""
    k = len(wheel.slot_start) // 8
    return Wheel(
        topic=wheel.topic,
        queue=wheel.queue,
        node=wheel.node,
        epoch=wheel.epoch,
        slot_start=column(wheel.slot_start, "<i8", k),
        slot_width=column(wheel.slot_width, "<i8", k),
        messages=column(wheel.messages, "<i8", k),
        bytes=column(wheel.bytes, "<i8", k),
        watermark_ms=wheel.watermark_ms,
        pending=wheel.pending,
        pending_bytes=wheel.pending_bytes,
        released=wheel.released,
        log_end=wheel.log_end,
        now_ms=now_ms,
        next_due_ms=wheel.next_due_ms,
    )


def group_of(topic: str, queue: int, state: delay_pb2.GroupState, now_ms: int) -> GroupQueue:
    """A group's state on one queue. now_ms: the node's clock."""
    return GroupQueue(
        topic=topic,
        queue=queue,
        group=state.group,
        tags=tuple(state.tags),
        floor=state.floor,
        end_offset=state.end_offset,
        available=state.available,
        in_flight=state.in_flight,
        waiting_retry=state.waiting_retry,
        dead=state.dead,
        redriven=state.redriven,
        dead_limit=state.dead_limit,
        oldest_age_ms=max(0, now_ms - state.oldest_ms) if state.oldest_ms else None,
    )
