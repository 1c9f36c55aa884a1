"""KEDA's trigger with `metric: nodes`: what the operator advised last, or an error, never 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delaynode.auth.identity import Identity
from delaynode.server.doors.keda.metadata import asks_for_nodes
from delaynode.server.doors.keda.service import MAX_ADVICE_SECONDS, SCALER_SERVICE
from delaynode.store.errors import Refused
from delayregistry.model import AdvisedNodes
from delayregistry.port import RegistryUnavailable

from tests.auth.serving import SecuredNode, secured
from tests.auth.test_operations import DOCUMENT, WHO

TRIGGER = {"metric": "nodes", "scalerAddress": "shared-client.messages:7072", "enableTLS": "true"}
REF = keda.ScaledObjectRef(name="shared", namespace="messages", scalerMetadata=TRIGGER)
SUPER = WHO["super"]


async def metric(node: SecuredNode, who: Identity = SUPER, name: str = "nodes") -> tuple[float, int]:
    request = keda.GetMetricsRequest(scaledObjectRef=REF, metricName=name)
    answer = keda.GetMetricsResponse.FromString(await node.call("GetMetrics", request, who, SCALER_SERVICE))
    (value,) = answer.metricValues
    return value.metricValueFloat, value.metricValue


async def refused(node: SecuredNode, **changed: Any) -> str:
    with pytest.raises(Refused) as caught:
        await metric(node, **changed)
    assert caught.value.reason == "NOT_SERVING", "UNAVAILABLE to KEDA"
    return str(caught.value)


def advising(node: SecuredNode, advice: Callable[[], AdvisedNodes | None]) -> None:
    node.registry.read_advice = advice  # type: ignore[attr-defined]


def silent() -> AdvisedNodes:
    raise RegistryUnavailable("DelayCluster shared not read: no answer")


def test_the_metric_is_what_the_operator_advised_last_and_an_error_where_that_is_not_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            now_ms = int(time.time() * 1_000)
            old_ms = now_ms - int(MAX_ADVICE_SECONDS * 1_000)
            advising(node, lambda: AdvisedNodes(5, now_ms))
            specs = keda.GetMetricSpecResponse.FromString(
                await node.call("GetMetricSpec", REF, SUPER, SCALER_SERVICE)
            ).metricSpecs
            assert [(it.metricName, it.targetSize, it.targetSizeFloat) for it in specs] == [("nodes", 1, 1.0)]
            assert await metric(node) == (5.0, 5)
            advising(node, lambda: AdvisedNodes(7, old_ms + 60_000))
            assert await metric(node) == (7.0, 7)
            advising(node, lambda: AdvisedNodes(7, old_ms - 1_000))
            assert "its operator said it last 901 s ago; the limit is 900 s" in await refused(node)
            advising(node, lambda: None)
            assert "the DelayCluster has no spec.autoscaling" in await refused(node)
            advising(node, silent)
            assert "DelayCluster shared not read: no answer" in await refused(node)
            active = await node.call("IsActive", REF, SUPER, SCALER_SERVICE)
            assert keda.IsActiveResponse.FromString(active).result, "a cluster is never scaled to 0"

    asyncio.run(run())


def test_whoever_may_not_describe_all_topics_is_not_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            advising(node, lambda: AdvisedNodes(5, int(time.time() * 1_000)))
            for who in (WHO["none"], WHO["produce"]):
                with pytest.raises(Refused, match="Describe") as caught:
                    await metric(node, who)
                assert caught.value.reason == "PERMISSION_DENIED"
                for method in ("GetMetricSpec", "IsActive"):
                    with pytest.raises(Refused, match="Describe"):
                        await node.call(method, REF, who, SCALER_SERVICE)
                with pytest.raises(Refused, match="Describe"):
                    await node.stream("StreamIsActive", who, REF, service=SCALER_SERVICE)

    asyncio.run(run())


def test_other_metrics_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            with pytest.raises(Refused, match="there is no metric 'replicas'; there is 'nodes'"):
                await metric(node, name="replicas")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"metric": "pods"}, "metric is 'pods': allowed is 'nodes'"),
        ({"metric": ""}, "metric is ''"),
        ({"metric": "nodes", "topic": "orders"}, "'topic' is not known beside metric: nodes; spec.autoscaling"),
        ({"metric": "x" * 9_000}, "metric is 'xxx"),
    ],
)
def test_nonsense_is_refused(metadata: dict[str, str], says: str) -> None:
    with pytest.raises(Refused) as caught:
        asks_for_nodes(metadata)
    assert caught.value.reason == "BAD_REQUEST"
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_trigger_for_workers_names_no_metric() -> None:
    assert asks_for_nodes(TRIGGER)
    assert not asks_for_nodes({"topic": "orders", "group": "mail"})
