"""Who calls: the principal that a connection or a call has proved to be, and the port that finds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from delaynode.store.errors import Refused

PRINCIPAL = "x-delay-principal"
"""Metadata of a forwarded call: whose it is. It counts only from a node of the same cluster."""
MAX_PRINCIPAL_CHARS = 512


class Authentication(StrEnum):
    """How a listener learns who calls."""

    NONE = "none"  # all are anonymous
    TOKEN = "token"  # by `authorization: Bearer TOKEN`
    MTLS = "mtls"  # by the certificate
    PEER = "peer"  # by the certificate, which must be of this cluster's own: nodes, the operator, the rebalance job


class IdentityKind(StrEnum):
    """What has proved it."""

    ANONYMOUS = "anonymous"  # nothing
    TOKEN = "token"
    CERTIFICATE = "certificate"
    PEER = "peer"  # a certificate of the cluster's own
    FORWARDED = "forwarded"  # a node's word


@dataclass(frozen=True, slots=True)
class Identity:
    """principal: `system:serviceaccount:NS:NAME`, `oidc:ISSUER#SUBJECT`, `token:NAME`, `spiffe://...`, `dns:NAME` or
    `anonymous`. expires_ms: by the wall clock, ms since 1970; None: it lasts as long as its connection.
    role: of one of the cluster's own processes: node, operator or rebalance.
    credential: names the security document's entry that its token was taken by; it counts as long as that is there.
    """

    principal: str
    kind: IdentityKind
    expires_ms: int | None = None
    groups: tuple[str, ...] = ()
    role: str = ""
    credential: str = ""


ANONYMOUS = Identity("anonymous", IdentityKind.ANONYMOUS)


class Identities(Protocol):
    """Finds out who calls. Owned by the event loop."""

    async def resolve(
        self,
        listener: str,
        certificate_names: tuple[str, ...],
        authorization: str | None,
        certificate_ends_ms: int | None = None,
    ) -> Identity:
        """The identity of what came by that listener, with the names in its verified certificate (URI SANs as they are,
        DNS SANs as `dns:NAME`), when that ends, Unix time, and the value of its `authorization` metadata.

        Asked once a connection and distinct `authorization`: the answer holds until it expires. Raises Refused
        UNAUTHENTICATED, which says what is wrong, and NOT_SERVING while that can't be known.
        """


class NoIdentities:
    """The Identities of a node that asks nobody who they are."""

    async def resolve(
        self,
        listener: str,
        certificate_names: tuple[str, ...],
        authorization: str | None,
        certificate_ends_ms: int | None = None,
    ) -> Identity:
        return ANONYMOUS


def forwarded_caller(peer: Identity, principal: str | None) -> Identity:
    """Whose call it is that `peer` has passed on. principal: what it says of that, in the metadata PRINCIPAL.

    The node that passed it on has asked for the caller's rights. Raises Refused.
    """
    if peer.role != "node":
        raise Refused(
            "UNAUTHENTICATED", f"{PRINCIPAL} counts only from a node of this cluster, not from {peer.principal}"
        )
    if principal is None:
        return peer
    if not 0 < len(principal) <= MAX_PRINCIPAL_CHARS:
        raise Refused(
            "BAD_REQUEST", f"{PRINCIPAL} has {len(principal):,} characters; allowed: 1 to {MAX_PRINCIPAL_CHARS}"
        )
    return Identity(principal, IdentityKind.FORWARDED, peer.expires_ms)
