"""Where two logs of one shard part (Kafka KIP-101).

A log's epoch list says where each term's frames begin. One process writes an epoch's frames, in one order, and never
resumes it: two logs that both have an epoch beginning at the same offset agree on it as far as both go.
"""

from __future__ import annotations

from collections.abc import Sequence

Epochs = Sequence[tuple[int, int]]
"""(epoch, start offset) of a log's terms, ascending in both."""


def common_end(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int:
    """The log offset up to which both logs are the same for certain; 0 when nothing says that they are.

    Lists may have lost their oldest entries: what lies below both logs' starts is compared by nobody.
    """
    starts = dict(theirs)
    for at in range(len(mine) - 1, -1, -1):
        epoch, start = mine[at]
        if starts.get(epoch) != start:
            continue
        my_next = mine[at + 1][1] if at + 1 < len(mine) else my_end
        later = [begin for other, begin in theirs if other > epoch]
        return min(my_next, min(later, default=their_end))
    return 0
