"""The security document: it comes back as it was written, and a wrong one is refused with a sentence."""

from __future__ import annotations

import json

import pytest
from delayregistry import security
from delayregistry.codec import BadRecord
from delayregistry.model import BadSpec
from delayregistry.security import (
    OF_GROUPS,
    AccessRule,
    AuthorizationMode,
    IssuerKind,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
    TokenIssuer,
    UserQuotas,
    Verification,
    read_document,
    write_document,
)
from hypothesis import given
from hypothesis import strategies as st

OFF = AuthorizationMode.OFF
SHA = "0" * 64
ALL = NamePattern(prefix="")
name = st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True)
patterns = st.builds(NamePattern, literal=name) | st.builds(NamePattern, prefix=name | st.just(""))
limits = st.none() | st.integers(1, 10**15)
principals = st.builds("system:serviceaccount:{}:{}".format, name, name) | st.builds(
    "oidc:https://{}#{}".format, name, name
)
groups = st.builds("oidc-group:https://{}#{}".format, name, name)
of_topics = [one for one in Operation if one not in OF_GROUPS and one is not Operation.ADMIN]
rules = (
    st.just(AccessRule((Operation.ADMIN,)))
    | st.builds(AccessRule, st.lists(st.sampled_from(of_topics), min_size=1).map(tuple), topic=patterns)
    | st.builds(AccessRule, st.sampled_from(sorted(OF_GROUPS)).map(lambda one: (one,)), topic=patterns, group=patterns)
)
users = st.builds(
    SecurityUser,
    principal=principals,
    rules=st.lists(rules, max_size=3).map(tuple),
    quotas=st.none() | st.builds(UserQuotas, limits, limits, limits),
)
issuers = st.builds(
    TokenIssuer,
    kind=st.just(IssuerKind.OIDC),
    audience=name,
    issuer=st.builds("https://{}".format, name),
    jwks=st.text(max_size=5),
    ca=st.text(max_size=5),
    principal_claim=name,
    groups_claim=name | st.just(""),
) | st.builds(
    TokenIssuer,
    kind=st.just(IssuerKind.SERVICE_ACCOUNTS),
    audience=name,
    issuer=name,
    verify=st.sampled_from(Verification),
)
tokens = st.builds(
    StaticToken,
    name=name,
    sha256=st.integers(0, 2**256 - 1).map("{:064x}".format),
    expires_ms=st.none() | st.integers(0, 2**50),
)


def unique(what: st.SearchStrategy, by: str) -> st.SearchStrategy:
    return st.lists(what, max_size=3, unique_by=lambda one: getattr(one, by)).map(tuple)


specs = st.builds(
    SecuritySpec,
    authorization=st.sampled_from(AuthorizationMode),
    super_users=st.lists(principals | groups, max_size=3).map(tuple),
    issuers=unique(issuers, "issuer"),
    tokens=unique(tokens, "sha256"),
    users=unique(users, "principal"),
)


@given(specs)
def test_a_document_comes_back_as_it_was_written(spec: SecuritySpec) -> None:
    assert read_document(write_document(spec)) == spec


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{}", "authorization"),
        ('{"authorization":null}', "authorization: null; leave it out"),
        ("[]", "an object was expected, found list"),
        ('{"authorisation":"Required"}', "authorisation is not known to this release"),
        ('{"authorization":"On"}', "'On' is not a valid AuthorizationMode"),
        ('{"authorization":"Off","authorization":"Required"}', "authorization comes twice"),
        ('{"users":[{"principal":"token:a","rules":[],"rules":[]}]}', "rules comes twice"),
        ('{"users":[{"principal":"token:a","hosts":["10.0.0.1"]}]}', "hosts is not known to this release"),
        ('{"users":[{"principal":"token:a","rules":[{"operations":["Produce"],"topic":{"literal":"a","regex":"b"}}]}]}',
         "regex is not known"),
        ('{"users":{"principal":"token:a"}}', "a list was expected"),
        ('{"users":[{"rules":[]}]}', "principal"),
        ('{"tokens":[{"name":"a","sha256":"' + SHA + '","expiresMs":NaN}]}', "NaN is no number"),
        ('{"tokens":[{"name":"a","sha256":"' + SHA + '","expiresMs":1.5}]}', "a whole number was expected"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        (" " * (security.MAX_DOCUMENT_BYTES + 1), "the limit is 1,048,576"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        read_document(text)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"operations": ()}, "names no operation"),
        ({"operations": (Operation.PRODUCE,)}, "Produce names no topic; {prefix: ''} stands for all"),
        ({"operations": (Operation.PRODUCE, Operation.CONSUME), "topic": ALL}, "Consume names no group"),
        ({"operations": (Operation.MANAGE_GROUP,), "topic": ALL}, "ManageGroup names no group"),
        ({"operations": (Operation.PRODUCE,), "topic": ALL, "group": ALL}, "none of them is of groups"),
        ({"operations": (Operation.ADMIN,), "topic": ALL}, "Admin is of the whole cluster"),
        ({"operations": (Operation.ADMIN, Operation.PRODUCE), "topic": ALL}, "a rule of its own"),
        ({"operations": (Operation.PRODUCE,), "topic": NamePattern("shop.*")}, "no character stands for others"),
        ({"operations": (Operation.PRODUCE,), "topic": NamePattern("*")}, "no character stands for others"),
        ({"operations": (Operation.PRODUCE,), "topic": NamePattern(prefix="shop.")}, "no character stands for others"),
        ({"operations": (Operation.PRODUCE,), "topic": NamePattern(prefix="a" * 51)}, "1 to 50"),
        ({"operations": (Operation.PRODUCE,), "topic": NamePattern("")}, "topic ''"),
        ({"operations": (Operation.CONSUME,), "topic": ALL, "group": NamePattern("")}, "group ''"),
        ({"operations": (Operation.CONSUME,), "topic": ALL, "group": NamePattern("g" * 256)}, "256 characters"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: dict, why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        AccessRule(**rule)


@pytest.mark.parametrize("both", [{}, {"literal": "a", "prefix": "a"}])
def test_a_pattern_is_a_name_or_a_prefix(both: dict) -> None:
    with pytest.raises(BadSpec, match="either literal or prefix"):
        NamePattern(**both)


@pytest.mark.parametrize(
    "principal",
    [
        "shop",
        "",
        "system:serviceaccount:shop",
        "system:serviceaccount:a:b:c",
        "oidc:",
        "token:",
        "http://x",
        "dns: a\n",
        "oidc-group:https://x",
        "oidc-group:#ops",
        "oidc-group:https://x#",
    ],
)
def test_a_principal_is_of_a_known_form(principal: str) -> None:
    with pytest.raises(BadSpec, match="principal"):
        SecurityUser(principal)
    with pytest.raises(BadSpec, match="principal"):
        SecuritySpec(OFF, super_users=(principal,))


@pytest.mark.parametrize(
    ("issuer", "why"),
    [
        ({"kind": IssuerKind.OIDC, "audience": "a"}, "has no issuer"),
        ({"kind": IssuerKind.OIDC, "audience": "", "issuer": "https://x"}, "audience has 0 characters"),
        ({"kind": IssuerKind.OIDC, "audience": "a", "issuer": "x"}, "its keys can't be found"),
        ({"kind": IssuerKind.OIDC, "audience": "a", "issuer": "x", "jwks_url": "http://x"}, "no https URL"),
        ({"kind": IssuerKind.OIDC, "audience": "a", "issuer": "x", "jwks_url": "https://x", "jwks": "{}"}, "one says"),
        (
            {"kind": IssuerKind.OIDC, "audience": "a", "issuer": "https://x", "verify": Verification.TOKEN_REVIEW},
            "TokenReview is for ServiceAccounts",
        ),
        ({"kind": IssuerKind.OIDC, "audience": "a", "issuer": "https://x#y"}, "an issuer's URL has no '#'"),
        ({"kind": IssuerKind.SERVICE_ACCOUNTS, "audience": "a", "principal_claim": "aud"}, "always its own"),
    ],
)
def test_an_issuer_that_cannot_be_meant_is_refused(issuer: dict, why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        TokenIssuer(**issuer)


def test_nothing_is_named_twice() -> None:
    user, token = SecurityUser("token:a"), StaticToken("a", SHA)
    for twice in ({"users": (user, user)}, {"tokens": (token, token)}):
        with pytest.raises(BadSpec, match="is named twice"):
            SecuritySpec(OFF, **twice)


def test_what_is_too_much_is_refused() -> None:
    rule = AccessRule((Operation.ADMIN,))
    with pytest.raises(BadSpec, match="201 rules; the limit is 200"):
        SecurityUser("token:a", (rule,) * 201)
    with pytest.raises(BadSpec, match="10001 users"):
        SecuritySpec(OFF, users=tuple(SecurityUser(f"token:{i}") for i in range(10_001)))
    with pytest.raises(BadSpec, match="enqueue_per_second is 0; allowed: 1 to"):
        UserQuotas(enqueue_per_second=0)
    with pytest.raises(BadSpec, match="connections is 0; allowed: 1 to"):
        UserQuotas(connections=0)
    with pytest.raises(BadSpec, match="has quotas; those are of one principal"):
        SecurityUser("group:shop", quotas=UserQuotas(enqueue_per_second=1))
    with pytest.raises(BadSpec, match="has quotas; those are of one principal"):
        SecurityUser("oidc-group:https://x#shop", quotas=UserQuotas(enqueue_per_second=1))
    with pytest.raises(BadSpec, match="64 of 0-9"):
        StaticToken("a", "secret")
    long = tuple(SecurityUser("token:" + f"{i}".zfill(500)) for i in range(3_000))
    with pytest.raises(BadSpec, match="the limit is 1,048,576"):
        write_document(SecuritySpec(OFF, users=long))


def test_ten_thousand_users_fit() -> None:
    user = [SecurityUser(f"system:serviceaccount:team-{i}:worker") for i in range(10_000)]
    assert len(json.loads(write_document(SecuritySpec(OFF, users=tuple(user))))["users"]) == 10_000
