"""The operator's own Prometheus metrics, read from the workers at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from delayoperator.cluster.conditions import conditions
from delayoperator.crds.sink import SinkReason
from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import Api
from delayoperator.kube.caches import SILENT_S, ObjectCaches


class OperatorCollector(Collector):
    """leads: whether this process does."""

    def __init__(self, clusters: Clusters, api: Api, caches: ObjectCaches, leads: Callable[[], bool]) -> None:
        self._clusters, self._api, self._caches, self._leads = clusters, api, caches, leads

    def collect(self) -> Iterable[Metric]:
        yield from self._of_clusters()
        yield GaugeMetricFamily(
            "delay_operator_leader", "1: this process leads and acts; 0: it stands by.", value=float(self._leads())
        )
        sent = CounterMetricFamily("delay_operator_api_requests", "Requests to the API server.", labels=["verb"])
        for verb, count in sorted(Counter(self._api.sent).items()):
            sent.add_metric([verb], count)
        yield sent
        silent = GaugeMetricFamily(
            "delay_operator_watch_silent_seconds",
            f"Since a watch was heard. Above {SILENT_S:.0f} s rounds list its objects.",
            labels=["resource", "namespace"],
        )
        for resource, namespace, seconds in self._caches.silent_s():
            silent.add_metric([resource, namespace], seconds)
        yield silent

    def _of_clusters(self) -> Iterator[Metric]:
        labels = ["namespace", "cluster"]
        rounds = CounterMetricFamily("delay_operator_rounds", "Rounds of a cluster's worker.", labels=labels)
        condition_gauge = GaugeMetricFamily(
            "delay_operator_condition", "1: the condition is True; 0: it is False.", labels=[*labels, "type", "reason"]
        )
        shards = GaugeMetricFamily("delay_operator_shards", "A cluster's shards.", labels=[*labels, "state"])
        nodes = GaugeMetricFamily("delay_operator_nodes", "A cluster's pods.", labels=[*labels, "state"])
        another = GaugeMetricFamily(
            "delay_operator_managed_by_another", "1: another operator has claimed the cluster.", labels=labels
        )
        last_look = GaugeMetricFamily(
            "delay_operator_last_look_seconds", "Since the failover loop saw the nodes' leases.", labels=labels
        )
        failovers = CounterMetricFamily(
            "delay_operator_failovers", "Terms that replaced a master that had not handed over.", labels=labels
        )
        sinks = GaugeMetricFamily(
            "delay_operator_sink_ready",
            "1: the DelaySink delivers; 0: it does not.",
            labels=[*labels, "sink", "reason"],
        )
        for worker in self._clusters.workers():
            where = [worker.namespace, worker.name]
            if worker.managed_by is not None and self._leads():
                another.add_metric(where, 1.0)
            rounds.add_metric(where, worker.rounds)
            failovers.add_metric(where, worker.failovers)
            if (seconds := worker.last_look_s()) is not None:
                last_look.add_metric(where, seconds)
            seen = None if worker.last is None else worker.last.observation
            if seen is None:
                continue
            for condition in conditions(seen):
                condition_gauge.add_metric([*where, condition.type, str(condition.reason)], float(condition.status))
            counted = seen.shard_summary
            for state, number in (
                ("wanted", counted.desired),
                ("served", counted.served),
                ("in_sync", counted.in_sync),
                ("moving", counted.moving),
                ("blocked", len(counted.blocked)),
            ):
                shards.add_metric([*where, state], number)
            nodes.add_metric([*where, "wanted"], seen.wanted_nodes)
            nodes.add_metric([*where, "ready"], sum(pod.ready for pod in seen.pods))
            if seen.scaling is not None:
                nodes.add_metric([*where, "advised"], seen.scaling.nodes)
            for sink, reason in sorted(seen.sinks.items()):
                sinks.add_metric([*where, sink, reason], float(reason == SinkReason.DELIVERING))
        yield from (rounds, condition_gauge, shards, nodes, another, last_look, failovers, sinks)


def registry_of(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
