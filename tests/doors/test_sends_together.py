"""Messages that may go to any queue: those that come together go to one for ten milliseconds, so that they share a
frame. One that comes alone goes to the next."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delayapi.handle import Handle
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors import core
from delaynode.server.doors.core import Door, Outgoing, Stored
from delaynode.server.handlers.rows import RowGroup

QUEUES, CALLS = 4, 12
SENT = Outgoing("t", 1, False, b"x")
ANSWERS: Any = SimpleNamespace()
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


async def sent_by_all(at: Door) -> set[int]:
    queues = set()
    for (stored,) in await asyncio.gather(*(at.send(CALL, [SENT], ANSWERS, near=True) for _ in range(CALLS))):
        assert isinstance(stored, Stored)
        queues.add(stored.handle.queue)
    return queues


def test_what_comes_together_has_a_queue_for_ten_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(core, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def main() -> list[set[int]]:
        at, ends = door(), asyncio.Event()

        async def later(*_: Any, **__: Any) -> list[Stored]:
            await ends.wait()
            return [Stored(Handle("t", 0, 1, 1, 1))]

        with monkeypatch.context() as patch:
            patch.setattr(at, "_store", later)
            waits = asyncio.create_task(at.send(CALL, [SENT], ANSWERS))
            await asyncio.sleep(0)
        queues: list[set[int]] = []
        for _ in range(QUEUES):
            queues.append(set())
            for _ in range(3):  # turns of the event loop
                queues[-1] |= await sent_by_all(at)
                now[0] += 0.003
            now[0] += 0.001 + 1e-6
        ends.set()
        await waits
        assert at.under_way == 0
        return queues

    turns = asyncio.run(main())
    assert [len(one) for one in turns] == [1] * QUEUES
    assert set.union(*turns) == set(range(QUEUES))


def test_those_that_come_alone_take_turns() -> None:
    async def main() -> list[int]:
        at = door()
        sent = [(await at.send(CALL, [SENT], ANSWERS, near=True))[0] for _ in range(2 * QUEUES)]
        return [one.handle.queue for one in sent if isinstance(one, Stored)]

    queues = asyncio.run(main())
    assert queues[:QUEUES] == queues[QUEUES:]
    assert sorted(queues[:QUEUES]) == [*range(QUEUES)]
