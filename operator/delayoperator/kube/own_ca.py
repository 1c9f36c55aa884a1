"""A cluster's own CA, whose key the operator keeps in a Secret: where there is no cert-manager, and the operator has
been given a right on Secrets (chart value rbac.secrets).

Secret NAME-ca           the CA: tls.crt, tls.key. It stays when the DelayCluster goes: clients trust it
       NAME-server-tls   tls.crt, tls.key, ca.crt: the nodes' listeners
       NAME-peers-tls    likewise: the nodes among themselves

They are read by name, at most so often as CHECK_S says, and kept nowhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from delayoperator.certificate_authority import key_pem, new_key, pem, sign
from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.reasons import Reason
from delayoperator.control_loop.loop import LoopClock
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import problem
from delayoperator.kube.kinds import SECRET
from delayoperator.resources import ClusterView, names, tls

CA_DAYS: Final = 3_650
LEAF_DAYS: Final = 90
RENEW_DAYS: Final = 30  # before its end
CHECK_S: Final = 600.0  # between looks: who deletes a Secret by mistake has it again by then
Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


class OwnAuthority:
    """For one DelayCluster."""

    def __init__(self, api: Api, clock: LoopClock, report: Callable[[Reason, str, bool], None]) -> None:
        self._api, self._clock, self._report = api, clock, report
        self._good: tuple[object, int] | None = None  # what all was good for, and when that was seen, monotonic ms

    def keep(self, view: ClusterView) -> list[ClusterProblem]:
        """Makes what is missing, and anew what ends soon. Returns what is wrong."""
        settings = view.tls
        if settings is None or not settings.own_ca:
            self._good = None
            return []
        wanted, now_ms = (view.uid, settings.server, settings.peers), self._clock.monotonic_ms()
        if self._good is not None and self._good[0] == wanted and now_ms - self._good[1] < CHECK_S * 1000:
            return []
        try:
            leaves = {name: self._api.get(SECRET, view.namespace, name) for name in (settings.server, settings.peers)}
            authority = self._authority(view, leaves)
            self._leaf(view, authority, settings.server, leaves, tls.server_names(view))
            self._leaf(view, authority, settings.peers, leaves, (tls.node_uri(view), *tls.peer_names(view)))
        except ApiError as error:
            return [problem(error)]
        except ValueError as error:
            return [ClusterProblem(Reason.CERTIFICATE_UNUSABLE, str(error))]
        self._good = wanted, now_ms
        return []

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)

    def _authority(self, view: ClusterView, leaves: Mapping[str, Json | None]) -> Authority:
        """leaves: by name. What is there of another CA is not replaced: until all nodes had the new ones they would be
        cut off from each other, and clients for good. Raises ApiError, ValueError."""
        name = names.own_ca(view.name)
        found = self._api.get(SECRET, view.namespace, name)
        try:
            authority = None if found is None else _authority_of(found)
        except ValueError as error:
            raise ValueError(f"Secret {name} is no CA: {error}; put back what was there") from error
        own = b"" if authority is None else pem(authority[0])
        if others := [leaf for leaf, body in leaves.items() if body is not None and _content(body, "ca.crt") != own]:
            what = "is gone" if authority is None else "has another CA"
            raise ValueError(
                f"Secret {name} {what}: that of {' and '.join(others)}, which stay as they are, is to be put back; or "
                "delete them too, to have all certificates by a new CA"
            )
        if authority is not None:
            return authority
        key = new_key()
        made = sign(f"delaycluster {view.namespace}/{view.name}", (), key, None, self._now(), CA_DAYS)
        # Created, not applied: another process that was quicker has the CA that counts.
        body = _secret(view, name, {"tls.crt": pem(made), "tls.key": key_pem(key)}, owned=False)
        self._api.create(SECRET, view.namespace, body)
        self._report(Reason.OBJECT_APPLIED, f"made Secret {name}: a CA of this cluster's own", False)
        return made, key

    def _leaf(
        self, view: ClusterView, authority: Authority, name: str, leaves: Mapping[str, Json | None],
        texts: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Raises ApiError."""
        wanted = tuple(x509.UniformResourceIdentifier(text) if "://" in text else x509.DNSName(text) for text in texts)
        found, now = leaves[name], self._now()
        if found is not None and _is_good(found, authority[0], wanted, now):
            return
        key = new_key()
        made = sign(texts[-1], wanted, key, authority, now, LEAF_DAYS)
        content = {"tls.crt": pem(made), "tls.key": key_pem(key), "ca.crt": pem(authority[0])}
        self._api.apply(SECRET, _secret(view, name, content, owned=True))
        self._report(Reason.OBJECT_APPLIED, f"made Secret {name}: a certificate of {LEAF_DAYS} days", False)


def _authority_of(secret: Json) -> Authority:
    """Raises ValueError."""
    try:
        certificate = x509.load_pem_x509_certificate(_content(secret, "tls.crt"))
        key = load_pem_private_key(_content(secret, "tls.key"), None)
    except Exception as error:  # ValueError, TypeError, and what cryptography does not know
        raise ValueError(f"tls.crt and tls.key can't be read: {type(error).__name__}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("tls.key is not the key of tls.crt")
    return certificate, key


def _is_good(secret: Json, ca: x509.Certificate, names_: tuple[x509.GeneralName, ...], now: datetime) -> bool:
    try:
        found = x509.load_pem_x509_certificate(_content(secret, "tls.crt"))
        key = load_pem_private_key(_content(secret, "tls.key"), None)
        found.verify_directly_issued_by(ca)
        same = tuple(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == names_
    except Exception:
        return False
    fits = key.public_key() == found.public_key() and _content(secret, "ca.crt") == pem(ca)
    return same and fits and found.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)


def _content(secret: Json, key: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(key, ""))


def _secret(view: ClusterView, name: str, content: dict[str, bytes], *, owned: bool) -> Json:
    meta = names.metadata(view, name)
    if not owned:
        del meta["ownerReferences"]
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": meta, "data": data}
