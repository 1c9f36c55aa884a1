"""What every model of a custom resource shares: names in JSON, kinds of values, CEL rules, list kinds.

A model is read with two promises to other releases: an unknown field is ignored (a newer release wrote it), and only
what names an item is required (an older one did not know the rest).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    model_validator,
)
from pydantic.alias_generators import to_camel

Json = dict[str, Any]

_AMOUNT = r"[0-9]{1,12}(\.[0-9]{1,6})?"
DURATION = "^" + "".join(f"({_AMOUNT}{unit})?" for unit in ("w", "d", "h", "m", "s", "ms")) + "$"
QUANTITY = r"^[0-9]{1,15}(\.[0-9]{1,9})?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
ANY_QUANTITY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"
CRON = r"^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[0-9A-Za-z*/,?-]+( [0-9A-Za-z*/,?-]+){4})$"
IMAGE = r"^[!-~]+$"
NODE_ID = r"^n(0|[1-9][0-9]{0,2})$"
TOPIC_NAME = r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
SHARD_NAME = r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?-[0-9]{1,5}$"


class Model(BaseModel):
    """Fields are camelCase in JSON; a null is an absent field, as the API server sees it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


def rule(expression: str, message: str, *, says: str = "", field: str = "") -> Json:
    """One of x-kubernetes-validations.

    says: a CEL expression for the message, when it is to name what it found; `message` stands in where it fails.
    field: the path below this schema that the refusal names.
    """
    out = {"rule": expression, "message": message}
    if says:
        out["messageExpression"] = says
    if field:
        out["fieldPath"] = field
    return out


def rules(*all_of: Json, **more: Any) -> Json:
    return {"x-kubernetes-validations": list(all_of), **more}


def list_map(*keys: str) -> Json:
    """A list whose items are known by `keys`: several owners can apply items of their own."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LIST_SET: Json = {"x-kubernetes-list-type": "set"}
ATOMIC: Json = {"x-kubernetes-list-type": "atomic"}
ATOMIC_MAP: Json = {"x-kubernetes-map-type": "atomic"}
OPEN: Json = {"x-kubernetes-preserve-unknown-fields": True}


def _quantity_text(value: Any) -> Any:
    """Quantities may be written as numbers: `cpu: 2`."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def shown(value: Any) -> str:
    """A value in a message: short, and what kind of thing it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    names = {dict: "an object", list: "a list", bool: str(value).lower(), type(None): "null"}
    return names.get(type(value), repr(value)[:60])


Int = Annotated[int, Strict()]
Number = Annotated[float, Strict(), AllowInfNan(False)]
Bool = StrictBool
Text = Annotated[StrictStr, Field(max_length=1_024)]
Image = Annotated[StrictStr, Field(min_length=1, max_length=512, pattern=IMAGE)]
Duration = Annotated[StrictStr, Field(pattern=DURATION, min_length=2, max_length=32)]
"""Read by delayapi.durations: 500ms, 30s, 2h30m, 40d. The largest unit first, each once: so CEL can read it too."""
Quantity = Annotated[StrictStr, Field(pattern=QUANTITY, max_length=32)]
NodeId = Annotated[StrictStr, Field(pattern=NODE_ID, max_length=40)]
ResourceAmount = Annotated[
    StrictStr,
    BeforeValidator(_quantity_text),
    Field(
        pattern=ANY_QUANTITY,
        max_length=64,
        json_schema_extra={
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": ANY_QUANTITY,  # pydantic leaves it out behind a validator
        },
    ),
]
