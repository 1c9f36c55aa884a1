"""The storage format: one number for the layout of everything on a node's disk: frames, checkpoint, all files.

A release reads every format from OLDEST to NEWEST. It writes the one that all nodes of its cluster read
(`ClusterSpec.nodes_version`), so that the release before it can take the files up again until then. What a new format
changes is written behind a comparison with `Shard.format` and nowhere else: docs/upgrade.md has the steps.

    1    release 0.1
    2    APPEND_RUNS frames: the batches of many requests in one
    3    APPEND_IDS frames: messages with their senders' ids, and those ids in checkpoints
    4    SCHEDULE and FIRE frames: schedules, their firings, and the schedules in checkpoints
    5    DEAD_REASON frames: why messages became dead letters, and those reasons in checkpoints
    6    FIRE_AGAIN frames: several firings of one schedule
    7    TICK_AHEAD frames: messages are released some ms before their dues, and seen at them
"""

from __future__ import annotations

OLDEST, NEWEST = 1, 7


def written_format(nodes_version: int) -> int:
    """The format to write where every node of the cluster reads `nodes_version`."""
    return max(OLDEST, min(nodes_version, NEWEST))
