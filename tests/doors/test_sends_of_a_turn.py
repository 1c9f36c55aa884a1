"""Messages that may go to any queue: those that come in one turn of the event loop go to one, so that they share a
frame; turns take the queues one after the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors.core import Door, Outgoing, Stored
from delaynode.server.handlers.rows import RowGroup

QUEUES, CALLS = 4, 12
CALL: Any = SimpleNamespace(identity=lambda: ANONYMOUS, time_remaining=lambda: 10.0)


def door() -> Door:
    """Whose shards are all here, and store at once."""
    shards = [SimpleNamespace(spec=SimpleNamespace(queue=queue)) for queue in range(QUEUES)]
    routes = SimpleNamespace(queues=lambda topic: shards, deduplicates=lambda topic: False)
    node = SimpleNamespace(routes=routes, finder=SimpleNamespace(find=lambda topic, queue: None))
    dispatch: Any = SimpleNamespace(node=node, check_right=lambda *_: None)

    def take(group: RowGroup) -> None:
        appended: Any = SimpleNamespace(first_seq=0, due=np.array([1]))
        group.answers.stored(0, 1, 1 + group.queue, appended)

    rows: Any = SimpleNamespace(take=take)
    return Door(dispatch, {}, rows)


def test_each_turn_has_a_queue_and_the_next_another() -> None:
    answers: Any = SimpleNamespace()

    async def turn(at: Door) -> set[int]:
        sends = (at.send(CALL, [Outgoing("t", 1, False, b"x")], answers, near=True) for _ in range(CALLS))
        queues = set()
        for (stored,) in await asyncio.gather(*sends):
            assert isinstance(stored, Stored)
            queues.add(stored.handle.queue)
        return queues

    async def main() -> list[set[int]]:
        at = door()
        return [await turn(at) for _ in range(QUEUES)]

    turns = asyncio.run(main())
    assert [len(one) for one in turns] == [1] * QUEUES
    assert set.union(*turns) == set(range(QUEUES))
