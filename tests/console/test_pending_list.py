"""Pages of several queues merged into one list: nothing twice, nothing lost, in order."""

from __future__ import annotations

import asyncio
from typing import Any
from zlib import crc32

import pytest
from delayclient.admin.views import Pending, PendingPage
from delayclient.errors import Unavailable
from delayconsole.pending_list import ListCursor, pending_list, queues_of_key
from hypothesis import given
from hypothesis import strategies as st

MESSAGES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=40)  # due, queue


class Queues:
    """Answers ListPending for three queues, with pages that may be cut short, as by bytes."""

    def __init__(self, messages: list[tuple[int, int]], short: int, away: int | None = None) -> None:
        self.rows = sorted(
            (Pending("t", queue, 7, due, seq, 10) for seq, (due, queue) in enumerate(messages)),
            key=lambda row: (row.due_ms, row.queue, row.seq),
        )
        self._short, self._away = short, away

    async def pending_page(
        self, topic: str, queue: int, from_ms: int, to_ms: int, *, after: tuple[int, int], key: str, limit: int
    ) -> PendingPage:
        if queue == self._away:
            raise Unavailable(f"{topic}-{queue} has no master now", code="UNAVAILABLE")
        mine = [row for row in self.rows if row.queue == queue and (row.due_ms, row.seq) > after]
        mine = [row for row in mine if row.due_ms >= from_ms and (not to_ms or row.due_ms < to_ms)]
        page = mine[: min(limit, self._short)]
        last = (page[-1].due_ms, page[-1].seq) if page else after
        return PendingPage(page, len(page) < len(mine), last)


def all_pages(admin: Any, limit: int, from_ms: int = 0, to_ms: int = 0) -> list[Pending]:
    async def main() -> list[Pending]:
        rows: list[Pending] = []
        cursor: ListCursor | None = ListCursor()
        while cursor is not None:
            found = await pending_list(admin, "t", [0, 1, 2], from_ms, to_ms, "", cursor, limit)
            assert len(found.rows) <= limit
            rows += found.rows
            cursor = found.next
        return rows

    return asyncio.run(main())


@given(messages=MESSAGES, limit=st.integers(1, 9), short=st.integers(1, 9))
def test_all_pages_have_each_message_once_and_in_order(messages: list[tuple[int, int]], limit: int, short: int) -> None:
    queues = Queues(messages, short)
    assert all_pages(queues, limit) == queues.rows


def test_only_messages_of_the_time_are_listed() -> None:
    queues = Queues([(due, due % 3) for due in range(1, 31)], 100)
    assert [row.due_ms for row in all_pages(queues, 4, 10, 20)] == list(range(10, 20))


def test_a_queue_that_does_not_answer_is_named_and_the_others_are_listed() -> None:
    async def main() -> None:
        found = await pending_list(
            Queues([(1, 0), (2, 1), (3, 2)], 9, away=1), "t", [0, 1, 2], 0, 0, "", ListCursor(), 9
        )  # type: ignore[arg-type]
        assert [row.queue for row in found.rows] == [0, 2]
        assert found.problems == ("t-1: t-1 has no master now (UNAVAILABLE)",)
        with pytest.raises(Unavailable):
            await pending_list(Queues([], 9, away=1), "t", [1], 0, 0, "", ListCursor(), 9)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_queue_of_a_key_is_asked_first() -> None:
    assert sorted(queues_of_key("order-42", range(8))) == list(range(8))
    assert queues_of_key("order-42", range(8))[0] == crc32(b"order-42") % 8
