"""Pending messages of a topic in order of due, over all its queues: each is asked for a page, the pages are merged."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from delayclient.admin.admin import Admin
from delayclient.admin.changes import together
from delayclient.admin.views import Pending, PendingPage
from delayclient.errors import DelayError

_LAST_SEQ: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ListCursor:
    """The place of a message in the order (due, queue, seq); the list goes on behind it."""

    due_ms: int = 0
    queue: int = 0
    seq: int = -1

    def after_of(self, queue: int) -> tuple[int, int]:
        """For one queue's page."""
        if self.due_ms == 0:
            return 0, 0
        if queue == self.queue:
            return self.due_ms, self.seq
        return (self.due_ms, _LAST_SEQ) if queue < self.queue else (self.due_ms - 1, _LAST_SEQ)


@dataclass(frozen=True, slots=True)
class PendingList:
    """rows: by (due, queue, seq). next: where the list goes on; None: it ends. problems: queues that gave no answer."""

    rows: Sequence[Pending]
    next: ListCursor | None
    problems: tuple[str, ...]


async def pending_list(
    admin: Admin, topic: str, queues: Sequence[int], from_ms: int, to_ms: int, key: str, cursor: ListCursor, limit: int
) -> PendingList:
    """A page of `limit` rows. to_ms 0: no end. key: empty for all."""

    async def one(queue: int) -> tuple[int, PendingPage | DelayError]:
        try:
            return queue, await admin.pending_page(
                topic, queue, from_ms, to_ms, after=cursor.after_of(queue), key=key, limit=limit
            )
        except DelayError as error:
            return queue, error

    found = await together(map(one, queues))
    failed = [(queue, page) for queue, page in found if isinstance(page, DelayError)]
    if failed and len(failed) == len(found):
        raise failed[0][1]
    pages = [(queue, page) for queue, page in found if isinstance(page, PendingPage)]
    return merged(pages, limit, problems_of(topic, failed))


def merged(pages: Sequence[tuple[int, PendingPage]], limit: int, problems: tuple[str, ...] = ()) -> PendingList:
    """The first `limit` rows of all, by queue and its page."""
    rows = sorted((row for _, page in pages for row in page.rows), key=_place)
    # A page may be cut short by its bytes: rows of other queues behind its end wait until its next page is there.
    short = [(page.last[0], queue, page.last[1]) for queue, page in pages if page.more and len(page.rows) < limit]
    end = min(short, default=None)
    if end is not None:
        rows = [row for row in rows if _place(row) <= end]
    if len(rows) > limit or (len(rows) == limit and any(page.more for _, page in pages)):
        rows = rows[:limit]
        end = _place(rows[-1])
    return PendingList(rows, None if end is None else ListCursor(*end), problems)


def _place(row: Pending) -> tuple[int, int, int]:
    return row.due_ms, row.queue, row.seq


def problems_of(topic: str, failed: Sequence[tuple[int, DelayError]]) -> tuple[str, ...]:
    """One sentence for each error, with the queues that have it."""
    queues: dict[str, list[int]] = {}
    for queue, error in failed:
        queues.setdefault(str(error), []).append(queue)
    return tuple(
        f"{', '.join(f'{topic}-{queue}' for queue in of[:5])}{f' and {len(of) - 5} more' if len(of) > 5 else ''}: {why}"
        for why, of in queues.items()
    )


def queues_of_key(key: str, queues: Sequence[int]) -> list[int]:
    """The queue that producers put a key in, first: the others have some only if their number has changed."""
    first = zlib.crc32(key.encode()) % max(1, len(queues))
    return sorted(queues, key=lambda queue: (queue != first, queue))
