"""Idempotent producers: which batches of which producer are stored, and what they were answered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from delaynode.store.errors import Refused

ANSWERS_KEPT = 16
EXPIRY_MS = 86_400_000


class FirstAnswer(NamedTuple):
    """What batch `number` was answered, and the log offset of its frame."""

    number: int
    first_seq: int
    messages: int
    frame: int


@dataclass(slots=True)
class Producer:
    answers: deque[FirstAnswer] = field(default_factory=lambda: deque(maxlen=ANSWERS_KEPT))
    seen_ms: int = 0  # wall time of its last frame


class Producers:
    """By producer id. Only last + 1 is stored; the last 16 get their first answer again."""

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}

    def check(self, producer: int, number: int) -> FirstAnswer | None:
        """The first answer of a batch that is stored already; None when it is next in order. Raises Refused."""
        known = self.by_id.get(producer)
        if known is None:
            if number:
                raise Refused(
                    "UNKNOWN_PRODUCER",
                    f"producer {producer:x} is not known here (it expires after a day unseen); start at number 0",
                    expected=0,
                )
            return None
        last = known.answers[-1].number
        if number == last + 1:
            return None
        for answer in known.answers:
            if answer.number == number:
                return answer
        raise Refused("OUT_OF_ORDER", f"producer {producer:x}: batch {number}, expected {last + 1}", expected=last + 1)

    def store(self, producer: int, answer: FirstAnswer, wall_ms: int) -> None:
        known = self.by_id.setdefault(producer, Producer())
        if not answer.number:  # it had expired; a replay from an older checkpoint may still know its former numbers
            known.answers.clear()
        known.answers.append(answer)
        known.seen_ms = wall_ms

    def expire(self, wall_ms: int) -> None:
        """Forget those unseen for a day, by frame time."""
        self.by_id = {key: p for key, p in self.by_id.items() if p.seen_ms + EXPIRY_MS > wall_ms}
