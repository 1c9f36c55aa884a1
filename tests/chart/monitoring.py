"""What nodes and operator expose to Prometheus, and what the chart has for it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import numpy as np
from delaynode.metrics import FlowFigures, GroupLoad, NodeCollector, NodeMetrics, NodeState, TopicLoad
from delayoperator.cluster.conditions import ClusterObservation
from delayoperator.crds.sink import SinkReason
from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import Api
from delayoperator.kube.caches import ObjectCaches
from delayoperator.metrics import OperatorCollector
from delaysink.figures import SinkFigures
from prometheus_client.core import Metric

from tests.chart.places import CHART, Json, read

# prometheus-operator's, of a PodMonitor's targets
TARGET_LABELS = {"namespace", "pod", "job", "container", "endpoint", "instance"}


def exposed() -> dict[str, set[str]]:
    """Every series of a node that has done everything once, and of the operator, with its labels."""
    families = [*node_families(), *operator_collector().collect()]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def node_families() -> list[Metric]:
    """The metrics of a node that has done everything once, under the compiled edge."""
    metrics = NodeMetrics()
    for counter in (metrics.enqueued, metrics.released, metrics.acknowledged, metrics.cancelled, metrics.dead):
        counter["orders"] = 1
    metrics.impossible["orders"] = 1
    metrics.denied["Produce", "NoRule", "false"] = metrics.unauthenticated["expired"] = 1
    metrics.firings["orders", "fired"] = 1
    metrics.count_quota_refused("orders", "", "pendingMessages", 1)
    metrics.http_requests["Send", "ok"] = 1
    for histogram in (metrics.lateness["orders"], metrics.enqueue_latency["orders"], metrics.http_latency["Send"]):
        histogram.add(np.array([3]))
    collector = NodeCollector(metrics)
    collector.loads = {"orders": TopicLoad(1, (1, 1, 1, 1), groups={"mail": GroupLoad()})}
    collector.flow = FlowFigures(refused=1, panics=0)
    collector.state = NodeState(certificates=(("server", True, 1e9),))
    return list(collector.collect())


def sink_families() -> list[Metric]:
    return list(SinkFigures("hooks").registry.collect())


def operator_collector() -> OperatorCollector:
    """The collector of an operator that has seen one cluster, once."""
    tended = SimpleNamespace(observation=ClusterObservation("orders", 3, sinks={"hooks": SinkReason.GONE}))
    worker = SimpleNamespace(
        namespace="shop", name="orders", rounds=1, last=tended, managed_by="another", failovers=1,
        last_look_s=lambda: 0.5,
    )  # fmt: skip
    clusters, api = SimpleNamespace(workers=lambda: [worker]), SimpleNamespace(sent={"get": 1})
    caches = SimpleNamespace(silent_s=lambda: [("pods", "", 0.5)])
    return OperatorCollector(cast(Clusters, clusters), cast(Api, api), cast(ObjectCaches, caches), lambda: True)


def dashboard() -> Json:
    return dict(json.loads((CHART / "files" / "dashboard.json").read_text()))


def alerts() -> list[Json]:
    (group,) = read(CHART / "files" / "alerts.yaml")
    return list(group["rules"])
