"""The two names of a field in JSON: `messageId`, and `message_id` as its schema has it. An object uses one of them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def check_names(of: type[Message], given: dict[str, object]) -> None:
    """Of an object and all within. Raises ValueError where one has both names of a field: the library takes the last
    one."""
    waiting: list[tuple[Any, object]] = [(of.DESCRIPTOR, given)]
    while waiting:
        kind, one = waiting.pop()
        if not isinstance(one, dict):
            continue
        for name, value in one.items():
            field = kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)
            if field is None:
                continue  # the library says that there is none
            if name != field.json_name and field.json_name in one:
                raise ValueError(f"{field.json_name!r} is there twice, as {name!r} too")
            inner = field.message_type
            if inner is not None and not inner.GetOptions().map_entry:
                waiting += [(inner, each) for each in (value if isinstance(value, list) else (value,))]
