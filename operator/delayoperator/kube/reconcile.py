"""One round over a cluster: what is there, what is to be done about it, and what is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from delayregistry.model import ClusterSpec, ShardObject
from delayregistry.port import Registry

from delayoperator.cluster.annotations import paused_by
from delayoperator.cluster.conditions import ClusterObservation, ClusterProblem, conditions
from delayoperator.cluster.pod_counts import Sizes, sizes, spare_copies, without_copies_lost
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import (
    ShardSummary,
    coming_since,
    counted_of,
    stuck_shards,
    summarize_shards,
    unserved_since,
    without_new,
    without_switchovers,
)
from delayoperator.cluster.versions import decide_nodes_version
from delayoperator.cluster.volumes import Volumes
from delayoperator.control_loop.loop import LoopClock
from delayoperator.crds.topic_merge import MergedTopics
from delayoperator.kube import cert_manager, security
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import Applier, ApplyOutcome, problem
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import CERTIFICATE, CONFIG_MAP, DELAY_CLUSTER, SERVICE, STATEFUL_SET
from delayoperator.kube.namespace_labels import NamespaceLabels
from delayoperator.kube.node_scaling import NodeScaler
from delayoperator.kube.observe import LiveObjects, Observer
from delayoperator.kube.own_ca import OwnAuthority
from delayoperator.kube.own_token import OwnAccount
from delayoperator.kube.pod_restarter import PodRestarter
from delayoperator.kube.rebalance.rebalances import RebalanceResult, Rebalances
from delayoperator.kube.schedules import ScheduleKeeper
from delayoperator.kube.shards import ShardsThread
from delayoperator.kube.sinks import Sinks, SinksResult
from delayoperator.kube.spec import (
    console_waits,
    last_accepted,
    requested_spec,
    view_of,
    with_last_accepted,
    with_topics,
)
from delayoperator.kube.status import degraded_only, status_of, was_ready, write_status, written_version
from delayoperator.kube.topics import Topics
from delayoperator.kube.users import Users
from delayoperator.plan import ObservedNode, OrphanReport
from delayoperator.resources import ClusterView, build, foreign, names

TRANSIENT = frozenset({Reason.APPLY_FAILED, Reason.FORBIDDEN, Reason.OBJECT_REFUSED, Reason.NAME_TAKEN})


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of one round."""

    wrote: bool  # an object; the status is what was said of them
    version: str = ""  # the DelayCluster's, as this round read it or left it
    pods: Sequence[Json] = ()
    problems: Sequence[ClusterProblem] = ()
    retry_after_s: float = 0.0
    observation: ClusterObservation | None = None
    soon: bool = False  # a shard changes hands: whether it did is to be seen
    again_s: float | None = None  # a rebalance, or the deletion of a topic, has something to do by then
    conflicts: bool = False  # an object has changed since it was observed, and was left as it is

    @property
    def under_way(self) -> bool:
        """Something goes on that no watch may tell the end of."""
        observed = self.observation
        return observed is not None and bool(observed.restart or observed.sizes.leaving or observed.volumes.growing)

    @property
    def failed(self) -> bool:
        return self.conflicts or any(it.reason in TRANSIENT for it in self.problems)


def _is_settled(live: LiveObjects, name: str, image: str) -> bool:
    """No pod is being replaced, nor about to be: all are of the image that is wished for now."""
    found = live.set_view(name)
    if found is None or not found.observed or live.set_image(name) != image:
        return False
    return bool(live.pods) and all(pod.ready and pod.revision == found.update_revision for pod in live.pods)


class ClusterReconciler:
    """For one DelayCluster, by its uid."""

    def __init__(
        self,
        api: Api,
        registry: Registry,
        events: EventRecorder,
        namespace: str,
        name: str,
        uid: str,
        default_image: str,
        clock: LoopClock,
        rebalances: Rebalances,
        rebalance_image: str,
        account: OwnAccount = OwnAccount(),  # noqa: B008  immutable
        no_token: Callable[[], str] = lambda: "",
        pod_security: Json | None = None,
        namespaces: Sequence[str] = ("",),
        console_image: str = "",
        *,
        secure_by_default: bool = False,
        may_keep_secrets: bool = False,
    ) -> None:
        """account: the operator's. no_token: why it has no token for the nodes just now; "": it has one. namespaces:
        where the operator looks; "" is everywhere. secure_by_default: new clusters, where keys can be had, of
        cert-manager, or, with may_keep_secrets, of a CA of their own."""
        self._secure_by_default, self._may_keep_secrets = secure_by_default, may_keep_secrets
        self.uid = uid
        self._account, self._no_token, self._pod_security = account, no_token, pod_security
        self._api, self._registry, self._events, self._clock = api, registry, events, clock
        self._namespace, self._name, self._image = namespace, name, default_image
        self._rebalances, self._rebalance_image = rebalances, rebalance_image
        self._console_image = console_image
        self._observer = Observer(api, namespace, name)
        self._labels = NamespaceLabels(api)
        self._topics = Topics(api, registry, namespace, name, clock, namespaces)
        self._schedules = ScheduleKeeper(api, registry, namespace, name, clock, namespaces)
        self._users = Users(api, namespace, name, clock, namespaces)
        self._sinks = Sinks(api, namespace, name, clock)
        self._scaler = NodeScaler(registry, clock)
        self._applier = Applier(api, self.record_event)
        self._authority = OwnAuthority(api, clock, self.record_event)
        self._restarter = PodRestarter(api, self.record_event)
        # For what is said only; an operator that is new does without.
        self._unserved_since_ms: dict[str, int] = {}
        self._coming_since_ms: dict[str, int] = {}
        self._known: set[str] = set()

    def close(self) -> None:
        self._rebalances.close()

    def reconcile(
        self,
        body: Json,
        shards: ShardsThread | None,
        problems: Sequence[ClusterProblem],
        held: HeldObjects,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> ReconcileResult:
        """held: the cluster's objects. body: the DelayCluster, read after them. is_ours: asked where more was observed
        since, before any is written. Raises ApiError, and Unavailable of the registry."""
        live = self._observer.observe(held)
        if live.listed and not is_ours():
            return ReconcileResult(wrote=False, soon=True)
        found = self._registry.list_shards()
        if shards is not None:
            shards.locate(live.locations)
        nodes = {} if shards is None else shards.nodes
        accepted = last_accepted(live.owned.get((CONFIG_MAP, names.settings_map(self._name))))
        requested = requested_spec(body, accepted, found)
        desired, invalid = requested.desired, requested.invalid
        ready_before = was_ready(body.get("status") or {})
        if desired is None:
            observation = ClusterObservation(
                self._name, 0, pods=live.pods, invalid=invalid, has_accepted_spec=False, problems=problems
            )
            if accepted.cluster is not None:  # granted by another release: its shards are driven on, and told of
                counted, pods = summarize_shards(accepted.cluster, found, nodes), len(live.pods)
                observation = replace(
                    observation,
                    wanted_nodes=pods,
                    shard_summary=counted,
                    sizes=Sizes(pods, pods),
                    has_accepted_spec=True,
                )
            return self._finish(body, observation, ApplyOutcome(), live, "")
        allowed = partial(self._labels.allows, desired.allowed)
        most = None if desired.allowed is None else desired.allowed.limits
        topics = self._topics.look(held, desired.cluster, requested.known, allowed, most)
        desired = with_topics(desired, topics.merged)
        paused = bool(paused_by(body))
        named = summarize_shards(desired.cluster, found, nodes).named
        size = self._sizes(desired.cluster.nodes, live, named, accepted.cluster, shards, paused)
        told = 1 if accepted.cluster is None else accepted.cluster.nodes_version
        written = max(told, written_version(body.get("status") or {}))
        secured = security.look(
            desired,
            self._namespace,
            live,
            self._registry.list_leases(),
            self._account.principal,
            self._no_token,
            self._default_keys,
        )
        secured = replace(secured, problems=[*self._not_issued(secured), *secured.problems])
        versions = decide_nodes_version(
            written, [f"n{number}" for number in range(max(size.nodes, size.pods))], nodes,
            settled=_is_settled(live, self._name, desired.image or self._image),
            finalize=desired.finalize and not paused,
        )  # fmt: skip
        names_of_all = tuple(shard.name for shard in found)
        view = view_of(
            desired, size, self._namespace, self.uid, self._image, names_of_all, self._rebalance_image,
            requested.restart, versions.version, secured.tls, self._console_image,
        )  # fmt: skip
        document = self._document(view, live)
        users = self._users.look(held, document, secured.base, topics.merged, allowed)
        view = replace(
            view,
            security=users.document,
            operator_namespace=self._account.namespace,
            pod_security=self._pod_security,
        )
        counted = summarize_shards(view.cluster, found, nodes)
        outcome, restart, grow = ApplyOutcome(), None, Volumes()
        if not paused:
            kept = self._authority.keep(view)
            outcome = self._applier.apply(view, self._desired(view, live, requested.written, topics.merged), live)
            outcome.problems += [*kept, *secured.problems, *topics.problems, *users.problems]
            if waits := console_waits(desired, secured.tls):
                outcome.problems.append(ClusterProblem(Reason.CONSOLE_WAITS, waits))
            if users.document == document or CONFIG_MAP not in outcome.written:  # else the next round sees it in force
                outcome.problems += [problem(error) for error in self._users.tell(users, document)]
            grow = self._applier.grow(view, live, outcome)
            if STATEFUL_SET not in outcome.written:
                wall_ms = self._clock.wall_ms()
                stuck = stuck_shards(found, wall_ms)
                others = summarize_shards(view.cluster, found, nodes, without=stuck) if stuck else counted
                restart = self._restarter.restart_next(
                    view, live, others, stuck, outcome, self._observer.read_set, wall_ms
                )
        rebalanced = self._rebalance(body, view, nodes, outcome, held, paused=paused)
        orphans = OrphanReport() if shards is None else shards.orphans
        settled = self._without_switchovers(counted, ready_before)
        topics_s: float | None = None
        schedules_s: float | None = None
        if not paused and CONFIG_MAP not in outcome.written:  # else the next round sees it in force
            errors: list[ApiError] = []
            if shards is not None:
                errors, topics_s = self._topics.delete(topics, accepted.cluster, found, shards.new_prober)
            errors += self._topics.tell(
                topics, accepted.cluster, settled, None if shards is None else shards.new_prober
            )
            if shards is not None:
                failed, schedules_s = self._schedules.keep(
                    held, accepted.cluster, topics.merged, allowed, shards.new_prober
                )
                errors += failed
            outcome.problems += [problem(error) for error in errors]
        sinks = SinksResult() if paused else self._sinks.reconcile(held, view)
        outcome.problems += sinks.problems
        observation = ClusterObservation(
            name=self._name,
            wanted_nodes=desired.cluster.nodes,
            shard_summary=self._without_new(settled, counted, found, orphans) if ready_before else settled,
            pods=live.pods,
            nodes=nodes,
            sizes=size,
            restart=restart,
            volumes=grow,
            paused_by=paused_by(body),
            drains=requested.drains,
            invalid=invalid,
            has_accepted_spec=True,
            was_ready=ready_before,
            problems=[*problems, *outcome.problems],
            rebalancing=rebalanced.under_way,
            orphans=orphans,
            versions=versions,
            security=secured.mode,
            sinks=sinks.reasons,
        )
        scaling_s: float | None = None
        if desired.scaling is not None:
            advice, scaling_s = self._scaler.advise(
                desired.scaling, desired.cluster, observation, body.get("status") or {}, found,
                None if shards is None else shards.new_prober,
            )  # fmt: skip
            observation = replace(observation, scaling=advice)
        if shards is not None:
            self._report_actions(shards)
        result = self._finish(body, observation, outcome, live, view.image)
        return replace(
            result,
            wrote=result.wrote or rebalanced.wrote or sinks.wrote,
            soon=settled is not counted,
            again_s=min(
                (it for it in (rebalanced.again_s, topics_s, schedules_s, sinks.again_s, scaling_s) if it is not None),
                default=None,
            ),
        )

    def _rebalance(
        self, body: Json, view: ClusterView, nodes: Mapping[str, ObservedNode], outcome: ApplyOutcome,
        held: HeldObjects, *, paused: bool,
    ) -> RebalanceResult:  # fmt: skip
        try:
            rebalanced = self._rebalances.reconcile(body, view, nodes, held, paused=paused)
        except ApiError as error:
            rebalanced = RebalanceResult(errors=[error])
        outcome.problems += [problem(error) for error in rebalanced.errors]
        if rebalanced.failed:
            outcome.problems.append(ClusterProblem(Reason.REBALANCE_FAILED, rebalanced.failed))
        return rebalanced

    def _without_switchovers(self, counted: ShardSummary, was_ready: bool) -> ShardSummary:
        now_ms = self._clock.monotonic_ms()
        self._unserved_since_ms = unserved_since(counted, self._unserved_since_ms, now_ms)
        return without_switchovers(counted, self._unserved_since_ms, now_ms) if was_ready else counted

    def _without_new(
        self, settled: ShardSummary, counted: ShardSummary, found: Sequence[ShardObject], orphans: OrphanReport
    ) -> ShardSummary:
        now_ms = self._clock.monotonic_ms()
        # A shard that had a master, or whose copies wait for a person's word, is not new, though its object be gone.
        served = {shard.name for shard in found if shard.status is not None}
        self._known = served | (self._known & counted.unmade) | set(orphans.names)
        self._coming_since_ms = coming_since(counted, self._coming_since_ms, self._known - served, now_ms)
        return without_new(settled, self._coming_since_ms, now_ms)

    def report_fault(self, fault: ClusterProblem) -> None:
        """A round that could not be done, told where people look: in Degraded; all else stands as it was said last.

        Raises ApiError.
        """
        body = self._api.get(DELAY_CLUSTER, self._namespace, self._name)
        if body is None:
            return
        before = body.get("status") or {}
        after = degraded_only(before, fault, int(body["metadata"].get("generation", 0)), self._clock.wall_ms())
        write_status(self._api, self._events, body["metadata"], before, after)

    def _sizes(
        self, nodes: int, live: LiveObjects, named: Mapping[str, int], accepted: ClusterSpec | None,
        shards: ShardsThread | None, paused: bool,
    ) -> Sizes:  # fmt: skip
        current = live.set_view(self._name)
        pods = 0 if current is None else current.replicas
        if paused and accepted is not None:
            return Sizes(accepted.nodes, pods)
        drained = () if accepted is None else accepted.drained
        volumes = {claim.node for claim in live.claims if claim.capacity_bytes}
        size = sizes(nodes, pods, named, drained, volumes)
        if size.pods < pods:
            # Pods and their volumes are about to go: what the watches say is not enough for that.
            placed = self._observer.list_placed()
            volumes = {claim.node for claim in self._observer.list_claims() if claim.capacity_bytes}
            size = sizes(nodes, pods, Counter(chain.from_iterable(placed.values())), drained)
            held, views = ({}, {}) if shards is None else (shards.held_copies, shards.nodes)
            gone = {node for node, view in views.items() if view.replaceable}
            size = without_copies_lost(size, nodes, pods, spare_copies(held, placed), volumes, gone)
        return size

    def _desired(self, view: ClusterView, live: LiveObjects, written: Json, topics: MergedTopics) -> list[Json]:
        bare = live.owned.get((SERVICE, self._name))
        kept = bare is not None and foreign(view, bare) is None
        objects = build(view, live.stateful_set(self._name), bare_service=kept)
        settings = CONFIG_MAP.name, names.settings_map(self._name)
        return [
            with_last_accepted(it, written, topics.owners) if (it["kind"], it["metadata"]["name"]) == settings else it
            for it in objects
        ]

    def _default_keys(self) -> Json | None:
        """spec.security.certificates of a new cluster that says nothing; None: none can be had."""
        if not self._secure_by_default:
            return None
        try:
            self._api.list(CERTIFICATE, self._namespace)
        except ApiError as error:
            if error.not_found or error.forbidden:  # no cert-manager, or none for us
                return {"ownCA": {}} if self._may_keep_secrets else None
            raise
        return {"certManager": {}}

    def _not_issued(self, secured: security.SecurityLook) -> list[ClusterProblem]:
        """What cert-manager says of certificates that nodes lack."""
        tls, reason = secured.tls, Reason.CERTIFICATE_UNUSABLE
        if tls is None or not tls.cert_manager or all(it.reason is not reason for it in secured.problems):
            return []
        asked = (names.own_ca(self._name), tls.server, tls.peers)
        said = cert_manager.why_lacking(self._api, self._namespace, asked)
        return [ClusterProblem(reason, "; ".join(said))] if said else []

    def _document(self, view: ClusterView, live: LiveObjects) -> str:
        """The security document that nodes follow; "": there is none."""
        found = live.owned.get((CONFIG_MAP, names.security_map(self._name)))
        if found is None or foreign(view, found) is not None:
            return ""
        return str((found.get("data") or {}).get(names.SECURITY_KEY) or "")

    def _report_actions(self, shards: ShardsThread) -> None:
        done = shards.drain_counts()
        if done.created:
            self.record_event(Reason.SHARDS_CREATED, f"{counted_of(done.created, 'shard')} made", False)
        if done.terms:
            self.record_event(Reason.MASTERS_CHOSEN, done.sentence(), False)

    def _finish(
        self, body: Json, observation: ClusterObservation, outcome: ApplyOutcome, live: LiveObjects, image: str
    ) -> ReconcileResult:
        selector = ",".join(f"{key}={value}" for key, value in sorted(names.selector(self._name).items()))
        meta, before = body["metadata"], body.get("status") or {}
        generation = int(meta.get("generation", 0))
        now_ms = self._clock.wall_ms()
        after = status_of(conditions(observation), observation, before, generation, selector, image, now_ms)
        problems, version = [*observation.problems], str(meta["resourceVersion"])
        try:
            version = write_status(self._api, self._events, meta, before, after)
        except ApiError as error:
            # Somebody has changed the object. The next round sees that and writes the status, later.
            problems.append(problem(error))
        return ReconcileResult(
            bool(outcome.written),
            version,
            live.pod_bodies,
            problems,
            outcome.retry_after_s,
            observation,
            conflicts=bool(outcome.conflicts),
        )

    def record_event(self, reason: Reason, message: str, warning: bool) -> None:
        """An event."""
        about = {"namespace": self._namespace, "name": self._name, "uid": self.uid}
        self._events.record(about, reason, message, warning=warning)
