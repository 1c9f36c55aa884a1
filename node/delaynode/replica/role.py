"""What a shard's copy in this process is at the moment, and what may become of it."""

from __future__ import annotations

from enum import StrEnum


class ReplicaRole(StrEnum):
    OPENING = "opening"
    ABSENT = "absent"  # there is no copy here
    SLAVE = "slave"
    FETCHING = "fetching"
    CANDIDATE = "candidate"
    MASTER = "master"
    DAMAGED = "damaged"


_OPENED = {ReplicaRole.SLAVE, ReplicaRole.ABSENT, ReplicaRole.DAMAGED}  # what open() finds
_DISCARDED = {ReplicaRole.ABSENT, ReplicaRole.FETCHING}  # also where removing the old files failed halfway
NEXT_ROLES: dict[ReplicaRole, set[ReplicaRole]] = {  # each also has DAMAGED: an internal error may come at any time
    ReplicaRole.OPENING: _OPENED,
    ReplicaRole.ABSENT: _DISCARDED | {ReplicaRole.CANDIDATE, ReplicaRole.DAMAGED},
    ReplicaRole.SLAVE: _DISCARDED | {ReplicaRole.CANDIDATE, ReplicaRole.DAMAGED},
    ReplicaRole.FETCHING: _OPENED | _DISCARDED,
    ReplicaRole.CANDIDATE: _OPENED | {ReplicaRole.MASTER, ReplicaRole.OPENING},
    ReplicaRole.MASTER: {ReplicaRole.OPENING, ReplicaRole.DAMAGED},
    ReplicaRole.DAMAGED: _OPENED | _DISCARDED,
}


class IllegalTransition(RuntimeError):
    """A mistake in this program: the replica's worker ends, and the copy counts as damaged."""
