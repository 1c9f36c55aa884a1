"""What a queue gives is what its file has, whether the rows were kept from the last commit or are read."""

from __future__ import annotations

import random

import numpy as np
from delaynode.store.queue.consume_queue import TAIL_ROWS, ConsumeQueue
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
            queue.commit(frame_end)
        offset = data.draw(st.integers(max(0, queue.visible - TAIL_ROWS - 9), queue.visible))
        count = data.draw(st.integers(0, 2 * TAIL_ROWS))
        again = ConsumeQueue(files, "queue", 4_096, UID)
        assert queue.read(offset, count).tobytes() == again.read(offset, count).tobytes()
        assert len(queue.read(offset, count)) == min(count, queue.visible - offset)
