"""A cluster's DelayUsers -> its security document, or why not.

Pure, and the same for the same users in whatever order they come. A user that is wrong is left out, and takes nothing
from the others. A principal or token that two are known by is the older one's: rules would add up, but not quotas. Of
users of other namespaces than the cluster's less counts, so that whoever may write them there says nothing of others:

- They are ServiceAccounts of their own namespace, and nothing else.
- A rule counts for the topics that are that namespace's now, each by its name: a prefix names no topic that comes to
  another namespace later. For a topic that was left behind it allows all but Produce.
- What a user of the cluster's own namespace is known by is never theirs, whatever the age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from delayregistry.codec import BadRecord, dumps
from delayregistry.model import BadSpec
from delayregistry.security import (
    MAX_RULES,
    AccessRule,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
    UserQuotas,
    read_document,
    write_document,
)
from pydantic import ValidationError

from delayoperator.crds.refusal import from_pydantic
from delayoperator.crds.user import DelayUserSpec, GroupMatch, TopicMatch, UserReason, UserRule
from delayoperator.resources.normal import whole_bytes

Json = Mapping[str, Any]

MAX_USER_BYTES = 1 << 16  # of the document's 1 MiB, so that no single user fills it for the others
MAX_TENANT_BYTES = 1 << 17  # likewise of all users of another namespace than the cluster's


@dataclass(frozen=True, slots=True)
class CompiledUser:
    """One DelayUser. refused: why it is left out; None: it is part of the document, but for the rules of which
    `message` speaks."""

    name: str
    users: tuple[SecurityUser, ...] = ()  # one for each principal
    tokens: tuple[StaticToken, ...] = ()
    refused: UserReason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CompiledUsers:
    """users: by the DelayUser's namespace and name. text: the document; "": it would be too large, as `too_large`
    says."""

    users: Mapping[tuple[str, str], CompiledUser] = field(default_factory=dict)
    text: str = ""
    too_large: str = ""


@dataclass(frozen=True, slots=True)
class InForce:
    """What a document that was written has of users."""

    users: Mapping[str, SecurityUser] = field(default_factory=dict)  # by principal
    tokens: frozenset[StaticToken] = frozenset()

    def has(self, user: CompiledUser) -> bool:
        known = all(self.users.get(it.principal) == it for it in user.users)
        return known and all(token in self.tokens for token in user.tokens)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Another namespace than the cluster's. allowed: None: that is not known. topics: those that are its, with whether
    they take messages."""

    allowed: bool | None
    topics: Mapping[str, bool] = field(default_factory=dict)


def compile_users(bodies: Sequence[Json], base: SecuritySpec, tenants: Mapping[str, Tenant]) -> CompiledUsers:
    """bodies: the DelayUsers of one cluster. base: the rest of the document. tenants: by name, of the users' namespaces
    those that are not the cluster's."""
    found: dict[tuple[str, str], CompiledUser] = {}
    principals = {it.principal: "" for it in base.users}  # whose they are; "": the operator's
    tokens: dict[str, str] = {}  # by sha256
    taken_bytes: Counter[str] = Counter()  # by namespace
    for body in sorted(bodies, key=lambda it: (user_key(it)[0] in tenants, *_age(it))):
        key = user_key(body)
        user = _compiled(body, tenants.get(key[0]))
        taken = [(it.principal, principals[it.principal]) for it in user.users if it.principal in principals]
        taken += [(f"the token {it.sha256[:12]}...", tokens[it.sha256]) for it in user.tokens if it.sha256 in tokens]
        if taken:
            what, owner = taken[0]
            older = "which is older" if key[0] not in tenants else "which goes before it"
            whose = f"DelayUser {owner}'s, {older}" if owner else "the operator's own"
            said = f"{what} is {whose}; this one is left out whole"
            user = CompiledUser(user.name, refused=UserReason.IDENTITY_TAKEN, message=said)
        elif key[0] in tenants:
            taken_bytes[key[0]] += _size(user.users, user.tokens)
            if taken_bytes[key[0]] > MAX_TENANT_BYTES:
                said = f"the DelayUsers of namespace {key[0]} take more than {MAX_TENANT_BYTES:,} bytes of the document"
                user = CompiledUser(user.name, refused=UserReason.DOCUMENT_TOO_LARGE, message=said)
        found[key] = user
        principals |= {it.principal: user.name for it in user.users}
        tokens |= {it.sha256: user.name for it in user.tokens}
    users = [it for user in found.values() for it in user.users]
    try:
        spec = replace(
            base,
            users=tuple(sorted((*base.users, *users), key=lambda it: it.principal)),
            tokens=tuple(sorted((it for user in found.values() for it in user.tokens), key=lambda it: it.sha256)),
        )
        return CompiledUsers(found, write_document(spec))
    except BadSpec as error:
        return CompiledUsers(found, too_large=str(error))


def in_force(text: str) -> InForce:
    """What the document says; nothing where it can't be read."""
    try:
        spec = read_document(text)
    except BadRecord:
        return InForce()
    return InForce({user.principal: user for user in spec.users}, frozenset(spec.tokens))


def user_key(body: Json) -> tuple[str, str]:
    return str(body["metadata"].get("namespace", "")), str(body["metadata"]["name"])


def _age(body: Json) -> tuple[str, str, str]:
    return str(body["metadata"].get("creationTimestamp") or ""), *user_key(body)


def _compiled(body: Json, tenant: Tenant | None) -> CompiledUser:
    namespace, name = user_key(body)
    raw = body.get("spec") or {}
    if tenant is not None and tenant.allowed is not True and (tenant.allowed is False or not tenant.topics):
        return _not_allowed(namespace, name, tenant)
    try:
        spec = DelayUserSpec.model_validate(raw)
    except ValidationError as error:
        why = "; ".join(map(str, from_pydantic(error, raw)[:5]))
        return CompiledUser(name, refused=UserReason.INVALID_SPEC, message=why)
    if tenant is not None and (why := _others_identity(namespace, spec)):
        return CompiledUser(name, refused=UserReason.IDENTITY_NOT_ALLOWED, message=why)
    try:
        return _of_spec(name, namespace, spec, tenant)
    except ValueError as error:  # BadSpec, BadQuantity and times that are none
        return CompiledUser(name, refused=UserReason.INVALID_SPEC, message=f"spec: {error}")


def _not_allowed(namespace: str, name: str, tenant: Tenant) -> CompiledUser:
    if tenant.allowed is None:
        said = f"the operator can't read the labels of namespace {namespace}, which spec.allowedNamespaces asks for"
        return CompiledUser(name, refused=UserReason.NAMESPACE_UNKNOWN, message=said)
    said = f"the DelayCluster does not allow namespace {namespace}: its spec.allowedNamespaces says which"
    return CompiledUser(name, refused=UserReason.NAMESPACE_NOT_ALLOWED, message=said)


def _others_identity(namespace: str, spec: DelayUserSpec) -> str:
    """What a user of another namespace than the cluster's may not be; "": it has none of that."""
    found = [kind for kind in ("oidc", "certificates", "tokens") if getattr(spec, kind)]
    found += [
        f"serviceAccounts[{number}] of namespace {it.namespace}"
        for number, it in enumerate(spec.service_accounts or ())
        if it.namespace not in (None, namespace)
    ]
    if not found:
        return ""
    return (
        f"spec.{found[0]}: the cluster is in another namespace, where this user can only be ServiceAccounts of its own "
        f"namespace, {namespace}; who else it is, a DelayUser of the cluster's namespace says"
    )


def _of_spec(name: str, namespace: str, spec: DelayUserSpec, tenant: Tenant | None) -> CompiledUser:
    tokens = tuple(StaticToken(name, it.sha256, _ms(it.expires_at)) for it in spec.tokens or ())
    if len({token.sha256 for token in tokens}) < len(tokens):
        raise BadSpec("two tokens have one sha256")
    principals = [f"system:serviceaccount:{it.namespace or namespace}:{it.name}" for it in spec.service_accounts or ()]
    principals += [f"oidc:{it.issuer}#{it.subject}" for it in spec.oidc or ()]
    principals += spec.certificates or ()
    principals += [f"token:{name}"] if tokens else []
    if not principals:
        raise BadSpec("it is known by nothing: one of serviceAccounts, oidc, certificates and tokens is wanted")
    allowed = tuple(_rule(number, it) for number, it in enumerate(spec.rules or ()))
    allowed, left_out = (allowed, []) if tenant is None else _of_tenant(allowed, tenant.topics)
    quotas = _quotas(spec)
    users = tuple(SecurityUser(principal, allowed, quotas) for principal in dict.fromkeys(principals))
    size = _size(users, tokens)
    if size > MAX_USER_BYTES:
        raise BadSpec(
            f"with {len(users)} identities and {len(allowed)} rules it takes {size:,} bytes of the cluster's security "
            f"document; the limit is {MAX_USER_BYTES:,}: prefixes make fewer rules"
        )
    return CompiledUser(name, users, tokens, message="; ".join(left_out[:5]))


def _size(users: tuple[SecurityUser, ...], tokens: tuple[StaticToken, ...]) -> int:
    return len(dumps((users, tokens)).encode())


def _of_tenant(rules: Sequence[AccessRule], topics: Mapping[str, bool]) -> tuple[tuple[AccessRule, ...], list[str]]:
    """The rules as they count for the tenant's topics, each by its name, and what of them does not."""
    found: list[AccessRule] = []
    left_out = []
    for number, rule in enumerate(rules):
        if rule.topic is None:
            left_out.append(f"spec.rules[{number}]: Admin is of the whole cluster, which is in another namespace")
            continue
        named = [name for name in topics if rule.topic.matches(name)]
        if not named:
            said = f"topic {rule.topic}: no DelayTopic of this namespace has it in the cluster"
            left_out.append(f"spec.rules[{number}]: {said}")
        for name in named:
            operations = rule.operations
            if not topics[name]:
                left = (Operation.DESCRIBE if it is Operation.PRODUCE else it for it in operations)
                operations = tuple(dict.fromkeys(left))
            found.append(AccessRule(operations, NamePattern(name), rule.group))
    if len(found) > MAX_RULES:
        left_out.append(f"spec.rules name {len(found)} topics in all; the first {MAX_RULES} count")
    return tuple(found[:MAX_RULES]), left_out


def _rule(number: int, rule: UserRule) -> AccessRule:
    try:
        return AccessRule(tuple(dict.fromkeys(rule.operations)), _pattern(rule.topic), _pattern(rule.group))
    except BadSpec as error:
        raise BadSpec(f"rules[{number}]: {error}") from error


def _pattern(match: TopicMatch | GroupMatch | None) -> NamePattern | None:
    return None if match is None else NamePattern(match.literal, match.prefix)


def _quotas(spec: DelayUserSpec) -> UserQuotas | None:
    found = spec.quotas
    if found is None:
        return None
    size = None if found.enqueue_bytes_per_second is None else whole_bytes(found.enqueue_bytes_per_second)
    return UserQuotas(found.enqueue_per_second, size, found.connections)


def _ms(time: str | None) -> int | None:
    """Raises ValueError."""
    if time is None:
        return None
    try:
        found = datetime.fromisoformat(time)
    except ValueError as error:
        raise BadSpec(f"tokens: expiresAt {time[:60]!r} is no time such as 2027-01-31T00:00:00Z") from error
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
