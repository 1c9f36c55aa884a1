"""One look at a cluster's DelaySinks: their objects made as they should be, their pods asked, and what each is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3
from delayapi import address
from delaysink.settings import BadSink, SinkSettings, read_settings

from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.control_loop.loop import LoopClock
from delayoperator.crds.sink import MAX_SINK_NAME, SinkReason
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import problem, version_of
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.kinds import CONFIG_MAP, DELAY_SINK, DEPLOYMENT, POD, SERVICE_ACCOUNT, ObjectKind
from delayoperator.kube.referring import ReferringObjects, present
from delayoperator.resources import differences, names
from delayoperator.resources.sink import SINK_LABEL, SinkView, object_name, selector, sink_objects
from delayoperator.resources.view import ClusterView

MADE: Final = (CONFIG_MAP, SERVICE_ACCOUNT, DEPLOYMENT)
ASKED_S: Final = 10.0
"""Between two looks at what the pods say."""
ANSWER_S: Final = 1.0
ROUND_S: Final = 5.0
"""For all pods of all sinks in a round; who is not asked then is asked in the next."""
DENIED: Final = "PERMISSION_DENIED"
MAX_REPORT_BYTES: Final = 256 << 10
_WORST_FIRST: Final = (
    SinkReason.GONE,
    SinkReason.SECRET_UNUSABLE,
    SinkReason.CLUSTER_REFUSES,
    SinkReason.NOT_REACHABLE,
    SinkReason.CIRCUIT_OPEN,
    SinkReason.STARTING,
    SinkReason.DELIVERING,
)

AskPod = Callable[[str], Mapping[str, Any] | None]
"""A pod's IP address -> its report; None: it did not answer."""


@dataclass(slots=True)
class SinksResult:
    """again_s: when to look again; None: there are no sinks. reasons: of each sink's Ready, by name."""

    problems: list[ClusterProblem] = field(default_factory=list)
    wrote: bool = False
    again_s: float | None = None
    reasons: dict[str, SinkReason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    reason: SinkReason
    message: str


class Sinks:
    """For one DelayCluster."""

    def __init__(self, api: Api, namespace: str, cluster: str, clock: LoopClock, ask: AskPod | None = None) -> None:
        self._api, self._namespace, self._cluster, self._clock = api, namespace, cluster, clock
        self._objects = ReferringObjects(api, DELAY_SINK, (namespace, cluster), [namespace])
        self._ask = ask_pod if ask is None else ask
        self._next_s = 0.0  # monotonic: when pods are asked again
        self._heard: dict[str, Mapping[str, Any]] = {}  # the last reports, by pod uid

    def reconcile(self, held: HeldObjects, view: ClusterView) -> SinksResult:
        """held: the cluster's objects. view: the cluster as it is to be. A sink that fails holds up no other."""
        result = SinksResult()
        try:
            bodies = present(self._objects.held(held))
            if not bodies:
                return result
            live = {kind: {str(it["metadata"]["name"]): it for it in self._held(held, kind)} for kind in MADE}
            pods = self._held(held, POD)
        except ApiError as error:
            if error.forbidden and DELAY_SINK not in held:  # an operator whose rights are of an earlier release
                return result
            return SinksResult([problem(error)])
        self._listen(pods)
        for body in bodies:
            try:
                self._one(body, view, live, [it for it in pods if _is_pod_of(it, body)], result)
            except ApiError as error:
                if not error.not_found and not error.conflict:  # it is gone, or has changed: the next round's
                    result.problems.append(problem(error))
        result.again_s = ASKED_S
        return result

    def _one(
        self,
        body: Json,
        view: ClusterView,
        live: Mapping[ObjectKind, Mapping[str, Json]],
        pods: Sequence[Json],
        result: SinksResult,
    ) -> None:
        name = str(body["metadata"]["name"])
        deployment = live[DEPLOYMENT].get(object_name(name))
        try:
            word = self._apply(body, view, live, result) or self._said(body, pods)
        except BadSink as error:
            word = _Word(SinkReason.INVALID_SPEC, str(error))
        except ApiError as error:
            if error.conflict or error.not_found:
                raise
            word = _Word(SinkReason.NOT_APPLIED, str(error))
        result.reasons[name] = word.reason
        self._objects.tell(
            body,
            self._clock,
            word.reason is SinkReason.DELIVERING,
            word.reason.value,
            word.message[:1_000],
            replicas=int(((deployment or {}).get("status") or {}).get("replicas", 0)),
            selector=",".join(f"{key}={value}" for key, value in sorted(selector(view.name, name).items())),
        )

    def _apply(
        self, body: Json, view: ClusterView, live: Mapping[ObjectKind, Mapping[str, Json]], result: SinksResult
    ) -> _Word | None:
        """Why its objects are not as they should be. Raises BadSink, ApiError."""
        sink = sink_view(body)
        for wanted in sink_objects(view, sink):
            kind = next(it for it in live if it.name == wanted["kind"])
            found = live[kind].get(object_name(sink.name)) or self._api.get(
                kind, view.namespace, object_name(sink.name)
            )
            if found is not None and not _is_its(sink, found):
                return _Word(SinkReason.NAME_TAKEN, f"{kind.name} {object_name(sink.name)} is somebody else's")
            if differences(wanted, found):
                self._api.apply(kind, wanted, version_of(found))
                result.wrote = True
        return None

    def _said(self, body: Json, pods: Sequence[Json]) -> _Word:
        """By its pods' own reports; of several the worst."""
        spec = body.get("spec") or {}
        if spec.get("paused"):
            return _Word(SinkReason.PAUSED, "spec.paused")
        gone = gone_before(body)
        if gone:
            return _Word(SinkReason.GONE, gone)
        reports = []
        for pod in pods:
            report = self._heard.get(str(pod["metadata"]["uid"]))
            reason = str((report or {}).get("state"))
            known = SinkReason(reason) if reason in {str(it) for it in _WORST_FIRST} else SinkReason.STARTING
            text = "" if report is None else str(report.get("message", ""))
            if known is SinkReason.CLUSTER_REFUSES and DENIED in text:
                text = f"{text[:500]}. {rights_needed(body)}"
            reports.append((known, f"{pod['metadata']['name']}: {text}" if text else ""))
        if not reports:
            return _Word(SinkReason.STARTING, "it has no pod yet, or no replicas are asked for")
        reason_, message = min(reports, key=lambda it: _WORST_FIRST.index(it[0]))
        if reason_ is SinkReason.STARTING and not message:
            message = "a pod has not reported yet: kubectl describe says why, if it does not start"
        return _Word(reason_, message)

    def _listen(self, pods: Sequence[Json]) -> None:
        """Asks the pods, if that is due."""
        now_s = time.monotonic()
        sinks = [it for it in pods if SINK_LABEL in (it["metadata"].get("labels") or {})]
        self._heard = {uid: it for uid, it in self._heard.items() if uid in {str(p["metadata"]["uid"]) for p in sinks}}
        if now_s < self._next_s:
            return
        self._next_s = now_s + ASKED_S / 2
        for pod in sinks:
            if time.monotonic() - now_s > ROUND_S:
                return
            ip = str((pod.get("status") or {}).get("podIP") or "")
            report = self._ask(ip) if ip and "deletionTimestamp" not in pod["metadata"] else None
            if report is not None:
                self._heard[str(pod["metadata"]["uid"])] = report

    def _held(self, held: HeldObjects, kind: ObjectKind) -> Sequence[Json]:
        found = held.get(kind)
        return found if found is not None else self._api.list(kind, self._namespace, f"{SINK_LABEL}")


def sink_view(body: Json) -> SinkView:
    """Raises BadSink."""
    meta, spec = body["metadata"], body.get("spec") or {}
    name = str(meta["name"])
    if len(name) > MAX_SINK_NAME or "." in name:
        raise BadSink(f"metadata.name: {name!r:.80} has more than {MAX_SINK_NAME} characters, or a '.'")
    settings: SinkSettings = read_settings(name, spec)
    return SinkView(
        name=name,
        uid=str(meta["uid"]),
        spec=spec,
        secrets=[(it.name, it.key) for it in settings.secrets],
        timeout_s=-(-settings.target.timeout_ms // 1_000),
        replicas=int(spec.get("replicas", 1)),
        stopped=settings.paused or bool(gone_before(body)),
    )


def rights_needed(body: Json) -> str:
    """What a DelayUser must have for the sink: the operator grants nothing by itself (docs/decisions/0024-sinks.md)."""
    name, spec = str(body["metadata"]["name"]), body["spec"]
    said = (
        f"A DelayUser with serviceAccounts: [{{name: {object_name(name)}}}] needs Consume of topic {spec['topic']} and "
        f"group {spec.get('group') or name}"
    )
    dead = (spec.get("deadLetters") or {}).get("topic")
    return f"{said}, and Produce to topic {dead}" if dead else said


def gone_before(body: Json) -> str:
    """What was said as the receiver of this very spec answered 410; "": it did not."""
    for condition in (body.get("status") or {}).get("conditions") or ():
        is_about_this = condition.get("observedGeneration") == body["metadata"].get("generation")
        if condition.get("reason") == SinkReason.GONE and is_about_this:
            return str(condition.get("message"))
    return ""


def ask_pod(ip: str) -> Mapping[str, Any] | None:
    """The report of a sink's pod: bounded in time and size, whatever answers there."""
    try:
        with urllib3.PoolManager(retries=False, timeout=ANSWER_S) as pool:
            url = f"http://{address.join(ip, names.SINK_PORT)}/status"
            answer = pool.request("GET", url, redirect=False, preload_content=False)
            found = json.loads(answer.read(MAX_REPORT_BYTES))
    except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


def _is_pod_of(pod: Json, body: Json) -> bool:
    return str((pod["metadata"].get("labels") or {}).get(SINK_LABEL)) == str(body["metadata"]["name"])


def _is_its(sink: SinkView, body: Json) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(it.get("uid") == sink.uid and it.get("controller") for it in owners)
