"""The registry's values as JSON: camelCase names, absent for None, enums by value.

Unknown fields are ignored, so that an older process reads what a newer one wrote; `loads_strict` refuses them.
"""

from __future__ import annotations

import dataclasses
import json
import types
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class BadRecord(ValueError):
    """Stored JSON that is not the value it should be; says which field."""


_EXPECTED = {int: "a whole number", bool: "true or false", str: "text"}


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass of `model.py` as JSON-ready dicts, lists, strings and numbers."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if item is None:
            continue
        out[camel(field.name)] = str(item) if field.metadata.get("json") == "string" else _plain(item)
    return out


def from_json(kind: type[T], data: Any, *, strict: bool = False) -> T:
    """The other way. Raises BadRecord for a missing field or one of the wrong type; `strict`: an unknown one too."""
    if not isinstance(data, dict):
        raise BadRecord(f"{kind.__name__}: an object was expected, found {type(data).__name__}")
    values: dict[str, Any] = {}
    hints = _hints(kind)  # type: ignore[arg-type]  # mypy: a type[T] is no Hashable
    known = {camel(field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if strict and (unknown := data.keys() - known):
        raise BadRecord(f"{kind.__name__}: {', '.join(sorted(unknown))} is not known to this release")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        key = camel(field.name)
        if data.get(key) is None:
            if strict and key in data:
                raise BadRecord(f"{kind.__name__}.{key}: null; leave it out where nothing is meant")
            continue
        try:
            values[field.name] = _value(hints[field.name], data[key], field.metadata.get("json") == "string", strict)
        except (TypeError, ValueError) as error:
            raise BadRecord(f"{kind.__name__}.{key}: {error}") from error
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise BadRecord(f"{kind.__name__}: {error}") from error


def dumps(value: Any) -> str:
    """JSON text of a dataclass, or of a tuple of them."""
    return json.dumps(_plain(value), separators=(",", ":"), sort_keys=True)


def loads(kind: type[T], text: str) -> T:
    return from_json(kind, _parsed(text))


def loads_strict(kind: type[T], text: str, max_bytes: int) -> T:
    """Likewise, where what is not understood must not be passed over: unknown fields, names that come twice, more than
    `max_bytes`. Raises BadRecord."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > max_bytes:
        raise BadRecord(f"{kind.__name__} has {size:,} bytes; the limit is {max_bytes:,}")
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError as error:
        raise BadRecord(f"{kind.__name__}: nested too deeply") from error
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error}") from error
    return from_json(kind, data, strict=True)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadRecord(f"{next(name for name in names if names.count(name) > 1)} comes twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise BadRecord(f"{text} is no number of JSON")


def loads_tuple(kind: type[T], text: str) -> tuple[T, ...]:
    items = _parsed(text)
    if not isinstance(items, list):
        raise BadRecord(f"a list of {kind.__name__} was expected")
    return tuple(from_json(kind, item) for item in items)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error}") from error


def _plain(item: Any) -> Any:
    if isinstance(item, StrEnum):
        return item.value
    if dataclasses.is_dataclass(item):
        return to_json(item)
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item


def _value(hint: Any, item: Any, as_string: bool, strict: bool) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        if not isinstance(item, list):
            raise ValueError(f"a list was expected, found {item!r}")
        return tuple(_value(get_args(hint)[0], part, as_string, strict) for part in item)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, item, strict=strict)  # type: ignore[arg-type]
    if as_string or issubclass(hint, StrEnum):
        return hint(item)
    if type(item) is not hint:  # a bool is no int
        raise ValueError(f"{_EXPECTED[hint]} was expected, found {item!r}")
    return item


def camel(name: str) -> str:
    """A field's name in JSON."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
