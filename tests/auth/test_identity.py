"""Who a forwarded call is of."""

import asyncio

import pytest
from delaynode.auth.identity import (
    ANONYMOUS,
    MAX_PRINCIPAL_CHARS,
    Identity,
    IdentityKind,
    NoIdentities,
    forwarded_caller,
)
from delaynode.store.errors import Refused

NODE = Identity("spiffe://delaycluster/ns/a/cluster/b/role/node", IdentityKind.PEER, role="node")


def test_a_node_says_whose_call_it_passes_on() -> None:
    assert forwarded_caller(NODE, "token:shop") == Identity("token:shop", IdentityKind.FORWARDED)


def test_a_node_that_names_nobody_calls_for_itself() -> None:
    assert forwarded_caller(NODE, None) is NODE


@pytest.mark.parametrize(
    "peer", [ANONYMOUS, Identity("token:shop", IdentityKind.TOKEN), Identity("x", IdentityKind.PEER, role="operator")]
)
def test_no_other_is_believed_about_whose_call_it_is(peer: Identity) -> None:
    with pytest.raises(Refused, match="counts only from a node") as refused:
        forwarded_caller(peer, "token:admin")
    assert refused.value.reason == "UNAUTHENTICATED"


@pytest.mark.parametrize("principal", ["", "x" * (MAX_PRINCIPAL_CHARS + 1)])
def test_a_principal_has_a_length(principal: str) -> None:
    with pytest.raises(Refused, match="characters; allowed: 1 to 512"):
        forwarded_caller(NODE, principal)


def test_a_node_without_authentication_takes_all_for_anonymous() -> None:
    assert asyncio.run(NoIdentities().resolve("plain", ("dns:a",), "Bearer x")) is ANONYMOUS
