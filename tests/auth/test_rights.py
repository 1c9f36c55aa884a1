"""Rights: what the rules allow, and nothing else."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import pytest
from delaynode.auth import rights as auth_rights
from delaynode.auth.identity import ANONYMOUS, Identity, IdentityKind
from delaynode.auth.rights import AccessQuestion, Denial, Rights, credential_of
from delaynode.store.errors import Refused
from delayregistry.security import (
    OF_GROUPS,
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
    UserQuotas,
)

SHOP = Identity("system:serviceaccount:shop:worker", IdentityKind.TOKEN)
NOBODY = Identity("token:nobody", IdentityKind.TOKEN)
ALL = NamePattern(prefix="")
PRODUCE, CONSUME, CANCEL, DESCRIBE = Operation.PRODUCE, Operation.CONSUME, Operation.CANCEL, Operation.DESCRIBE


def rule(
    *operations: Operation, topic: NamePattern | str = "orders", group: NamePattern | str | None = None
) -> AccessRule:
    topics, groups = (NamePattern(one) if isinstance(one, str) else one for one in (topic, group))
    return AccessRule(operations, topics, groups)


def spec(*rules: AccessRule, mode: AuthorizationMode = AuthorizationMode.REQUIRED, **more: object) -> SecuritySpec:
    return SecuritySpec(mode, users=(SecurityUser(SHOP.principal, rules),), **more)


class Told:
    def __init__(self) -> None:
        self.all: list[tuple[AccessQuestion, Denial, bool]] = []

    def __call__(self, *said: object) -> None:
        self.all.append(said)


def rights(document: SecuritySpec | None, told: Told | None = None) -> Rights:
    found = Rights(closed=True, told=told or Told())
    if document is not None:
        found.apply(document)
    return found


def may(
    document: SecuritySpec, operation: Operation, topic: str = "orders", group: str = "", who: Identity = SHOP
) -> bool:
    with suppress(Refused):
        rights(document).check(who, operation, topic, group)
        return True
    return False


@pytest.mark.parametrize("operation", [one for one in Operation if one is not Operation.ADMIN])
def test_a_rule_allows_its_operation_and_describe_on_its_topic_alone(operation: Operation) -> None:
    document = spec(rule(operation, group="mail" if operation in OF_GROUPS else None))
    allowed = {one for one in Operation if may(document, one, "orders", "mail")}
    assert allowed == {operation, DESCRIBE}
    assert {one for one in Operation if may(document, one, "order", "mail")} == set()
    assert {one for one in Operation if may(document, one, "", "mail")} == set()


def test_admin_is_of_the_cluster_and_of_no_topic() -> None:
    document = spec(AccessRule((Operation.ADMIN,)))
    assert {one for one in Operation if may(document, one, "orders", "mail")} == {Operation.ADMIN}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (NamePattern("shop"), "shop", True),
        (NamePattern("shop"), "shop-a", False),
        (NamePattern(prefix="shop-"), "shop-a", True),
        (NamePattern(prefix="shop-"), "shop-", True),
        (NamePattern(prefix="shop-"), "shop", False),
        (NamePattern(prefix="shop-"), "workshop-a", False),
        (ALL, "anything", True),
    ],
)
def test_names_are_literal_or_begin_so(pattern: NamePattern, name: str, matches: bool) -> None:
    assert may(spec(rule(PRODUCE, topic=pattern)), PRODUCE, name) is matches


@pytest.mark.parametrize("wild", ["shop.*", "*", "shop*", ".*", "sh?p", "[a-z]+", "(", "shop\\", "%", "^shop$"])
def test_dots_and_stars_of_a_groups_name_stand_for_themselves(wild: str) -> None:
    literal, prefix = (spec(rule(CONSUME, group=NamePattern(**{kind: wild}))) for kind in ("literal", "prefix"))
    assert may(literal, CONSUME, group=wild)
    assert may(prefix, CONSUME, group=wild + "-1")
    for document in (literal, prefix):
        assert not any(may(document, CONSUME, group=name) for name in ("shop", "shopper", "a", ""))


def test_a_rule_for_some_groups_allows_no_other() -> None:
    document = spec(rule(CONSUME, group="mail"))
    assert may(document, CONSUME, group="mail")
    assert not may(document, CONSUME, group="mail2")
    assert not may(document, CONSUME, group="")


def test_topic_and_group_are_of_the_same_rule() -> None:
    document = spec(rule(CONSUME, topic="a", group="g"), rule(CONSUME, topic="b", group="h"))
    assert not may(document, CONSUME, "a", "h")


def test_super_users_may_do_everything_and_groups_count_as_users() -> None:
    document = SecuritySpec(
        AuthorizationMode.REQUIRED,
        super_users=("token:root", "group:ops"),
        users=(SecurityUser("group:readers", (rule(Operation.BROWSE),)),),
    )
    for who in (Identity("token:root", IdentityKind.TOKEN), Identity("oidc:x#a", IdentityKind.TOKEN, None, ("ops",))):
        assert all(may(document, one, "any", "any", who) for one in Operation)
    reader = Identity("oidc:x#b", IdentityKind.TOKEN, None, ("others", "readers"))
    assert may(document, Operation.BROWSE, who=reader)
    assert not may(document, PRODUCE, who=reader)
    assert not may(document, Operation.BROWSE, who=Identity("oidc:x#c", IdentityKind.TOKEN, None, ("others",)))
    assert not may(document, Operation.BROWSE, who=Identity("token:ops", IdentityKind.TOKEN)), "no group, by its name"


def test_a_group_of_one_provider_is_none_of_another_ones() -> None:
    name = "oidc-group:https://a#ops"
    document = SecuritySpec(
        AuthorizationMode.REQUIRED,
        super_users=(name,),
        users=(SecurityUser("oidc-group:https://b#ops", (rule(Operation.BROWSE),)),),
    )

    def known(issuer: str, *groups: str) -> Identity:
        return Identity(f"oidc:{issuer}#me", IdentityKind.TOKEN, None, groups)

    assert may(document, Operation.ADMIN, who=known("https://a", "others", "ops"))
    assert rights(document).explain(known("https://a", "ops"), Operation.ADMIN) == (True, f"'{name}' is a super user")
    assert may(document, Operation.BROWSE, who=known("https://b", "ops"))
    for one in (
        known("https://b", "ops"), known("https://b", name, name.removeprefix("oidc-")), known("https://a/", "ops"),
        known("https://a#ops", "x"), known("https://c", "https://a#ops"), known("https://a"),
        Identity("token:https://a#ops", IdentityKind.TOKEN), Identity("dns:a#ops", IdentityKind.CERTIFICATE),
    ):  # fmt: skip
        assert not may(document, Operation.ADMIN, who=one), one


def test_the_clusters_own_processes_have_their_rights_without_a_document() -> None:
    closed = rights(None)

    def allowed(role: str) -> set[Operation]:
        peer = Identity(f"spiffe://delaycluster/ns/a/cluster/b/role/{role}", IdentityKind.PEER, role=role)
        found = set()
        for one in Operation:
            try:
                closed.check(peer, one, "orders")
            except Refused:
                continue
            found.add(one)
        return found

    assert allowed("node") == allowed("operator") == set(Operation)
    assert allowed("rebalance") == {DESCRIBE}
    assert allowed("admin") == set()


def test_of_a_forwarded_call_the_node_that_took_it_has_asked() -> None:
    rights(None).check(Identity("token:shop", IdentityKind.FORWARDED), PRODUCE, "orders")


def test_until_a_document_is_read_nobody_may_do_anything() -> None:
    for who in (SHOP, NOBODY, ANONYMOUS):
        with pytest.raises(Refused, match="has not read the security document yet") as refused:
            rights(None).check(who, DESCRIBE, "orders")
        assert refused.value.reason == "NOT_SERVING"
    Rights(closed=False).check(ANONYMOUS, Operation.ADMIN)


@pytest.mark.parametrize(
    ("who", "why", "sentence"),
    [
        (SHOP, Denial.NO_RULE, "none of its rules allows that"),
        (NOBODY, Denial.UNKNOWN_PRINCIPAL, "this cluster has no user of that principal"),
        (ANONYMOUS, Denial.ANONYMOUS, "a listener that does not ask who calls"),
    ],
)
def test_a_refusal_names_principal_operation_resource_and_why(who: Identity, why: Denial, sentence: str) -> None:
    told = Told()
    with pytest.raises(Refused) as refused:
        rights(spec(rule(PRODUCE)), told).check(who, CONSUME, "orders", "mail")
    resource = "topic 'orders', group 'mail'"
    assert refused.value.metadata == {
        "principal": who.principal, "operation": "Consume", "resource": resource, "why": why.value,
    }  # fmt: skip
    assert refused.value.message.startswith(f"'{who.principal}' may not Consume on {resource}: ")
    assert sentence in refused.value.message
    assert told.all == [(AccessQuestion(who, CONSUME, "orders", "mail"), why, False)]


def test_anonymous_may_be_a_user() -> None:
    document = SecuritySpec(AuthorizationMode.REQUIRED, users=(SecurityUser("anonymous", (rule(PRODUCE),)),))
    assert may(document, PRODUCE, who=ANONYMOUS)
    assert not may(document, PRODUCE, who=NOBODY)


def test_permissive_allows_and_tells() -> None:
    told = Told()
    found = rights(spec(rule(PRODUCE), mode=AuthorizationMode.PERMISSIVE), told)
    for _ in range(3):
        found.check(SHOP, CANCEL, "orders")
    found.check(SHOP, PRODUCE, "orders")
    assert told.all == [(AccessQuestion(SHOP, CANCEL, "orders", ""), Denial.NO_RULE, True)] * 3
    assert found.allows(SHOP, CANCEL, "orders")


def test_off_asks_nothing() -> None:
    told = Told()
    rights(spec(mode=AuthorizationMode.OFF), told).check(NOBODY, Operation.ADMIN)
    assert told.all == []


def test_a_new_document_is_in_force_at_once() -> None:
    found = rights(spec(rule(PRODUCE)))
    found.check(SHOP, PRODUCE, "orders")
    found.apply(spec(rule(CANCEL)))
    with pytest.raises(Refused, match="may not Produce"):
        found.check(SHOP, PRODUCE, "orders")
    found.check(SHOP, CANCEL, "orders")


def test_a_token_that_was_withdrawn_counts_no_more_on_connections_that_know_it() -> None:
    tokens = (StaticToken("shop", "a" * 64), StaticToken("shop", "b" * 64))
    old = Identity("token:shop", IdentityKind.TOKEN, credential=credential_of(tokens[0]))
    users = (SecurityUser("token:shop", (rule(PRODUCE),)),)
    found = rights(SecuritySpec(AuthorizationMode.REQUIRED, tokens=tokens, users=users))
    found.check(old, PRODUCE, "orders")
    found.apply(SecuritySpec(AuthorizationMode.REQUIRED, tokens=tokens[1:], users=users))
    with pytest.raises(Refused, match="takes no such token now") as refused:
        found.check(old, PRODUCE, "orders")
    assert refused.value.reason == "UNAUTHENTICATED"
    found.check(replace(old, credential=credential_of(tokens[1])), PRODUCE, "orders")


def test_what_is_left_out_of_an_answer_is_told_to_nobody() -> None:
    told = Told()
    found = rights(spec(rule(PRODUCE)), told)
    assert (found.allows(SHOP, DESCRIBE, "orders"), found.allows(SHOP, DESCRIBE, "other")) == (True, False)
    assert told.all == []


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_rights, "MAX_KNOWN", 100)
    found = rights(spec(rule(PRODUCE, topic=ALL)))
    for number in range(1_000):
        found.check(SHOP, PRODUCE, f"t{number}")
        assert len(found._known) <= 100
    found.check(SHOP, PRODUCE, "x" * 1_000_000)
    assert all(len(str(key)) < 1_000 for key in found._known), "a name of megabytes is not kept"


def test_a_name_of_megabytes_makes_no_message_of_megabytes() -> None:
    with pytest.raises(Refused) as refused:
        rights(spec()).check(SHOP, CONSUME, "x" * 1_000_000, "y" * 1_000_000)
    assert len(refused.value.message) < 1_000


def test_quotas_are_the_users() -> None:
    quotas = UserQuotas(enqueue_per_second=5)
    document = SecuritySpec(AuthorizationMode.OFF, users=(SecurityUser(SHOP.principal, (), quotas),))
    assert (rights(document).quotas(SHOP), rights(document).quotas(NOBODY)) == (quotas, None)


def test_a_question_that_was_asked_before_is_a_look_up() -> None:
    """10,000 users with 200 rules: the second answer must not depend on how many there are."""
    rules = tuple(rule(PRODUCE, topic=f"t{number}") for number in range(200))
    found = rights(spec(*rules))
    found.check(SHOP, PRODUCE, "t199")
    began = time.process_time()
    for _ in range(10_000):
        found.check(SHOP, PRODUCE, "t199")
    assert time.process_time() - began < 0.2, "some 20 ms; by all rules, some 300"
