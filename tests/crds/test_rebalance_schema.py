"""DelayRebalance: what makes no sense is refused with the field that is wrong; the states are Strimzi's."""

from __future__ import annotations

from typing import Any

import pytest
from delayoperator.crds.definitions import REBALANCE

from tests.crds import apiserver

Json = dict[str, Any]
SCHEMA = REBALANCE.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"cluster": "other"}, "spec.cluster: cluster can't be changed"),
        ({"mode": "AddNodes"}, "spec.nodes: modes AddNodes and RemoveNodes need nodes"),
        ({"mode": "RemoveNodes", "nodes": []}, "spec.nodes: modes AddNodes and RemoveNodes need nodes"),
        ({"approval": "AutomaticBelow"}, "spec.automaticBelow: approval AutomaticBelow needs automaticBelow"),
        (
            {"notBefore": "2026-01-02T00:00:00Z", "notAfter": "2026-01-01T23:00:00Z"},
            "spec.notAfter: notAfter must be later than notBefore",
        ),
        ({"moves": [{"shard": "orders-1", "from": "n1", "to": "n1"}]}, "spec.moves[0].to: a move needs two nodes"),
    ],
)
def test_a_rebalance_that_makes_no_sense_is_refused(spec: Json, says: str) -> None:
    before = {"spec": {"cluster": "shop"}}
    _, schema, cel = apiserver.refusals(SCHEMA, {"spec": {"cluster": "shop"} | spec}, before)
    assert schema == []
    assert [line[: len(says)] for line in cel] == [says]


def test_the_states_are_those_that_people_know_from_strimzi() -> None:
    assert SCHEMA["properties"]["status"]["properties"]["state"]["enum"] == [
        "New", "PendingProposal", "ProposalReady", "Rebalancing", "Stopped", "NotReady", "Ready",
        "ReconciliationPaused",
    ]  # fmt: skip
