"""Every DelayCluster of the table is refused by who should refuse it, in words that name the field and the limit.

CEL is evaluated by cel-python here; e2e holds the same table against a real API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from delayoperator.crds.base import DURATION
from delayoperator.crds.cluster import DelayClusterSpec
from delayoperator.crds.convert import InvalidSpec, desired_of
from delayoperator.crds.definitions import CLUSTER
from delayoperator.crds.refusal import WORDS
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.crds import apiserver
from tests.crds.bad_clusters import BAD_CLUSTERS, GOOD, UNSEEN, BadCluster, By, merged

SCHEMA = CLUSTER.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
every_bad = pytest.mark.parametrize("bad", BAD_CLUSTERS, ids=lambda bad: bad.name)


def test_the_good_one_is_good_to_create_and_to_update() -> None:
    assert apiserver.refusals(SCHEMA, GOOD)[1:] == ([], [])
    assert apiserver.refusals(SCHEMA, GOOD, GOOD)[1:] == ([], [])
    assert desired_of(GOOD).cluster.nodes == 3


@every_bad
def test_the_api_server_refuses(bad: BadCluster) -> None:
    assert bad.by is not By.OPERATOR
    _, schema, cel = apiserver.refusals(SCHEMA, bad.body, GOOD if bad.update else None)
    said = schema if bad.by is By.SCHEMA else cel
    assert any(bad.path in line and bad.says in line for line in said), (schema, cel)


@every_bad
def test_the_operator_refuses_what_the_api_server_let_through(bad: BadCluster) -> None:
    standing = desired_of(GOOD).cluster if bad.update else None
    if not bad.operator:  # it can't see the volumes that there are
        desired_of(bad.body, standing)
        return
    with pytest.raises(InvalidSpec) as refused:
        desired_of(bad.body, standing)
    assert bad.operator in str(refused.value)


@pytest.mark.parametrize("bad", UNSEEN, ids=lambda bad: bad.name)
def test_what_only_the_operator_sees_it_refuses(bad: BadCluster) -> None:
    assert apiserver.refusals(SCHEMA, bad.body, GOOD if bad.update else None)[1:] == ([], [])
    with pytest.raises(InvalidSpec) as refused:
        desired_of(bad.body)
    assert bad.operator in str(refused.value)


def test_a_refused_update_may_be_a_good_new_cluster() -> None:
    created = [bad for bad in BAD_CLUSTERS if bad.update and apiserver.refusals(SCHEMA, bad.body)[1:] == ([], [])]
    assert len(created) >= 8  # so that it is the rule on what was before that refuses them


@settings(max_examples=50, deadline=None)
@given(text=st.from_regex(DURATION.removesuffix("$"), fullmatch=True).filter(lambda text: 2 <= len(text) <= 32))
def test_cel_reads_a_duration_as_the_operator_does(text: str) -> None:
    def refused(change: dict[str, str]) -> tuple[bool, bool]:
        (_, schema, cel), body = apiserver.refusals(SCHEMA, topic_with(change)), topic_with(change)
        assert schema == []
        try:
            desired_of(body)
        except InvalidSpec:
            return bool(cel), True
        return bool(cel), False

    for field in ("retention", "maxDelay"):
        by_cel, by_operator = refused({field: text})
        assert by_cel == by_operator, (field, text)


def topic_with(change: dict[str, str]) -> dict[str, Any]:
    return merged(GOOD, {"spec": {"topics": [{"name": "orders", **change}]}})


def test_every_rule_of_the_schema_has_a_bad_cluster() -> None:
    ruled = [bad for bad in BAD_CLUSTERS if bad.by is By.CEL]
    broken = [rule for bad in ruled for rule in apiserver.broken_rules(SCHEMA, bad.body, GOOD if bad.update else None)]
    assert [rule for rule in _rules(SCHEMA) if rule not in broken] == []


def test_every_kind_of_refusal_of_the_operator_s_has_a_bad_cluster() -> None:
    seen = set()
    for bad in BAD_CLUSTERS:
        try:
            DelayClusterSpec.model_validate(bad.body["spec"])
        except ValidationError as error:
            seen |= {it["type"] for it in error.errors()}
    # JSON has no numbers that are not finite: test_convert.py has one.
    assert set(WORDS) - seen == {"finite_number"}


def test_what_may_change_may_change() -> None:
    orders, mails = GOOD["spec"]["topics"]
    for change in (
        {"nodes": 5, "replicas": 3, "minInSync": 2, "delivery": "MasterAndSlave", "durability": "Async"},
        {"horizonDays": 41, "paused": True, "image": "registry.example/delaycluster:2"},
        {"topics": [merged(orders, {"queues": 17}), mails]},
        {"topics": [mails]},
        {"topics": [mails, orders]},
        {"topics": [merged(orders, {"retention": "1w", "maxDelay": "40d"}), mails]},
        {"storage": {"size": "11Gi"}},
        {"storage": {"size": "0.02Ti", "deleteWithCluster": True}},
        {"drained": ["n2"], "failover": {"leaseSeconds": 10}},
        {"drained": ["n1", "n7", "n8"]},
        {"failover": {"leaseSeconds": 2}},
        {"rebalance": {"slot": "1m", "horizon": "366d"}},
        {"rebalance": {"slot": "24h", "horizon": "1d"}},
        {"autoscaling": {"messagesPerSecond": 1}},
        {
            "autoscaling": {
                "messagesPerSecond": 1,
                "horizon": "10m",
                "settle": "1m",
                "podStart": "1s",
                "maxLateness": "1s",
            }
        },
        {
            "autoscaling": {
                "messagesPerSecond": 1,
                "horizon": "12h",
                "settle": "1d",
                "podStart": "1h",
                "maxLateness": "1m",
            }
        },
    ):
        changed = merged(GOOD, {"spec": change})
        assert apiserver.refusals(SCHEMA, changed, GOOD)[1:] == ([], []), change
        desired_of(changed, desired_of(GOOD).cluster)


def _rules(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for part in schema.values():
            yield from _rules(part)
