"""A pydantic model as a structural OpenAPI v3 schema, as Kubernetes wants it in a CustomResourceDefinition.

Structural means: every field has its type where it stands, no $ref, no title, no union but "integer or text"; an
absent optional field is absent, never null.
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from delayoperator.crds.base import Json

_DROPPED = ("title", "$defs", "const")
_INT32 = 2**31 - 1


def structural(model: type[BaseModel]) -> Json:
    """The schema of an object of the kind, apiVersion, kind and metadata included."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    schema = _resolved(raw, raw.get("$defs", {}))
    own = {
        "apiVersion": {
            "type": "string",
            "description": "The version of this resource's schema: delaycluster.io/v1alpha1.",
        },
        "kind": {"type": "string", "description": f"{model.__name__}."},
        "metadata": {"type": "object"},
    }
    return {**schema, "properties": {**own, **schema["properties"]}}


def _resolved(node: Json, definitions: Json) -> Json:
    """`node` with everything that it refers to in its place. The words next to a reference win."""
    node = dict(node)
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        return _resolved({**target, **node}, definitions)
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        (some,) = (part for part in node.pop("anyOf") if part != {"type": "null"})
        return _resolved({**some, **node}, definitions)
    for dropped in _DROPPED:
        node.pop(dropped, None)
    if node.get("x-kubernetes-int-or-string"):
        node.pop("type", None)
    if "default" in node and node["default"] is None:
        del node["default"]
    if isinstance(node.get("default"), dict):  # in full: the API server holds it against the rules as it stands here
        node["default"] = {name: value for name, value in node["default"].items() if value is not None}
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _resolved(node["additionalProperties"], definitions)
    elif "additionalProperties" in node:
        del node["additionalProperties"]
    if "items" in node:
        node["items"] = _resolved(node["items"], definitions)
    if "properties" in node:
        node["properties"] = {name: _resolved(part, definitions) for name, part in node["properties"].items()}
        if not node["properties"]:  # as the API server gives it back: else GitOps tools see a difference for ever
            del node["properties"]
    if "description" in node:
        node["description"] = _paragraphs(node["description"])
    if node.get("type") == "integer":
        node["format"] = "int32" if node.get("maximum", _INT32 + 1) <= _INT32 else "int64"
    return _ordered(node)


def _paragraphs(text: str) -> str:
    """One line a paragraph: kubectl explain wraps by itself."""
    return "\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _ordered(node: Json) -> Json:
    """What is it, then the limits, then what is inside."""
    first = ("description", "type", "format", "default", "enum")
    last = ("required", "properties", "items", "additionalProperties")
    rank: dict[str, Any] = {key: at for at, key in enumerate(first)} | {key: 100 + at for at, key in enumerate(last)}
    return {key: node[key] for key in sorted(node, key=lambda key: (rank.get(key, 50), key))}
