"""Kubernetes objects to the registry's values and back.

A reader takes what it knows and ignores the rest, so that an older process reads what a newer one wrote; a writer
names its own fields alone, so that the others stay. Raises BadRecord for an object that does not say what it should.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from delayregistry.codec import BadRecord, camel, from_json, loads, to_json
from delayregistry.kube.names import (
    ALLOW_UNCLEAN,
    GROUP_VERSION,
    PREFIX,
    SECURITY_KEY,
    SETTINGS_KEY,
    TOPIC_LABEL,
    Names,
    OwnerReference,
)
from delayregistry.model import (
    AdvisedNodes,
    ClusterObject,
    ClusterSpec,
    Condition,
    ConditionType,
    ListenerEndpoint,
    ListenerTrust,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
    VersionRange,
)
from delayregistry.security import SecurityObject

Json = dict[str, Any]

MAX_ALLOWED_BY_CHARS = 200  # of the annotation's value, in a condition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------- shards
def read_shard(names: Names, obj: Json) -> ShardObject:
    spec = from_json(ShardSpec, obj.get("spec"))
    name = _metadata(obj)["name"]
    if name != names.object(spec.name):
        raise BadRecord(f"DelayShard {name}: its spec is of {spec.name}")
    status = obj.get("status") or {}
    if not isinstance(status, dict):
        raise BadRecord("status: an object was expected")
    mine = {key: status[key] for key in _fields(ShardStatus) if key in status}
    return ShardObject(
        name=spec.name,
        version=version_of(obj),
        spec=spec,
        status=from_json(ShardStatus, mine) if mine else None,
        conditions=tuple(_conditions(status.get("conditions") or ())),
        unclean_allowed_by=_allowed_by(_metadata(obj)),
    )


def _allowed_by(metadata: Json) -> str:
    who = " ".join(str((metadata.get("annotations") or {}).get(ALLOW_UNCLEAN, "")).split())
    return "" if who.lower() == "false" else who[:MAX_ALLOWED_BY_CHARS]


def _conditions(found: Sequence[Json]) -> list[Condition]:
    known = {kind.value for kind in ConditionType}
    # A later release or another program has written it: it is none of ours.
    ours = [it for it in found if isinstance(it, dict) and it.get("type") in known and it.get("status") == "True"]
    return [from_json(Condition, {**it, "sinceMs": _ms(it.get("lastTransitionTime"))}) for it in ours]


def new_shard(names: Names, spec: ShardSpec, owner: OwnerReference | None) -> Json:
    metadata = new_metadata(names.object(spec.name), shard_labels(names, spec.topic), owner)
    return {"apiVersion": GROUP_VERSION, "kind": "DelayShard", "metadata": metadata, "spec": to_json(spec)}


def shard_labels(names: Names, topic: str) -> dict[str, str]:
    return {**names.labels, TOPIC_LABEL: topic}


def spec_patch(spec: ShardSpec, *, new_term: bool = False) -> Json:
    """new_term: what was allowed for one term is over."""
    over: Json = {"metadata": {"annotations": {ALLOW_UNCLEAN: None}}} if new_term else {}
    return {**over, "spec": _all_fields(spec)}


def status_patch(status: ShardStatus) -> Json:
    return {"status": _all_fields(status)}


def conditions_patch(conditions: Sequence[Condition]) -> Json:
    return {"status": {"conditions": [_condition(condition) for condition in conditions]}}


def _condition(condition: Condition) -> Json:
    return {
        "type": condition.type.value,
        "status": "True",
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": _time(condition.since_ms),
        "epoch": condition.epoch,
    }


# ---------------------------------------------------------------- the cluster's spec
def read_settings(obj: Json) -> ClusterObject:
    text = (obj.get("data") or {}).get(SETTINGS_KEY)
    if not isinstance(text, str):
        raise BadRecord(f"ConfigMap {_metadata(obj)['name']}: it has no {SETTINGS_KEY}")
    return ClusterObject(version_of(obj), loads(ClusterSpec, text))


def read_advice(obj: Json) -> AdvisedNodes | None:
    """obj: the DelayCluster."""
    said = (obj.get("status") or {}).get("autoscaling") or {}
    nodes, at_ms = said.get("desired"), _ms(said.get("at"))
    return AdvisedNodes(nodes, at_ms) if isinstance(nodes, int) and nodes > 0 else None


def read_security(obj: Json) -> SecurityObject:
    text = (obj.get("data") or {}).get(SECURITY_KEY)
    if not isinstance(text, str):
        raise BadRecord(f"ConfigMap {_metadata(obj)['name']}: it has no {SECURITY_KEY}")
    return SecurityObject(version_of(obj), text)


# ---------------------------------------------------------------- leases
def read_lease(names: Names, obj: Json) -> NodeLease | None:
    """None for a lease that no node has held yet."""
    metadata = _metadata(obj)
    node = names.part(metadata["name"])
    incarnation = (obj.get("spec") or {}).get("holderIdentity")
    said = metadata.get("annotations") or {}
    if not node or not incarnation or PREFIX + "renewals" not in said:
        return None
    renewals = str(said[PREFIX + "renewals"])
    if not (renewals.isascii() and renewals.isdecimal()):
        raise BadRecord(f"Lease {metadata['name']}: {PREFIX}renewals is {renewals!r}")
    texts = {field: str(said.get(PREFIX + field, "")) for field in ("endpoint", "http", "peer", "zone")}
    stopping = said.get(PREFIX + "stopping") == "true"
    formats, wire = _versions(str(said.get(PREFIX + "versions", "")), str(incarnation))
    listeners = _listeners(str(said.get(PREFIX + "listeners", "")), str(incarnation))
    return NodeLease(
        node, str(incarnation), renewals=int(renewals), stopping=stopping, formats=formats, wire=wire,
        listeners=listeners, peer_tls=said.get(PREFIX + "peer-tls") == f"of {incarnation}",
        trust=_trust(str(said.get(PREFIX + "trust", "")), str(incarnation)),
        certificate_problem=_of(str(said.get(PREFIX + "certificate-problem", "")), str(incarnation)), **texts,
    )  # fmt: skip


_VERSIONS = re.compile(r"formats ([0-9]{1,6})-([0-9]{1,6}), wire ([0-9]{1,6})-([0-9]{1,6}), of ([^ ,]+)")


def _versions(text: str, incarnation: str) -> tuple[VersionRange | None, VersionRange | None]:
    """The text names the process that it is of: one of release 0.1, which runs here after a downgrade, writes none and
    leaves what its successor wrote."""
    found = _VERSIONS.match(text)
    if found is None or found[5] != incarnation:
        return None, None
    least_format, greatest_format, least_wire, greatest_wire = map(int, found.groups()[:4])
    return VersionRange(least_format, greatest_format), VersionRange(least_wire, greatest_wire)


def _versions_text(lease: NodeLease) -> str:
    if lease.formats is None or lease.wire is None:
        return ""
    formats, wire = (f"{one.least}-{one.greatest}" for one in (lease.formats, lease.wire))
    return f"formats {formats}, wire {wire}, of {lease.incarnation}"


def _listeners(text: str, incarnation: str) -> tuple[ListenerEndpoint, ...]:
    """`NAME=HOST:PORT ..., of INCARNATION`; of another process: none, as in _versions()."""
    said, _, of = text.partition(", of ")
    if of != incarnation:
        return ()
    pairs = (one.partition("=") for one in said.split())
    return tuple(ListenerEndpoint(name, endpoint) for name, _, endpoint in pairs if endpoint)


def _listeners_text(lease: NodeLease) -> str:
    return f"{' '.join(f'{one.name}={one.endpoint}' for one in lease.listeners)}, of {lease.incarnation}"


def _of(text: str, incarnation: str) -> str:
    """`TEXT, of INCARNATION`; of another process: nothing, as in _versions()."""
    said, _, of = text.rpartition(", of ")
    return said if of == incarnation else ""


def _trust(text: str, incarnation: str) -> ListenerTrust | None:
    """`SERVER_NAME`, and from the next line on the roots."""
    name, _, roots = _of(text, incarnation).partition("\n")
    return ListenerTrust(name, roots) if name else None


def _trust_text(lease: NodeLease) -> str:
    trust = lease.trust
    return "" if trust is None else f"{trust.server_name}\n{trust.roots}, of {lease.incarnation}"


def lease_patch(lease: NodeLease, pod_uid: str, seconds: int, wall_ms: int) -> Json:
    """seconds: how long it holds. That, pod_uid and wall_ms are for people: observers watch `renewals`."""
    said = {
        "endpoint": lease.endpoint,
        "http": lease.http,
        "peer": lease.peer,
        "renewals": str(lease.renewals),
        "stopping": "true" if lease.stopping else "false",
        "zone": lease.zone,  # empty too: the process before may have run in another one
        "versions": _versions_text(lease),
        "pod-uid": pod_uid,
    }
    if lease.listeners or lease.peer_tls:
        said["peer-tls"] = f"of {lease.incarnation}" if lease.peer_tls else ""  # it may have been offered before
    if lease.listeners:
        said["listeners"] = _listeners_text(lease)
        said["trust"] = _trust_text(lease)
        said["certificate-problem"] = f"{lease.certificate_problem}, of {lease.incarnation}"
    annotations = {PREFIX + field: value for field, value in said.items()}
    spec = {"holderIdentity": lease.incarnation, "leaseDurationSeconds": seconds, "renewTime": _time(wall_ms, 6)}
    return {"metadata": {"annotations": annotations}, "spec": spec}


# ---------------------------------------------------------------- all of them
def name_of(obj: Json) -> str:
    return str(_metadata(obj)["name"])


def version_of(obj: Json) -> Version:
    return Version(str(_metadata(obj)["resourceVersion"]))


def has_labels(obj: Json, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (_metadata(obj).get("labels") or {}).items()


def at_version(patch: Json, version: Version) -> Json:
    """The patch, done only if the object is still at `version`."""
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def _metadata(obj: Json) -> Json:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or "name" not in metadata or "resourceVersion" not in metadata:
        raise BadRecord("metadata: a name and a resourceVersion were expected")
    return metadata


def new_metadata(name: str, labels: Mapping[str, str], owner: OwnerReference | None) -> Json:
    references = {"ownerReferences": [owner.to_json()]} if owner is not None else {}
    return {"name": name, "labels": dict(labels), **references}


def _all_fields(value: Any) -> Json:
    """The codec's JSON, with null for None: what a merge patch does not name stays."""
    return {**dict.fromkeys(_fields(type(value))), **to_json(value)}


def _fields(kind: type) -> list[str]:
    return [camel(field.name) for field in dataclasses.fields(kind)]


def _time(wall_ms: int, digits: int = 3) -> str:
    """RFC 3339. A Lease's times need six digits."""
    at = _EPOCH + timedelta(milliseconds=wall_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond:06d}"[:digits] + "Z"


def _ms(text: Any) -> int:
    try:
        return (datetime.fromisoformat(str(text)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError):
        return 0  # a person has edited it; that needs no error
