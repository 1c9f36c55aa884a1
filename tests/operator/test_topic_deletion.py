"""What keeps the shards of a deleted DelayTopic, as one table: nothing goes that nobody spoke of."""

from __future__ import annotations

import pytest
from delayoperator.cluster.topic_deletion import LeftShard, why_kept

DONE = LeftShard("t-0", 0, 0)
RETIRE = "delayctl --kube messages/shared shards retire --topic t"


@pytest.mark.parametrize(
    ("left", "confirmed", "says"),
    [
        ([DONE], "", ""),
        ([], "", ""),
        ([DONE, LeftShard("t-1", 3, 0)], "", "3 messages pending. Let them be consumed"),
        ([DONE, LeftShard("t-1", 3, 0)], "3", ""),
        ([DONE, LeftShard("t-1", 3, 0)], "2", "3 messages pending"),
        ([DONE, LeftShard("t-1", 3, 0)], "yes", "3 messages pending"),
        ([LeftShard("t-0", 0, 5)], "", "released and not done: t-0: 5"),
        ([LeftShard("t-0", 0, 5)], "0", ""),
        ([LeftShard("t-0", 2, 5)], "", "2 messages pending; released and not done: t-0: 5"),
        ([LeftShard("t-0", 0, unknown="it has no master")], "", "released and not done: t-0: it has no master"),
        ([LeftShard("t-0", unknown="checksum")], "", "what is left can't be counted: t-0: checksum"),
        ([LeftShard("t-0", unknown="checksum")], "0", "what is left can't be counted: t-0: checksum"),
        ([DONE], "7", "annotation delaycluster.io/delete-messages says 7, and 0 messages are pending"),
    ],
)
def test_shards_go_when_they_are_empty_or_the_number_was_said(left: list[LeftShard], confirmed: str, says: str) -> None:
    why = why_kept(left, confirmed, RETIRE)
    assert why.startswith(says)
    assert bool(why) == bool(says)


def test_what_can_not_be_counted_is_kept_or_deleted_by_what_the_message_says() -> None:
    said = why_kept([LeftShard("t-0", unknown="checksum")], "", RETIRE)
    assert "with deletionPolicy: Retain" in said
    assert f"with `{RETIRE}`, which asks for -1" in said
