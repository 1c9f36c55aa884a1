"""DelayShard says what the registry says, loses none of it, and stays the shard that it is."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest
from delayoperator.crds.definitions import SHARD
from delayoperator.crds.shard import DelayShard
from delayregistry import codec, model
from delayregistry.kube.names import Names
from delayregistry.kube.objects import read_shard
from pydantic.alias_generators import to_camel

from tests.crds import apiserver

Json = dict[str, Any]
SCHEMA = SHARD.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize(
    ("kind", "where"), [(model.ShardSpec, "spec"), (model.ShardStatus, "status"), (model.Switchover, "spec.switchover"),
                        (model.Handover, "status.handover")]
)  # fmt: skip
def test_every_word_of_the_registry_has_its_field(kind: type, where: str) -> None:
    at = SCHEMA
    for step in where.split("."):
        at = at["properties"][step]
    types = {"int": "integer", "str": "string", "bool": "boolean", "tuple": "array"}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        part = at["properties"][to_camel(field.name)]
        wanted = "string" if field.metadata.get("json") == "string" else str(hints[field.name])
        nested = {"Switchover", "Handover"}
        allowed = {there for name, there in types.items() if name in wanted}
        allowed |= {"object"} if any(name in wanted for name in nested) else set()
        assert part["type"] in allowed, field


def test_a_shard_object_passes_the_schema_and_loses_nothing() -> None:
    spec = model.ShardSpec(
        (1 << 64) - 1,
        "orders",
        9_999,
        ("n0", "n999"),
        "n0",
        7,
        "a" * 16,
        model.Switchover("n999"),
        ("n1",),
        ("n0",),
        True,
    )
    status = model.ShardStatus(7, "a" * 16, ("c" * 32 + "@" + "b" * 36,), model.Handover(7, 1 << 52), "why")
    body = {
        "apiVersion": "delaycluster.io/v1alpha1",
        "kind": "DelayShard",
        "metadata": {"name": "shop.orders-9999"},
        "spec": codec.to_json(spec),
        "status": {
            **codec.to_json(status),
            "conditions": [
                {"type": "Held", "status": "True", "reason": "Waits", "message": "m", "epoch": 7,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ],
        },
    }  # fmt: skip
    stored, schema, cel = apiserver.refusals(SCHEMA, body, body)
    assert (schema, cel) == ([], [])
    assert (stored["spec"], stored["status"]) == (body["spec"], body["status"])
    assert codec.from_json(model.ShardSpec, stored["spec"]) == spec
    assert codec.from_json(model.ShardStatus, stored["status"]) == status
    DelayShard.model_validate(stored)


@pytest.mark.parametrize("status", [{}, {"conditions": []}])
def test_a_shard_that_no_master_served_has_no_status(status: Json) -> None:
    """A default of the master's fields would make half a status of what the operator alone has written."""
    body = {"metadata": {"name": "shop.orders-0", "resourceVersion": "1"}, "spec": SHARD_SPEC, "status": status}
    stored = apiserver.prepared(SCHEMA, body)
    assert read_shard(Names("team", "shop"), stored).status is None


def test_a_shard_keeps_the_words_of_a_newer_release() -> None:
    """Helm leaves CRDs as they are when it upgrades: an API server that dropped a word would change what was said."""
    body = {"spec": {**SHARD_SPEC, "tier": "cold"}, "status": {"servingEpoch": 1, "tier": {"since": 2}}}
    stored, *_ = apiserver.refusals(SCHEMA, body)
    assert stored["spec"]["tier"] == "cold"
    assert stored["status"]["tier"] == {"since": 2}


SHARD_SPEC: Json = {"uid": "1", "topic": "orders", "queue": 0, "replicas": ["n0"], "epoch": 3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"uid": "2"}, "spec.uid: a shard's uid can't be changed"),
        ({"topic": "mails"}, "spec.topic: a shard's topic can't be changed"),
        ({"queue": 1}, "spec.queue: a shard's queue can't be changed"),
        ({"epoch": 2}, "spec.epoch: epochs only grow"),
    ],
)
def test_a_shard_stays_itself_and_its_epochs_grow(change: Json, says: str) -> None:
    after = {"spec": {**SHARD_SPEC, **change}}
    assert apiserver.refusals(SCHEMA, after, {"spec": SHARD_SPEC})[2] == [says]
    assert apiserver.refusals(SCHEMA, after)[1:] == ([], [])
