"""Whether an object has to be applied, and whether it may be: what is wanted against what is live.

The live object has more than anybody wrote: defaults, status, other managers' fields. So each field that is wanted has
to be there with that value, in Kubernetes' normal forms, and nothing else matters. What we wanted before and don't want
any more can't be seen that way; for it every object carries a stamp of what was wanted, and that differs then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delayoperator.resources.names import CLUSTER_LABEL, MANAGER
from delayoperator.resources.normal import BadQuantity, is_quantity, normal, quantity
from delayoperator.resources.view import ClusterView, Json

LIST_MAPS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists whose items are known by these fields (x-kubernetes-list-map-keys): others may add items of their own. Any
other list is one value."""

PORTS = {"containerPort": ("containerPort", "protocol"), "port": ("port", "protocol")}
KEY_DEFAULTS = {"protocol": "TCP"}  # what the API server makes of an absent key
SHOWN = 60  # characters of a value in a sentence


@dataclass(frozen=True, slots=True)
class Difference:
    """path: `spec.template.spec.containers[node].image`; "" is the whole object. A value of None: absent."""

    path: str
    desired: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.path or 'the object'}: {_shown(self.found)} -> {_shown(self.desired)}"


def differences(desired: Json, live: Json | None) -> tuple[Difference, ...]:
    """Why `desired` has to be applied by server-side apply; empty: it need not be. live: None, there is none."""
    if live is None:
        return (Difference("", desired["kind"], None),)
    # A list's items come without their kind.
    wanted = {key: value for key, value in normal(desired).items() if key not in ("apiVersion", "kind")}
    return tuple(_missing(wanted, normal(live), "", ""))


def foreign(view: ClusterView, live: Json) -> str | None:
    """Why the live object must be left alone, whatever its name; None when it is this cluster's.

    One without a controller is taken over when its labels say that it was this cluster's: it was restored, or left
    behind by `kubectl delete --cascade=orphan`.
    """
    meta = live.get("metadata", {})
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    if owner is not None:
        if owner.get("uid") == view.uid:
            return None
        return f"it belongs to {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})"
    labels = meta.get("labels") or {}
    if labels.get(CLUSTER_LABEL) == view.name and labels.get("app.kubernetes.io/managed-by") == MANAGER:
        return None
    return "it was there before and is not the operator's"


def list_keys(holder: str, items: Sequence[Any]) -> tuple[str, ...]:
    """The fields that tell the items of field `holder` apart; none: the list is one value."""
    first = items[0] if items and isinstance(items[0], dict) else {}
    if holder == "ports":
        return next((keys for name, keys in PORTS.items() if name in first), ())
    return LIST_MAPS.get(holder, ())


def _missing(wanted: Any, found: Any, path: str, holder: str) -> Iterator[Difference]:
    """holder: the name of the field that `wanted` is the value of."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            yield Difference(path, wanted, found)
            return
        for key, item in wanted.items():
            at = _below(path, key)
            if not is_quantity(holder, key):
                yield from _missing(item, found.get(key), at, key)
            elif not _same_quantity(item, found.get(key)):
                yield Difference(at, item, found.get(key))
    elif isinstance(wanted, list):
        yield from _missing_items(wanted, found, path, holder)
    elif type(wanted) is not type(found) or wanted != found:  # to Python, True is 1
        yield Difference(path, wanted, found)


def _missing_items(wanted: list[Any], found: Any, path: str, holder: str) -> Iterator[Difference]:
    items = found if isinstance(found, list) else []
    keys = list_keys(holder, wanted)
    if keys:
        by_key = {_key(item, keys): item for item in items if isinstance(item, dict)}
        for item in wanted:
            key = _key(item, keys)
            yield from _missing(item, by_key.get(key), f"{path}[{'/'.join(key)}]", holder)
    elif len(items) != len(wanted):
        yield Difference(path, wanted, found)
    else:  # an item that is an object may have defaults
        for number, (item, other) in enumerate(zip(wanted, items, strict=True)):
            yield from _missing(item, other, f"{path}[{number}]", holder)


def _key(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(item.get(key, KEY_DEFAULTS.get(key, ""))) for key in keys)


def _same_quantity(wanted: Any, found: Any) -> bool:
    try:
        return found is not None and quantity(wanted) == quantity(found)
    except BadQuantity:
        return bool(wanted == found)


def _below(path: str, key: str) -> str:
    if "." in key or "/" in key:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
