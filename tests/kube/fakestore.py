"""The fake API server's objects: versions, conditional writes, subresources, owners, a history for watches.

Everything may be called from any thread. Objects go in and come out as copies. The store has no schemas, defaults,
admission or RBAC.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.kube import fakefields
from tests.kube.fakekinds import KINDS, Kind

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for none), name
KEPT_EVENTS = 100_000


class Refused(Exception):
    """An API error. reason: Status's reason, e.g. NotFound, Conflict, AlreadyExists, Invalid, Expired."""

    def __init__(self, code: int, reason: str, message: str, name: str = "", cause: str = "") -> None:
        """name: the name of the object that is not found. cause: a reason in the details, DisruptionBudget, say."""
        super().__init__(message)
        self.code, self.reason, self.message, self.name, self.cause = code, reason, message, name, cause


@dataclass(frozen=True, slots=True)
class Event:
    """A change. before: the former object; for ADDED None. now: the new one; for DELETED the last, at a new version."""

    version: int
    kind: Kind
    before: Object | None
    now: Object
    deleted: bool = False


class Store:
    """on_event: called after each change, under the lock, from the thread that made it."""

    def __init__(self, on_event: Callable[[], None] = lambda: None) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self.compacted = 0  # a watch from before this version can't be served
        self._objects: dict[Kind, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self._owners: dict[tuple[Kind, Key], fakefields.Owners] = {}
        self._events: list[Event] = []
        self._on_event = on_event
        self._names = itertools.count(1)

    # ------------------------------------------------------------ reading
    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.lock:
            return _copy(self._found(kind, namespace, name))

    def has(self, kind: Kind, namespace: str, name: str) -> bool:
        with self.lock:
            return (namespace if kind.namespaced else "", name) in self._objects[kind]

    def list(
        self, kind: Kind, namespace: str | None = None, chosen: Callable[[Object], bool] = lambda obj: True
    ) -> tuple[list[Object], int]:
        """The objects by namespace and name, and the version of the list. namespace None: those of all namespaces."""
        items, _, version = self.page(kind, namespace, chosen)
        return items, version

    def page(
        self,
        kind: Kind,
        namespace: str | None,
        chosen: Callable[[Object], bool],
        start: int = 0,
        limit: int | None = None,
    ) -> tuple[Sequence[Object], int, int]:
        """A part of the list, the number of objects after it, and the version."""
        with self.lock:
            objects = self._objects[kind]
            found = [objects[key] for key in sorted(objects) if namespace in (None, key[0]) and chosen(objects[key])]
            part = found[start:] if limit is None else found[start : start + limit]
            return _copy(part), len(found) - start - len(part), self.version

    def events_after(self, version: int) -> tuple[Sequence[Event], int]:
        """The events after a version, and the version that they lead to. Raises Refused 410."""
        with self.lock:
            if version < self.compacted:
                raise Refused(410, "Expired", f"too old resource version: {version} ({self.compacted})")
            if not self._events or self._events[-1].version <= version:
                return [], self.version
            first = len(self._events)
            while first and self._events[first - 1].version > version:
                first -= 1
            return self._events[first:], self.version

    def managers(self, kind: Kind, namespace: str, name: str) -> dict[str, set[str]]:
        """The fields of each field manager, as dotted paths."""
        with self.lock:
            owners = self._owners.get((kind, (namespace, name)), {})
            return {manager: {".".join(path) for path in paths} for manager, paths in owners.items()}

    # ------------------------------------------------------------ writing
    def create(self, kind: Kind, namespace: str, obj: Mapping[str, Any], manager: str = "unknown") -> Object:
        with self.lock:
            new = _copy(obj)
            metadata = new.setdefault("metadata", {})
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    raise Refused(422, "Invalid", f"{kind.kind}: metadata.name: Required value")
                metadata["name"] = f"{metadata['generateName']}{next(self._names):05x}"
            if metadata.get("resourceVersion"):
                raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
            key = (namespace if kind.namespaced else "", str(metadata["name"]))
            if key in self._objects[kind]:
                raise Refused(409, "AlreadyExists", f'{kind.resource} "{key[1]}" already exists')
            if kind.status:
                new.pop("status", None)
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = _now()
            metadata["generation"] = 1
            if kind.namespaced:
                metadata["namespace"] = namespace
            owners = fakefields.note_update({}, {}, new, manager)
            return _copy(self._put(kind, key, None, new, owners))

    def replace(
        self, kind: Kind, namespace: str, name: str, obj: Mapping[str, Any], manager: str = "unknown", sub: str = ""
    ) -> Object:
        """A PUT. A resourceVersion in it makes it conditional."""
        with self.lock:
            before = self._found(kind, namespace, name)
            return self._update(kind, before, _copy(obj), manager, sub)

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], manager: str = "unknown", sub: str = ""
    ) -> Object:
        """A JSON merge patch. A resourceVersion in it makes it conditional."""
        with self.lock:
            before = self._found(kind, namespace, name)
            return self._update(kind, before, fakefields.merge(_copy(before), _copy(patch)), manager, sub)

    def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        applied: Mapping[str, Any],
        manager: str,
        force: bool = False,
        sub: str = "",
    ) -> Object:
        """Do a server-side apply; it creates a missing object."""
        with self.lock:
            wanted = _copy(applied)
            wanted.setdefault("metadata", {}).setdefault("name", name)
            key = (namespace if kind.namespaced else "", name)
            before = self._objects[kind].get(key)
            if before is None:
                return self.create(kind, namespace, wanted, manager)
            if sub != "status" and kind.status:
                wanted.pop("status", None)
            _check_version(kind, before, wanted)
            try:
                after, owners = fakefields.apply(before, self._owners.get((kind, key), {}), wanted, manager, force)
            except fakefields.FieldConflict as conflict:
                raise Refused(409, "Conflict", str(conflict)) from conflict
            after["metadata"] = {**before["metadata"], **_anybodys(after["metadata"])}
            return self._settle(kind, key, before, after, owners)

    def delete(self, kind: Kind, namespace: str, name: str, options: Mapping[str, Any] | None = None) -> Object:
        """Remove the object and what it owns; with finalizers, only mark it. Orphan policy: owned objects stay."""
        with self.lock:
            before = self._found(kind, namespace, name)
            wanted = (options or {}).get("preconditions") or {}
            for field in ("uid", "resourceVersion"):
                if wanted.get(field) and wanted[field] != before["metadata"][field]:
                    raise Refused(409, "Conflict", f"Precondition failed: {field} is {before['metadata'][field]}")
            orphan = (options or {}).get("propagationPolicy") == "Orphan"
            if before["metadata"].get("finalizers"):
                if "deletionTimestamp" in before["metadata"]:
                    return _copy(before)
                marked = _copy(before)
                marked["metadata"]["deletionTimestamp"] = _now()
                key = _key(before)
                return _copy(self._put(kind, key, before, marked, self._owners.get((kind, key), {})))
            return _copy(self._remove(kind, before, orphan))

    def backup(self) -> tuple[int, dict[Kind, dict[Key, Object]]]:
        """The objects for restore() to bring back, without the fields' owners, which no test asks for then."""
        with self.lock:
            return self.version, {
                kind: {key: _copy(obj) for key, obj in it.items()} for kind, it in self._objects.items()
            }

    def restore(self, backup: tuple[int, dict[Kind, dict[Key, Object]]]) -> None:
        """Restore as an etcd made again from a backup does: versions go on from there, and no watch hears of it."""
        with self.lock:
            self.version, self._objects = backup
            self.compacted = 0
            self._events.clear()

    def compact(self) -> None:
        """Drop the history: a client that watches from an earlier version has to list again."""
        with self.lock:
            self.compacted = self.version
            self._events.clear()
            self._on_event()

    # ------------------------------------------------------------ inside
    def _found(self, kind: Kind, namespace: str, name: str) -> Object:
        key = (namespace if kind.namespaced else "", name)
        if key not in self._objects[kind]:
            raise Refused(404, "NotFound", f'{kind.resource} "{name}" not found', name)
        return self._objects[kind][key]

    def _update(self, kind: Kind, before: Object, after: Object, manager: str, sub: str) -> Object:
        _check_version(kind, before, after)
        if sub == "status":
            after = {**_copy(before), **({"status": after["status"]} if "status" in after else {})}
            if "status" not in after:
                after.pop("status", None)
        else:
            metadata = {**before["metadata"], **_anybodys(after.get("metadata", {}))}
            for field in fakefields._OWNED_METADATA - set(after.get("metadata", {})):
                metadata.pop(field, None)
            after = {**after, "metadata": metadata}
            if kind.status:
                after.pop("status", None)
                if "status" in before:
                    after["status"] = _copy(before["status"])
        key = _key(before)
        owners = fakefields.note_update(self._owners.get((kind, key), {}), before, after, manager)
        return self._settle(kind, key, before, after, owners)

    def _settle(self, kind: Kind, key: Key, before: Object, after: Object, owners: fakefields.Owners) -> Object:
        """Store the object if it has changed; an unchanged object keeps its version."""
        if after == before:
            self._owners[kind, key] = owners
            return _copy(before)
        if _desired(after) != _desired(before):
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            return _copy(self._remove(kind, after, orphan=False))
        return _copy(self._put(kind, key, before, after, owners))

    def _put(self, kind: Kind, key: Key, before: Object | None, after: Object, owners: fakefields.Owners) -> Object:
        self.version += 1
        new = {"apiVersion": kind.api_version, "kind": kind.kind, **after}
        new["metadata"] = {**after["metadata"], "resourceVersion": str(self.version)}
        self._owners[kind, key] = owners
        self._objects[kind][key] = new
        self._happened(Event(self.version, kind, before, new))
        return new

    def _remove(self, kind: Kind, obj: Object, orphan: bool) -> Object:
        key = _key(obj)
        before = self._objects[kind].pop(key)
        self._owners.pop((kind, key), None)
        self.version += 1
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._happened(Event(self.version, kind, before, last, deleted=True))
        if not orphan:
            self._collect(obj["metadata"]["uid"])
        return last

    def _collect(self, uid: str) -> None:
        """Act as the garbage collector: remove the objects that only this one owned."""
        for kind, objects in self._objects.items():
            for obj in list(objects.values()):
                references = obj["metadata"].get("ownerReferences", [])
                if references and all(reference.get("uid") == uid for reference in references):
                    self.delete(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > KEPT_EVENTS:
            dropped = self._events[: KEPT_EVENTS // 2]
            del self._events[: KEPT_EVENTS // 2]
            self.compacted = dropped[-1].version
        self._on_event()


def _check_version(kind: Kind, before: Object, after: Mapping[str, Any]) -> None:
    asked = after.get("metadata", {}).get("resourceVersion")
    if asked is None:
        return
    if not str(asked).isdecimal():  # a real server's answer
        raise Refused(500, "InternalError", f'strconv.ParseUint: parsing "{asked}": invalid syntax')
    if asked != before["metadata"]["resourceVersion"]:
        name = before["metadata"]["name"]
        raise Refused(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
        )


def _anybodys(metadata: Mapping[str, Any]) -> Object:
    return {key: value for key, value in metadata.items() if key in fakefields._OWNED_METADATA}


def _desired(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _key(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _copy(obj: Any) -> Any:
    return json.loads(json.dumps(obj))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
