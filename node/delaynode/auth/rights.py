"""What callers may do: the security document's rules, asked of at one place (server/dispatch.py).

Rules only allow. What was asked before is a look-up; a new document forgets all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from delayregistry.model import MAX_TOPIC_CHARS
from delayregistry.security import (
    MAX_GROUP_CHARS,
    OF_GROUPS,
    AccessRule,
    AuthorizationMode,
    Operation,
    SecuritySpec,
    StaticToken,
    TokenIssuer,
    UserQuotas,
)

from delaynode.auth.identity import Identity, IdentityKind
from delaynode.store.errors import Refused

NO_DOCUMENT = "this node has not read the security document yet"
MAX_KNOWN = 65_536  # answers; of longer names than there can be none is kept
ROLES: dict[str, frozenset[Operation]] = {  # of the cluster's own processes, whatever the document says
    "node": frozenset(Operation),
    "operator": frozenset(Operation),
    "rebalance": frozenset({Operation.DESCRIBE}),
}


def credential_of(entry: StaticToken | TokenIssuer) -> str:
    """Names the document's entry that a token is taken by."""
    return f"sha256:{entry.sha256}" if isinstance(entry, StaticToken) else f"issuer:{entry.issuer}#{entry.audience}"


class Denial(StrEnum):
    """Why an operation is not allowed."""

    ANONYMOUS = "Anonymous"  # the caller came by a listener that asks nobody, and `anonymous` is no user
    UNKNOWN_PRINCIPAL = "UnknownPrincipal"  # no user is of that principal or of one of its groups
    NO_RULE = "NoRule"  # a user, without a rule that matches


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """Whether a caller may do something with a topic, a group, or, without either, the cluster."""

    identity: Identity
    operation: Operation
    topic: str
    group: str

    @property
    def resource(self) -> str:
        if self.operation is Operation.ADMIN:
            return "the cluster"
        of_group = f", group {_shown(self.group)}" if self.operation in OF_GROUPS else ""
        return f"topic {_shown(self.topic)}{of_group}" if self.topic else "all topics"


class Rights:
    """Owned by the event loop. closed: until there is a document nothing is allowed; else all is.

    told: of each question whose answer is no, with whether it was allowed all the same (mode Permissive).
    """

    def __init__(
        self, *, closed: bool, told: Callable[[AccessQuestion, Denial, bool], None] = lambda asked, why, allowed: None
    ) -> None:
        self._told = told
        self._spec = None if closed else SecuritySpec(AuthorizationMode.OFF)
        self._rules: dict[str, tuple[AccessRule, ...]] = {}
        self._quotas: dict[str, UserQuotas] = {}
        self._super_users: frozenset[str] = frozenset()
        self._credentials: frozenset[str] = frozenset()
        self._known: dict[tuple[object, ...], Denial | None] = {}

    @property
    def closed(self) -> bool:
        """No document has been read yet."""
        return self._spec is None

    def apply(self, spec: SecuritySpec) -> None:
        """In force from now on."""
        self._spec = spec
        self._rules = {user.principal: user.rules for user in spec.users}
        self._quotas = {user.principal: user.quotas for user in spec.users if user.quotas is not None}
        self._super_users = frozenset(spec.super_users)
        self._credentials = frozenset({*map(credential_of, spec.tokens), *map(credential_of, spec.issuers)})
        self._known.clear()

    def quotas(self, identity: Identity) -> UserQuotas | None:
        """The caller's own; None: it has none."""
        return self._quotas.get(identity.principal)

    def check(self, identity: Identity, operation: Operation, topic: str = "", group: str = "") -> None:
        """Raises Refused PERMISSION_DENIED; UNAUTHENTICATED where the token was withdrawn since; NOT_SERVING where no
        document has been read yet."""
        why = self._denial(identity, operation, topic, group)
        if why is None:
            return
        asked = AccessQuestion(identity, operation, topic, group)
        assert self._spec is not None
        allowed = self._spec.authorization is AuthorizationMode.PERMISSIVE
        self._told(asked, why, allowed)
        if not allowed:
            raise Refused(
                "PERMISSION_DENIED",
                f"{_shown(identity.principal)} may not {operation} on {asked.resource}: {_SENTENCES[why]}",
                principal=identity.principal, operation=operation.value, resource=asked.resource, why=why.value,
            )  # fmt: skip

    def allows(self, identity: Identity, operation: Operation, topic: str = "", group: str = "") -> bool:
        """Likewise, for what is left out of an answer and refused to nobody."""
        if self._denial(identity, operation, topic, group) is None:
            return True
        return self._spec is not None and self._spec.authorization is AuthorizationMode.PERMISSIVE

    def explain(self, identity: Identity, operation: Operation, topic: str = "", group: str = "") -> tuple[bool, str]:
        """Whether check() would let it, and by what, or why not; nobody is told. Raises Refused as check() does where
        it can't be known."""
        why = self._denial(identity, operation, topic, group)
        if why is None:
            return True, self._grant(identity, operation, topic, group)
        if self._spec is not None and self._spec.authorization is AuthorizationMode.PERMISSIVE:
            return True, f"{_SENTENCES[why]}, but the mode is Permissive: it is allowed, counted and logged"
        return False, _SENTENCES[why]

    def _grant(self, identity: Identity, operation: Operation, topic: str, group: str) -> str:
        """By what it is allowed."""
        if identity.kind is IdentityKind.FORWARDED:
            return "the node that took the call has asked"
        if operation in ROLES.get(identity.role, ()):
            return f"it is the cluster's own {identity.role}"
        if self._spec is None or self._spec.authorization is AuthorizationMode.OFF:
            return "rights are not asked for: the mode is Off"
        for name in _names(identity):
            if name in self._super_users:
                return f"{_shown(name)} is a super user"
            for rule in self._rules.get(name, ()):
                if _matches(rule, operation, topic, group):
                    return f"a rule of {_shown(name)} allows {_described(rule)}"
        raise AssertionError("allowed by nothing")

    def _denial(self, identity: Identity, operation: Operation, topic: str, group: str) -> Denial | None:
        """Raises Refused NOT_SERVING, UNAUTHENTICATED."""
        if identity.kind is IdentityKind.FORWARDED or operation in ROLES.get(identity.role, ()):
            return None  # of a forwarded call the node that took it has asked
        if self._spec is None:
            raise Refused("NOT_SERVING", NO_DOCUMENT)
        if self._spec.authorization is AuthorizationMode.OFF:
            return None
        if identity.credential and identity.credential not in self._credentials:  # a connection may know it still
            raise Refused("UNAUTHENTICATED", "the token counts no more: this cluster takes no such token now")
        key = identity.principal, identity.groups, operation, topic, group
        if key in self._known:
            return self._known[key]
        why = self._look_up(identity, operation, topic, group)
        if len(topic) <= MAX_TOPIC_CHARS and len(group) <= MAX_GROUP_CHARS:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = why
        return why

    def _look_up(self, identity: Identity, operation: Operation, topic: str, group: str) -> Denial | None:
        names = _names(identity)
        if not self._super_users.isdisjoint(names):
            return None
        found = [rules for name in names if (rules := self._rules.get(name)) is not None]
        if any(_allows(rules, operation, topic, group) for rules in found):
            return None
        if found:
            return Denial.NO_RULE
        return Denial.ANONYMOUS if identity.kind is IdentityKind.ANONYMOUS else Denial.UNKNOWN_PRINCIPAL


_SENTENCES = {
    Denial.ANONYMOUS: "it came by a listener that does not ask who calls",
    Denial.UNKNOWN_PRINCIPAL: "this cluster has no user of that principal",
    Denial.NO_RULE: "none of its rules allows that",
}


def _names(identity: Identity) -> tuple[str, ...]:
    """By which users, and groups of them, the document may know the caller."""
    if not identity.groups:
        return (identity.principal,)
    issuer = identity.principal.removeprefix("oidc:").partition("#")[0]  # only tokens of OIDC have groups
    of_issuer = (f"oidc-group:{issuer}#{name}" for name in identity.groups)
    return (identity.principal, *(f"group:{name}" for name in identity.groups), *of_issuer)


def _described(rule: AccessRule) -> str:
    named = ("topic", rule.topic), ("group", rule.group)
    of = [f"{what} {pattern}" for what, pattern in named if pattern is not None]
    return " on ".join([", ".join(rule.operations), ", ".join(of) or "the cluster"])


def _allows(rules: Sequence[AccessRule], operation: Operation, topic: str, group: str) -> bool:
    return any(_matches(rule, operation, topic, group) for rule in rules)


def _matches(rule: AccessRule, operation: Operation, topic: str, group: str) -> bool:
    if operation is Operation.ADMIN:
        return operation in rule.operations
    if operation is not Operation.DESCRIBE and operation not in rule.operations:
        return False  # any right on a topic is one to Describe it: who sends to it must find where it is served
    if rule.topic is None or not rule.topic.matches(topic):
        return False
    return operation not in OF_GROUPS or (rule.group is not None and rule.group.matches(group))


def _shown(name: str) -> str:
    """What a caller made up, shortened."""
    text = repr(name)
    return text if len(text) <= 300 else text[:300] + "..."
