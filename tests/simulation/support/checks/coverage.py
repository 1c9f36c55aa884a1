"""Counts of the product's maintenance that a run has had.

If the drawn sizes no longer empty segments, or make no dead letters, every invariant stays true. Only these counts
show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from delaynode.replica.storage import ReplicaStorage
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.reclaim import SpaceReclaimer
from delaynode.store.queue.dead_letters import DeadLetters
from delaynode.store.queue.groups import Group
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delayregistry.model import ShardObject

Around = Callable[[Callable[..., Any], tuple[Any, ...]], tuple[Any, int]]
"""(the real function, its arguments) -> its result, and by how much the count grows."""


class Coverage:
    """Counts what the processes of one world do. The effect of a frame counts once for each copy."""

    def __init__(self) -> None:
        self.counts = Counter[str](dict.fromkeys((*PLACES, "far behind", "switchovers", "taken up again"), 0))

    @contextmanager
    def counting(self) -> Iterator[None]:
        with ExitStack() as stack:
            for what, (owner, name, around) in PLACES.items():
                stack.enter_context(patch.object(owner, name, self._counted(what, getattr(owner, name), around)))
            yield

    def _counted(self, what: str, real: Callable[..., Any], around: Around) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            result, more = around(real, args)
            self.counts[what] += more
            return result

        return counted

    def recorded(self, before: ShardObject | None, after: ShardObject) -> None:
        """The registry's object of a shard has changed."""
        self.counts["taken up again"] += before is None and after.spec.epoch > 0
        if before is not None and before.status is not None and before.status.handover is not None:
            self.counts["switchovers"] += after.spec.epoch > before.spec.epoch


def _calls(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    return real(*args), 1


def _result(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    result = real(*args)
    return result, result


def _rows(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    return real(*args), len(args[1])


def _segments(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    return real(*args), len(args[1].bases)


def _in_pieces(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    return real(*args), int(len(args[1].runs) > 1)


def _laps(real: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    """Counts slots that had units of another lap of the wheel."""
    wheel, slot_times = args[:2]
    before = wheel.slots["time"][slot_times // wheel.width_ms % len(wheel.slots)]
    return real(*args), int(np.count_nonzero((before != slot_times) & (before != NOWHERE)))


PLACES: dict[str, tuple[Any, str, Around]] = {
    "relocations": (SpaceReclaimer, "apply_relocate", _calls),
    "segments freed": (SpaceReclaimer, "apply_trim", _segments),
    "dead letters": (DeadLetters, "add", _rows),
    "redriven": (Group, "redrive", _rows),
    "expired": (Group, "forget_below", _result),
    "cascades": (TimerIndex, "finish_cascade", _calls),
    "slots reused": (TimerWheel, "extend", _laps),
    "cleanings": (TimerIndex, "finish_clean", _calls),
    "flushes in pieces": (TimerIndex, "finish_flush", _in_pieces),
    "prepared to lead": (persist, "make_room", _calls),
    "checkpoints": (persist, "finish_checkpoint", _calls),
    "transfers": (ReplicaStorage, "end_fetch", _calls),
}
