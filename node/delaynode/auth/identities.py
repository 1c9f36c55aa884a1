"""The Identities of a node whose listeners ask who calls: by token, by certificate, or as one of the cluster's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from delaynode.auth.identity import ANONYMOUS, MAX_PRINCIPAL_CHARS, Authentication, Identity, IdentityKind
from delaynode.auth.tokens import TokenRefused, TokenVerifier, bearer, time_text
from delaynode.clock import wall_ms

ROLES = ("node", "operator", "rebalance")


class ListenerIdentities:
    """authentication: by listener. peers: gives what the URI in a certificate of this cluster's own begins with,
    before the role: `spiffe://delaycluster/ns/NS/cluster/NAME/role/`. refused: told the kind of each refusal, for a
    counter.
    """

    def __init__(
        self,
        authentication: Mapping[str, Authentication],
        tokens: TokenVerifier,
        peers: Callable[[], str] = lambda: "",
        refused: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._authentication, self._tokens, self._peers, self._refused = dict(authentication), tokens, peers, refused

    async def resolve(
        self,
        listener: str,
        certificate_names: tuple[str, ...],
        authorization: str | None,
        certificate_ends_ms: int | None = None,
    ) -> Identity:
        try:
            match self._authentication[listener]:
                case Authentication.NONE:
                    return ANONYMOUS
                case Authentication.TOKEN:
                    if authorization is None:
                        raise TokenRefused(
                            "missing", f"listener {listener} asks who calls: send `authorization: Bearer TOKEN`"
                        )
                    return await self._tokens.verify(bearer(authorization))
                case Authentication.MTLS:
                    _check_end(certificate_ends_ms)
                    return _certified(certificate_names, certificate_ends_ms)
                case Authentication.PEER:
                    _check_end(certificate_ends_ms)
                    return self._peer(certificate_names, certificate_ends_ms)
        except TokenRefused as error:
            self._refused(error.kind)
            raise

    def _peer(self, names: tuple[str, ...], ends_ms: int | None) -> Identity:
        cluster = self._peers()
        for role in ROLES:
            if cluster and cluster + role in names:
                return Identity(cluster + role, IdentityKind.PEER, ends_ms, role=role)
        raise TokenRefused("certificate", f"the certificate is of {_list(names)}; expected {cluster}{'|'.join(ROLES)}")


def _check_end(ends_ms: int | None) -> None:
    """The handshake has looked at it, but that may be long ago: for a connection that lasts, and a resumed session."""
    if ends_ms is not None and ends_ms <= wall_ms():
        raise TokenRefused("expired", f"the certificate has expired at {time_text(ends_ms)}: connect by a newer one")


def _certified(names: tuple[str, ...], ends_ms: int | None) -> Identity:
    """By the first URI of the certificate, else by its first DNS name. The common name counts for nothing."""
    for prefix in ("spiffe://", "dns:"):
        for name in names:
            if name.startswith(prefix) and len(name) <= MAX_PRINCIPAL_CHARS and name.isprintable():
                return Identity(name, IdentityKind.CERTIFICATE, ends_ms)
    raise TokenRefused(
        "certificate", f"the certificate names nobody: it has {_list(names)}, and no spiffe URI or DNS name"
    )


def _list(names: tuple[str, ...]) -> str:
    text = ", ".join(names)
    return (text if len(text) <= 200 else text[:200] + "...") or "no name"
