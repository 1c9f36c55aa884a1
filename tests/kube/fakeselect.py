"""Label and field selectors, as in a LIST's or a watch's query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Chooser = Callable[[Mapping[str, Any]], bool]

_IN = re.compile(r"(?P<key>\S+)\s+(?P<how>in|notin)\s+\((?P<values>[^)]*)\)")


def chooser(labels: str, fields: str) -> Chooser:
    """A predicate for both selectors. Raises ValueError for a malformed one."""
    wanted = [_label(part.strip()) for part in _parts(labels)]
    places = [_field(part.strip()) for part in _parts(fields)]

    def choose(obj: Mapping[str, Any]) -> bool:
        found = obj.get("metadata", {}).get("labels") or {}
        return all(test(found) for test in wanted) and all(test(obj) for test in places)

    return choose


def _parts(selector: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _label(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _IN.fullmatch(part):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        inside = match["how"] == "in"
        return lambda labels: (labels.get(key) in values) == inside
    if "!=" in part:
        key, value = part.split("!=")
        return lambda labels: labels.get(key) != value
    if "=" in part:
        key, value = re.split("==?", part)
        return lambda labels: labels.get(key) == value
    if part.startswith("!"):
        return lambda labels: part[1:] not in labels
    return lambda labels: part in labels


def _field(part: str) -> Callable[[Mapping[str, Any]], bool]:
    equal = "!=" not in part
    path, value = re.split("!=|==?", part)

    def test(obj: Mapping[str, Any]) -> bool:
        found: Any = obj
        for step in path.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return (str(found if found is not None else "") == value) == equal

    return test
