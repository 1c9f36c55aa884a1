"""A trigger's metadata: what the author of a ScaledObject asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from delaynode.store.errors import Refused

OF_KEDA: Final = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"})
"""KEDA passes on all that a trigger has, its own part too."""
DEFAULTS: Final = {"leadSeconds": 30.0, "horizonSeconds": 600.0, "maxLatenessSeconds": 5.0}
LIMITS: Final = {  # the least and the most
    "ratePerReplica": (0.001, 1e9), "leadSeconds": (0.0, 3_600.0), "horizonSeconds": (1.0, 86_400.0),
    "maxLatenessSeconds": (1.0, 86_400.0),
}  # fmt: skip
NAMES: Final = ("topic", "group")
NODES: Final = "nodes"
MAX_BUCKETS = 720
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Asked:
    """rate: messages per second of a replica. lead_s: until one that is asked for works; horizon_s: how far ahead is
    looked; late_s: how late a message may be delivered."""

    topic: str
    group: str
    rate: float
    lead_s: float
    horizon_s: float
    late_s: float

    @property
    def bucket_ms(self) -> int:
        """As long as a message may be late, where so many buckets reach the horizon."""
        return ceil(1000 * min(self.horizon_s, max(self.late_s, self.horizon_s / MAX_BUCKETS)))

    @property
    def buckets(self) -> int:
        return ceil(1000 * self.horizon_s / self.bucket_ms)


def asks_for_nodes(metadata: Mapping[str, str]) -> bool:
    """The trigger is for the DelayCluster itself: `metric: nodes`. Raises Refused."""
    if "metric" not in metadata:
        return False
    if metadata["metric"] != NODES:
        raise _wrong(f"metric is {metadata['metric'][:100]!r}: allowed is {NODES!r}; absent, workers are asked for")
    for name in sorted(metadata.keys() - {"metric"} - OF_KEDA):
        raise _wrong(
            f"{name[:100]!r} is not known beside metric: {NODES}; spec.autoscaling of the cluster has the rest"
        )
    return True


def asked(metadata: Mapping[str, str]) -> Asked:
    """Raises Refused."""
    known = {*NAMES, *LIMITS}
    for name in sorted(metadata.keys() - known - OF_KEDA):
        raise _wrong(f"{name[:100]!r} is not known; known are {', '.join(sorted(known))}")
    topic, group = (_name(metadata, name) for name in NAMES)
    rate, lead_s, horizon_s, late_s = (_number(metadata, name) for name in LIMITS)
    for name, seconds in (("leadSeconds", lead_s), ("maxLatenessSeconds", late_s)):
        if seconds > horizon_s:
            raise _wrong(f"{name} is {seconds:g}, longer than horizonSeconds, {horizon_s:g}")
    return Asked(topic, group, rate, lead_s, horizon_s, late_s)


def _name(metadata: Mapping[str, str], name: str) -> str:
    if not metadata.get(name):
        raise _wrong(f"{name} is missing")
    return metadata[name]


def _number(metadata: Mapping[str, str], name: str) -> float:
    least, most = LIMITS[name]
    text = metadata.get(name)
    if text is None:
        if name not in DEFAULTS:
            raise _wrong(f"{name} is missing")
        return DEFAULTS[name]
    value = float(text) if _NUMBER.fullmatch(text) else None
    if value is None or not least <= value <= most:
        raise _wrong(f"{name} is {text[:100]!r}: a number from {least:g} to {most:,.0f}, such as 200 or 0.5")
    return value


def _wrong(why: str) -> Refused:
    return Refused("BAD_REQUEST", f"the trigger's metadata: {why}")
