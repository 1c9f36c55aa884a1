"""The nodes' leases as a watch tells of them, and what may be concluded from that.

A watch proves life, never death: that a lease has moved is so, however late it is heard; that it has not may be the
watch's silence. So `all_moving` is what the operator may go by without a request, and where it is false the leases are
read consistently, as often as they are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from delayregistry.kube.mirror import Json, Mirror
from delayregistry.kube.objects import name_of
from delayregistry.kube.watch import Watch
from delayregistry.model import NodeLease, Version

RETURN_S = 1.0  # an own renewal takes longer to come back by the watch: it lags, or is silent


@dataclass(frozen=True, slots=True)
class _FollowedLease:
    lease: NodeLease | None  # None: no node holds it yet, or it can't be read
    moved_s: float | None  # when it was last seen to be renewed; None: it never was


class LeaseFollower:
    """Owns the watch. read: a lease's object to its value. watch: makes what fills a mirror. From any thread."""

    def __init__(
        self,
        read: Callable[[Json], NodeLease | None],
        watch: Callable[[Mirror[_FollowedLease]], Watch],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_lease, self._monotonic_s = read, monotonic_s
        self._last: dict[str, _FollowedLease] = {}  # by the object's name; under the mirror's lock
        self._mirror: Mirror[_FollowedLease] = Mirror(self._read, lambda name, version, why: None)
        self._written: tuple[int, float] = (0, 0.0)  # the last own renewal: its version, and when it was answered
        self.watch = watch(self._mirror)

    def leases(self) -> tuple[NodeLease, ...]:
        """By node id."""
        found = [it.lease for it in self._mirror.values().values() if it.lease is not None]
        return tuple(sorted(found, key=lambda lease: lease.node))

    def all_moving(self, within_s: float) -> bool:
        """Whether each lease was seen to be renewed within this time: then none is over, and the store takes writes."""
        followed = self._mirror.values().values()
        after_s = self._monotonic_s() - within_s
        return bool(followed) and all(it.moved_s is not None and it.moved_s > after_s for it in followed)

    def returns(self) -> bool:
        """Whether the watch runs, and has told of what this process itself has written."""
        version, at_s = self._written
        heard = version <= int(self._mirror.resume_version) or self._monotonic_s() - at_s < RETURN_S
        return self.watch.wait_synced(0.0) and self.watch.out_s() == 0.0 and heard

    def apply_list(self, objects: list[Json], version: str) -> None:
        """A consistent list: what the watch tells later and is older is dropped."""
        self._mirror.apply_list(objects, version)

    def on_renewed(self, version: Version) -> None:
        self._written = int(version), self._monotonic_s()

    def _read(self, obj: Json) -> _FollowedLease:
        name, lease = name_of(obj), self._read_lease(obj)
        before = self._last.get(name)
        moved_s = None if before is None else before.moved_s
        if (
            before is not None
            and before.lease is not None
            and lease is not None
            and _sign(lease) != _sign(before.lease)
        ):
            moved_s = self._monotonic_s()
        self._last[name] = found = _FollowedLease(lease, moved_s if lease is not None else None)
        return found


def _sign(lease: NodeLease) -> tuple[str, int]:
    return lease.incarnation, lease.renewals
