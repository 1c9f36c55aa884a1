"""One look at a cluster's security: the mode that its pods are to have next, their certificates, and the part of the
security document that is not of DelayUsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from delayoperator.kube.kinds import CERTIFICATE
from delayoperator.kube.observe import LiveObjects
from delayoperator.kube.views import security_mode
from delayoperator.resources import names, tls
from delayoperator.resources.view import CertificateIssuer, SecurityMode, TlsSettings


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
    can_have_keys: Callable[[], bool],
) -> SecurityLook:
    """operator_principal: as nodes know the operator; "": it has no token. no_token: why it has none just now.
    can_have_keys: whether certificates can be had without a word of people's."""
    cluster = desired.cluster.name
    template = _template(live.stateful_set(cluster))
    asked = desired.security.tls if desired.security.said else _unsaid(cluster, template, live, can_have_keys)
    modes = {pod.security for pod in live.pods}
    there = {*modes, *([] if template is None else [security_mode(template["metadata"])])}
    mode = SecurityMode.OFF if asked is None else asked.mode
    step = next_step(mode, there, leases, no_token() if mode is SecurityMode.REQUIRED else "")
    settings = None
    if step.mode is not SecurityMode.OFF:
        kept = asked or _settings_of(template or {}, cluster, live)
        settings = None if kept is None else replace(kept, mode=step.mode)
    problems = []
    if step.waits:
        problems.append(ClusterProblem(Reason.SECURITY_WAITS, step.waits))
    bad = [f"{lease.node}: {lease.certificate_problem}" for lease in leases if lease.certificate_problem]
    if bad and there - {SecurityMode.OFF}:
        problems.append(ClusterProblem(Reason.CERTIFICATE_UNUSABLE, "; ".join(bad[:5])))
    mode = SecurityMode.OFF if settings is None else settings.mode
    base = _base(desired, namespace, mode, operator_principal)
    return SecurityLook(settings, base, weakest(modes or {mode}), problems)


def _unsaid(
    cluster: str, template: Json | None, live: LiveObjects, can_have_keys: Callable[[], bool]
) -> TlsSettings | None:
    """What a cluster has whose spec says nothing: it stays as it is; a new one is secured where that can be."""
    if template is not None:
        mode = security_mode(template["metadata"])
        found = None if mode is SecurityMode.OFF else _settings_of(template, cluster, live)
        if found is None:
            return None
        ours = found.server == names.server_certificate(cluster)  # also while somebody has deleted the Certificate
        return replace(found, mode=mode, cert_manager=found.cert_manager or ours)
    if not can_have_keys():
        return None
    certificates = ClusterCertificates.model_validate({"certManager": {}})
    return tls_settings(cluster, SecurityMode.REQUIRED, certificates)


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


def _template(stateful_set: Json | None) -> Json | None:
    return None if stateful_set is None else stateful_set["spec"]["template"]


def _settings_of(template: Json, cluster: str, live: LiveObjects) -> TlsSettings | None:
    """What the pods have, for the way down: spec.security need not say it any more."""
    secrets = {
        str(volume["name"]): str(volume["secret"].get("secretName", ""))
        for volume in (template.get("spec") or {}).get("volumes") or ()
        if "secret" in volume
    }
    if tls.SERVER not in secrets or tls.PEERS not in secrets:
        return None
    found = live.owned.get((CERTIFICATE, secrets[tls.SERVER]))
    ref = {} if found is None else (found.get("spec") or {}).get("issuerRef") or {}
    own = ref.get("name") == names.own_ca(cluster)
    return TlsSettings(
        SecurityMode.PERMISSIVE,
        secrets[tls.SERVER],
        secrets[tls.PEERS],
        secrets.get(tls.CLIENT_CA, ""),
        cert_manager=found is not None,
        issuer=None if found is None or own else CertificateIssuer(ref["name"], ref["kind"], ref["group"]),
    )
