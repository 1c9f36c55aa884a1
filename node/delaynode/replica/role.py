"""What a shard's copy in this process is at the moment."""

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
