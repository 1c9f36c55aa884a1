"""Kubernetes' normal forms: an object as the API server would hand it back, its defaults aside; quantities as numbers.

The API server drops nulls, and empty lists, texts and maps of the fields that core types mark as omitted when empty.
What is applied has to be in that form too: a field that was sent and dropped would look like somebody else's change.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any

STRING_MAPS = frozenset(
    {"annotations", "data", "labels", "limits", "matchLabels", "nodeSelector", "requests"}
)  # their keys are people's, and "" is a value there; an empty one is dropped
KEPT_TEXTS = frozenset({"storageClassName"})  # "" says something else than absence
DROPPED_ZEROS = frozenset(
    {
        "failureThreshold", "hostPort", "initialDelaySeconds", "periodSeconds", "readOnly", "stdin", "stdinOnce",
        "successThreshold", "timeoutSeconds", "tty",
    }
)  # fmt: skip
"""Of containers and volumes that people write: what is false or 0 is as good as absent."""
QUANTITY_MAPS = frozenset({"capacity", "limits", "requests"})
QUANTITIES = frozenset({"divisor", "sizeLimit"})

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]))?")
_FACTORS = {
    **{name: Decimal(10) ** power for name, power in zip("num kMGTPE", range(-9, 19, 3), strict=True)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


class BadQuantity(ValueError):
    """A text that is no Kubernetes quantity."""


def quantity(value: str | int | float) -> Decimal:
    """'500m', '1Gi', '1e3' or 2 as a number. Raises BadQuantity."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise BadQuantity(f"{value!r} is no quantity such as 500m, 2 or 1Gi")
    number, exponent, suffix = found.groups()
    return Decimal(number + (exponent or "")) * _FACTORS[suffix or " "]


def whole_bytes(value: str | int | float) -> int:
    """A quantity of bytes, rounded up as Kubernetes does. Raises BadQuantity."""
    return int(quantity(value).to_integral_value(rounding=ROUND_CEILING))


def normal(value: Any, key: str = "") -> Any:
    """A copy without what the API server would drop. `key`: the field that holds it."""
    if isinstance(value, dict):
        if key in STRING_MAPS:
            return {name: item for name, item in value.items() if item is not None}
        fields = {name: normal(item, name) for name, item in value.items()}
        return {name: item for name, item in fields.items() if not _dropped(item, name)}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return value


def is_quantity(holder: str, key: str) -> bool:
    """Whether field `key` of field `holder` is one."""
    return key in QUANTITIES or holder in QUANTITY_MAPS


def _dropped(item: Any, key: str) -> bool:
    if item is None or item == []:
        return True
    if key in DROPPED_ZEROS and item in (0, False):
        return True
    if isinstance(item, str):
        return item == "" and key not in KEPT_TEXTS
    return item == {} and key in STRING_MAPS
