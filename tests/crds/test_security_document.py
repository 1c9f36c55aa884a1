"""DelayUsers as a security document: it allows what the users say and nothing more, whatever is wrong with others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from delaynode.auth.identity import Identity, IdentityKind
from delaynode.auth.rights import Rights
from delayoperator.crds import security_document
from delayoperator.crds.definitions import USER
from delayoperator.crds.security_document import Tenant, compile_users, in_force
from delayoperator.crds.user import MAX_USER_RULES, UserReason
from delayregistry import security
from delayregistry.security import (
    MAX_DOCUMENT_BYTES,
    MAX_RULES,
    OF_GROUPS,
    AuthorizationMode,
    Operation,
    SecuritySpec,
    UserQuotas,
    read_document,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crds import apiserver

Json = dict[str, Any]
SCHEMA = USER.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
BASE = SecuritySpec(AuthorizationMode.REQUIRED)
SHA = "ab" * 32
SEND = {"operations": ["Produce"], "topic": {"literal": "orders"}}


def user(name: str, at: int = 0, **spec: Any) -> Json:
    made = {"certificates": [f"dns:{name}"], "rules": [SEND]} | spec
    meta = {"name": name, "namespace": "shop", "creationTimestamp": f"2026-01-01T00:00:{at:02}Z"}
    return {"metadata": meta, "spec": {"cluster": {"name": "orders"}, **made}}


def rights_of(users: Sequence[Json]) -> Rights:
    made = compile_users(users, BASE, {})
    assert made.text
    rights = Rights(closed=True)
    rights.apply(read_document(made.text))
    return rights


def allowed(rights: Rights, principal: str, operation: Operation, topic: str, group: str) -> bool:
    return rights.allows(Identity(principal, IdentityKind.CERTIFICATE), operation, topic, group)


# ------------------------------------------------------------ a plain reading of the users
def plainly_allowed(users: Sequence[Json], principal: str, operation: Operation, topic: str, group: str) -> bool:
    """Written from the words of `kubectl explain delayuser`, without the product's types."""
    for body in users:
        spec = body["spec"]
        if principal not in spec["certificates"]:
            continue
        for rule in spec["rules"]:
            if operation == "Admin" or rule["operations"] == ["Admin"]:
                if operation == "Admin" and rule["operations"] == ["Admin"]:
                    return True
                continue
            if not named(rule["topic"], topic):
                continue
            if operation == "Describe" or (
                operation in rule["operations"] and (operation not in OF_GROUPS or named(rule["group"], group))
            ):
                return True
    return False


def named(pattern: Json, name: str) -> bool:
    return name == pattern["literal"] if "literal" in pattern else name.startswith(pattern["prefix"])


NAMES = st.sampled_from(["a", "ab", "a-b", "b", "orders", "orders-2"])
PATTERNS = st.one_of(
    st.builds(lambda name: {"literal": name}, NAMES),
    st.builds(lambda name: {"prefix": name}, st.one_of(NAMES, st.just(""))),
)
OF_TOPICS = [one for one in Operation if one not in OF_GROUPS and one is not Operation.ADMIN]


@st.composite
def rules(draw: st.DrawFn) -> Json:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return {"operations": ["Admin"]}
    found: set[Operation] = draw(st.sets(st.sampled_from([*OF_TOPICS, *OF_GROUPS]), min_size=1))
    out: Json = {"operations": sorted(map(str, found)), "topic": draw(PATTERNS)}
    return out | ({"group": draw(PATTERNS)} if found & OF_GROUPS else {})


@st.composite
def all_users(draw: st.DrawFn) -> list[Json]:
    """Good ones, none of which is known as another is."""
    return [
        user(
            f"u{number}",
            draw(st.integers(0, 3)),
            certificates=draw(st.lists(st.sampled_from([f"dns:u{number}", f"dns:v{number}"]), min_size=1, unique=True)),
            rules=draw(st.lists(rules(), max_size=4)),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


BAD: list[Json] = [
    {"certificates": None},
    {"certificates": ["nobody"]},
    {"certificates": "dns:u0"},
    {"rules": [{"operations": ["Produce"]}]},
    {"rules": [{"operations": ["Fly"], "topic": {"literal": "a"}}]},
    {"rules": [{"operations": [], "topic": {"literal": "a"}}]},
    {"rules": [{"operations": ["Consume"], "topic": {"prefix": ""}}]},
    {"rules": [{"operations": ["Produce"], "topic": {"literal": "a"}, "group": {"literal": "g"}}]},
    {"rules": [{"operations": ["Admin", "Produce"], "topic": {"literal": "a"}}]},
    {"rules": [{"operations": ["Produce"], "topic": {"literal": "a*"}}]},
    {"rules": [{"operations": ["Produce"], "topic": {"prefix": ".*"}}]},
    {"rules": [{"operations": ["Produce"], "topic": {"literal": "a", "prefix": "a"}}]},
    {"rules": [{"operations": ["Produce"], "topic": {}}]},
    {"oidc": [{"issuer": "https://a#b", "subject": "c"}]},
    {"oidc": [{"issuer": "https://a", "subject": "c\n"}]},
    {"serviceAccounts": [{"name": "a:b"}]},
    {"serviceAccounts": [{"namespace": "a:b", "name": "c"}]},
    {"tokens": [{"sha256": "AB" * 32}]},
    {"tokens": [{"sha256": SHA}, {"sha256": SHA}]},
    {"tokens": [{"sha256": SHA, "expiresAt": "tomorrow"}]},
    {"quotas": {"enqueuePerSecond": 0}},
    {"quotas": {"enqueueBytesPerSecond": "much"}},
    {"quotas": {"connections": 0}},
    {"quotas": {"enqueueBytesPerSecond": "999999999P"}},
]


@settings(max_examples=150, deadline=None)
@given(all_users(), st.sampled_from(BAD), st.randoms(use_true_random=False))
def test_the_document_allows_what_the_users_say_and_nothing_more(
    users: list[Json], bad: Json, order: random.Random
) -> None:
    """Beside a user that is wrong and older than all."""
    broken = user("broken", certificates=["dns:broken"]) | {}
    broken["spec"] |= bad
    mixed = [*users, broken]
    order.shuffle(mixed)
    made = compile_users(mixed, BASE, {})
    assert made.text == compile_users([broken, *users], BASE, {}).text
    assert made.users["shop", "broken"].refused is UserReason.INVALID_SPEC, bad
    assert made.users["shop", "broken"].message.startswith("spec"), made.users["shop", "broken"].message
    rights = rights_of(mixed)
    for principal in ("dns:u0", "dns:v0", "dns:u1", "dns:broken", "dns:stranger"):
        for operation in Operation:
            for topic in ("a", "ab", "a-b", "orders", "orders-21", "z"):
                for group in ("a", "orders-2", "zz"):
                    said = allowed(rights, principal, operation, topic, group)
                    asked = (principal, operation, topic, group)
                    assert said == plainly_allowed(users, *asked), asked


def test_what_a_user_is_known_by_is_the_principal_that_nodes_verify() -> None:
    body = user(
        "till",
        certificates=["spiffe://shop/till", "dns:till.shop"],
        serviceAccounts=[{"name": "till"}, {"namespace": "cash", "name": "desk"}],
        oidc=[{"issuer": "https://login.example.com", "subject": "42"}],
        tokens=[{"sha256": SHA, "expiresAt": "1970-01-01T01:00:00+01:00"}, {"sha256": "cd" * 32}],
        quotas={"enqueuePerSecond": 5, "enqueueBytesPerSecond": "2Ki", "connections": 7},
    )
    spec = read_document(compile_users([body], BASE, {}).text)
    assert {it.principal for it in spec.users} == {
        "spiffe://shop/till", "dns:till.shop", "system:serviceaccount:shop:till", "system:serviceaccount:cash:desk",
        "oidc:https://login.example.com#42", "token:till",
    }  # fmt: skip
    assert {it.quotas for it in spec.users} == {
        UserQuotas(enqueue_per_second=5, enqueue_bytes_per_second=2048, connections=7)
    }
    assert {(it.name, it.sha256, it.expires_ms) for it in spec.tokens} == {("till", SHA, 0), ("till", "cd" * 32, None)}


def test_who_is_known_already_is_the_older_users_and_the_younger_is_left_out_whole() -> None:
    old = user("old", 1, certificates=["dns:till"])
    thief = user("a-thief", 2, certificates=["dns:till", "dns:mine"], rules=[{"operations": ["Admin"]}])
    third = user("third", 3, certificates=["dns:mine"])
    for users in ([old, thief, third], [third, thief, old]):
        made = compile_users(users, BASE, {})
        assert made.users["shop", "a-thief"].refused is UserReason.IDENTITY_TAKEN
        assert "dns:till is DelayUser old's" in made.users["shop", "a-thief"].message
        assert {it.principal for it in read_document(made.text).users} == {"dns:till", "dns:mine"}
        assert not allowed(rights_of(users), "dns:till", Operation.ADMIN, "", "")
        assert allowed(rights_of(users), "dns:till", Operation.PRODUCE, "orders", "")


# ------------------------------------------------------------ users of other namespaces than the cluster's
TENANTS = {
    "shop": Tenant(True, {"orders": True, "a": True, "a-b": False}),
    "bank": Tenant(True, {"ab": True, "orders-2": True}),
    "lost": Tenant(False, {"a-kept": False}),
    "unknown": Tenant(None),
}


def tenant(name: str, namespace: str, **spec: Any) -> Json:
    made = user(name, **{"certificates": None, "serviceAccounts": [{"name": name}]} | spec)
    made["metadata"]["namespace"] = namespace
    return made


@settings(max_examples=150, deadline=None)
@given(st.lists(rules(), max_size=5), st.sampled_from(["shop", "bank"]))
def test_a_user_of_another_namespace_may_do_what_its_rules_say_with_its_own_topics_and_nothing_more(
    said: list[Json], namespace: str
) -> None:
    made = compile_users([tenant("u", namespace, rules=said)], BASE, TENANTS)
    rights = Rights(closed=True)
    rights.apply(read_document(made.text))
    own = TENANTS[namespace].topics
    plain = [user("u", rules=said)]
    for operation in Operation:
        for topic in ("a", "ab", "a-b", "b", "orders", "orders-2", "orders-21", "a-kept", "z"):
            for group in ("a", "orders-2", "zz"):
                allows = allowed(rights, f"system:serviceaccount:{namespace}:u", operation, topic, group)
                expected = topic in own and operation is not Operation.ADMIN
                expected = expected and plainly_allowed(plain, "dns:u", operation, topic, group)
                if operation is Operation.PRODUCE:
                    expected = expected and own[topic]  # not to what was left behind
                assert allows == expected, (operation, topic, group)


@pytest.mark.parametrize(
    "identity",
    [
        {"certificates": ["dns:bank"]},
        {"oidc": [{"issuer": "https://login.example.com", "subject": "director"}]},
        {"tokens": [{"sha256": SHA}]},
        {"serviceAccounts": [{"name": "teller", "namespace": "bank"}]},
    ],
)
def test_a_user_of_another_namespace_is_only_service_accounts_of_its_own(identity: Json) -> None:
    made = compile_users([tenant("u", "shop"), tenant("thief", "shop")], BASE, TENANTS)
    assert made.users["shop", "thief"].refused is None
    thief = tenant("thief", "shop")
    thief["spec"] |= identity
    made = compile_users([tenant("u", "shop"), thief], BASE, TENANTS)
    assert made.users["shop", "thief"].refused is UserReason.IDENTITY_NOT_ALLOWED
    assert [it.principal for it in read_document(made.text).users] == ["system:serviceaccount:shop:u"]
    own = tenant("u", "shop", serviceAccounts=[{"name": "u", "namespace": "shop"}])
    assert compile_users([own], BASE, TENANTS).users["shop", "u"].refused is None


def test_who_is_known_in_the_cluster_s_namespace_is_so_whatever_the_age() -> None:
    late = user("limits", 9, serviceAccounts=[{"name": "u", "namespace": "shop"}], certificates=None)
    late["metadata"]["namespace"] = "messages"
    made = compile_users([tenant("u", "shop"), late], BASE, TENANTS)
    assert made.users["messages", "limits"].refused is None
    assert made.users["shop", "u"].refused is UserReason.IDENTITY_TAKEN


def test_a_namespace_that_is_not_allowed_or_not_known_has_no_users() -> None:
    made = compile_users([tenant("u", "lost"), tenant("u", "unknown")], BASE, TENANTS)
    assert made.users["lost", "u"].refused is UserReason.NAMESPACE_NOT_ALLOWED
    assert made.users["unknown", "u"].refused is UserReason.NAMESPACE_UNKNOWN
    assert read_document(made.text).users == ()
    had = {"unknown": Tenant(None, {"orders": True})}
    assert compile_users([tenant("u", "unknown")], BASE, had).users["unknown", "u"].refused is None, "it was allowed"


def test_a_prefix_of_many_topics_counts_up_to_the_limit_and_says_so() -> None:
    many = {"shop": Tenant(True, {f"t{number:03}": True for number in range(MAX_RULES + 1)})}
    everything = {"operations": ["Produce"], "topic": {"prefix": ""}}
    made = compile_users([tenant("u", "shop", rules=[everything])], BASE, many)
    (found,) = read_document(made.text).users
    assert len(found.rules) == MAX_RULES
    assert f"name {MAX_RULES + 1} topics in all" in made.users["shop", "u"].message


def test_no_namespace_fills_the_document_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_document, "MAX_TENANT_BYTES", 1_000)
    greedy = [tenant(f"u{number}", "shop", at=number) for number in range(20)]
    made = compile_users([*greedy, tenant("u", "bank")], BASE, TENANTS)
    refused = [key for key, it in made.users.items() if it.refused is not None]
    assert 0 < len(refused) < 20
    assert {made.users[it].refused for it in refused} == {UserReason.DOCUMENT_TOO_LARGE}
    assert ("shop", "u0") not in refused, "the younger ones are left out"
    assert {namespace for namespace, _ in refused} == {"shop"}


def test_a_token_counts_for_one_user() -> None:
    made = compile_users([user("a", 2, tokens=[{"sha256": SHA}]), user("b", 1, tokens=[{"sha256": SHA}])], BASE, {})
    assert made.users["shop", "a"].refused is UserReason.IDENTITY_TAKEN
    assert [it.name for it in read_document(made.text).tokens] == ["b"]


def test_users_that_do_not_fit_are_said_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_DOCUMENT_BYTES", 2_000)
    made = compile_users([user(f"u{number}") for number in range(30)], BASE, {})
    assert made.text == ""
    assert "the limit is 2,000" in made.too_large
    assert all(it.refused is None for it in made.users.values())


def test_no_single_user_fills_the_document() -> None:
    rule = {"operations": ["Consume"], "topic": {"prefix": ""}, "group": {"literal": "g" * 200}}
    glutton = user("glutton", rules=[rule] * MAX_USER_RULES, certificates=[f"dns:g{it}" for it in range(64)])
    made = compile_users([glutton, user("modest", 1)], BASE, {})
    assert made.users["shop", "glutton"].refused is UserReason.INVALID_SPEC
    assert f"the limit is {security_document.MAX_USER_BYTES:,}" in made.users["shop", "glutton"].message
    assert [it.principal for it in read_document(made.text).users] == ["dns:modest"]
    assert security_document.MAX_USER_BYTES * 8 < MAX_DOCUMENT_BYTES
    assert MAX_USER_RULES == MAX_RULES


def test_a_user_is_in_force_as_it_was_written_and_not_otherwise() -> None:
    before, after = user("u", tokens=[{"sha256": SHA}]), user("u", tokens=[{"sha256": SHA}], rules=[])
    text = compile_users([before, user("other", 1)], BASE, {}).text
    assert in_force(text).has(compile_users([before], BASE, {}).users["shop", "u"])
    assert not in_force(text).has(compile_users([after], BASE, {}).users["shop", "u"])
    later = user("u", tokens=[{"sha256": SHA, "expiresAt": "2030-01-01T00:00:00Z"}])
    assert not in_force(text).has(compile_users([later], BASE, {}).users["shop", "u"])
    assert not in_force("{").has(compile_users([before], BASE, {}).users["shop", "u"])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"cluster": {"name": "other"}}, "spec.cluster: cluster can't be changed"),
        ({"cluster": {"name": "orders", "namespace": "shop"}}, "spec.cluster: cluster can't be changed"),
        ({"cluster": {"name": "billing/orders"}}, "spec.cluster.name"),
        ({"cluster": "orders"}, "spec.cluster"),
        ({"rules": [SEND | {"topic": {}}]}, "spec.rules[0].topic: it has either literal or prefix"),
        ({"rules": [SEND | {"topic": {"literal": "a", "prefix": ""}}]}, "spec.rules[0].topic: it has either"),
        ({"rules": [SEND | {"operations": ["All"]}]}, "spec.rules[0].operations[0]"),
        ({"rules": [SEND | {"topic": {"literal": "a.*"}}]}, "spec.rules[0].topic.literal"),
        ({"tokens": [{"sha256": "secret"}]}, "spec.tokens[0].sha256"),
        ({"certificates": ["till"]}, "spec.certificates[0]"),
    ],
)
def test_a_user_that_makes_no_sense_is_refused_by_the_api_server(spec: Json, says: str) -> None:
    good = user("u")
    assert apiserver.refusals(SCHEMA, good, good)[1:] == ([], [])
    _, schema, cel = apiserver.refusals(SCHEMA, {**good, "spec": good["spec"] | spec}, good)
    assert [line[: len(says)] for line in [*schema, *cel]] == [says]
