"""Merge patches and who owns which field, much simplified: the parts that the project's tests rely on.

A field is the path to a leaf. In a list whose items have a key that `KEYS` names, an item is found by that key and
its fields are owned one by one; any other list is a leaf. Server-side apply as in Kubernetes: a field that another
manager owns with another value is a conflict unless forced; what a manager applied before and leaves out now is
removed, unless another one owns it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Path = tuple[str, ...]
Owners = dict[str, set[Path]]
"""The fields of each field manager."""

KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "name",
    "topics": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Field managers own these fields of metadata and no others.
_OWNED_METADATA = {"labels", "annotations", "ownerReferences", "finalizers"}


class FieldConflict(Exception):
    """A server-side apply of fields that other managers own."""


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Every leaf by its path. An empty object or list is a leaf."""
    if isinstance(value, Mapping) and value:
        found: dict[Path, Any] = {}
        for key, item in value.items():
            found.update(leaves(item, (*path, key)))
        return found
    key_of = KEYS.get(path[-1]) if path else None
    if key_of and isinstance(value, list) and value and all(isinstance(it, Mapping) and key_of in it for it in value):
        found = {}
        for item in value:
            found.update(leaves(item, (*path, f"{key_of}={item[key_of]}")))
        return found
    return {path: value}


def ownable(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that managers may own: not the object's names, and not the fields that the server itself writes."""
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key in _OWNED_METADATA}
    return {**rest, "metadata": metadata} if metadata else rest


def note_update(owners: Owners, before: Mapping[str, Any], after: Mapping[str, Any], manager: str) -> Owners:
    """The owners after `manager` has changed the object by anything but an apply."""
    old, new = leaves(ownable(before)), leaves(ownable(after))
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    kept = {name: {path for path in paths if path in new and path not in changed} for name, paths in owners.items()}
    kept.setdefault(manager, set()).update(changed)
    return {name: paths for name, paths in kept.items() if paths}


def apply(
    live: Mapping[str, Any], owners: Owners, applied: Mapping[str, Any], manager: str, force: bool
) -> tuple[dict[str, Any], Owners]:
    """The object and its owners after a server-side apply of `applied`. Raises FieldConflict."""
    wanted = leaves(ownable(applied))
    old = leaves(ownable(live))
    taken = [
        (name, path)
        for name, paths in owners.items()
        for path in sorted(paths)
        if name != manager and path in wanted and old.get(path) != wanted[path]
    ]
    if taken and not force:
        said = "; ".join(f"{'.'.join(path)} is owned by {name}" for name, path in taken)
        raise FieldConflict(f"Apply failed with {len(taken)} conflict(s): {said}")
    others = {path for name, paths in owners.items() if name != manager for path in paths}
    given_up = {path for path in owners.get(manager, set()) - set(wanted) if path not in others}
    result = _overlaid(_without(live, given_up), applied)
    kept = {name: paths - {path for who, path in taken if who == name} for name, paths in owners.items()}
    kept[manager] = set(wanted)
    return result, {name: paths for name, paths in kept.items() if paths}


def _overlaid(live: Any, applied: Any, name: str = "") -> Any:
    if isinstance(applied, Mapping) and isinstance(live, Mapping):
        return {**live, **{key: _overlaid(live.get(key), value, key) for key, value in applied.items()}}
    key = KEYS.get(name)
    if key and isinstance(applied, list) and isinstance(live, list) and _keyed(live, key) and _keyed(applied, key):
        mine = {item[key]: item for item in applied}
        there = {item[key] for item in live}
        kept = [_overlaid(item, mine[item[key]]) if item[key] in mine else item for item in live]
        return kept + [item for item in applied if item[key] not in there]
    return applied


def _keyed(items: Iterable[Any], key: str) -> bool:
    return all(isinstance(item, Mapping) and key in item for item in items)


def _without(value: Any, paths: set[Path], path: Path = ()) -> Any:
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            inner = (*path, key)
            if inner in paths:
                continue
            rest = _without(item, paths, inner)
            if rest not in ({}, []) or item in ({}, []):
                kept[key] = rest
        return kept
    key_of = KEYS.get(path[-1]) if path else None
    if key_of and isinstance(value, list) and _keyed(value, key_of):
        items = []
        for item in value:
            inner = (*path, f"{key_of}={item[key_of]}")
            if (*inner, key_of) in paths:  # the manager gave the whole item up
                continue
            items.append(_without(item, paths, inner))
        return items
    return value
