"""A JSON Schema checker with the keywords that values.schema.json and the custom resources' definitions use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def faults(value: Any, schema: Json, *, closed: bool = False, at: str = "") -> Iterator[str]:
    """The faults of `value`, each a sentence that begins with its place.

    closed: a field that the schema does not name is wrong too (kubectl's strict validation).
    """
    root = schema

    def walk(value: Any, schema: Json, at: str) -> Iterator[str]:
        if "$ref" in schema:
            found: Any = root
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        if schema.get("x-kubernetes-int-or-string"):
            if not isinstance(value, int | str) or isinstance(value, bool):
                yield f"{at}: neither a whole number nor text"
            value = str(value)
        elif "type" in schema and not _is(value, schema["type"]):
            yield f"{at}: not of type {schema['type']}"
            return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{at}: {value!r} is none of {schema['enum']}"
        if isinstance(value, str):
            yield from _text(value, schema, at)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from _number(value, schema, at)
        if isinstance(value, list):
            if len(value) > schema.get("maxItems", len(value)):
                yield f"{at}: more than {schema['maxItems']} items"
            for number, item in enumerate(value):
                yield from walk(item, schema.get("items", {}), f"{at}[{number}]")
        if isinstance(value, dict):
            yield from fields(value, schema, at)

    def fields(value: Json, schema: Json, at: str) -> Iterator[str]:
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{at}: {name} is missing"
        known, more = schema.get("properties", {}), schema.get("additionalProperties")
        open_ = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
        for name, item in value.items():
            if name in known:
                yield from walk(item, known[name], f"{at}.{name}")
            elif isinstance(more, dict):
                yield from walk(item, more, f"{at}.{name}")
            elif more is False or (closed and known and not open_):
                yield f"{at}.{name}: no such field"

    return walk(value, schema, at)


def _is(value: Any, name: str | list[str]) -> bool:
    if isinstance(name, list):
        return any(_is(value, one) for one in name)
    if name == "null":
        return value is None
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES[name])


def _text(value: str, schema: Json, at: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{at}: length {len(value)} is not allowed"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} does not match {schema['pattern']}"


def _number(value: float, schema: Json, at: str) -> Iterator[str]:
    if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{at}: {value} is out of range"
