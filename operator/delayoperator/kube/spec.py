"""A cluster's wishes at the sizes that are right for now, as the builders read them; and those that were granted last,
which stand while new ones can't be granted."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from delayregistry import codec
from delayregistry.model import ClusterSpec

from delayoperator.cluster.sizes import Sizes
from delayoperator.crds.convert import DesiredCluster, InvalidSpec, wishes_of
from delayoperator.crds.rebalancing import Rebalancing, Spark
from delayoperator.resources import ClusterView, names
from delayoperator.resources.view import RebalanceWishes

Json = dict[str, Any]

GRANTED = "granted.json"  # in the settings' ConfigMap, for the operator: DelayCluster.spec as it was granted last


@dataclass(frozen=True, slots=True)
class Granted:
    """What the settings' ConfigMap says. spec: of the DelayCluster. cluster: as the nodes and the planner read it."""

    spec: Json | None = None
    cluster: ClusterSpec | None = None


@dataclass(frozen=True, slots=True)
class RequestedSpec:
    """wishes: those to be followed; None: there are none yet. written: the spec that they were read from. invalid: why
    the present spec is not followed, a sentence each."""

    wishes: DesiredCluster | None
    written: Json
    invalid: tuple[str, ...] = ()


def granted(settings: Json | None) -> Granted:
    data = {} if settings is None else settings.get("data") or {}
    try:
        spec = json.loads(data[GRANTED]) if GRANTED in data else None
    except ValueError:
        spec = None
    try:
        cluster = codec.loads(ClusterSpec, data[names.SETTINGS_KEY]) if names.SETTINGS_KEY in data else None
    except codec.BadRecord:
        cluster = None  # somebody has written something else there: it is made anew
    return Granted(spec if isinstance(spec, dict) else None, cluster)


def asked(body: Json, standing: Granted) -> RequestedSpec:
    """body: the DelayCluster."""
    try:
        return RequestedSpec(wishes_of(body, standing.cluster), dict(body.get("spec") or {}))
    except InvalidSpec as error:
        invalid = tuple(str(refusal) for refusal in error.refusals)
    if standing.spec is None:
        return RequestedSpec(None, {}, invalid)
    try:
        return RequestedSpec(wishes_of({**body, "spec": standing.spec}), standing.spec, invalid)
    except InvalidSpec:
        return RequestedSpec(None, {}, invalid)


def with_granted(settings: Json, written: Json) -> Json:
    """The ConfigMap with the spec beside the wishes that were made of it."""
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    return {**settings, "data": {**settings["data"], GRANTED: text}}


def view_of(
    wishes: DesiredCluster,
    size: Sizes,
    namespace: str,
    uid: str,
    default_image: str,
    shards: tuple[str, ...],
    rebalance_image: str = "",
) -> ClusterView:
    drained = tuple(dict.fromkeys((*wishes.cluster.drained, *size.leaving)))
    return ClusterView(
        namespace=namespace,
        uid=uid,
        cluster=replace(wishes.cluster, nodes=size.nodes, drained=drained),
        image=wishes.image or default_image,
        storage=wishes.storage,
        resources=wishes.resources,
        pod=wishes.pod,
        pod_monitor=wishes.pod_monitor,
        monitor_labels=wishes.monitor_labels,
        shards=shards,
        rebalance=None
        if wishes.rebalance is None
        else _job_wishes(wishes.rebalance, wishes.cluster.name, rebalance_image),
    )


def _job_wishes(wishes: Rebalancing, cluster: str, default_image: str) -> RebalanceWishes:
    spark, history = wishes.spark or Spark.model_validate({}), wishes.history
    resources = spark.resources
    return RebalanceWishes(
        image=spark.image or default_image,
        schedule=wishes.schedule,
        master=spark.master,
        resources=None if resources is None else resources.model_dump(by_alias=True, exclude_none=True),
        conf=dict(spark.conf or {}),
        history=None if history is None else (history.claim_name, history.sub_path or cluster),
    )
