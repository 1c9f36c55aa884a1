"""One thing that is wrong with an object: where, what it is, what is allowed. pydantic's findings in these words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from delayoperator.crds import base
from delayoperator.crds.base import shown


@dataclass(frozen=True, slots=True)
class Refusal:
    """path: as in `spec.topics[orders].queues`. message: goes on from it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def field_path(parent: str, item: object) -> str:
    """A list's item by its name, or its number."""
    return f"{parent}[{item}]"


def from_pydantic(error: ValidationError, raw: object, root: str = "spec") -> tuple[Refusal, ...]:
    """raw: what was read, the part `root` of the object."""
    found = error.errors(include_url=False, include_context=True)
    return tuple(
        Refusal(_path(root, raw, it["loc"]), _message(it["type"], it["input"], it.get("ctx", {}), it["msg"]))
        for it in found
    )


def _path(root: str, raw: object, steps: tuple[int | str, ...]) -> str:
    path, at = root, raw
    for step in steps:
        if isinstance(step, int):
            at = at[step] if isinstance(at, list) and step < len(at) else None
            name = at.get("name") if isinstance(at, dict) else None
            path = field_path(path, name if isinstance(name, str) and len(name) <= 60 else step)
        else:
            at = at.get(step) if isinstance(at, dict) else None
            path = f"{path}.{step}" if step.isalnum() else field_path(path, step)
    return path


_PATTERNS = {
    base.DURATION: "a duration such as 500ms, 30m, 2h30m or 3d, the largest unit first",
    base.QUANTITY: "a size such as 10Gi",
    base.ANY_QUANTITY: "a quantity such as 500m, 2 or 1Gi",
    base.CRON: "a CronJob's schedule such as '0 3 * * *' or @daily",
    base.IMAGE: "an image's name, without spaces",
    base.NODE_ID: "a node's id such as n0, at most n999",
    base.DNS_LABEL: "1 to 63 of a-z, 0-9 and '-', starting and ending with a-z or 0-9",
    base.TOPIC_NAME: "1 to 50 of a-z, 0-9 and '-', starting and ending with a-z or 0-9",
}

WORDS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "missing": lambda was, limit: "is required",
    "int_type": lambda was, limit: f"is {was}; a whole number is wanted",
    "float_type": lambda was, limit: f"is {was}; a number is wanted",
    "finite_number": lambda was, limit: f"is {was}; a number is wanted",
    "string_type": lambda was, limit: f"is {was}; text is wanted",
    "bool_type": lambda was, limit: f"is {was}; true or false is wanted",
    "model_type": lambda was, limit: f"is {was}; an object is wanted",
    "dict_type": lambda was, limit: f"is {was}; an object is wanted",
    "list_type": lambda was, limit: f"is {was}; a list is wanted",
    "greater_than_equal": lambda was, limit: f"is {was}; allowed: at least {limit['ge']}",
    "less_than_equal": lambda was, limit: f"is {was}; allowed: at most {limit['le']}",
    "enum": lambda was, limit: f"is {was}; allowed: {limit['expected']}",
    "string_too_long": lambda was, limit: f"is {was}; allowed: at most {limit['max_length']} characters",
    "string_too_short": lambda was, limit: f"is {was}; allowed: at least {limit['min_length']} characters",
    "too_long": lambda was, limit: f"has {limit['actual_length']} entries; allowed: at most {limit['max_length']}",
    "string_pattern_mismatch": lambda was, limit: (
        f"is {was}; wanted: {_PATTERNS.get(limit['pattern'], 'what matches ' + str(limit['pattern']))}"
    ),
}


def _message(kind: str, was: object, limit: dict[str, Any], words: str) -> str:
    say = WORDS.get(kind)
    return f"is {shown(was)}; {words}" if say is None else say(shown(was), limit)
