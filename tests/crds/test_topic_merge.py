"""DelayTopics as topics of their cluster: one owner for each name, and nothing is taken away by what can't be read."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from delayoperator.crds.definitions import TOPIC
from delayoperator.crds.tenancy import AllowedNamespaces, NamespaceLimits, allows
from delayoperator.crds.topic import TopicReason
from delayoperator.crds.topic_merge import KnownTopics, MergedTopics, TopicOwner, kept_as_they_are, merge_topics
from delayregistry.model import ClusterSpec, TopicSpec, TopicType
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crds import apiserver

Json = dict[str, Any]
SCHEMA = TOPIC.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
HOME = "messages"
OWN = ClusterSpec("shared", 3, (TopicSpec("inline", 2),), replicas=2)


def topic(called: str, namespace: str = "shop", at: int = 0, **spec: Any) -> Json:
    made = {"cluster": {"name": "shared", "namespace": HOME}, "queues": 4, **spec}
    meta = {"name": called, "namespace": namespace, "creationTimestamp": f"2026-01-01T00:00:{at:02}Z"}
    return {"metadata": meta, "spec": made}


def merged(
    *bodies: Json, known: KnownTopics | None = None, own: ClusterSpec = OWN, **allowed: bool | None
) -> MergedTopics:
    return merge_topics(bodies, HOME, own, known or KnownTopics(), lambda it: allowed.get(it, True))


def after(found: MergedTopics, own: ClusterSpec = OWN, kept: dict[str, int] | None = None) -> KnownTopics:
    """What the next round knows, where nodes were told of it. kept: as the shards are by then."""
    shards = {it.name: it.queues for it in found.topics} if kept is None else kept
    return KnownTopics(replace(own, topics=(*own.topics, *found.topics)), found.owners, shards)


def queues(found: MergedTopics) -> dict[str, int]:
    return {it.name: it.queues for it in found.topics}


def reason(found: MergedTopics, name: str, namespace: str = "shop") -> TopicReason | None:
    return found.told[namespace, name].refused


def test_a_topic_has_the_fields_of_its_object_and_the_name_that_it_says() -> None:
    found = merged(
        topic("a"), topic("object", name="topic", type="Delay", maxDelay="2d", quotas={"pendingMessages": 5})
    )
    assert queues(found) == {"a": 4, "topic": 4}
    made = found.topics[1]
    assert (made.type, made.max_delay_ms) == (TopicType.DELAY, 172_800_000)
    assert made.quotas is not None
    assert made.quotas.pending_messages == 5
    assert found.owners == {"a": TopicOwner("shop", "a"), "topic": TopicOwner("shop", "object")}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"queues": 0}, "spec.queues: is 0; allowed: at least 1"),
        ({"queues": "many"}, "spec.queues: is 'many'"),
        ({"retention": "11y"}, "spec.retention: is '11y'"),
        ({"retention": "4000d"}, "spec.retention: is 4000d; allowed: 1ms to 3660d"),
        ({"maxDelay": "41d"}, "spec.maxDelay: is 41d; allowed: 1ms to 40d, the cluster's horizonDays"),
        ({"type": "Fifo"}, "spec.type: is 'Fifo'"),
        ({"name": "Orders"}, "spec.name: is 'Orders'"),
        ({"cluster": "shared"}, "spec.cluster: is 'shared'; an object is wanted"),
        ({"quotas": {"pendingBytes": 0}}, "spec.quotas.pendingBytes: is 0"),
    ],
)
def test_one_that_is_wrong_is_left_out_alone_and_told_the_field(spec: Json, says: str) -> None:
    found = merged(topic("bad", **spec), topic("good"))
    assert queues(found) == {"good": 4}
    assert reason(found, "bad") is TopicReason.INVALID_SPEC
    assert found.told["shop", "bad"].message.startswith(says)


@pytest.mark.parametrize("change", [{"queues": 3}, {"type": "Normal"}, {"retention": "0s"}, {"queues": "x"}])
def test_what_was_accepted_stays_where_its_object_can_t_be_followed(change: Json) -> None:
    known = after(merged(topic("a")))
    found = merged(topic("a", **change), known=known)
    assert queues(found) == {"a": 4}
    assert found.topics[0].type is TopicType.MIXED
    assert reason(found, "a") is TopicReason.INVALID_SPEC
    assert found.told["shop", "a"].message.endswith("what was accepted before stays in force")


def test_spec_topics_goes_before_and_an_older_object_before_a_younger() -> None:
    both = topic("a", at=2), topic("a", "bank", at=1)
    for bodies in (both, both[::-1]):
        found = merged(*bodies, topic("inline"))
        assert found.owners["a"] == TopicOwner("bank", "a")
        assert reason(found, "a") is TopicReason.NAME_TAKEN
        assert "bank" not in found.told["shop", "a"].message, "whose it is says nobody to another namespace"
        assert reason(found, "inline") is TopicReason.NAME_TAKEN
    found = merged(topic("x", name="a", at=1), topic("y", name="a", at=2))
    assert found.told["shop", "y"].message == "topic a is of DelayTopic x, which is older"


def test_what_is_accepted_is_not_lost_to_an_object_that_is_older() -> None:
    """One whose namespace was not allowed when it was made, say."""
    known = after(merged(topic("a", at=5)))
    found = merged(topic("a", at=5), topic("a", "bank", at=1), known=known)
    assert found.owners["a"] == TopicOwner("shop", "a")
    assert reason(found, "a", "bank") is TopicReason.NAME_TAKEN
    known = after(merged(topic("young", name="a", at=5)))
    found = merged(topic("young", name="a", at=5), topic("old", name="a", at=1), known=known)
    assert found.owners["a"] == TopicOwner("shop", "young")


def test_messages_that_are_left_behind_are_nobody_else_s() -> None:
    known = after(merged(topic("a")))
    gone = merged(known=known)
    assert gone.topics == ()
    assert gone.owners == {"a": TopicOwner("shop")}
    left = after(gone, kept={"a": 4})
    thief = merged(topic("a", "bank"), known=left)
    assert thief.topics == ()
    assert reason(thief, "a", "bank") is TopicReason.NAME_TAKEN
    assert "delaycluster.io/owner-a=bank" in thief.told["bank", "a"].message
    assert queues(merged(topic("a", "bank"), topic("a"), known=left)) == {"a": 4}
    assert reason(merged(topic("a", queues=2), known=left), "a") is TopicReason.INVALID_SPEC
    free = after(merged(known=left), kept={})
    assert queues(merged(topic("a", "bank"), known=replace(free, owners=merged(known=free).owners))) == {"a": 4}


def test_what_spec_topics_has_left_behind_is_the_cluster_s_namespace_s_until_it_is_given() -> None:
    left = KnownTopics(OWN, {}, {"old": 4})
    assert reason(merged(topic("old"), known=left), "old") is TopicReason.NAME_TAKEN
    assert queues(merged(topic("old", HOME), known=left)) == {"old": 4}
    given = replace(left, granted={"old": "shop"})
    found = merged(topic("old", HOME), topic("old"), known=given)
    assert found.owners["old"] == TopicOwner("shop", "old")
    assert queues(merged(topic("old"), known=replace(after(found), granted={}))) == {"old": 4}, "and it stays so"


def test_a_namespace_that_is_not_allowed_has_no_topics_and_one_that_is_not_known_no_new_ones() -> None:
    known = after(merged(topic("a")))
    found = merged(topic("a"), topic("b"), known=known, shop=False)
    assert found.topics == ()
    assert {reason(found, it) for it in "ab"} == {TopicReason.NAMESPACE_NOT_ALLOWED}
    assert found.owners == {"a": TopicOwner("shop")}
    found = merged(topic("a", queues=5), topic("b"), known=known, shop=None)
    assert queues(found) == {"a": 5}
    assert reason(found, "b") is TopicReason.NAMESPACE_UNKNOWN
    assert queues(merged(topic("c", HOME), known=known, messages=False)) == {"c": 4}


def test_what_can_not_be_read_is_kept() -> None:
    known = after(merged(topic("a"), topic("b", "bank")))
    assert queues(kept_as_they_are(OWN, known)) == {"a": 4, "b": 4}
    taken_over = replace(OWN, topics=(*OWN.topics, TopicSpec("a", 4)))
    assert queues(kept_as_they_are(taken_over, known)) == {"b": 4}


def test_a_full_cluster_takes_no_more_and_loses_nothing() -> None:
    known = after(merged(topic("a", queues=9_000, at=9)))
    found = merged(topic("a", queues=9_000, at=9), topic("b", "bank", queues=1_000), known=known)
    assert queues(found) == {"a": 9_000}
    assert reason(found, "b", "bank") is TopicReason.CLUSTER_FULL
    grown = merged(topic("a", queues=9_999, at=9), known=known)
    assert queues(grown) == {"a": 9_000}
    assert reason(grown, "a") is TopicReason.CLUSTER_FULL


def test_a_topic_that_spec_topics_gives_up_goes_on_as_the_object_without_a_gap() -> None:
    both = replace(OWN, topics=(*OWN.topics, TopicSpec("a", 4)))
    found = merged(topic("a", HOME), own=both)
    assert reason(found, "a", HOME) is TopicReason.NAME_TAKEN
    known = KnownTopics(both, found.owners, {"a": 4, "inline": 2})
    assert queues(merged(topic("a", HOME), known=known)) == {"a": 4}


MOST = NamespaceLimits.model_validate({"queues": 10, "pendingMessages": 100, "retention": "5d"})


def limited(*bodies: Json, known: KnownTopics | None = None) -> MergedTopics:
    return merge_topics(bodies, HOME, OWN, known or KnownTopics(), lambda _: True, MOST)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "spec.quotas.pendingMessages: has to be said: the cluster limits it to 100"),
        ({"quotas": {"pendingBytes": 1}}, "spec.quotas.pendingMessages: has to be said"),
        ({"quotas": {"pendingMessages": 61}}, "spec.quotas.pendingMessages: is 101 in all topics of the namespace"),
        ({"queues": 7}, "spec.queues: are 11 in all topics of the namespace; the cluster's limit for it is 10"),
        ({"retention": "6d"}, "spec.retention: the cluster's limit for the namespace is 5d"),
        ({"dlqRetention": "6d"}, "spec.dlqRetention: the cluster's limit for the namespace is 5d"),
    ],
)
def test_a_namespace_has_what_the_cluster_gives_it_and_no_more(spec: Json, says: str) -> None:
    good = {"quotas": {"pendingMessages": 40}, "dlqRetention": "5d"}
    base = topic("first", **good), topic("of-others", "bank", **good)
    wanted = good | spec if spec else {"dlqRetention": "5d"}
    found = limited(*base, topic("second", at=1, **wanted))
    assert queues(found) == {"first": 4, "of-others": 4}
    assert reason(found, "second") is TopicReason.OVER_LIMIT
    assert found.told["shop", "second"].message.startswith(says)
    assert queues(limited(*base, topic("home", HOME, queues=9_000))) == {"first": 4, "of-others": 4, "home": 9_000}


def test_topics_that_were_left_behind_count_and_what_is_accepted_outlives_a_lower_limit() -> None:
    left = KnownTopics(OWN, {"old": TopicOwner("shop")}, {"old": 7})
    good = {"quotas": {"pendingMessages": 1}, "retention": "1d", "dlqRetention": "1d"}
    assert reason(limited(topic("a", **good), known=left), "a") is TopicReason.OVER_LIMIT
    known = after(merged(topic("a", queues=12)))
    found = limited(topic("a", queues=12), known=known)
    assert queues(found) == {"a": 12}
    assert reason(found, "a") is TopicReason.OVER_LIMIT


def test_one_over_the_limit_is_told_how_many_queues_are_of_removed_topics_and_that_retiring_helps() -> None:
    good = {"quotas": {"pendingMessages": 1}, "retention": "1d", "dlqRetention": "1d"}
    owners = {name: TopicOwner(namespace) for name, namespace in (("old", "shop"), ("older", "shop"), ("b", "bank"))}
    left = KnownTopics(OWN, owners, {"old": 5, "older": 2, "b": 9})
    said = limited(topic("a", **good), known=left).told["shop", "a"].message
    assert said.startswith("spec.queues: are 11 in all topics of the namespace, 7 of them in topics that were removed")
    assert "(old; older)" in said
    assert "`delayctl shards retire --topic NAME`" in said
    assert queues(limited(topic("a", **good), known=replace(left, kept={"old": 5}))) == {"a": 4}, "older was retired"


def test_removed_topics_do_not_fill_a_cluster() -> None:
    left = KnownTopics(OWN, {"old": TopicOwner("shop")}, {"old": 9_000})
    assert queues(merged(topic("a", queues=9_000), known=left)) == {"a": 9_000}


NAMESPACES = ("shop", "bank", HOME)
NAMES = ("a", "b", "inline")


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[list[Json], dict[str, bool | None]]]:
    """Objects that come and go and change, in namespaces that are allowed or not."""

    def one() -> Json:
        namespace, name = draw(st.sampled_from(NAMESPACES)), draw(st.sampled_from(NAMES))
        return topic(name, namespace, draw(st.integers(0, 3)), queues=draw(st.sampled_from([1, 2, 5_000, 0])))

    found = []
    for _ in range(draw(st.integers(1, 5))):
        bodies = {(it["metadata"]["namespace"], it["metadata"]["name"]): it for it in (one() for _ in range(4))}
        found.append(
            (list(bodies.values()), {it: draw(st.sampled_from([True, True, False, None])) for it in NAMESPACES})
        )
    return found


@settings(max_examples=200, deadline=None)
@given(rounds(), st.randoms(use_true_random=False))
def test_no_namespace_ever_has_a_topic_in_which_another_one_s_messages_are(
    history: list[tuple[list[Json], dict[str, bool | None]]], order: random.Random
) -> None:
    known, wrote = KnownTopics(), dict[str, str]()
    shards: dict[str, int] = {}
    for bodies, allowed in history:
        order.shuffle(bodies)
        found = merge_topics(bodies, HOME, OWN, known, allowed.__getitem__)
        backwards = merge_topics(bodies[::-1], HOME, OWN, known, allowed.__getitem__)
        assert (found.topics, found.owners, found.told) == (backwards.topics, backwards.owners, backwards.told)
        assert found.told.keys() == {(it["metadata"]["namespace"], it["metadata"]["name"]) for it in bodies}
        for made in found.topics:
            owner = found.owners[made.name].namespace
            assert made.name != "inline"
            assert wrote.setdefault(made.name, owner) == owner, "shards are never retired here"
            assert made.queues >= shards.get(made.name, 0)
            shards[made.name] = made.queues
            assert allowed[owner] is not False or owner == HOME
        known = after(found, kept=shards)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queues": 3}, "spec.queues: queues may grow but not shrink"),
        ({"type": "Delay"}, "spec.type: type can't be changed, it is Mixed"),
        ({"retention": "0s"}, "spec.retention: retention is 0s; allowed: 1ms"),
        ({"name": "other"}, "spec.name: name can't be changed"),
        ({"cluster": {"name": "shared"}}, "spec.cluster: cluster can't be changed"),
        ({"queues": 10_001}, "spec.queues"),
        ({"name": "a.b"}, "spec.name"),
    ],
)
def test_a_topic_that_makes_no_sense_is_refused_by_the_api_server(change: Json, says: str) -> None:
    good = topic("a")
    assert apiserver.refusals(SCHEMA, good, good)[1:] == ([], [])
    _, schema, cel = apiserver.refusals(SCHEMA, {**good, "spec": good["spec"] | change}, good)
    assert [line[: len(says)] for line in [*schema, *cel]] == [says]


def test_an_object_whose_name_is_no_topic_s_says_how_its_topic_is_called() -> None:
    for name in ("a.b", "a" * 51):
        assert "the topic is called as its DelayTopic" in apiserver.refusals(SCHEMA, topic(name))[2][0]
        assert apiserver.refusals(SCHEMA, topic(name, name="a"))[1:] == ([], [])


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "a", "x": "y"}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "b"}, False),
        ({"matchLabels": {"team": "a"}}, {}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, {"team": "b"}, True),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, {}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, {}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, {"team": "a"}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {"team": ""}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {"team": ""}, False),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}, {"a": "b"}, False),
        ({"matchLabels": {"a": "b"}}, None, None),
    ],
)
def test_namespaces_are_allowed_by_their_labels(selector: Json, labels: dict[str, str] | None, expected: bool) -> None:
    allowed = AllowedNamespaces.model_validate({"from": "Selector", "selector": selector})
    assert allows(allowed, labels) is expected


def test_no_namespace_but_the_cluster_s_own_is_allowed_unasked() -> None:
    assert allows(None, {}) is False
    assert allows(AllowedNamespaces.model_validate({}), {}) is False
    assert allows(AllowedNamespaces.model_validate({"from": "All"}), None) is True
