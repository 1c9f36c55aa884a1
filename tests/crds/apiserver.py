"""A stand-in for the API server's handling of a custom resource: nulls and unknown fields go, defaults come, then the
schema, the list kinds and (by cel-python) the CEL rules are held against it, in the API server's words.

Written from what k8s.io/apiextensions-apiserver does; the table in bad_clusters.py was also judged by that code.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from delayoperator.resources.normal import quantity

Json = dict[str, Any]

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def refusals(schema: Json, body: Json, old: Json | None = None) -> tuple[Json, list[str], list[str]]:
    """The object as it would be stored, the schema's faults, and, if there are none, the faults that CEL rules find."""
    new = prepared(schema, body)
    against = list(_schema(schema, new, ""))
    before = None if old is None else prepared(schema, old)
    return new, against, [] if against else [line for _, line in _cel(schema, new, before, "")]


def broken_rules(schema: Json, body: Json, old: Json | None = None) -> list[Json]:
    """The CEL rules that refuse it, as they stand in the schema."""
    before = None if old is None else prepared(schema, old)
    return [rule for rule, _ in _cel(schema, prepared(schema, body), before, "")]


def prepared(schema: Json, body: Json) -> Json:
    out = copy.deepcopy(body)
    _prepare(schema, out)
    return out


def _prepare(schema: Json, value: Any) -> None:
    if isinstance(value, list) and "items" in schema:
        for item in value:
            _prepare(schema["items"], item)
    if not isinstance(value, dict) or (schema.get("type") == "object" and not _children(schema)):
        return
    properties = schema.get("properties", {})
    for name in list(value):
        if name in properties and value[name] is None:
            del value[name]
        elif "additionalProperties" in schema:
            _prepare(schema["additionalProperties"], value[name])
        elif name not in properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
            del value[name]
    for name, part in properties.items():
        if name not in value and "default" in part:
            value[name] = copy.deepcopy(part["default"])
        if name in value:
            _prepare(part, value[name])


def _children(schema: Json) -> bool:
    return any(key in schema for key in ("properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"))


def _schema(schema: Json, value: Any, path: str) -> Iterator[str]:
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield f"{path}: must be of type integer or string"
            return
    elif kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{path}: {path} in body must be of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: Unsupported value: supported values: " + ", ".join(f'"{it}"' for it in schema["enum"])
    if isinstance(value, str):
        if "pattern" in schema and not re.search(re.sub(r"\$$", r"\\Z", schema["pattern"]), value):  # Go's $ is the end
            yield f"{path}: {path} in body should match '{schema['pattern']}'"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
        if len(value) < schema.get("minLength", 0):
            yield f"{path}: {path} in body should be at least {schema['minLength']} chars long"
    elif isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield f"{path}: {path} in body should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{path}: {path} in body should be less than or equal to {schema['maximum']}"
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{path}: Too many: must have at most {schema['maxItems']} items"
        keys = [_key(schema, item) for item in value]
        for at, item in enumerate(value):
            yield from _schema(schema["items"], item, f"{path}[{at}]")
            if keys[at] is not None and keys[at] in keys[:at]:
                yield f"{path}[{at}]: Duplicate value"
    elif isinstance(value, dict):
        if len(value) > schema.get("maxProperties", len(value)):
            yield f"{path}: Too many: must have at most {schema['maxProperties']} items"
        yield from (f"{_join(path, name)}: Required value" for name in schema.get("required", ()) if name not in value)
        for name, item in value.items():
            part = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if part is not None:
                yield from _schema(part, item, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(schema: Json, item: Any) -> Any:
    """The key that names an item of a set or a map; None: no key does."""
    if schema.get("x-kubernetes-list-type") == "set":
        return item
    if schema.get("x-kubernetes-list-type") == "map" and isinstance(item, dict):
        return tuple(item.get(name) for name in schema["x-kubernetes-list-map-keys"])
    return None


# ---------------------------------------------------------------- CEL
def _cel(schema: Json, value: Any, old: Any, path: str) -> Iterator[tuple[Json, str]]:
    """Depth first, as values nest. A rule that names oldSelf is for values that were there before."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        names = {"self": _value(schema, value)} | ({} if old is None else {"oldSelf": _value(schema, old)})
        if not _program(rule["rule"]).evaluate(names):
            says = rule.get("messageExpression")
            text = str(_program(says).evaluate(names)) if says else rule["message"]
            yield rule, f"{path}{rule.get('fieldPath', '')}: {text}"
    if isinstance(value, dict):
        for name, item in value.items():
            part = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if part is not None:
                yield from _cel(part, item, old.get(name) if isinstance(old, dict) else None, _join(path, name))
    elif isinstance(value, list):
        former = {_key(schema, item): item for item in old or ()} if _named(schema) else {}
        for at, item in enumerate(value):
            yield from _cel(schema["items"], item, former.get(_key(schema, item)), f"{path}[{at}]")


def _named(schema: Json) -> bool:
    return schema.get("x-kubernetes-list-type") == "map"


def _value(schema: Json, value: Any) -> Any:
    """JSON as CEL sees it: a date-time is a timestamp."""
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        known = {name: parts.get(name) or schema.get("additionalProperties") or {} for name in value}
        return celtypes.MapType({celtypes.StringType(k): _value(known[k], v) for k, v in value.items()})
    if isinstance(value, list):
        return celtypes.ListType([_value(schema.get("items", {}), item) for item in value])
    if schema.get("format") == "date-time":
        return celtypes.TimestampType(value)
    return json_to_cel(value)


@lru_cache(maxsize=256)
def _program(text: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(text), functions=_FUNCTIONS)


def _find(text: Any, pattern: Any) -> Any:
    found = re.search(str(pattern), str(text))
    return celtypes.StringType(found[0] if found else "")


def _find_all(text: Any, pattern: Any) -> Any:
    return celtypes.ListType([celtypes.StringType(it[0]) for it in re.finditer(str(pattern), str(text))])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "find": _find,
    "findAll": _find_all,
    "sum": lambda items: sum(items[1:], start=items[0]) if items else celtypes.IntType(0),
    "substring": lambda text, start: celtypes.StringType(str(text)[int(start) :]),
    "quantity": lambda text: celtypes.DoubleType(float(quantity(str(text)))),
    "compareTo": lambda one, other: celtypes.IntType((one > other) - (one < other)),
}
