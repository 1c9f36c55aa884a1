"""DelayCluster -> what the operator works with, or every reason why not, with the field and its limit.

The API server refused most of it before (schema, CEL). It is all checked again: a CRD may be older than the operator,
and whatever the JSON is, the answer is a spec or refusals, never a crash.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from delayapi.durations import parse_duration_ms
from delayapi.units import DAY_MS
from delayregistry.model import MAX_HORIZON_DAYS, MAX_QUEUES, BadSpec, ClusterSpec, TopicQuotas, TopicSpec
from delayregistry.security import AuthorizationMode, IssuerKind, SecuritySpec, TokenIssuer, Verification
from pydantic import ValidationError

from delayoperator.cluster.node_scaling import ScalingSettings
from delayoperator.crds import limits
from delayoperator.crds.autoscaling import Autoscaling
from delayoperator.crds.base import shown
from delayoperator.crds.cluster import (
    DelayClusterSpec,
    Finalize,
    MetricsAuthentication,
    Monitoring,
    NetworkPolicyModel,
    TopicSettings,
)
from delayoperator.crds.console import ISSUER_KNOWN, SECURITY_WANTED, ConsoleModel
from delayoperator.crds.node_settings import NodeSettingsModel
from delayoperator.crds.pod import PodTemplate
from delayoperator.crds.rebalancing import Approval, Rebalancing
from delayoperator.crds.refusal import Refusal, field_path, from_pydantic
from delayoperator.crds.security import KEYS_WANTED, OIDC_KEYS, ONE_SOURCE, ClusterCertificates, SecurityModel
from delayoperator.crds.service import ClientService, ServiceType
from delayoperator.crds.tenancy import (
    WITH_SELECTOR,
    WITH_VALUES,
    AllowedFrom,
    AllowedNamespaces,
    LabelOperator,
)
from delayoperator.resources import names
from delayoperator.resources.normal import quantity, whole_bytes
from delayoperator.resources.view import (
    CertificateIssuer,
    NetworkAccess,
    NodeSettings,
    PodSpec,
    SecurityMode,
    ServiceView,
    TlsSettings,
    VolumeRequest,
)


class InvalidSpec(ValueError):
    """A DelayCluster that can't be granted. `refusals`: all that is wrong, never empty."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        super().__init__("; ".join(str(refusal) for refusal in refusals))
        self.refusals = refusals


@dataclass(frozen=True, slots=True)
class DesiredSecurity:
    """said: spec.security is there; else a new cluster is secured where keys can be had, and another one stays as it
    is. tls: with the mode that is asked for; None: Off. verify: of ServiceAccounts' tokens."""

    said: bool = False
    tls: TlsSettings | None = None
    verify: Verification = Verification.JWKS
    oidc: tuple[TokenIssuer, ...] = ()
    super_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredCluster:
    """A DelayCluster's spec as good values. image None: the operator's own. resources None: the operator's choice."""

    cluster: ClusterSpec
    image: str | None = None
    paused: bool = False
    storage: VolumeRequest = field(default_factory=VolumeRequest)
    resources: Mapping[str, Mapping[str, str]] | None = None
    pod: PodSpec = field(default_factory=PodSpec)
    settings: NodeSettings = field(default_factory=NodeSettings)
    service: ServiceView = field(default_factory=ServiceView)
    pod_monitor: bool = False
    monitor_labels: Mapping[str, str] = field(default_factory=dict)
    monitor_endpoint: Mapping[str, Any] = field(default_factory=dict)
    metrics_authentication: str = ""  # of the node's option; "": metrics have no port of their own
    rebalance: Rebalancing | None = None
    console: ConsoleModel | None = None
    network: NetworkAccess | None = None
    security: DesiredSecurity = field(default_factory=lambda: DesiredSecurity())
    finalize: bool = True  # a newer format is written as soon as every node reads it
    scaling: ScalingSettings | None = None  # spec.autoscaling
    allowed: AllowedNamespaces | None = None  # whose DelayTopics and DelayUsers count, beside its own namespace's


def desired_of(
    body: object,
    accepted: ClusterSpec | None = None,
    kept: Mapping[str, int] | None = None,
    lent: Collection[TopicSpec] = (),
) -> DesiredCluster:
    """body: the DelayCluster's JSON. accepted: the spec that was accepted last, which some fields may not go behind.
    kept: by topic, also of those that were removed: so many queues it takes for all its shards. lent: the topics of
    DelayTopics, which the cluster has beside its own.

    Raises InvalidSpec.
    """
    name, raw = _part(_part(body, "metadata"), "name"), _part(body, "spec")
    refusals = list(_bad_name(name))
    try:
        spec = DelayClusterSpec.model_validate({} if raw is None else raw)
    except ValidationError as error:
        raise InvalidSpec((*refusals, *from_pydantic(error, raw))) from error
    refusals += [
        *_impossible(spec),
        *_topics(spec, lent),
        *(_taken_back(spec, accepted, kept or {}) if accepted else ()),
    ]
    if refusals:
        raise InvalidSpec(tuple(refusals))
    try:
        return _desired_cluster(str(name), spec)
    except BadSpec as error:
        raise InvalidSpec((Refusal("spec", str(error)),)) from error


def _part(body: object, key: str) -> Any:
    return body.get(key) if isinstance(body, Mapping) else None


def _bad_name(name: object) -> Iterator[Refusal]:
    if not isinstance(name, str) or not limits.CLUSTER_NAME.fullmatch(name):
        yield Refusal("metadata.name", limits.NAME[0]["message"])
    elif name.endswith(limits.NODES_SUFFIX):
        yield Refusal("metadata.name", limits.NAME[1]["message"])


def _impossible(spec: DelayClusterSpec) -> Iterator[Refusal]:
    if spec.replicas > spec.nodes:
        why = f"is {spec.replicas}, but nodes is {spec.nodes}; {limits.REPLICAS['message']}"
        yield Refusal("spec.replicas", why)
    if spec.min_in_sync > spec.replicas:
        why = f"is {spec.min_in_sync}, but replicas is {spec.replicas}; {limits.MIN_IN_SYNC['message']}"
        yield Refusal("spec.minInSync", why)
    leaving = {node for node in spec.drained or () if int(node[1:]) < spec.nodes}
    if spec.nodes - len(leaving) < min(spec.replicas, spec.nodes):
        left = f"leaves {spec.nodes - len(leaving)} of {spec.nodes} nodes, but replicas is {spec.replicas}"
        yield Refusal("spec.drained", f"{left}; {limits.DRAINED['message']}")
    failover = spec.failover
    if failover.replace_after_seconds <= failover.lease_seconds:
        why = f"is {failover.replace_after_seconds}, but leaseSeconds is {failover.lease_seconds}"
        yield Refusal("spec.failover.replaceAfterSeconds", f"{why}; {limits.FAILOVER[0]['message']}")
    if quantity(spec.storage.size) < quantity(limits.MIN_STORAGE):
        yield Refusal("spec.storage.size", f"is {spec.storage.size}; allowed: at least {limits.MIN_STORAGE}")
    memory = (spec.resources.limits or {}).get("memory") if spec.resources else None
    if memory is not None and quantity(memory) < quantity(limits.MIN_MEMORY):
        yield Refusal("spec.resources.limits[memory]", f"is {memory}; {limits.MEMORY['message']}")
    if spec.pod_template is not None:
        yield from _template(spec.pod_template)
    if spec.settings is not None:
        yield from _node_settings(spec.settings)
    service = spec.service
    if service is not None and service.type is ServiceType.CLUSTER_IP and service.external_traffic_policy is not None:
        yield Refusal("spec.service.externalTrafficPolicy", limits.SERVICE[0]["message"])
    if service is not None and service.type is not ServiceType.LOAD_BALANCER:
        for at, field_name, given in (
            (1, "loadBalancerClass", service.load_balancer_class),
            (2, "loadBalancerSourceRanges", service.load_balancer_source_ranges),
        ):
            if given is not None:
                yield Refusal(f"spec.service.{field_name}", limits.SERVICE[at]["message"])
    for where, what, labels in _label_maps(spec):
        for key in labels:
            if key.startswith(limits.OURS):
                kind = "labels" if what == "labels" else "annotations"
                yield Refusal(f"spec.{where}.{what}[{key}]", limits.ours(kind)["message"])
    if spec.rebalance is not None:
        yield from _rebalancing(spec.rebalance)
    if spec.autoscaling is not None:
        yield from _autoscaling(spec.autoscaling)
    if spec.security is not None:
        yield from _bad_security(spec.security)
    yield from _console(spec)
    if spec.allowed_namespaces is not None:
        yield from _allowed(spec.allowed_namespaces)
    for where in ("clients", "monitoring", "console") if spec.network_policy is not None else ():
        for number, peer in enumerate(getattr(spec.network_policy, where) or ()):
            if (peer.ip_block is None) == (peer.pod_selector is None and peer.namespace_selector is None):
                yield Refusal(f"spec.networkPolicy.{where}[{number}]", limits.NETWORK_PEER["message"])


def _bad_security(said: SecurityModel) -> Iterator[Refusal]:
    found = said.certificates
    if found is None and said.mode is not SecurityMode.OFF:
        yield Refusal("spec.security.certificates", KEYS_WANTED["message"])
    if found is not None and [found.cert_manager, found.secrets, found.own_ca].count(None) != 2:
        yield Refusal("spec.security.certificates", ONE_SOURCE["message"])
    for it in said.tokens.oidc or ():
        if not it.issuer.startswith("https://") and it.jwks_url is None:
            yield Refusal(field_path("spec.security.tokens.oidc", it.issuer), OIDC_KEYS["message"])


def _console(spec: DelayClusterSpec) -> Iterator[Refusal]:
    console, security = spec.console, spec.security
    if console is None:
        return
    if security is not None and security.mode is SecurityMode.OFF:
        yield Refusal("spec.console", SECURITY_WANTED["message"])
    known = {it.issuer for it in (security.tokens.oidc if security is not None else None) or ()}
    if console.oidc is not None and console.oidc.issuer not in known:
        yield Refusal("spec.console.oidc.issuer", f"is {shown(console.oidc.issuer)}; {ISSUER_KNOWN['message']}")


def _template(template: PodTemplate) -> Iterator[Refusal]:
    for variable in template.env or ():
        if variable.name in limits.TAKEN_ENV:
            yield Refusal(field_path("spec.podTemplate.env", variable.name), limits.ENV[0]["message"])
    for volume in template.volumes or ():
        if volume.name in limits.TAKEN_VOLUMES:
            yield Refusal(field_path("spec.podTemplate.volumes", volume.name), limits.VOLUMES["message"])
    for mount in template.volume_mounts or ():
        path, taken = mount.mount_path, tuple(f"{it}/" for it in limits.TAKEN_PATHS)
        if not path.startswith("/") or path == "/" or f"{path}/".startswith(taken):
            yield Refusal(field_path("spec.podTemplate.volumeMounts", path), limits.MOUNTS["message"])
    for where, containers in (("sidecars", template.sidecars), ("initContainers", template.init_containers)):
        for container in containers or ():
            if container.name == limits.TAKEN_CONTAINER:
                yield Refusal(field_path(f"spec.podTemplate.{where}", container.name), limits.CONTAINERS["message"])


def _node_settings(settings: NodeSettingsModel) -> Iterator[Refusal]:
    sizes = {"minFree": settings.min_free, "logSegment": settings.log_segment, "unread": settings.unread}
    for name, text in sizes.items():
        least, most = limits.SETTINGS_SIZES[name]
        if text is not None and not quantity(least) <= quantity(text) <= quantity(most):
            yield Refusal(f"spec.settings.{name}", f"is {text}; allowed: {least} to {most}")
    age, (shortest, longest) = settings.connection_age, limits.CONNECTION_AGE_MS
    if age is not None and not shortest <= _ms(age) <= longest:
        yield Refusal("spec.settings.connectionAge", f"is {age}; {limits.CONNECTION_AGE_WORDS}")


def _allowed(allowed: AllowedNamespaces) -> Iterator[Refusal]:
    if allowed.limits is not None and allowed.limits.retention is not None:
        yield from _duration("spec.allowedNamespaces.limits.retention", allowed.limits.retention, MAX_HORIZON_DAYS)
    if (allowed.from_ is AllowedFrom.SELECTOR) != (allowed.selector is not None):
        yield Refusal("spec.allowedNamespaces", WITH_SELECTOR["message"])
    for number, it in enumerate((allowed.selector.match_expressions if allowed.selector else None) or ()):
        if (it.operator in (LabelOperator.IN, LabelOperator.NOT_IN)) != bool(it.values):
            yield Refusal(
                field_path("spec.allowedNamespaces.selector.matchExpressions", number), WITH_VALUES["message"]
            )


def _rebalancing(rebalancing: Rebalancing) -> Iterator[Refusal]:
    if rebalancing.approval is Approval.AUTOMATIC_BELOW and rebalancing.automatic_below is None:
        yield Refusal("spec.rebalance.automaticBelow", limits.REBALANCING[0]["message"])
    slot_ms, horizon_ms = _ms(rebalancing.slot), _ms(rebalancing.horizon)
    if not limits.SLOT_MS[0] <= slot_ms <= limits.SLOT_MS[1]:
        yield Refusal("spec.rebalance.slot", f"is {rebalancing.slot}; {limits.SLOT_WORDS}")
    if not slot_ms <= horizon_ms <= limits.LOOK_AHEAD_DAYS * DAY_MS:
        said = f"is {rebalancing.horizon}, and slot is {rebalancing.slot}; {limits.HORIZON_WORDS}"
        yield Refusal("spec.rebalance.horizon", said)


def _autoscaling(autoscaling: Autoscaling) -> Iterator[Refusal]:
    said = autoscaling.model_dump(by_alias=True)
    for name, (least, most) in limits.AUTOSCALING_MS.items():
        if not least <= _ms(said[name]) <= most:
            yield Refusal(f"spec.autoscaling.{name}", f"is {said[name]}; allowed: {limits.AUTOSCALING_WORDS[name]}")


def _label_maps(spec: DelayClusterSpec) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    if (template := spec.pod_template) is not None:
        yield "podTemplate", "labels", template.labels or {}
        yield "podTemplate", "annotations", template.annotations or {}
        yield "podTemplate", "serviceAccountAnnotations", template.service_account_annotations or {}
    if spec.service is not None:
        yield "service", "labels", spec.service.labels or {}
        yield "service", "annotations", spec.service.annotations or {}
    if spec.monitoring is not None:
        yield "monitoring", "labels", spec.monitoring.labels or {}


def _topics(spec: DelayClusterSpec, lent: Collection[TopicSpec]) -> Iterator[Refusal]:
    topics = spec.topics or []
    seen: set[str] = set()
    for topic in topics:
        path = field_path("spec.topics", topic.name)
        if topic.name in seen:
            yield Refusal(path, "is named twice; a topic is there once")
        seen.add(topic.name)
        yield from impossible_topic(topic, f"{path}.", spec.horizon_days)
    others = [topic.queues for topic in lent if topic.name not in seen]
    queues = sum(topic.queues for topic in topics)
    beside = f", beside {sum(others)} of DelayTopics" if others else ""
    if queues + sum(others) > MAX_QUEUES:
        yield Refusal("spec.topics", f"have {queues} queues together{beside}; allowed: at most {MAX_QUEUES} in all")
    if len(topics) + len(others) > limits.MAX_TOPICS:
        said = f"are {len(topics)}, beside {len(others)} DelayTopics; allowed: at most {limits.MAX_TOPICS} in all"
        yield Refusal("spec.topics", said)


def impossible_topic(topic: TopicSettings, path: str, horizon_days: int) -> Iterator[Refusal]:
    """path: of the topic's fields, with a dot at its end."""
    for name, text in (("retention", topic.retention), ("dlqRetention", topic.dlq_retention)):
        yield from _duration(f"{path}{name}", text, MAX_HORIZON_DAYS)
    if topic.max_delay is not None:
        yield from _duration(f"{path}maxDelay", topic.max_delay, horizon_days, ", the cluster's horizonDays")


def _duration(path: str, text: str, most_days: int, what: str = "") -> Iterator[Refusal]:
    if not 1 <= _ms(text) <= most_days * DAY_MS:
        yield Refusal(path, f"is {text}; allowed: 1ms to {most_days}d{what}")


def _ms(text: str) -> float:
    try:
        return parse_duration_ms(text)
    except ValueError:  # more than any time that can be kept
        return math.inf


def _taken_back(spec: DelayClusterSpec, accepted: ClusterSpec, kept: Mapping[str, int]) -> Iterator[Refusal]:
    if spec.horizon_days < accepted.horizon_days:
        why = f"is {spec.horizon_days}, but was {accepted.horizon_days}; {limits.HORIZON['message']}"
        yield Refusal("spec.horizonDays", why)
    for topic in spec.topics or ():
        path = field_path("spec.topics", topic.name)
        yield from topic_taken_back(topic, f"{path}.", accepted.topic(topic.name), kept.get(topic.name, 0))


def topic_taken_back(topic: TopicSettings, path: str, before: TopicSpec | None, kept: int) -> Iterator[Refusal]:
    """path: see impossible_topic. before: the topic as it was accepted last; None: it comes, perhaps again. kept: how
    many queues it takes for all its shards."""
    if before is None:
        if topic.queues < kept:
            # No rule of the schema sees it: the item is new.
            why = f"is {topic.queues}, but the topic was removed with {kept} queues, whose messages are kept"
            yield Refusal(f"{path}queues", f"{why}: ask for as many, or retire its shards first")
        return
    if topic.queues < before.queues:
        yield Refusal(f"{path}queues", f"is {topic.queues}, but was {before.queues}; {limits.TOPIC[0]['message']}")
    if topic.type is not before.type:
        yield Refusal(f"{path}type", f"is {topic.type}, but was {before.type}; {limits.TOPIC[1]['message']}")


_METRICS = {None: "", MetricsAuthentication.TOKEN: "token", MetricsAuthentication.MUTUAL_TLS: "mtls"}


def _desired_cluster(name: str, spec: DelayClusterSpec) -> DesiredCluster:
    monitoring = spec.monitoring or Monitoring.model_validate({})
    return DesiredCluster(
        cluster=_cluster(name, spec),
        image=spec.image,
        paused=spec.paused,
        storage=VolumeRequest(spec.storage.size, spec.storage.storage_class_name, spec.storage.delete_with_cluster),
        resources=None if spec.resources is None else spec.resources.model_dump(by_alias=True, exclude_none=True),
        pod=_pod(spec.pod_template or PodTemplate.model_validate({})),
        settings=_settings(spec.settings or NodeSettingsModel.model_validate({})),
        service=_service(spec.service or ClientService.model_validate({})),
        pod_monitor=monitoring.pod_monitor,
        monitor_labels=monitoring.labels or {},
        monitor_endpoint=monitoring.endpoint or {},
        metrics_authentication=_METRICS[monitoring.metrics_authentication],
        rebalance=spec.rebalance,
        console=spec.console,
        network=None if spec.network_policy is None else _network(spec.network_policy),
        security=DesiredSecurity() if spec.security is None else _security(name, spec.security),
        finalize=spec.upgrade.finalize is Finalize.AUTOMATIC,
        allowed=spec.allowed_namespaces,
        scaling=None if spec.autoscaling is None else _scaling(spec.autoscaling),
    )


def _scaling(autoscaling: Autoscaling) -> ScalingSettings:
    return ScalingSettings(
        per_node=autoscaling.messages_per_second,
        horizon_ms=parse_duration_ms(autoscaling.horizon),
        settle_ms=parse_duration_ms(autoscaling.settle),
        pod_start_ms=parse_duration_ms(autoscaling.pod_start),
        max_lateness_ms=parse_duration_ms(autoscaling.max_lateness),
    )


def _security(name: str, said: SecurityModel) -> DesiredSecurity:
    """Raises BadSpec."""
    if said.mode is SecurityMode.OFF or said.certificates is None:
        return DesiredSecurity(said=True)
    issuers = tuple(
        TokenIssuer(
            IssuerKind.OIDC, it.audience, it.issuer, jwks_url=it.jwks_url or "", ca=it.ca or "",
            principal_claim=it.principal_claim, groups_claim=it.groups_claim or "",
        )
        for it in said.tokens.oidc or ()
    )  # fmt: skip
    superior = tuple(dict.fromkeys(said.super_users or ()))
    SecuritySpec(AuthorizationMode(said.mode.value), superior, issuers)  # finds what is wrong with them
    settings = tls_settings(name, said.mode, said.certificates)
    return DesiredSecurity(True, settings, said.tokens.service_accounts, issuers, superior)


def tls_settings(name: str, mode: SecurityMode, found: ClusterCertificates) -> TlsSettings:
    client_ca = found.client_ca or ""
    if found.secrets is not None:
        return TlsSettings(mode, found.secrets.server, found.secrets.peers or found.secrets.server, client_ca)
    server, peers = names.server_certificate(name), names.peer_certificate(name)
    if found.own_ca is not None:
        return TlsSettings(mode, server, peers, client_ca, own_ca=True)
    ref = found.cert_manager.issuer_ref if found.cert_manager is not None else None
    issuer = None if ref is None else CertificateIssuer(ref.name, ref.kind, ref.group)
    return TlsSettings(mode, server, peers, client_ca, cert_manager=True, issuer=issuer)


def _network(policy: NetworkPolicyModel) -> NetworkAccess:
    said = policy.model_dump(mode="json", by_alias=True, exclude_none=True)
    given = {name: tuple(said[name]) for name in ("clients", "monitoring", "console") if name in said}
    return NetworkAccess(**given)


def _cluster(name: str, spec: DelayClusterSpec) -> ClusterSpec:
    return ClusterSpec(
        name=name,
        nodes=spec.nodes,
        topics=tuple(topic_spec(topic.name, topic) for topic in spec.topics or ()),
        replicas=spec.replicas,
        min_in_sync=spec.min_in_sync,
        delivery=spec.delivery,
        durability=spec.durability,
        horizon_days=spec.horizon_days,
        lease_seconds=spec.failover.lease_seconds,
        lag_seconds=spec.failover.lag_seconds,
        drained=tuple(dict.fromkeys(spec.drained or ())),
        allow_unclean_failover=spec.failover.allow_unclean,
        replace_after_seconds=spec.failover.replace_after_seconds,
        bootstrap_volumes=spec.bootstrap.volumes,
        log_level=spec.log_level,
    )


def topic_spec(name: str, topic: TopicSettings) -> TopicSpec:
    """Raises BadSpec."""
    return TopicSpec(
        name=name,
        queues=topic.queues,
        type=topic.type,
        retention_ms=parse_duration_ms(topic.retention),
        dlq_retention_ms=parse_duration_ms(topic.dlq_retention),
        max_attempts=topic.max_attempts,
        max_delay_ms=None if topic.max_delay is None else parse_duration_ms(topic.max_delay),
        max_release_per_second=topic.max_release_per_second,
        quotas=None if topic.quotas is None else TopicQuotas(**dict(topic.quotas)),
        deduplicate=topic.deduplicate,
    )


def _settings(settings: NodeSettingsModel) -> NodeSettings:
    def size(text: str | None) -> int | None:
        return None if text is None else whole_bytes(text)

    age = settings.connection_age
    return NodeSettings(
        max_connections=settings.max_connections,
        min_free_bytes=size(settings.min_free),
        log_segment_bytes=size(settings.log_segment),
        connection_age_s=None if age is None else parse_duration_ms(age) // 1_000,
        window_budget=settings.window_budget,
        unread_bytes=size(settings.unread),
    )


def _service(service: ClientService) -> ServiceView:
    said = service.model_dump(mode="json", by_alias=True, exclude_none=True)
    return ServiceView(said.pop("labels", {}), said.pop("annotations", {}), said)


def _pod(template: PodTemplate) -> PodSpec:
    said = template.model_dump(mode="json", by_alias=True, exclude_none=True)
    return PodSpec(
        labels=said.get("labels", {}),
        annotations=said.get("annotations", {}),
        node_selector=said.get("nodeSelector", {}),
        affinity=said.get("affinity"),
        tolerations=tuple(said.get("tolerations", ())),
        topology_spread=tuple(said["topologySpreadConstraints"]) if "topologySpreadConstraints" in said else None,
        priority_class=template.priority_class_name,
        image_pull_secrets=tuple(secret.name for secret in template.image_pull_secrets or ()),
        image_pull_policy=said.get("imagePullPolicy"),
        security=said.get("securityContext"),
        grace_seconds=template.termination_grace_period_seconds,
        env=tuple(said.get("env", ())),
        volumes=tuple(said.get("volumes", ())),
        volume_mounts=tuple(said.get("volumeMounts", ())),
        sidecars=tuple(said.get("sidecars", ())),
        init_containers=tuple(said.get("initContainers", ())),
        account_annotations=said.get("serviceAccountAnnotations", {}),
        host_aliases=tuple(said.get("hostAliases", ())),
        dns_config=said.get("dnsConfig"),
    )
