"""One DelayCluster's worker: observe -> decide -> apply, again whenever something may have changed.

Level-triggered: a wake-up says that there is something to look at, never what. A round looks at everything and writes
what differs; a round that finds nothing to do writes nothing. Nothing that raises ends the worker: it is said in a
condition and an event, and tried again, at first soon, then at most AGAIN_S[-1] apart.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delayapi.log_levels import LEVELS, LogLevel
from delayapi.node_client import TokenSource
from delayregistry.port import Registry, RegistryUnavailable

from delayoperator.cluster.annotations import paused_by
from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.reasons import Reason, with_page
from delayoperator.control_loop.loop import Log, LoopClock
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import GrpcProber, Prober
from delayoperator.election.claim import DEAD_AFTER_MS, OperatorClaim
from delayoperator.election.claims import ClusterClaims
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import problem
from delayoperator.kube.caches import HeldObjects, ObjectCaches
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_CLUSTER
from delayoperator.kube.own_token import ACCOUNT_VARIABLE, OwnAccount
from delayoperator.kube.rebalance.rebalances import Rebalances
from delayoperator.kube.reconcile import ClusterReconciler, ReconcileResult
from delayoperator.kube.shards import ShardsThread
from delayoperator.kube.topic_release import TopicRelease
from delayoperator.kube.views import ended_processes
from delayoperator.plan import Liveness

AGAIN_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # after a round that failed
UNDER_WAY_S = 5.0  # between looks while something goes on
RESYNC_S = 60.0  # a change that no watch told us of is found by then
BATCH_WINDOW_S = 0.1  # a burst of changes is one round
MIN_PAUSE_S = 0.5  # between the beginnings of two rounds
TOLD_AGAIN_S = 1_800.0  # between events that say whose a cluster is: Kubernetes keeps them for an hour
STUCK_S = 600.0  # every call is bounded: a round that lasts so long will not end
WATCH_S = 1.0  # between looks at the registry's version, which cost nothing
CLAIM_DROPPED = (
    "the CustomResourceDefinition of DelayClusters is of an older release and drops status.operator, so another "
    "operator would not see that this one looks after the cluster: apply the definitions of this release"
)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the operator process gives all workers."""

    image: str  # of nodes whose cluster names none
    rebalance_image: str = "delaycluster-rebalance:latest"  # of the job, likewise
    console_image: str = "delaycluster-operator:latest"  # of consoles, likewise
    account: OwnAccount = field(default_factory=OwnAccount)  # of this process
    pod_security: Json | None = None  # of pods whose template names no security context; None: our own
    secure_by_default: bool = False  # new clusters whose spec says nothing, where keys can be had
    may_keep_secrets: bool = False  # keys of a cluster's own CA
    clock: LoopClock = field(default_factory=LoopClock)
    prober: Callable[[OperatorAccess], Prober] = GrpcProber
    # (namespace, cluster) -> this process's token for its nodes; None: it has none
    token: Callable[[str, str], TokenSource | None] = lambda namespace, cluster: None
    resync_s: float = RESYNC_S
    dead_after_ms: int = DEAD_AFTER_MS  # an operator that has not renewed its Lease for so long loses its clusters


OpenRegistry = Callable[[str, str, str, Callable[[], None]], Registry]
"""(namespace, cluster, the DelayCluster's uid, what to call with each change) -> its registry."""


class Worker:
    """log: one event, a line each. Started once; ends when its DelayCluster is gone and no DelayTopic waits for it, or
    by stop(). One that is over has closed what it held, so that another one may begin.

    It writes only in a tenure as leader (`claims.tenure`) in which it has found the cluster to be ours. Before, as a
    standby, it follows the shards and the leases; of a cluster that another operator has, nothing.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        api: Api,
        open_registry: OpenRegistry,
        settings: WorkerSettings,
        log: Log,
        claims: ClusterClaims,
        caches: ObjectCaches,
    ) -> None:
        self.namespace, self.name = namespace, name
        self._api, self._open_registry, self._settings = api, open_registry, settings
        self._claims, self._caches = claims, caches
        self._token = settings.token(namespace, name)
        self._access = OperatorAccess(token=self._token)
        self._claimed_in: int | None = None  # the tenure in which the cluster was found to be ours
        self._began_in: int | None = None  # the tenure in which the last round began
        self.managed_by: OperatorClaim | None = None  # another operator that has it
        self._told: float | None = None  # when that was said last, monotonic seconds
        self._told_dropped = False
        self._log: Log = lambda event: log({"cluster": f"{namespace}/{name}", **event})
        self._events = EventRecorder(api, settings.clock, self._log)
        self._topics = TopicRelease(api, self._events, (namespace, name), caches.namespaces)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._ending = threading.Lock()  # between a wake-up and the end: it is heard, or refused
        self._closed = False
        self._over = False  # it has ended as it should
        self._registry: Registry | None = None
        self._shards: ShardsThread | None = None
        self._reconciler: ClusterReconciler | None = None
        self._touched = False  # something but the DelayCluster may have changed since the last round began
        self._own_version = self._heard_version = ""  # of the DelayCluster: as a round left it, as a watch told last
        self._faults = 0
        self._seen: object = None  # the registry's version and the nodes' liveness, as the last round had them
        self._ends: list[str] = []  # told of before the loop was there
        self._news: list[str] = []  # for events, which the thread of the watches does not wait for
        self.rounds = 0
        self.round_began_s: float | None = None  # monotonic; None between rounds
        self.last: ReconcileResult | None = None
        self._thread = threading.Thread(target=self._run, name=f"cluster-{namespace}/{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self, version: str = "") -> bool:
        """There may be something to look at; version: no more than that the DelayCluster has this one. False: it is
        over, and looks at nothing any more."""
        with self._ending:
            if not self._closed:
                if version:
                    self._heard_version = version
                else:
                    self._touched = True
                self._wake.set()
            return not self._closed

    def pod(self, body: Json) -> None:
        """A pod as a watch has just shown it: the way of a failover that need not wait."""
        if self.managed_by is not None:
            return
        ended = ended_processes(body)
        shards = self._shards
        if shards is None:
            self._ends = [*self._ends, *ended]
        elif new := shards.ended(ended):
            pod = str(body["metadata"].get("name"))
            self._log({"event": "container-ended", "pod": pod, "incarnations": list(new)})
            self._news = [*self._news, f"the container of {pod} has ended: what it led gets other masters at once"]
        self.wake()

    def stop(self) -> None:
        """Asks it to end; `join` waits."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def acts(self) -> bool:
        """Whether it may write just now. From any thread."""
        tenure = self._claims.tenure()
        return tenure is not None and tenure == self._claimed_in

    def stuck(self) -> str | None:
        """Why this process should be started again; None: it need not."""
        if not self.alive and not self._over:
            return "its thread has died"
        began_s = self.round_began_s
        if began_s is not None and time.monotonic() - began_s > STUCK_S:
            return f"a round has not ended for {time.monotonic() - began_s:.0f} s"
        shards = self._shards
        return None if shards is None else shards.stuck()

    def last_look_s(self) -> float | None:
        """How long ago the failover loop saw the leases; None: there is no such loop yet."""
        shards = self._shards
        return None if shards is None else shards.last_look_s()

    @property
    def failovers(self) -> int:
        shards = self._shards
        return 0 if shards is None else shards.failovers

    def _run(self) -> None:
        try:
            self._work()
            self._over = True
        finally:
            self._close()
            with self._ending:
                self._closed = True

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            self._touched = False
            began_s = time.monotonic()
            self.round_began_s = began_s
            self._began_in = self._claims.tenure()
            pause_s = self._round()
            self.round_began_s = None
            if pause_s is not None:
                self._rest(began_s, pause_s)
                continue
            self._close()  # takes seconds, in which another cluster of this name may have come
            if self._is_last():
                return

    def _is_last(self) -> bool:
        """Unless it was woken since it last looked."""
        with self._ending:
            self._closed = not self._wake.is_set()
            return self._closed

    def _round(self) -> float | None:
        """How long to rest unless woken; None: the cluster is gone."""
        self.rounds += 1
        try:
            result = self._reconcile()
        except ApiError as error:
            return self._failed("api-error", problem(error), error.retry_after_s)
        except RegistryUnavailable as error:
            return self._failed("registry-unavailable", ClusterProblem(Reason.APPLY_FAILED, str(error)), None)
        except Exception as error:  # a fault of ours
            self._log({"event": "round-failed", "error": repr(error), "trace": traceback.format_exc()})
            fault = ClusterProblem(Reason.OPERATOR_ERROR, f"a round failed: {type(error).__name__}: {error}")
            return self._failed("operator-error", fault, None)
        if result is None:
            return None
        self.last = result
        if result.failed:
            why = "; ".join(it.message for it in result.problems) or "an object has changed since it was observed"
            level = LogLevel.WARNING if result.problems else LogLevel.DEBUG
            return self._pause("round-incomplete", why, result.retry_after_s, level)
        self._faults = 0
        if result.wrote or result.soon:
            return MIN_PAUSE_S
        pause_s = min(UNDER_WAY_S, self._settings.resync_s) if result.under_way else self._settings.resync_s
        return pause_s if result.again_s is None else min(pause_s, result.again_s)

    def _reconcile(self) -> ReconcileResult | None:
        # Before the claim is read: what another operator has written since it took the cluster is not overwritten. An
        # object is written on condition that it is as it was held.
        # After a conflict everything is listed: what is held may be old.
        conflicts = self.last is not None and self.last.conflicts
        held = {} if conflicts else self._caches.of_cluster(self.namespace, self.name)
        body = self._api.get(DELAY_CLUSTER, self.namespace, self.name)
        if body is None:
            return self._release_topics(held, None)
        if "deletionTimestamp" in body["metadata"]:
            # Kubernetes is deleting what the cluster owns: an object made again now would stay for ever.
            self._stop_shards()
            self._own_version = str(body["metadata"]["resourceVersion"])
            return self._release_topics(held, body) or ReconcileResult(wrote=False)
        if self._shards is not None:
            self._shards.paused = bool(paused_by(body))
        self._claim(body)
        if self.managed_by is not None:
            return self._leave_alone(body, self.managed_by)
        reconciler = self._reconciler_of(str(body["metadata"]["uid"]))
        # First of all, and whatever is wrong with the other objects: failovers wait for nothing else.
        self._start_shards(body)
        self._seen = self._observe()  # before it is read: what changes during the round is news after it
        news, self._news = self._news, []
        if not self.acts:
            return ReconcileResult(wrote=False)
        for message in news:
            reconciler.record_event(Reason.CONTAINER_ENDED, message, True)
        result = reconciler.reconcile(body, self._shards, self._problems(), held, self._is_ours)
        self._own_version = result.version
        if self._shards is not None:
            self._shards.ended([it for pod in result.pods for it in ended_processes(pod)])
        return result

    def _release_topics(self, held: HeldObjects, body: Json | None) -> ReconcileResult | None:
        """body: of a DelayCluster that is being deleted; None: it is gone. None: no DelayTopic waits for it."""
        leaving = self._topics.leaving(held)
        if not leaving:
            return None
        if self._claims.tenure() is not None and (body is None or self._claims.another(body) is None):
            self._topics.release(leaving)
            return None
        # The one whose turn it is may die before it has done that: this one stays until none is left.
        if body is None:
            self._close()
        return ReconcileResult(wrote=False)

    def _claim(self, body: Json) -> None:
        """Finds out whose the cluster is, and makes it ours if it may be and this process leads."""
        tenure = self._claims.tenure()
        self.managed_by = self._claims.another(body) if tenure is None else self._claims.claim(body)
        if self._claims.dropped and not self._told_dropped:
            self._log({"event": "claim-dropped", "error": CLAIM_DROPPED})
        self._told_dropped = self._claims.dropped
        claimed_in = None if self.managed_by is not None else tenure
        begins, self._claimed_in = claimed_in != self._claimed_in, claimed_in
        if begins and self._shards is not None:
            self._shards.look()

    def _is_ours(self) -> bool:
        return self.acts and self._claims.holds(self.namespace, self.name)

    def _leave_alone(self, body: Json, holder: OperatorClaim) -> ReconcileResult:
        """Follows nothing of a cluster that another operator has, and says so where people look: in an event, since
        the status is the other's."""
        self._close()
        now_s = time.monotonic()
        if self._claims.tenure() is not None and (self._told is None or now_s - self._told >= TOLD_AGAIN_S):
            self._told = now_s
            message = f"{holder} looks after this cluster; {self._claims.mine} leaves it alone"
            self._events.record(
                body["metadata"], Reason.MANAGED_BY_ANOTHER, with_page(Reason.MANAGED_BY_ANOTHER, message), warning=True
            )
        return ReconcileResult(wrote=False, again_s=self._claims.look_ms / 1000)

    def _reconciler_of(self, uid: str) -> ClusterReconciler:
        if self._reconciler is None or self._reconciler.uid != uid:
            self._close()  # another one of this name: nothing of the former's is true of it
            self._registry = self._open_registry(self.namespace, self.name, uid, self._registry_changed)
            chosen = self._settings
            rebalances = Rebalances(
                self._api, self._registry, EventRecorder(self._api, chosen.clock, self._log), self.namespace, self.name,
                self._log, self._new_prober, self._access, chosen.clock,
            )  # fmt: skip
            self._reconciler = ClusterReconciler(
                self._api, self._registry, self._events, self.namespace, self.name, uid, chosen.image, chosen.clock,
                rebalances, chosen.rebalance_image, chosen.account, self._no_token, chosen.pod_security,
                self._caches.namespaces, chosen.console_image, secure_by_default=chosen.secure_by_default,
                may_keep_secrets=chosen.may_keep_secrets,
            )  # fmt: skip
        return self._reconciler

    def _start_shards(self, body: Json) -> None:
        """As soon as there is a spec for them."""
        if self._shards is not None or self._registry is None or self._registry.read_cluster() is None:
            return
        shards = ShardsThread(
            self._registry, self._log, self.wake, self._new_prober, self._settings.clock, lambda: self.acts
        )
        shards.paused = bool(paused_by(body))
        shards.ended(self._ends)
        self._ends = []
        shards.start()
        self._shards = shards

    def _new_prober(self) -> Prober:
        return self._settings.prober(self._access)

    def _no_token(self) -> str:
        """Why this process can't show nodes who it is; "": it can."""
        if self._token is None:
            return f"it does not know its ServiceAccount ({ACCOUNT_VARIABLE} is not set)"
        try:
            self._token()
        except OSError as error:
            return str(error)
        return ""

    def _registry_changed(self) -> None:
        shards = self._shards
        if shards is not None:
            shards.look()

    def _problems(self) -> list[ClusterProblem]:
        fault = None if self._shards is None else self._shards.fault
        return [ClusterProblem(Reason.OPERATOR_ERROR, f"the shards' control loop failed: {fault}")] if fault else []

    def _failed(self, event: str, fault: ClusterProblem, retry_after_s: float | None) -> float:
        """A round that was not finished, so that nobody has told of it yet."""
        if self._reconciler is not None and self.acts and (self._faults or fault.reason is Reason.OPERATOR_ERROR):
            try:
                self._reconciler.report_fault(fault)
            except Exception as also:  # the log has both; the next round tries again
                self._log({"event": "fault-not-said", "error": repr(also)})
        return self._pause(event, fault.message, retry_after_s, LEVELS[event])

    def _pause(self, event: str, error: str, retry_after_s: float | None, level: LogLevel) -> float:
        pause_s = max(AGAIN_S[min(self._faults, len(AGAIN_S) - 1)], retry_after_s or 0.0)
        self._faults += 1
        self._log({"event": event, "level": level, "error": error[:1000], "again_in_seconds": pause_s})
        return pause_s

    def _rest(self, began_s: float, pause_s: float) -> None:
        """Until something may have changed, or `pause_s` are over. After a fault, wake-ups don't shorten the pause to
        nothing: somebody else's changes must not make us ask an API server that is overloaded. A new tenure does: no
        master is chosen before the claim is read in it, and the faults were of the time before."""
        min_pause_s = MIN_PAUSE_S if self._faults == 0 else min(pause_s, MIN_PAUSE_S * 2 ** min(self._faults, 6))
        until_s = time.monotonic() + pause_s
        while not self._stop.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            if self._wake.wait(min(left_s, WATCH_S)):
                self._wake.clear()
                if self._touched or self._heard_version != self._own_version:  # else the last round wrote it
                    break
            if self._observe() != self._seen:
                break
        until_s = max(time.monotonic() + BATCH_WINDOW_S, began_s + min_pause_s)
        while not self._stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
            if self._leads_anew():
                self._faults = 0
                return
            self._wake.wait(left_s)
            self._wake.clear()

    def _leads_anew(self) -> bool:
        """Whether a tenure has begun in which there was no round yet."""
        tenure = self._claims.tenure()
        return tenure is not None and tenure != self._began_in

    def _observe(self) -> object:
        """A cheap look at the shards and the leases: the same value as before means that nothing has happened."""
        if self._registry is None or self._shards is None or not self.acts:
            return None
        try:
            version = self._registry.version()
        except RegistryUnavailable:
            return self._seen
        nodes: Mapping[str, Liveness] = {node: view.liveness for node, view in self._shards.nodes.items()}
        return version, nodes, self._shards.fault, self._shards.orphans, self._shards.spare_copies

    def _stop_shards(self) -> None:
        if self._shards is not None:
            self._shards.stop()
            self._shards = None

    def _close(self) -> None:
        self._stop_shards()
        if self._reconciler is not None:
            self._reconciler.close()
            self._reconciler = None
        if self._registry is not None:
            self._registry.close()
            self._registry = None
