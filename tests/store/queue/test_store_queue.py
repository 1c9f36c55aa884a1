"""What a queue gives is what its file has, whether the rows were kept from the last commit or are read; and what has
been released before it is due is seen at its due.
"""

from __future__ import annotations

import random

import numpy as np
from delaynode.store.queue.consume_queue import NEVER, TAIL_ROWS, ConsumeQueue, ReleasedRows
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.memory_files import MemoryFiles
from tests.store.support.walks import times

UID = 7
commits = st.lists(st.integers(1, TAIL_ROWS + 8) | st.integers(1, 3), max_size=3)  # rows of each frame


def staged(queue: ConsumeQueue, frame_end: int, count: int) -> None:
    first = queue.end
    numbers = np.arange(first, first + count, dtype=np.int64)
    small = numbers.astype(np.uint32)
    queue.stage(frame_end, numbers + 1_000, numbers, numbers * 64, small, small + 1, small + 2)


@settings(max_examples=times(80), deadline=None)
@given(st.lists(commits | st.integers(0, 9), max_size=8), st.data())
def test_rows_of_the_last_commit_are_those_of_the_file(steps: list[list[int] | int], data: st.DataObject) -> None:
    """A list: frames that are committed together. A number: a cut that leaves so many of the rows."""
    files = MemoryFiles(random.Random(1))
    queue, frame_end = ConsumeQueue(files, "queue", 4_096, UID), 0
    for step in steps:
        if isinstance(step, int):
            queue.cut(min(step, queue.visible))
        else:
            for count in step:
                frame_end += 1
                staged(queue, frame_end, count)
            queue.commit(frame_end, 0)
        offset = data.draw(st.integers(max(0, queue.visible - TAIL_ROWS - 9), queue.visible))
        count = data.draw(st.integers(0, 2 * TAIL_ROWS))
        again = ConsumeQueue(files, "queue", 4_096, UID)
        assert queue.read(offset, count).tobytes() == again.read(offset, count).tobytes()
        assert len(queue.read(offset, count)) == min(count, queue.visible - offset)


@settings(max_examples=times(150), deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(-3, 20), min_size=1, max_size=12), st.integers(0, 9)), max_size=12))
def test_a_unit_is_seen_when_it_and_those_before_it_are_due(frames: list[tuple[list[int], int]]) -> None:
    """Of each frame: the dues of what it releases, from its own time on, and the ms until the next."""
    queue, now, end, dues, seen = ConsumeQueue(MemoryFiles(random.Random(1)), "queue", 4_096, UID), 1_000, 0, [], []

    def look(released: list[ReleasedRows]) -> None:
        nonlocal end
        seen.extend(due for one in released for due in one.rows["due"].tolist())
        while end < len(dues) and dues[end] <= now:
            end += 1
        assert seen == dues[: queue.visible]
        assert queue.visible == end, "neither early nor late"
        assert queue.next_visible_ms() == (dues[end] if end < len(dues) else NEVER)
        at = max(0, queue.visible - 3)
        assert queue.read(at, 9)["due"].tolist() == dues[at : at + 9], "a replica reads what is committed"

    for number, (ahead, until_next) in enumerate(frames):
        due = np.array(ahead, np.int64) + now
        dues += due.tolist()
        small = np.zeros(len(due), np.uint32)
        latest = int(due.max()) if due.max() > now else 0
        queue.stage(number, due, due, due, small, small, small, latest_ms=latest)
        assert queue.visible == end, "what is not committed is not seen"
        look(queue.commit(number, now))
        now += until_next
        look(queue.show(now))
    now += 20
    look(queue.show(now))
    assert queue.visible == queue.end
