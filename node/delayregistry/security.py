"""The security document: which tokens a cluster takes, who its users are and what they may do.

The operator writes it (`delayctl local` its own), nodes watch it. It holds no secrets: of static tokens it has hashes.

    SecuritySpec
      authorization, super_users
      issuers[]    whose tokens count: Kubernetes' for ServiceAccounts, OIDC providers'
      tokens[]     static tokens, by SHA-256
      users[]      principal -> rules (operations on topics and groups), quotas

A field that a program does not know may be a limit, so `read_document` refuses what it does not know: a later release
writes a new field only once all nodes know it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from delayregistry.codec import dumps, loads_strict
from delayregistry.model import MAX_QUOTA, MAX_TOPIC_CHARS, BadSpec, Version

MAX_DOCUMENT_BYTES = 1 << 20  # a ConfigMap's limit
MAX_ISSUERS = 16
MAX_USERS = 10_000
MAX_STATIC_TOKENS = 20_000  # each user may have two, so that one follows the other
MAX_RULES = 200  # of a user
MAX_NAME_CHARS = 512
MAX_GROUP_CHARS = 255

PRINCIPALS = re.compile(
    r"system:serviceaccount:[^:]+:[^:]+|oidc-group:[^#]+#.+|(oidc|token|dns|group):.+|spiffe://.+|anonymous"
)
GROUPS = ("group:", "oidc-group:")  # principals that are many callers: a group of any provider, and of one
_TOPIC_PART = re.compile(r"[a-z0-9-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Operation(StrEnum):
    """What a caller may do. Produce, Cancel, Browse and Describe are of a topic, Consume and ManageGroup of a topic and
    a group, Admin of the cluster. Any of a topic includes its Describe."""

    PRODUCE = "Produce"
    CONSUME = "Consume"
    CANCEL = "Cancel"
    BROWSE = "Browse"
    DESCRIBE = "Describe"
    MANAGE_GROUP = "ManageGroup"
    ADMIN = "Admin"


OF_GROUPS = frozenset({Operation.CONSUME, Operation.MANAGE_GROUP})


class AuthorizationMode(StrEnum):
    """Whether rights are asked for."""

    OFF = "Off"  # no
    PERMISSIVE = "Permissive"  # asked, counted and logged; what would be refused is allowed
    REQUIRED = "Required"


class IssuerKind(StrEnum):
    SERVICE_ACCOUNTS = "ServiceAccounts"
    OIDC = "OIDC"


class Verification(StrEnum):
    """How a ServiceAccount's token is verified."""

    JWKS = "JWKS"  # here, by the issuer's keys
    TOKEN_REVIEW = "TokenReview"  # by the API server, which also knows of pods that are gone


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A name, or all that begin with `prefix`; "" stands for all. Nothing in either is a wildcard."""

    literal: str | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        if (self.literal is None) == (self.prefix is None):
            raise BadSpec("a name pattern has either literal or prefix")

    def matches(self, name: str) -> bool:
        return name == self.literal if self.prefix is None else name.startswith(self.prefix)

    def __str__(self) -> str:
        return repr(self.literal) if self.prefix is None else f"prefix {self.prefix!r}"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Allows the operations on what matches. A rule takes nothing away."""

    operations: tuple[Operation, ...]
    topic: NamePattern | None = None
    group: NamePattern | None = None

    def __post_init__(self) -> None:
        if not self.operations:
            raise BadSpec("a rule names no operation")
        if Operation.ADMIN in self.operations:
            if len(self.operations) > 1 or self.topic is not None or self.group is not None:
                raise BadSpec("Admin is of the whole cluster: it has a rule of its own, without topic and group")
            return
        named = ", ".join(self.operations)
        if self.topic is None:
            raise BadSpec(f"a rule for {named} names no topic; {{prefix: ''}} stands for all")
        if self.group is None and (of_groups := [one for one in self.operations if one in OF_GROUPS]):
            raise BadSpec(f"a rule for {', '.join(of_groups)} names no group; {{prefix: ''}} stands for all")
        if self.group is not None and not OF_GROUPS.intersection(self.operations):
            raise BadSpec(f"a rule for {named} names a group, and none of them is of groups")
        _check_topic(self.topic)
        if self.group is not None:
            _check_text("a group's name", self.group.literal or self.group.prefix or "x", MAX_GROUP_CHARS)
            if self.group.literal == "":
                raise BadSpec("a rule names a group ''; {prefix: ''} stands for all")


@dataclass(frozen=True, slots=True)
class UserQuotas:
    """What a user may send to each node, and its connections there; None: no limit of its own. A message that waits has
    no owner: pending messages and bytes are quotas of topics."""

    enqueue_per_second: int | None = None  # messages
    enqueue_bytes_per_second: int | None = None
    connections: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_QUOTA:
                raise BadSpec(f"{name} is {value}; allowed: 1 to {MAX_QUOTA}")


@dataclass(frozen=True, slots=True)
class SecurityUser:
    """principal: as callers prove it, or a group, which stands for all whose token has it: `oidc-group:ISSUER#NAME`,
    or `group:NAME`, whichever provider says so."""

    principal: str
    rules: tuple[AccessRule, ...] = ()
    quotas: UserQuotas | None = None

    def __post_init__(self) -> None:
        _check_principal(self.principal)
        if len(self.rules) > MAX_RULES:
            raise BadSpec(f"user {self.principal} has {len(self.rules)} rules; the limit is {MAX_RULES}")
        if self.quotas is not None and self.principal.startswith(GROUPS):
            raise BadSpec(f"user {self.principal} has quotas; those are of one principal, and a group has many")


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token of random text that the cluster gave out. Several may have one name: they follow each other."""

    name: str  # its principal is `token:NAME`
    sha256: str  # of the token, 64 hexadecimal digits
    expires_ms: int | None = None  # by the wall clock; None: never

    def __post_init__(self) -> None:
        _check_text("a static token's name", self.name, MAX_NAME_CHARS)
        if not _SHA256.fullmatch(self.sha256):
            raise BadSpec(f"static token {self.name}: sha256 is not 64 of 0-9 and a-f")


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Whose signed tokens (JWT) count, for which audience.

    issuer: the token's `iss`; empty, of ServiceAccounts: what the API server says of itself.
    jwks: its keys, JSON; else they are fetched: from jwks_url, or, where that is empty, from where the issuer's
    `/.well-known/openid-configuration` says, or the API server's.
    ca: PEM, whom to trust about jwks_url; empty: the machine's list.
    """

    kind: IssuerKind
    audience: str
    issuer: str = ""
    verify: Verification = Verification.JWKS
    jwks_url: str = ""
    jwks: str = ""
    ca: str = ""
    principal_claim: str = "sub"  # of OIDC
    groups_claim: str = ""  # of OIDC; empty: none

    def __post_init__(self) -> None:
        what = f"token issuer {self.issuer or self.kind}"
        # Without one, a token that was meant for another service could be used here, by that service.
        _check_text(f"{what}: audience", self.audience, MAX_NAME_CHARS)
        if self.issuer:
            _check_text(f"{what}: issuer", self.issuer, MAX_NAME_CHARS)
        if self.kind is IssuerKind.OIDC:
            if not self.issuer:
                raise BadSpec("an OIDC issuer has no issuer: the URL that its tokens name")
            if "#" in self.issuer:  # which ends it in a principal; OpenID Connect has none in issuers
                raise BadSpec(f"{what}: an issuer's URL has no '#'")
            if self.verify is not Verification.JWKS:
                raise BadSpec(f"{what}: TokenReview is for ServiceAccounts")
            if not (self.jwks or self.jwks_url or self.issuer.startswith("https://")):
                raise BadSpec(f"{what}: its keys can't be found: it has neither jwks, nor jwks_url, nor an https URL")
            _check_text(f"{what}: principal_claim", self.principal_claim, MAX_NAME_CHARS)
        elif self.principal_claim != "sub" or self.groups_claim:
            raise BadSpec(f"{what}: the principal of a ServiceAccount is always its own")
        if self.jwks_url and not self.jwks_url.startswith("https://"):
            raise BadSpec(f"{what}: jwks_url {self.jwks_url!r} is no https URL")
        if self.jwks and self.jwks_url:
            raise BadSpec(f"{what}: it has jwks and jwks_url; one says where its keys are")


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    authorization: AuthorizationMode  # said always: a document that lost it must not open the cluster
    super_users: tuple[str, ...] = ()  # principals that may do everything, groups too
    issuers: tuple[TokenIssuer, ...] = ()
    tokens: tuple[StaticToken, ...] = ()
    users: tuple[SecurityUser, ...] = ()

    def __post_init__(self) -> None:
        for what, count, limit in (
            ("token issuers", len(self.issuers), MAX_ISSUERS),
            ("static tokens", len(self.tokens), MAX_STATIC_TOKENS),
            ("users", len(self.users), MAX_USERS),
            ("super users", len(self.super_users), MAX_USERS),
        ):
            if count > limit:
                raise BadSpec(f"{count} {what}; the limit is {limit}")
        for principal in self.super_users:
            _check_principal(principal)
        _check_once("user", [user.principal for user in self.users])
        _check_once("token issuer", [issuer.issuer for issuer in self.issuers])
        _check_once("static token's sha256", [token.sha256 for token in self.tokens])


@dataclass(frozen=True, slots=True)
class SecurityObject:
    """The document as the registry has it. text: not looked at yet; see read_document."""

    version: Version
    text: str


def account_audience(namespace: str, cluster: str) -> str:
    """Of the tokens that a cluster in Kubernetes takes from ServiceAccounts: nobody else's takes them."""
    return f"delaycluster.io/{namespace}/{cluster}"


def read_document(text: str) -> SecuritySpec:
    """Raises BadRecord, which says what is wrong with it."""
    return loads_strict(SecuritySpec, text, MAX_DOCUMENT_BYTES)


def write_document(spec: SecuritySpec) -> str:
    """Raises BadSpec where it is too large."""
    text = dumps(spec)
    if len(text.encode()) > MAX_DOCUMENT_BYTES:
        raise BadSpec(f"the security document has {len(text.encode()):,} bytes; the limit is {MAX_DOCUMENT_BYTES:,}")
    return text


def _check_principal(principal: str) -> None:
    _check_text("a principal", principal, MAX_NAME_CHARS)
    if not PRINCIPALS.fullmatch(principal):
        raise BadSpec(
            f"principal {principal!r}: expected system:serviceaccount:NAMESPACE:NAME, oidc:ISSUER#SUBJECT, token:NAME, "
            "spiffe://..., dns:NAME, oidc-group:ISSUER#NAME, group:NAME or anonymous"
        )


def _check_topic(topic: NamePattern) -> None:
    name = topic.literal if topic.prefix is None else topic.prefix
    assert name is not None
    if topic.literal == "":
        raise BadSpec("a rule names a topic ''; {prefix: ''} stands for all")
    if not _TOPIC_PART.fullmatch(name) or len(name) > MAX_TOPIC_CHARS:
        raise BadSpec(
            f"topic {topic}: a topic's name has 1 to {MAX_TOPIC_CHARS} of a-z, 0-9 and '-', and no character stands "
            "for others; {prefix: ...} names all that begin so"
        )


def _check_text(what: str, text: str, limit: int) -> None:
    if not 0 < len(text) <= limit:
        raise BadSpec(f"{what} has {len(text)} characters; allowed: 1 to {limit}")
    if not text.isprintable() or text != text.strip():
        raise BadSpec(f"{what} {text!r} has characters that can't be printed, or spaces around it")


def _check_once(what: str, found: list[str]) -> None:
    seen: set[str] = set()
    for one in found:
        if one in seen:
            raise BadSpec(f"{what} {one!r} is named twice")
        seen.add(one)
