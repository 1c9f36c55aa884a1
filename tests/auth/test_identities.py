"""Who comes by which listener."""

from __future__ import annotations

import asyncio

import pytest
from delaynode.auth.identities import ListenerIdentities
from delaynode.auth.identity import ANONYMOUS, Authentication, Identity, IdentityKind
from delaynode.auth.tokens import TokenVerifier
from delaynode.store.errors import Refused

from tests.auth.issuing import ACCOUNT, accounts, document, token

PEERS = "spiffe://delaycluster/ns/messages/cluster/shared/role/"
LISTENERS = {
    "plain": Authentication.NONE,
    "tokens": Authentication.TOKEN,
    "mtls": Authentication.MTLS,
    "internal": Authentication.PEER,
}


def resolve(
    listener: str, names: tuple[str, ...] = (), authorization: str | None = None, peers: str = PEERS
) -> Identity:
    async def run() -> Identity:
        tokens = TokenVerifier()
        tokens.apply(document(accounts()))
        try:
            return await ListenerIdentities(LISTENERS, tokens, lambda: peers, counted.append).resolve(
                listener, names, authorization
            )
        finally:
            tokens.close()

    counted: list[str] = []
    try:
        return asyncio.run(run())
    except Refused:
        assert len(counted) == 1, "each refusal is counted"
        raise


def test_a_listener_without_authentication_believes_nobody() -> None:
    assert resolve("plain", (PEERS + "node",), f"Bearer {token()}") is ANONYMOUS


def test_a_token_says_who_calls() -> None:
    assert resolve("tokens", (), f"Bearer {token()}").principal == ACCOUNT


def test_a_listener_of_tokens_asks_for_one() -> None:
    with pytest.raises(Refused, match="listener tokens asks who calls: send `authorization: Bearer TOKEN`"):
        resolve("tokens", (PEERS + "node",))


@pytest.mark.parametrize(
    ("names", "principal"),
    [
        (("dns:a.example.com", "spiffe://x/a", "spiffe://x/b"), "spiffe://x/a"),
        (("https://x", "dns:a.example.com", "dns:b"), "dns:a.example.com"),
        (("spiffe://" + "x" * 600, "dns:a"), "dns:a"),
        (("spiffe://a\nb", "dns:a"), "dns:a"),
    ],
)
def test_a_certificate_says_who_calls(names: tuple[str, ...], principal: str) -> None:
    assert resolve("mtls", names, f"Bearer {token()}") == Identity(principal, IdentityKind.CERTIFICATE)


@pytest.mark.parametrize("names", [(), ("https://x",), ("10.0.0.1",), ("x" * 10_000,)])
def test_a_certificate_that_names_nobody_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="the certificate names nobody") as refused:
        resolve("mtls", names)
    assert len(refused.value.message) < 400


def test_a_clusters_own_certificate_has_no_role_where_clients_come() -> None:
    assert resolve("mtls", (PEERS + "node",)).role == ""


@pytest.mark.parametrize("role", ["node", "operator", "rebalance"])
def test_the_clusters_own_processes_have_roles(role: str) -> None:
    found = resolve("internal", ("dns:a", PEERS + role))
    assert (found.kind, found.role, found.principal) == (IdentityKind.PEER, role, PEERS + role)


@pytest.mark.parametrize(
    "name",
    [
        PEERS + "admin",
        PEERS + "node/x",
        PEERS,
        PEERS.replace("shared", "other") + "node",
        PEERS.replace("messages", "other") + "node",
        "dns:" + PEERS + "node",
    ],
)
def test_a_peer_that_claims_another_role_or_cluster_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"expected .*role/node\|operator\|rebalance"):
        resolve("internal", (name,))


def test_a_node_that_does_not_know_its_cluster_believes_no_peer() -> None:
    with pytest.raises(Refused, match="the certificate is of node"):
        resolve("internal", ("node",), peers="")
