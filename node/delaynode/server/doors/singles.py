"""Messages that came one a request, as the compiled edge has read them: rows whose queue is chosen here.

```
edge: SendMessage, Send -> rows of a topic -> Singles: a queue for each -> RowCalls, as Enqueue's
```
The edge reads what is usual. What is not, and what can't be stored like this, is served as a call by the door: there is
one place that waits for masters, looks for message ids and words refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from delaynode.server.doors.core import UNSTORED, Choice, Door, as_refused
from delaynode.server.edge import ReadCalls
from delaynode.server.forward import ForwardedError
from delaynode.server.handlers.rows import RowGroup
from delaynode.store.errors import Refused
from delaynode.store.shard import Appended


@dataclass(frozen=True, slots=True)
class Singles:
    """Those of one protocol. near: messages without a key go to shards that this node serves. refusal: an answer's
    encoded status; None: a call that is refused has no answer, and ends by gRPC's."""

    door: Door
    near: bool
    refusal: Callable[[Refused], bytes] | None = None

    def take(self, group: RowGroup, calls: ReadCalls) -> None:
        """Requests of one message each, of a topic; their queue is of no meaning. Each is answered, now or later."""
        choice = self.door.choose(group, group.topic, near=self.near)
        if isinstance(choice, Refused) or choice.deduplicates:
            calls.serve(0, len(group.runs))
            return
        for queue, places in queues_of(group, choice):
            whole = len(places) == len(group.runs)
            answers = _SingleAnswers(self.door, calls if whole else calls.at(places), queue, self.refusal)
            part = group if whole else picked(group, places)
            self.door.under_way += len(places)
            self.door.rows.take(replace(part, queue=queue, answers=answers))


@dataclass(frozen=True, slots=True)
class _SingleAnswers:
    """Where the answers go to calls whose messages are for one queue."""

    door: Door
    calls: ReadCalls
    queue: int
    refusal: Callable[[Refused], bytes] | None

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        self.door.under_way -= end - first
        self.calls.stored(first, end, self.queue, uid, appended)

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        self.door.under_way -= end - first
        refused = as_refused(error) if isinstance(error, ForwardedError) else error
        if refused.reason in UNSTORED:
            self.calls.serve(first, end)
        elif self.refusal is None:
            self.calls.end(first, end, error)
        else:
            self.calls.answered(first, end, self.refusal(refused))


def queues_of(group: RowGroup, choice: Choice) -> list[tuple[int, Sequence[int]]]:
    """By queue, which requests are for it, in their order. A key has a queue of its own."""
    every = range(len(group.runs))
    if not bytes(group.key).strip(b"\0"):
        return [(choice.any_queue, every)]
    key = np.frombuffer(group.key, "<u4")
    queue = np.where(key == 0, choice.any_queue, key % choice.queues)
    found = np.unique(queue).tolist()
    if len(found) == 1:
        return [(found[0], every)]
    return [(one, np.flatnonzero(queue == one).tolist()) for one in found]


def picked(group: RowGroup, places: Sequence[int]) -> RowGroup:
    """These requests of a group of one message each."""
    at = np.asarray(places)
    size = np.frombuffer(group.size, "<u4")
    end = np.cumsum(size, dtype=np.int64)
    records, bounds = memoryview(group.records), zip((end - size)[at].tolist(), end[at].tolist(), strict=True)
    return replace(
        group, time=np.frombuffer(group.time, "<i8")[at].tobytes(),
        relative=np.frombuffer(group.relative, "u1")[at].tobytes() if len(group.relative) else b"",
        size=size[at].tobytes(), key=np.frombuffer(group.key, "<u4")[at].tobytes(),
        tag=np.frombuffer(group.tag, "<u4")[at].tobytes(), records=b"".join([records[a:b] for a, b in bounds]),
        runs=[group.runs[place] for place in places], deadline_ms=group.deadline_ms[at],
    )  # fmt: skip
