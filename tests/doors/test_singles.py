"""Messages that the edge has read: each goes whole to the queue that it would go to by itself, and what can't is served
as a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors.core import Door
from delaynode.server.doors.singles import Singles
from delaynode.server.handlers.rows import RowGroup
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.shard import Appended
from hypothesis import given
from hypothesis import strategies as st

QUEUES = 5
UID = 7


@dataclass
class Told:
    """What became of calls, by their number."""

    numbers: Sequence[int]
    became: dict[int, Any] = field(default_factory=dict)

    def _all(self, first: int, end: int, what: Any) -> None:
        for place, number in enumerate(self.numbers[first:end]):
            assert number not in self.became, "answered twice"
            self.became[number] = what(place) if callable(what) else what

    def at(self, places: Sequence[int]) -> Told:
        return Told([self.numbers[place] for place in places], self.became)

    def stored(self, first: int, end: int, queue: int, uid: int, appended: Appended) -> None:
        assert uid == UID
        self._all(first, end, lambda place: (queue, appended.first_seq + place))

    def answered(self, first: int, end: int, status: bytes) -> None:
        self._all(first, end, status)

    def end(self, first: int, end: int, error: Any) -> None:
        self._all(first, end, error.reason)

    def serve(self, first: int, end: int) -> None:
        self._all(first, end, "served")


class Node:
    """Whose shards are all here. They keep what they are given, or refuse it."""

    def __init__(self, *, deduplicates: bool = False, known: bool = True, refuses: str = "") -> None:
        self.groups: list[RowGroup] = []
        self._refuses = refuses

        def queues(topic: str) -> list[Any]:
            if not known:
                raise Refused("UNKNOWN_TOPIC", topic)
            return [SimpleNamespace(spec=SimpleNamespace(queue=queue)) for queue in range(QUEUES)]

        routes = SimpleNamespace(queues=queues, deduplicates=lambda topic: deduplicates)
        node = SimpleNamespace(routes=routes, finder=SimpleNamespace(find=lambda topic, queue: None))
        dispatch: Any = SimpleNamespace(node=node, check_right=lambda *_: None)
        rows: Any = SimpleNamespace(take=self._take)
        self.door = Door(dispatch, {}, rows)

    def _take(self, group: RowGroup) -> None:
        self.groups.append(group)
        if self._refuses:
            group.answers.refused(0, len(group.runs), Refused(self._refuses, "no"))
        else:
            group.answers.stored(0, len(group.runs), UID, Appended(100, len(group.runs), None, 0, False))


def group_of(messages: Sequence[tuple[str, int, bytes]]) -> RowGroup:
    """key, time and record of each."""
    keys, times, records = zip(*messages, strict=True)
    hashes = [crc32(key.encode()) for key in keys]
    answers: Any = None
    return RowGroup(
        "t", 0, ANONYMOUS, False, np.array(times, "<i8").tobytes(), bytes(time % 2 for time in times),
        np.array([len(one) for one in records], "<u4").tobytes(), np.array(hashes, "<u4").tobytes(),
        np.array(hashes, "<u4").tobytes(), b"".join(records), [BatchRun(0, 0, 1)] * len(messages),
        np.arange(len(messages)), answers,
    )  # fmt: skip


message = st.tuples(
    st.sampled_from(["", "a", "b", "c", "d", "key"]), st.integers(0, 2**40), st.binary(min_size=1, max_size=9)
)


@given(st.lists(message, min_size=1, max_size=40))
def test_each_message_goes_whole_and_in_order_to_its_key_s_queue(messages: list[tuple[str, int, bytes]]) -> None:
    node, told = Node(), Told(range(len(messages)))
    Singles(node.door, near=True).take(group_of(messages), told)
    assert len(node.groups) <= QUEUES
    came: dict[int, list[tuple[int, bytes, int, int, int]]] = {}
    for group in node.groups:
        size, at, records = np.frombuffer(group.size, "<u4").tolist(), 0, []
        for one in size:
            records.append(bytes(group.records[at : at + one]))
            at += one
        assert at == len(group.records)
        columns = np.frombuffer(group.time, "<i8"), np.frombuffer(group.key, "<u4"), np.frombuffer(group.tag, "<u4")
        assert group.queue not in came
        assert len(group.runs) == len(size)
        came[group.queue] = [
            (time, record, key, tag, deadline)
            for time, record, key, tag, deadline in zip(
                columns[0].tolist(), records, columns[1].tolist(), columns[2].tolist(), group.deadline_ms.tolist(),
                strict=True,
            )
        ]  # fmt: skip
        assert list(group.relative) == [time % 2 for time in columns[0].tolist()]
    any_queue = {queue for queue, rows in came.items() if any(key == 0 for _, _, key, _, _ in rows)}
    assert len(any_queue) <= 1, "messages without a key share a frame"
    wanted: dict[int, list[Any]] = {}
    for number, (key, time, record) in enumerate(messages):
        hashed = crc32(key.encode())
        queue = hashed % QUEUES if key else min(any_queue)
        wanted.setdefault(queue, []).append((time, record, hashed, hashed, number))
    assert came == wanted
    for queue, rows in came.items():
        for place, row in enumerate(rows):
            assert told.became[row[-1]] == (queue, 100 + place)
    assert len(told.became) == len(messages)
    assert node.door.under_way == 0


@pytest.mark.parametrize(
    "of", [{"deduplicates": True}, {"known": False}, {"refuses": "BUSY"}, {"refuses": "NOT_MASTER"}]
)
def test_what_can_not_go_like_this_is_served_as_calls(of: dict[str, Any]) -> None:
    node, told = Node(**of), Told("xyz")
    Singles(node.door, near=False, refusal=lambda refused: b"no").take(
        group_of([("", 1, b"a"), ("a", 1, b"b"), ("b", 1, b"c")]), told
    )
    assert told.became == dict.fromkeys("xyz", "served")
    assert node.door.under_way == 0
    assert bool(node.groups) == ("refuses" in of)


@pytest.mark.parametrize(("refusal", "became"), [(None, "QUOTA"), (lambda refused: refused.reason.encode(), b"QUOTA")])
def test_a_refusal_goes_the_protocol_s_way(refusal: Any, became: Any) -> None:
    node, told = Node(refuses="QUOTA"), Told("xy")
    Singles(node.door, near=False, refusal=refusal).take(group_of([("", 1, b"a"), ("a", 1, b"b")]), told)
    assert told.became == dict.fromkeys("xy", became)
