"""Up to where two logs of one shard are certainly the same."""

from __future__ import annotations

import pytest
from delaynode.replication.epochs import Epochs, common_end

MINE: Epochs = ((1, 0), (3, 100))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "end"),
    [
        (MINE, 150, MINE, 200, 150),  # the same terms: as far as both go
        (MINE, 200, MINE, 150, 150),
        (MINE, 150, ((1, 0),), 90, 90),  # they lack the last term, and some of the one before
        (MINE, 150, ((1, 0),), 130, 100),  # they went on in epoch 1 where mine began epoch 3
        (((1, 0),), 150, ((1, 0), (2, 100)), 200, 100),  # they began epoch 2 below my end: an unclean failover
        (((1, 0),), 150, ((1, 0), (2, 100), (5, 120)), 200, 100),
        (MINE, 150, ((1, 0), (2, 80)), 200, 80),  # both went on from epoch 1, each its own way
        (MINE, 150, ((1, 0), (2, 80), (3, 90)), 200, 80),  # one number, another start: another term
        (((3, 100),), 150, MINE, 200, 150),  # mine has lost its oldest entries
        (((3, 100),), 150, ((4, 100),), 200, 0),  # nothing says that they are the same
        ((), 150, MINE, 200, 0),
        (MINE, 150, (), 200, 0),
    ],
)
def test_two_logs_are_the_same_up_to_where_either_begins_a_term_that_the_other_lacks(
    mine: Epochs, my_end: int, theirs: Epochs, their_end: int, end: int
) -> None:
    assert common_end(mine, my_end, theirs, their_end) == end
    assert common_end(theirs, their_end, mine, my_end) == end
