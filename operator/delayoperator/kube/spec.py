"""A cluster's spec at the sizes that are right for now, as the builders read it; and the one that was accepted last,
which stands while a new one can't be accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delayregistry import codec
from delayregistry.model import ClusterSpec, ShardObject

from delayoperator.cluster.annotations import Drains, cluster_verbs, drains
from delayoperator.cluster.pod_counts import Sizes
from delayoperator.crds.convert import DesiredCluster, InvalidSpec, desired_of
from delayoperator.crds.rebalancing import Rebalancing, Spark
from delayoperator.crds.topic_merge import KnownTopics, MergedTopics, TopicOwner
from delayoperator.resources import ClusterView, names
from delayoperator.resources.view import ConsoleProvider, ConsoleView, RebalanceJobSpec, TlsSettings

Json = dict[str, Any]

# In the settings' ConfigMap, for the operator:
LAST_ACCEPTED = "granted.json"  # DelayCluster.spec as it was granted last
OWNERS = "topics.json"  # whose the topics of DelayTopics are, also while only their shards are left


@dataclass(frozen=True, slots=True)
class OwnedTopic:
    """One of OWNERS."""

    topic: str
    namespace: str
    delay_topic: str = ""


@dataclass(frozen=True, slots=True)
class LastAcceptedSpec:
    """The settings' ConfigMap. spec: the DelayCluster's. cluster: as the nodes and the planner read it. owners: by
    topic."""

    spec: Json | None = None
    cluster: ClusterSpec | None = None
    owners: Mapping[str, TopicOwner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedSpec:
    """desired: the spec to be followed, with what annotations ask for; None: there is none yet. written: the JSON that
    it was read from. invalid: why the present spec is not followed, a sentence each. restart: the annotation's value.
    """

    desired: DesiredCluster | None
    written: Json
    invalid: tuple[str, ...] = ()
    drains: Drains = field(default_factory=lambda: Drains({}))
    restart: str = ""
    known: KnownTopics = field(default_factory=KnownTopics)


def last_accepted(settings: Json | None) -> LastAcceptedSpec:
    data = {} if settings is None else settings.get("data") or {}
    try:
        spec = json.loads(data[LAST_ACCEPTED]) if LAST_ACCEPTED in data else None
    except ValueError:
        spec = None
    try:
        cluster = codec.loads(ClusterSpec, data[names.SETTINGS_KEY]) if names.SETTINGS_KEY in data else None
        owned = codec.loads_tuple(OwnedTopic, data.get(OWNERS) or "[]")
    except codec.BadRecord:
        cluster, owned = None, ()  # somebody has written something else there: it is made anew
    owners = {it.topic: TopicOwner(it.namespace, it.delay_topic) for it in owned}
    return LastAcceptedSpec(spec if isinstance(spec, dict) else None, cluster, owners)


def requested_spec(body: Json, accepted: LastAcceptedSpec, shards: Sequence[ShardObject] = ()) -> RequestedSpec:
    """body: the DelayCluster. shards: all that exist."""
    known = KnownTopics(accepted.cluster, accepted.owners, kept_queues(shards), cluster_verbs(body).owners)
    try:
        desired = desired_of(body, accepted.cluster, known.kept, known.lent())
        return _with_verbs(body, desired, dict(body.get("spec") or {}), known)
    except InvalidSpec as error:
        invalid = tuple(str(refusal) for refusal in error.refusals)
    if accepted.spec is None:
        return RequestedSpec(None, {}, invalid)
    try:
        return _with_verbs(body, desired_of({**body, "spec": accepted.spec}), accepted.spec, known, invalid)
    except InvalidSpec:
        return RequestedSpec(None, {}, invalid)


def with_topics(desired: DesiredCluster, merged: MergedTopics) -> DesiredCluster:
    topics = (*desired.cluster.topics, *merged.topics)
    return replace(desired, cluster=replace(desired.cluster, topics=topics))


def kept_queues(shards: Sequence[ShardObject]) -> dict[str, int]:
    """By topic: so many queues it takes for all its shards, whether the topic is asked for or not."""
    found: dict[str, int] = {}
    for shard in shards:
        found[shard.spec.topic] = max(found.get(shard.spec.topic, 0), shard.spec.queue + 1)
    return found


def _with_verbs(
    body: Json, desired: DesiredCluster, written: Json, known: KnownTopics, invalid: tuple[str, ...] = ()
) -> RequestedSpec:
    verbs = cluster_verbs(body)
    found = drains(desired.cluster, verbs)
    cluster = replace(desired.cluster, drained=tuple(found.drained))
    return RequestedSpec(replace(desired, cluster=cluster), written, invalid, found, verbs.restart, known)


def with_last_accepted(settings: Json, written: Json, owners: Mapping[str, TopicOwner]) -> Json:
    """The ConfigMap with the spec, and the topics' owners, beside the nodes' spec that was made of both."""
    text = json.dumps(written, sort_keys=True, separators=(",", ":"))
    owned = tuple(OwnedTopic(name, it.namespace, it.delay_topic) for name, it in sorted(owners.items()))
    return {**settings, "data": {**settings["data"], LAST_ACCEPTED: text, OWNERS: codec.dumps(owned)}}


def view_of(
    desired: DesiredCluster,
    size: Sizes,
    namespace: str,
    uid: str,
    default_image: str,
    shards: tuple[str, ...],
    rebalance_image: str = "",
    restart: str = "",
    nodes_version: int = 1,
    tls: TlsSettings | None = None,
    console_image: str = "",
) -> ClusterView:
    drained = tuple(dict.fromkeys((*desired.cluster.drained, *size.leaving)))
    rebalance = desired.rebalance
    return ClusterView(
        namespace=namespace,
        uid=uid,
        cluster=replace(desired.cluster, nodes=size.nodes, drained=drained, nodes_version=nodes_version),
        image=desired.image or default_image,
        storage=desired.storage,
        resources=desired.resources,
        pod=desired.pod,
        settings=desired.settings,
        service=desired.service,
        pod_monitor=desired.pod_monitor,
        monitor_labels=desired.monitor_labels,
        monitor_endpoint=desired.monitor_endpoint,
        metrics_authentication=_metrics(desired.metrics_authentication, tls),
        network=desired.network,
        shards=shards,
        restart=restart,
        tls=tls,
        rebalance=None if rebalance is None else _job_spec(rebalance, desired.cluster.name, rebalance_image),
        console=None if console_waits(desired, tls) else _console(desired, console_image),
    )


def console_waits(desired: DesiredCluster, tls: TlsSettings | None) -> str:
    """What spec.console lacks; "": nothing."""
    if desired.console is None:
        return ""
    if tls is None:
        return "the console needs spec.security: it shows the nodes who its user is, and this cluster is Off"
    if not desired.console.certificate_secret and not tls.cert_manager:
        return (
            "the console needs a certificate: name its Secret in spec.console.certificateSecret, since this cluster's "
            "are not cert-manager's"
        )
    return ""


def _console(desired: DesiredCluster, default_image: str) -> ConsoleView | None:
    said = desired.console
    if said is None:
        return None
    oidc = None
    issuer = next((it for it in desired.security.oidc if said.oidc and it.issuer == said.oidc.issuer), None)
    if said.oidc is not None and issuer is not None:
        secret = said.oidc.client_secret
        oidc = ConsoleProvider(
            issuer=issuer.issuer,
            client_id=issuer.audience,
            secret=None if secret is None else (secret.name, secret.key),
            scopes=tuple(said.oidc.scopes or ()),
            ca=issuer.ca,
        )
    return ConsoleView(
        image=said.image or default_image,
        allow_changes=said.allow_changes,
        hosts=tuple(said.hosts or ()),
        certificate=said.certificate_secret or "",
        oidc=oidc,
        resources=None if said.resources is None else said.resources.model_dump(by_alias=True, exclude_none=True),
    )


def _metrics(authentication: str, tls: TlsSettings | None) -> str:
    """A port of their own is by TLS: without it there is none, and nodes would not start."""
    known = tls is not None and (authentication != "mtls" or bool(tls.client_ca))
    return authentication if known else ""


def _job_spec(rebalancing: Rebalancing, cluster: str, default_image: str) -> RebalanceJobSpec:
    spark, history = rebalancing.spark or Spark.model_validate({}), rebalancing.history
    resources = spark.resources
    return RebalanceJobSpec(
        image=spark.image or default_image,
        schedule=rebalancing.schedule,
        master=spark.master,
        resources=None if resources is None else resources.model_dump(by_alias=True, exclude_none=True),
        conf=dict(spark.conf or {}),
        history=None if history is None else (history.claim_name, history.sub_path or cluster),
    )
