"""What people ask for by annotations, which GitOps leaves alone: the spec is for what lasts, these are for a while.

    DelayCluster  delaycluster.io/paused=WHO      as spec.paused
                  delaycluster.io/drain-n2=WHO    as spec.drained: [n2]
                  delaycluster.io/restart=VALUE   each new value restarts all pods, one by one
                  delaycluster.io/owner-TOPIC=NAMESPACE   the topic, and what is in it, is that namespace's
    Pod           delaycluster.io/restart=WHO     this pod is restarted, in its turn

WHO is any text, for the status to show who asked and why; an empty one and "false" ask for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delayregistry.model import ClusterSpec

from delayoperator.resources.names import PREFIX

PAUSED = PREFIX + "paused"
RESTART = PREFIX + "restart"
DRAIN_PREFIX = PREFIX + "drain-"
OWNER_PREFIX = PREFIX + "owner-"
MAX_ASKED_BY_CHARS = 200  # of WHO, in a message

_NODE = re.compile(r"n(0|[1-9][0-9]{0,4})")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClusterVerbs:
    """A DelayCluster's annotations, as sentences' ends: who asked. refused: what can't be followed, and why."""

    paused: str = ""
    restart: str = ""  # the value; "": it was never asked for
    drained: Mapping[str, str] = field(default_factory=dict)  # by node id
    owners: Mapping[str, str] = field(default_factory=dict)  # by topic: the namespace that it is given to
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drains:
    """The nodes to be emptied, spec.drained's and the annotations', with who asked. refused: what is not followed."""

    drained: Mapping[str, str]
    refused: tuple[str, ...] = ()


def drain_annotation(node: str) -> str:
    return DRAIN_PREFIX + node


def cluster_verbs(body: object) -> ClusterVerbs:
    """body: the DelayCluster's JSON, whatever it is."""
    said = annotations_of(body)
    asked = {key: value for key, value in said.items() if _asks(value)}
    drains = {key.removeprefix(DRAIN_PREFIX): key for key in asked if key.startswith(DRAIN_PREFIX)}
    nodes = sorted((node for node in drains if _NODE.fullmatch(node)), key=lambda node: int(node[1:]))
    refused = [key for node, key in drains.items() if not _NODE.fullmatch(node)]
    owners = {key.removeprefix(OWNER_PREFIX): value for key, value in asked.items() if key.startswith(OWNER_PREFIX)}
    nowhere = sorted(topic for topic, namespace in owners.items() if not _NAMESPACE.fullmatch(namespace))
    return ClusterVerbs(
        paused=_by(PAUSED, asked[PAUSED]) if PAUSED in asked else "",
        restart=asked.get(RESTART, ""),
        drained={node: _by(drains[node], asked[drains[node]]) for node in nodes},
        owners={topic: namespace for topic, namespace in owners.items() if topic not in nowhere},
        refused=(
            *(f"{key} names no node: they are n0, n1 and so on" for key in sorted(refused)),
            *(f"{_by(OWNER_PREFIX + topic, owners[topic])} is the name of no namespace" for topic in nowhere),
        ),
    )


def paused_by(body: object) -> str:
    """Who paused the DelayCluster, whatever else the object says; "": it is not paused."""
    spec = body.get("spec") if isinstance(body, Mapping) else None
    if isinstance(spec, Mapping) and spec.get("paused") is True:
        return "spec.paused"
    return cluster_verbs(body).paused


def drains(spec: ClusterSpec, verbs: ClusterVerbs) -> Drains:
    """spec.drained first, then the annotations, lowest node first, as long as the nodes left can hold all copies."""
    found = dict.fromkeys(spec.drained, "spec.drained")
    refused = [*verbs.refused]
    for node, who in verbs.drained.items():
        if node in found or node not in spec.node_ids:
            continue
        left = sum(other not in found for other in spec.node_ids) - 1
        if left < spec.replicas:
            copies = "1 copy is" if spec.replicas == 1 else f"{spec.replicas} copies are"
            refused.append(f"{who}: {copies} wanted of each shard, and {left} other nodes would be left")
        else:
            found[node] = who
    return Drains(found, tuple(refused))


def asked_restart(meta: Mapping[str, Any]) -> str:
    """Who asked for a restart, of a pod's metadata; "": none did."""
    value = annotations_of({"metadata": meta}).get(RESTART, "")
    return _short(value) if _asks(value) else ""


def annotations_of(body: object) -> Mapping[str, str]:
    meta = body.get("metadata") if isinstance(body, Mapping) else None
    found = meta.get("annotations") if isinstance(meta, Mapping) else None
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(key): value for key, value in pairs if isinstance(value, str)}


def _asks(value: str) -> bool:
    return value.strip().lower() not in ("", "false")


def _by(key: str, who: str) -> str:
    return f"annotation {key}: {_short(who)}"


def _short(who: str) -> str:
    who = " ".join(who.split())
    return who if len(who) <= MAX_ASKED_BY_CHARS else who[: MAX_ASKED_BY_CHARS - 3] + "..."
