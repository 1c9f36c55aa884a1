"""One look at a cluster's security: the mode that its pods are to have next, their certificates, and the part of the
security document that is not of DelayUsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from delayregistry.codec import BadRecord, loads
from delayregistry.model import NodeLease
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    IssuerKind,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    TokenIssuer,
    account_audience,
)

from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.security import next_step, weakest
from delayoperator.crds.convert import DesiredCluster, tls_settings
from delayoperator.crds.security import ClusterCertificates
from delayoperator.kube.api import Json
from delayoperator.kube.observe import LiveObjects
from delayoperator.kube.views import security_mode
from delayoperator.resources import names
from delayoperator.resources.view import SecurityMode, TlsSettings


@dataclass(frozen=True, slots=True)
class SecurityLook:
    """tls: of the pods that are made from now on; None: they have none. base: the document without DelayUsers.
    mode: what holds for every pod."""

    tls: TlsSettings | None
    base: SecuritySpec
    mode: SecurityMode
    problems: Sequence[ClusterProblem] = ()


def look(
    desired: DesiredCluster,
    namespace: str,
    live: LiveObjects,
    leases: Sequence[NodeLease],
    operator_principal: str,
    no_token: Callable[[], str],
    default_keys: Callable[[], Json | None],
) -> SecurityLook:
    """operator_principal: as nodes know the operator; "": it has no token. no_token: why it has none just now.
    default_keys: spec.security.certificates of a new cluster that says nothing; None: none can be had."""
    cluster = desired.cluster.name
    live_set = live.stateful_set(cluster)
    asked = desired.security.tls if desired.security.said else _unsaid(cluster, live_set, default_keys)
    modes = {pod.security for pod in live.pods}
    there = {*modes, *([] if live_set is None else [_mode(live_set)])}
    mode = SecurityMode.OFF if asked is None else asked.mode
    step = next_step(mode, there, leases, no_token() if mode is SecurityMode.REQUIRED else "")
    settings = None
    if step.mode is not SecurityMode.OFF:
        settings = replace(asked or _settings_of(live_set, cluster), mode=step.mode)
    problems = []
    if step.waits:
        problems.append(ClusterProblem(Reason.SECURITY_WAITS, step.waits))
    bad = [f"{lease.node}: {lease.certificate_problem}" for lease in leases if lease.certificate_problem]
    if bad and there - {SecurityMode.OFF}:
        problems.append(ClusterProblem(Reason.CERTIFICATE_UNUSABLE, "; ".join(bad[:5])))
    mode = SecurityMode.OFF if settings is None else settings.mode
    base = _base(desired, namespace, mode, operator_principal)
    return SecurityLook(settings, base, weakest(modes or {mode}), problems)


def _unsaid(cluster: str, live_set: Json | None, default_keys: Callable[[], Json | None]) -> TlsSettings | None:
    """What a cluster has whose spec says nothing: it stays as it is; a new one is secured where that can be."""
    if live_set is not None:
        mode = _mode(live_set)
        return None if mode is SecurityMode.OFF else replace(_settings_of(live_set, cluster), mode=mode)
    keys = default_keys()
    if keys is None:
        return None
    return tls_settings(cluster, SecurityMode.REQUIRED, ClusterCertificates.model_validate(keys))


def _base(desired: DesiredCluster, namespace: str, mode: SecurityMode, operator_principal: str) -> SecuritySpec:
    if mode is SecurityMode.OFF:
        return SecuritySpec(AuthorizationMode.OFF)  # rights are made known, and asked for by nobody
    cluster = desired.cluster.name
    accounts = TokenIssuer(
        IssuerKind.SERVICE_ACCOUNTS, account_audience(namespace, cluster), verify=desired.security.verify
    )
    superior = tuple(dict.fromkeys(filter(None, (operator_principal, *desired.security.super_users))))
    users: tuple[SecurityUser, ...] = ()
    if desired.rebalance is not None:
        everything = AccessRule((Operation.DESCRIBE,), NamePattern(prefix=""))
        users = (SecurityUser(f"system:serviceaccount:{namespace}:{names.rebalance(cluster)}", (everything,)),)
    return SecuritySpec(AuthorizationMode(mode.value), superior, (accounts, *desired.security.oidc), users=users)


def _mode(live_set: Json) -> SecurityMode:
    """Of the pods that it makes."""
    return security_mode(live_set["spec"]["template"]["metadata"])


def _settings_of(live_set: Json | None, cluster: str) -> TlsSettings:
    """What the pods have: spec.security need not say it any more."""
    annotations = {} if live_set is None else live_set["metadata"].get("annotations") or {}
    try:
        return loads(TlsSettings, str(annotations[names.TLS]))
    except (KeyError, BadRecord):  # somebody has taken it away
        return TlsSettings(SecurityMode.PERMISSIVE, names.server_certificate(cluster), names.peer_certificate(cluster))
