"""A set of objects as values: what a watch has reported, and what this process itself has written since.

Versions of one resource grow with each write, and a watch tells events in their order (Kubernetes has promised since
1.35 that a resourceVersion is a decimal number of this kind; with etcd it always was). So whatever is older than what
is here is dropped, and the answer to an own write may be taken in before its event comes.

They go back only where the store was restored from a backup, which may be during any outage. A list that is read
consistently after it counts for more than anything that is here (`anew`).

An object that can't be read stays here as it last could; it is said once for each of its versions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from delayregistry.codec import BadRecord
from delayregistry.kube.objects import name_of, version_of

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    version: int
    value: T | None  # None: it was never readable


class Mirror(Generic[T]):
    """Safe to use from any thread. read: makes a value of an object; raises BadRecord.

    unreadable: is told (name, version, why), and on_change that something has changed, under the mirror's lock.
    """

    def __init__(
        self,
        read: Callable[[Json], T],
        unreadable: Callable[[str, str, str], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = read
        self._unreadable = unreadable
        self._on_change = on_change
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry[T]] = {}
        self._heard = 0  # the watch has told everything up to this version
        self._changes = 0
        self._values: Mapping[str, T] | None = {}

    @property
    def changes(self) -> int:
        """How often something has changed here."""
        return self._changes

    @property
    def resume_version(self) -> str:
        """From where a watch has to go on."""
        return str(self._heard)

    def values(self) -> Mapping[str, T]:
        """By the objects' names. The same object until something changes; not to be changed."""
        with self._lock:
            if self._values is None:
                self._values = {name: it.value for name, it in self._entries.items() if it.value is not None}
            return self._values

    def knows(self, name: str) -> bool:
        """Whether there is such an object, readable or not."""
        return name in self._entries

    def apply_list(self, objects: Iterable[Json], version: str | None, *, anew: bool = False) -> None:
        """These are all that there were at `version`; None: at the last one that is known of anyway.

        anew: versions from before mean nothing any more.
        """
        with self._lock:
            found = {name_of(obj): obj for obj in objects}
            if anew:
                self._entries = {name: replace(it, version=-1) for name, it in self._entries.items()}
                self._heard = max((int(version_of(obj)) for obj in found.values()), default=0)
            known = [it.version for it in self._entries.values()]
            at = int(version) if version is not None else max([self._heard, *known])
            for name in self._entries.keys() - found:
                self._remove(name, at)
            for obj in found.values():
                self._store(obj)
            if version is not None:
                self._heard = max(self._heard, at)

    def apply_event(self, kind: str, obj: Json) -> None:
        """An event of the watch: ADDED, MODIFIED, DELETED or BOOKMARK."""
        version = int(version_of(obj)) if kind != "BOOKMARK" else int(obj["metadata"]["resourceVersion"])
        with self._lock:
            if kind == "DELETED":
                self._remove(name_of(obj), version)
            elif kind != "BOOKMARK":
                self._store(obj)
            self._heard = max(self._heard, version)

    def on_written(self, obj: Json) -> None:
        """The answer to a write, or to a consistent read, of this process."""
        with self._lock:
            # Else the watch has told of it already, and perhaps that it is gone since.
            if int(version_of(obj)) > self._heard:
                self._store(obj)

    def on_missing(self, name: str, version: str) -> None:
        """The API server answered a write at `version` that there is no such object."""
        with self._lock:
            self._remove(name, int(version))

    def _remove(self, name: str, version: int) -> None:
        """It was gone at `version`."""
        known = self._entries.get(name)
        if known is not None and known.version <= version:
            del self._entries[name]
            self._changed()

    def _store(self, obj: Json) -> None:
        name, version = name_of(obj), version_of(obj)
        known = self._entries.get(name)
        if known is not None and int(version) <= known.version:
            return
        try:
            value: T | None = self._read(obj)
        except BadRecord as error:
            self._unreadable(name, version, str(error))
            value = known.value if known is not None else None
        self._entries[name] = _Entry(int(version), value)
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._values = None
        self._on_change()
