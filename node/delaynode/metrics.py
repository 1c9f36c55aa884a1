"""A node's counters, and their exposition. Histograms take arrays: a tick of 100,000 messages is one call."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from delayapi import zones
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from delaynode.store.types import I64

LATENESS_MS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1_000, 2_000, 5_000, 15_000, 60_000, 180_000, 600_000)
LATENCY_MS = (0.5, 1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1_000, 10_000)


DUE_WITHIN_SECONDS = (60, 300, 900, 3600)
MAX_GROUP_LABELS = 1_000  # groups that are counted by name; those beyond are `other` of no topic
MAX_QUOTA_LABELS = 1_000  # series; principals beyond are counted as `other`
MAX_SCALAR_VALUES = 16  # so many values are counted faster one by one than by NumPy


class Histogram:
    """Counts values (ms) into `bounds`; exposed in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = np.array(bounds)
        self._bounds = bounds
        self.counts = np.zeros(len(bounds) + 1, np.int64)
        self.sum_ms = 0.0

    def add(self, values_ms: I64) -> None:
        if len(values_ms) < MAX_SCALAR_VALUES:
            for value in values_ms.tolist():
                self.add_one(value)
            return
        at = np.searchsorted(self.bounds, values_ms, "left")
        self.counts += np.bincount(at, minlength=len(self.counts))
        self.sum_ms += float(values_ms.sum())

    def add_one(self, value_ms: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value_ms)] += times
        self.sum_ms += value_ms * times

    def buckets(self) -> list[tuple[str, float]]:
        reach = np.cumsum(self.counts)
        names = [*(f"{bound / 1000:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, reach.astype(float).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What a group has to do in the topic's shards on this node: messages that nobody has, that a consumer has, and
    that wait for their next attempt. oldest_seconds: since the release of the oldest that is not done; 0: all are."""

    available: int = 0
    in_flight: int = 0
    waiting_retry: int = 0
    oldest_seconds: float = 0.0

    def __add__(self, other: GroupLoad) -> GroupLoad:
        return GroupLoad(
            self.available + other.available,
            self.in_flight + other.in_flight,
            self.waiting_retry + other.waiting_retry,
            max(self.oldest_seconds, other.oldest_seconds),
        )


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic's shards on this node: messages pending, and due within DUE_WITHIN_SECONDS; dead letters."""

    pending: int
    due_within: tuple[int, ...]
    dead: int = 0  # of all groups, those that were redriven and are not done included
    dead_full: bool = False  # some group of some shard has as many as it may
    groups: dict[str, GroupLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's state at the moment, for the gauges."""

    clock_disbelieved_ms: int = 0
    clock_behind_ms: int = 0
    clock_differs_ms: int = 0
    disk_free_bytes: int = 0
    disk_reserve_bytes: int = 0
    stopped_shards: int = 0
    oldest_write_seconds: float = 0.0
    orphan_copies: int = 0
    orphan_bytes: int = 0
    security_bad: bool = False  # the security document can't be followed
    # By use, whether what is on disk can't be used, and when what is in use expires, Unix time, s; None: there is none.
    certificates: tuple[tuple[str, bool, float | None], ...] = ()


@dataclass(slots=True)
class NodeMetrics:
    """Counters by topic, since the process started."""

    enqueued: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    released: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    acknowledged: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cancelled: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dead: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    impossible: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lateness: dict[str, Histogram] = field(default_factory=lambda: defaultdict(lambda: Histogram(LATENESS_MS)))
    enqueue_latency: dict[str, Histogram] = field(default_factory=lambda: defaultdict(lambda: Histogram(LATENCY_MS)))
    firings: Counter[tuple[str, str]] = field(default_factory=Counter)  # by topic and outcome
    denied: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by operation, why, allowed all the same
    quota_refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by topic, or principal, and quota
    http_requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # by method, and Connect's code or `ok`
    http_latency: dict[str, Histogram] = field(default_factory=lambda: defaultdict(lambda: Histogram(LATENCY_MS)))
    http_calls: int = 0  # under way
    rocketmq: Callable[[], tuple[int, int]] = lambda: (0, 0)  # clients with a Telemetry stream, leases it renews
    unauthenticated: Counter[str] = field(default_factory=Counter)  # by what is wrong with the token or certificate
    recovery_seconds: float = 0.0
    scrub_bytes: int = 0
    scrub_errors: int = 0

    def count_quota_refused(self, topic: str, principal: str, quota: str, requests: int) -> None:
        """topic, principal: whose quota it is; the other is empty."""
        label = topic, principal, quota
        if principal and label not in self.quota_refused and len(self.quota_refused) >= MAX_QUOTA_LABELS:
            label = "", "other", quota
        self.quota_refused[label] += requests


@dataclass(frozen=True, slots=True)
class FlowFigures:
    """The load of the node's clients: connections, bytes of batches and of answers, requests that wait for room; so
    far: connections cut, and of the compiled edge the calls that it refused by itself, and its panics."""

    connections: int = 0
    in_bytes: int = 0
    out_bytes: int = 0
    cut: int = 0
    waiting: int = 0
    refused: int | None = None
    panics: int | None = None


class NodeCollector(Collector):
    """Exposes NodeMetrics, and `loads`, `state` and `flow`, which the scrape's caller has brought up to date."""

    def __init__(self, metrics: NodeMetrics) -> None:
        self.metrics = metrics
        self.loads: dict[str, TopicLoad] = {}
        self.state = NodeState()
        self.flow = FlowFigures()

    def _http(self) -> Iterator[Metric]:
        m = self.metrics
        requests = CounterMetricFamily(
            "delay_http_requests", "Calls over HTTP that have ended, by their code", labels=["method", "code"]
        )
        for labels, count in m.http_requests.items():
            requests.add_metric(list(labels), count)
        yield requests
        latency = HistogramMetricFamily(
            "delay_http_request_seconds", "Of a unary call over HTTP, that of Receive with its wait", labels=["method"]
        )
        for method, histogram in m.http_latency.items():
            latency.add_metric([method], histogram.buckets(), histogram.sum_ms / 1000)
        yield latency
        yield GaugeMetricFamily("delay_http_calls", "Calls over HTTP under way", value=m.http_calls)
        clients, leases = m.rocketmq()
        yield GaugeMetricFamily("delay_rocketmq_clients", "RocketMQ clients that are connected", value=clients)
        yield GaugeMetricFamily("delay_rocketmq_leases", "Leases renewed for RocketMQ push consumers", value=leases)

    def collect(self) -> Iterator[Metric]:
        m = self.metrics
        for name, what, values in (
            ("delay_messages_enqueued", "Messages stored", m.enqueued),
            ("delay_messages_released", "Messages released at their due", m.released),
            ("delay_messages_acknowledged", "Messages acknowledged, summed over groups", m.acknowledged),
            ("delay_messages_cancelled", "Messages cancelled", m.cancelled),
            ("delay_messages_dead", "Messages that became dead letters, summed over groups", m.dead),
            ("delay_impossible", "Operations refused as the shard contradicts itself: look at it", m.impossible),
        ):
            counter = CounterMetricFamily(name, what, labels=["topic"])
            for topic, value in values.items():
                counter.add_metric([topic], value)
            yield counter
        for name, what, histograms in (
            ("delay_release_lateness_seconds", "Committed release time minus due", m.lateness),
            ("delay_enqueue_latency_seconds", "From a batch's arrival to its commit", m.enqueue_latency),
        ):
            family = HistogramMetricFamily(name, what, labels=["topic"])
            for topic, histogram in histograms.items():
                family.add_metric([topic], histogram.buckets(), histogram.sum_ms / 1000)
            yield family
        firings = CounterMetricFamily(
            "delay_schedule_firings", "Times of schedules that fired, were skipped (overlap), or were missed",
            labels=["topic", "outcome"],
        )  # fmt: skip
        for (topic, outcome), count in m.firings.items():
            firings.add_metric([topic, outcome], count)
        yield firings
        rules = GaugeMetricFamily(
            "delay_zone_rules_info", "1: the version of the rules of time zones, of tzdata", labels=["version"]
        )
        rules.add_metric([zones.RULES], 1)
        yield rules
        yield from self._http()
        pending = GaugeMetricFamily("delay_messages_pending", "Messages not yet released", labels=["topic"])
        due = GaugeMetricFamily("delay_due_messages", "Messages due within `le` seconds", labels=["topic", "le"])
        for topic, load in self.loads.items():
            pending.add_metric([topic], load.pending)
            for seconds, count in zip(DUE_WITHIN_SECONDS, load.due_within, strict=True):
                due.add_metric([topic, str(seconds)], count)
        dead = GaugeMetricFamily("delay_dead_letters", "Dead letters kept, redriven ones included", labels=["topic"])
        full = GaugeMetricFamily(
            "delay_dead_letters_full", "1: a group has as many in a shard as it may", labels=["topic"]
        )
        for topic, load in self.loads.items():
            dead.add_metric([topic], load.dead)
            full.add_metric([topic], load.dead_full)
        yield pending
        yield due
        yield dead
        yield full
        yield from self._groups()
        s = self.state
        gauges: list[tuple[str, str, float]] = [
            (
                "delay_clock_disbelieved_seconds",
                "How far the wall clock is ahead of what is believed; 0: believed",
                s.clock_disbelieved_ms / 1000,
            ),
            (
                "delay_clock_behind_seconds",
                "How far the clock is behind what was released; 0: it is not",
                s.clock_behind_ms / 1000,
            ),
            (
                "delay_clock_differs_seconds",
                "How far the clock is from most other nodes', where that is too far; 0: it is not",
                s.clock_differs_ms / 1000,
            ),
            ("delay_disk_free_bytes", "Free on the data directory's disk", s.disk_free_bytes),
            ("delay_disk_reserve_bytes", "New messages are refused when less is free", s.disk_reserve_bytes),
            ("delay_oldest_write_seconds", "How long the oldest write to a log takes already", s.oldest_write_seconds),
            ("delay_shards_stopped", "Copies that can't be used", s.stopped_shards),
            ("delay_orphan_copies", "Copies on the disk that no shard of the registry has", s.orphan_copies),
            ("delay_orphan_bytes", "Bytes of these copies", s.orphan_bytes),
            ("delay_security_document_bad", "1: it can't be followed, and the one before is in force", s.security_bad),
            ("delay_connections", "Client connections", self.flow.connections),
            ("delay_waiting_requests", "Requests that wait for room in the node's memory", self.flow.waiting),
        ]
        for name, what, figure in gauges:
            yield GaugeMetricFamily(name, what, value=figure)
        unusable = GaugeMetricFamily(
            "delay_certificate_unusable", "1: what is on disk can't be used; what was good before is", labels=["use"]
        )
        expiry = GaugeMetricFamily(
            "delay_certificate_expiry_seconds", "Until the certificate in use, or the last CA, expires", labels=["use"]
        )
        for use, bad, expires_s in s.certificates:
            unusable.add_metric([use], bad)
            if expires_s is not None:
                expiry.add_metric([use], expires_s - time.time())
        yield unusable
        yield expiry
        in_flight = GaugeMetricFamily(
            "delay_in_flight_bytes", "Batches not yet committed, answers not yet read", labels=["direction"]
        )
        in_flight.add_metric(["in"], self.flow.in_bytes)
        in_flight.add_metric(["out"], self.flow.out_bytes)
        yield in_flight
        yield CounterMetricFamily(
            "delay_connections_cut", "Connections cut, as they made the node hold too much", value=self.flow.cut
        )
        for name, what, total in (
            ("delay_edge_refused", "Calls that the compiled edge has refused by itself", self.flow.refused),
            ("delay_edge_panics", "Faults of the compiled edge", self.flow.panics),
        ):
            if total is not None:
                yield CounterMetricFamily(name, what, value=total)
        denied = CounterMetricFamily(
            "delay_denied", "Operations that no rule allows; allowed: all the same, since the mode is Permissive",
            labels=["operation", "reason", "allowed"],
        )  # fmt: skip
        for labels, value in m.denied.items():
            denied.add_metric(labels, value)
        yield denied
        over = CounterMetricFamily(
            "delay_quota_refused", "Enqueue requests over a quota of their topic, or of the user that sent them",
            labels=["topic", "principal", "quota"],
        )  # fmt: skip
        for labels, value in m.quota_refused.items():
            over.add_metric(labels, value)
        yield over
        unknown = CounterMetricFamily(
            "delay_unauthenticated", "Tokens and certificates that were refused", labels=["reason"]
        )
        for reason, value in m.unauthenticated.items():
            unknown.add_metric([reason], value)
        yield unknown
        yield CounterMetricFamily("delay_scrub_bytes", "Read again and checked by the scrub", value=m.scrub_bytes)
        yield CounterMetricFamily("delay_scrub_errors", "Damaged places that the scrub found", value=m.scrub_errors)
        yield GaugeMetricFamily(
            "delay_recovery_seconds",
            "Longest time from when a copy was opened until it began a term as master",
            value=m.recovery_seconds,
        )

    def _groups(self) -> Iterator[Metric]:
        labels = ["topic", "group"]
        families = [
            GaugeMetricFamily("delay_group_available", "Released messages that no consumer has", labels=labels),
            GaugeMetricFamily("delay_group_in_flight", "Messages that a consumer has", labels=labels),
            GaugeMetricFamily("delay_group_waiting_retry", "Messages that wait for a next attempt", labels=labels),
            GaugeMetricFamily(
                "delay_group_oldest_seconds", "Since the release of the oldest that is not done; 0: all are",
                labels=labels,
            ),
        ]  # fmt: skip
        loads = {(topic, name): group for topic, load in self.loads.items() for name, group in load.groups.items()}
        for label in sorted(loads)[MAX_GROUP_LABELS:]:
            loads["", "other"] = loads.get(("", "other"), GroupLoad()) + loads.pop(label)
        for label, load in loads.items():
            figures = load.available, load.in_flight, load.waiting_retry, load.oldest_seconds
            for family, figure in zip(families, figures, strict=True):
                family.add_metric(label, figure)
        yield from families


def registry_of(collector: NodeCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
