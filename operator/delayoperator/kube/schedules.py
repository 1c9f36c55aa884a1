"""A cluster's DelaySchedules: put to their topics' shards, and told what became of them.

The shards fire; the operator looks once a minute, and when a DelaySchedule has changed, whether each has what its
DelaySchedule says. A schedule whose id begins with ID_PREFIX, and for which no DelaySchedule stands, is deleted: no
finalizer holds the object, nor its namespace. A schedule whose DelaySchedule went while no operator ran is found within
EVERY_TOPIC_MS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from delayapi.errors import error_info
from delayapi.node_client import NodeClient
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_checks import BadSchedule
from delayregistry.model import ClusterSpec
from delayregistry.port import Registry
from google.protobuf.timestamp_pb2 import Timestamp

from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber, Prober
from delayoperator.crds.schedule import ScheduleReason
from delayoperator.crds.schedule_convert import ID_PREFIX, schedule_id, wanted
from delayoperator.crds.topic_merge import MergedTopics
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.kinds import DELAY_SCHEDULE
from delayoperator.kube.referring import ReferringObjects, present

LOOK_MS: Final = 60_000
EVERY_TOPIC_MS: Final = 600_000
AGAIN_MS: Final = 5_000  # after a look in which something was not done
CALL_S: Final = 2.0
MOST_PUTS: Final = 500  # of one look
PAGE: Final = 100
NOT_NOW: Final = ("NOT_UPGRADED", "NOT_SERVING", "NOT_MASTER", "NOT_ENOUGH_REPLICAS", "BUSY", "DISK_FULL", "")
"""Refusals that say nothing against the schedule. "": none of the node's own."""


@dataclass(frozen=True, slots=True)
class DesiredSchedule:
    """A DelaySchedule that counts. request: None: what the shard has stays, as `refused` says."""

    body: Json
    request: pb.PutScheduleRequest | None
    refused: str = ""


@dataclass(slots=True)
class ScheduleRound:
    """One look. undone: something is to be tried again."""

    errors: list[ApiError] = field(default_factory=list)
    puts: int = 0
    undone: bool = False


class ScheduleKeeper:
    """For one DelayCluster."""

    def __init__(
        self, api: Api, registry: Registry, namespace: str, cluster: str, clock: LoopClock, namespaces: Sequence[str]
    ) -> None:
        """namespaces: where the operator looks; "" is everywhere."""
        self._namespace, self._clock, self._registry = namespace, clock, registry
        self._objects = ReferringObjects(api, DELAY_SCHEDULE, (namespace, cluster), namespaces)
        self._seen: object = None
        self._due_ms: int | None = None  # of the next look
        self._all_due_ms: int | None = None  # of the next look at every topic
        self._topics: set[str] = set()  # that have had schedules of DelaySchedules

    def keep(
        self,
        held: HeldObjects,
        accepted: ClusterSpec | None,
        topics: MergedTopics,
        allowed: Callable[[str], bool | None],
        new_prober: Callable[[], Prober],
    ) -> tuple[list[ApiError], float | None]:
        """accepted: what nodes are told. allowed: see merge_topics. Returns when to look again, in seconds."""
        try:
            bodies = present(self._objects.held(held))
        except ApiError as error:  # forbidden: of an operator whose rights are of an earlier release
            return ([] if error.forbidden else [error]), None
        now_ms = self._clock.monotonic_ms()
        if accepted is None:
            return [], None
        names = {it.name for it in accepted.topics}
        specs = sorted((str(it["metadata"]["uid"]), int(it["metadata"].get("generation", 0))) for it in bodies)
        seen = specs, names
        if seen == self._seen and self._due_ms is not None and now_ms < self._due_ms:
            return [], (self._due_ms - now_ms) / 1_000 if bodies else None
        every = self._all_due_ms is None or now_ms >= self._all_due_ms
        by_topic: dict[str, dict[str, DesiredSchedule]] = {}
        round_, refused = ScheduleRound(), set[str]()
        for body in bodies:
            reason, message = self._refusal(body, names, topics, allowed)
            if reason is not None:
                refused.add(schedule_id(body))
                self._tell(round_, body, reason, message, None)
                continue
            try:
                one = DesiredSchedule(body, wanted(body))
            except BadSchedule as error:
                one = DesiredSchedule(body, None, str(error))
            by_topic.setdefault(str(body["spec"]["topic"]), {})[schedule_id(body)] = one
        asked = {str((it.get("spec") or {}).get("topic")) for it in bodies}
        looked_at = {*asked, *self._topics, *(names if every else ())}  # also topics of which only shards are left
        if looked_at:
            self._look(round_, looked_at, by_topic, refused, new_prober)
        self._topics = asked
        if every and not round_.undone:
            self._all_due_ms = now_ms + EVERY_TOPIC_MS
        again_ms = AGAIN_MS if round_.undone and bodies else LOOK_MS
        self._seen, self._due_ms = seen, now_ms + again_ms
        return round_.errors, again_ms / 1_000 if bodies else None

    def _refusal(
        self, body: Json, names: set[str], topics: MergedTopics, allowed: Callable[[str], bool | None]
    ) -> tuple[ScheduleReason | None, str]:
        """Why it does not count; None: it does."""
        namespace, topic = str(body["metadata"]["namespace"]), str((body.get("spec") or {}).get("topic"))
        if namespace != self._namespace:
            if not allowed(namespace):
                said = f"the DelayCluster's spec.allowedNamespaces does not have namespace {namespace}"
                return ScheduleReason.NAMESPACE_NOT_ALLOWED, said
            if not topics.of_namespace(namespace).get(topic):
                return ScheduleReason.TOPIC_UNKNOWN, f"namespace {namespace} has no DelayTopic {topic} of the cluster"
        if topic not in names:
            return ScheduleReason.TOPIC_UNKNOWN, f"the cluster has no topic {topic}"
        return None, ""

    def _look(
        self,
        round_: ScheduleRound,
        looked_at: Iterable[str],
        by_topic: Mapping[str, Mapping[str, DesiredSchedule]],
        refused: set[str],
        new_prober: Callable[[], Prober],
    ) -> None:
        prober = new_prober()
        try:
            with ExitStack() as opened:
                clients: list[NodeClient] = []
                if isinstance(prober, GrpcProber):  # any node passes the calls on
                    clients += [opened.enter_context(prober.client(it)) for it in self._registry.list_leases()]
                for topic in sorted(looked_at, key=lambda it: (it not in by_topic, it)):
                    self._look_at(round_, topic, by_topic.get(topic, {}), refused, clients)
                    if not clients and topic not in by_topic:
                        break
        finally:
            prober.close()

    def _look_at(
        self,
        round_: ScheduleRound,
        topic: str,
        desired: Mapping[str, DesiredSchedule],
        refused: set[str],
        clients: list[NodeClient],
    ) -> None:
        """refused: ids of DelaySchedules that don't count: what they have ends, though they are there."""
        try:
            states = _listed(clients, topic)
        except grpc.RpcError as error:
            info = error_info(error)
            if not desired and info is not None and info.reason == "UNKNOWN_TOPIC":
                return
            if desired or error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # of nodes of an earlier release
                round_.undone = True
            if not desired and info is None:
                clients.clear()  # no node answers: the other topics can wait for the next look
            for one in desired.values():
                self._tell(round_, one.body, ScheduleReason.NOT_APPLIED, _said(error), None, known=False)
            return
        for id, one in desired.items():
            if round_.puts < MOST_PUTS:
                self._put(round_, one, states.get(id), clients)
            else:
                round_.undone = True
        orphans = states.keys() - desired.keys()
        if not orphans:
            return
        try:  # what would end a schedule is asked for: a kind that was not served for a moment asks for nothing
            listed = {schedule_id(it) for it in present(self._objects.listed())}
            for id in sorted(orphans - (listed - refused)):
                _ask(clients, "delete_schedule", pb.DeleteScheduleRequest(topic=topic, id=id))
        except ApiError as error:
            round_.errors.append(error)
        except grpc.RpcError:
            round_.undone = True

    def _put(
        self, round_: ScheduleRound, one: DesiredSchedule, state: pb.ScheduleState | None, clients: list[NodeClient]
    ) -> None:
        if one.request is None:
            kept = "" if state is None else "; what it had before stays in force"
            self._tell(round_, one.body, ScheduleReason.INVALID_SPEC, one.refused + kept, state)
            return
        request = one.request
        paused_so = state is not None and (not request.HasField("paused") or request.paused == state.paused)
        if state is None or state.schedule != request.schedule or not paused_so:
            round_.puts += 1
            try:
                state = _ask(clients, "put_schedule", request).state
            except grpc.RpcError as error:
                info = error_info(error)
                later = info is None or info.reason in NOT_NOW
                round_.undone |= later
                reason = ScheduleReason.NOT_APPLIED if later else ScheduleReason.INVALID_SPEC
                self._tell(round_, one.body, reason, _said(error), state, known=not later)
                return
        assert state is not None
        if state.paused:
            note = f": {state.note}" if state.note else ""
            self._tell(round_, one.body, ScheduleReason.PAUSED, f"it fires nothing until it is resumed{note}", state)
        elif state.over:
            self._tell(round_, one.body, ScheduleReason.OVER, "no further time comes", state)
        else:
            said = "the topic's shard has it, and fires it"
            self._tell(round_, one.body, ScheduleReason.ARMED, said, state)

    def _tell(
        self,
        round_: ScheduleRound,
        body: Json,
        reason: ScheduleReason,
        message: str,
        state: pb.ScheduleState | None,
        *,
        known: bool = True,
    ) -> None:
        """known: whether that is how it stands; else its figures stay as they were."""
        figures: Json = {"nextTime": None, "lastTime": None, "fired": None} if known else {}
        if state is not None:
            armed = state.next_due if state.HasField("next_due") else None
            last = next((it.fired for it in state.last if it.number), None)
            figures = {"nextTime": _text(armed), "lastTime": _text(last), "fired": state.fired}
        ready = reason in (ScheduleReason.ARMED, ScheduleReason.OVER)
        try:
            self._objects.tell(body, self._clock, ready, str(reason), message[:1_000], **figures)
        except ApiError as error:
            if not error.not_found and not error.conflict:  # it is gone, or has changed: the next round's
                round_.errors.append(error)


def _listed(clients: list[NodeClient], topic: str) -> dict[str, pb.ScheduleState]:
    """By id, those of DelaySchedules. Raises grpc.RpcError."""
    found: dict[str, pb.ScheduleState] = {}
    request = pb.ListSchedulesRequest(topic=topic, page_size=PAGE, id_prefix=ID_PREFIX)
    while True:
        answer = _ask(clients, "list_schedules", request)
        found |= {it.schedule.id: it for it in answer.schedules}
        request.page_token = answer.next_page_token
        if not request.page_token:
            return found


def _ask(clients: list[NodeClient], method: str, request: Any) -> Any:
    """The first node that answers; it comes first from then on. Raises grpc.RpcError."""
    failure: grpc.RpcError = _NoNode()
    for client in list(clients):
        try:
            return getattr(client, method)(request, timeout=CALL_S)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            failure = error
            if error_info(error) is not None:  # the node is there, and says why not
                raise
            clients.append(clients.pop(0))
    raise failure


class _NoNode(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "no node has registered yet"

    def trailing_metadata(self) -> None:
        return None


def _said(error: grpc.RpcError) -> str:
    return str(error.details() or error.code().name)


def _text(at: Timestamp | None) -> str | None:
    """Without a part of a second, which an object's times have not."""
    return None if at is None else datetime.fromtimestamp(at.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
