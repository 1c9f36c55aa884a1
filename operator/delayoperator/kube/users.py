"""One look at a cluster's DelayUsers: the security document that they make, and what each is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from delayregistry.security import AuthorizationMode, SecuritySpec

from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.reasons import Reason
from delayoperator.control_loop.loop import LoopClock
from delayoperator.crds.security_document import (
    CompiledUser,
    CompiledUsers,
    InForce,
    Tenant,
    compile_users,
    in_force,
    user_key,
)
from delayoperator.crds.topic_merge import MergedTopics
from delayoperator.crds.user import UserReason
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import problem
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.kinds import DELAY_USER
from delayoperator.kube.referring import ReferringObjects, present
from delayoperator.resources import names


@dataclass(frozen=True, slots=True)
class UsersLook:
    """document: as it should be; "": there is none. bodies: the DelayUsers, None: they could not be read."""

    document: str
    bodies: Sequence[Json] | None
    compiled: CompiledUsers = field(default_factory=CompiledUsers)
    problems: Sequence[ClusterProblem] = ()


class Users:
    """For one DelayCluster."""

    def __init__(self, api: Api, namespace: str, cluster: str, clock: LoopClock, namespaces: Sequence[str]) -> None:
        """namespaces: where the operator looks; "" is everywhere."""
        self._namespace, self._cluster, self._clock = namespace, cluster, clock
        self._objects = ReferringObjects(api, DELAY_USER, (namespace, cluster), namespaces)
        self._compiled: tuple[object, CompiledUsers] = (None, CompiledUsers())
        self._in_force: tuple[str, InForce] = ("", InForce())

    def look(
        self,
        held: HeldObjects,
        document: str,
        base: SecuritySpec,
        topics: MergedTopics,
        allowed: Callable[[str], bool | None],
    ) -> UsersLook:
        """document: the one that is there, which stands where there can't be another; "": there is none. base: the rest
        of it, besides DelayUsers. topics: what the cluster has of DelayTopics. allowed: see merge_topics."""
        try:
            bodies = present(self._objects.held(held))
            if not bodies and self._in_force_of(document).users:
                # What would take everybody's rights away is asked for: a kind that was not served for a moment, or
                # whose definition is away, is no wish.
                bodies = present(self._objects.listed())
        except ApiError as error:
            unused = error.forbidden and not document  # of an operator whose rights are of an earlier release
            return UsersLook(document, None, problems=[] if unused else [problem(error)])
        if not bodies and not document and base.authorization is AuthorizationMode.OFF:
            return UsersLook("", bodies)
        others = {user_key(it)[0] for it in bodies} - {self._namespace}
        tenants = {it: Tenant(allowed(it), topics.of_namespace(it)) for it in others}
        compiled = self._compile(bodies, base, tenants)
        if not compiled.too_large:
            return UsersLook(compiled.text, bodies, compiled)
        kept = (
            "the one before stays in force, also for users that were taken away since" if document else "there is none"
        )
        said = ClusterProblem(Reason.SECURITY_TOO_LARGE, f"{compiled.too_large}; {kept}")
        return UsersLook(document, bodies, compiled, [said])

    def tell(self, found: UsersLook, document: str) -> list[ApiError]:
        """Writes what became of each user where that is news. document: the one that is there."""
        known = self._in_force_of(document)
        errors = []
        for body in found.bodies or ():
            user = found.compiled.users[user_key(body)]
            try:
                self._tell_one(body, user, known, found.compiled.too_large)
            except ApiError as error:
                if not error.not_found and not error.conflict:  # it is gone, or has changed: the next round's
                    errors.append(error)
        return errors

    def _compile(self, bodies: Sequence[Json], base: SecuritySpec, tenants: Mapping[str, Tenant]) -> CompiledUsers:
        """Once for the same specs."""
        specs = sorted((str(it["metadata"]["uid"]), int(it["metadata"].get("generation", 0))) for it in bodies)
        key = specs, base, tenants
        if self._compiled[0] != key:
            self._compiled = key, compile_users(bodies, base, tenants)
        return self._compiled[1]

    def _in_force_of(self, document: str) -> InForce:
        """Read once."""
        if document != self._in_force[0]:
            self._in_force = document, in_force(document)
        return self._in_force[1]

    def _tell_one(self, body: Json, user: CompiledUser, in_force: InForce, too_large: str) -> None:
        reason, message = self._word(user, in_force, too_large)
        principals = [it.principal for it in user.users]
        ready = reason is UserReason.IN_FORCE
        self._objects.tell(body, self._clock, ready, str(reason), message, principals=principals)

    def _word(self, user: CompiledUser, in_force: InForce, too_large: str) -> tuple[UserReason, str]:
        if user.refused is not None:
            return user.refused, user.message
        if in_force.has(user) and user.message:
            return UserReason.RULES_LEFT_OUT, f"{user.message}; its other rules are in force"
        if in_force.has(user):
            return UserReason.IN_FORCE, "the cluster's nodes are told of it"
        where = f"ConfigMap {names.security_map(self._cluster)}"
        if too_large:
            return UserReason.DOCUMENT_TOO_LARGE, f"{too_large}; {where} keeps what it had: take users or rules away"
        return UserReason.NOT_APPLIED, f"{where} does not have it yet; the DelayCluster's conditions say why"
