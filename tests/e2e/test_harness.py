"""The parts of the Kubernetes tests that judge: a judge that can't say no is worth nothing."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.proto.externalscaler import externalscaler_pb2 as keda

from e2e.harness import writes
from e2e.harness.delaycluster import ClusterUnderTest, Shard
from e2e.harness.helm import default_image, operator_image, targets
from e2e.harness.kubectl import Failed, Kubectl, WrongContext, check_context, wait_until
from e2e.harness.load import Result
from e2e.harness.loadpod import pauses
from e2e.harness.scaler import NodeScaler

ROOT = Path(__file__).resolve().parents[2]

METRICS = """# TYPE apiserver_request_total counter
apiserver_request_total{code="200",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="PATCH",version="v1"} 3
apiserver_request_total{code="409",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="PATCH",version="v1"} 1
apiserver_request_total{code="200",dry_run="",group="",resource="configmaps",scope="cluster",subresource="",verb="LIST",version="v1"} 50
apiserver_request_total{code="200",group="delaycluster.io",resource="delayshards",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="200",group="coordination.k8s.io",resource="leases",subresource="",verb="PUT"} 1.2e+02
apiserver_request_total{code="200",group="",resource="nodes",subresource="status",verb="PATCH"} 9
apiserver_request_total{code="201",group="authorization.k8s.io",resource="subjectaccessreviews",subresource="",verb="POST"} 4
"""  # noqa: E501


@pytest.mark.parametrize("name", ["kubelab", "kind-delaycluster-e2e", "team-e2e"])
def test_contexts_named_for_tests_are_taken(name: str) -> None:
    check_context(name)


@pytest.mark.parametrize("name", ["production", "kind-", "kubelab-prod", "e2e", "my-e2e-prod", ""])
def test_any_other_context_is_refused_unless_it_is_allowed_by_name(name: str) -> None:
    with pytest.raises(WrongContext, match="not named for tests"):
        check_context(name, ["another"])
    check_context(name, [name])


def test_writes_are_counted_by_resource_and_reads_are_not() -> None:
    found = writes.counted(METRICS)
    assert found["configmaps"] == 4
    assert found["delaycluster.io/delayshards/status"] == 2
    assert found[writes.LEASES] == 120


def test_only_renewals_and_what_kubernetes_itself_writes_are_left_out() -> None:
    assert writes.ours(writes.counted(METRICS)) == {"configmaps": 4, "delaycluster.io/delayshards/status": 2}
    pods: Counter[str] = Counter({"pods": 1, "pods/status": 5, "events": 2})
    assert writes.ours(pods) == {"pods": 1, "events": 2}


def test_a_pause_is_told_with_its_beginning_and_length() -> None:
    assert pauses([10.0, 10.2, 12.7, 12.75, 12.4], zero_ms=1_000_000) == [(1_010_200, 2_200), (1_012_400, 300)]
    assert pauses([], 0) == []


def shard_object(**status: Any) -> dict[str, Any]:
    spec = {"topic": "t", "queue": 0, "replicas": ["n0", "n1"], "master": "n0", "epoch": 4}
    return {"metadata": {"name": "c.t-0"}, "spec": spec, "status": status}


def test_a_shard_is_whole_only_with_a_serving_master_and_all_copies_in_sync() -> None:
    assert Shard.of(shard_object(servingEpoch=4, inSync=["a", "b"])).faults == []
    assert "epoch 4 of n0, serving 3" in Shard.of(shard_object(servingEpoch=3, inSync=["a", "b"])).faults[0]
    assert "1 of 2 copies" in Shard.of(shard_object(servingEpoch=4, inSync=["a"])).faults[0]
    assert Shard.of(shard_object()).faults, "nothing has served yet"


def result(**totals: Any) -> Result:
    good = {"acknowledged": 5, "delivered": [5, 5], "broken": {}}
    found = {
        "errors": {},
        "faults": [],
        "late_ms": {},
        "queues": 2,
        "acknowledged": [[[1_000, 400]], []],
        "delivered": [[], []],
    }
    return Result.of({"totals": {**good, **totals}, **found})


@pytest.mark.parametrize("bad", [{"acknowledged": 0}, {"delivered": [5, 0]}, {"broken": {"early": ["x"]}}])
def test_a_load_that_lost_something_or_did_nothing_is_no_success(bad: dict[str, Any]) -> None:
    result().assert_kept()
    with pytest.raises(AssertionError):
        result(**bad).assert_kept()


def test_a_pause_counts_when_it_ends_after_the_harm() -> None:
    assert result().longest("acknowledged", [0, 1], since_ms=1_399) == 0.4
    assert result().longest("acknowledged", [0, 1], since_ms=1_401) == 0
    assert result().longest("acknowledged", [1]) == 0


def test_what_resumed_last_counts_from_the_harm() -> None:
    first = [[1_000, 400], [2_000, 900], [4_000, 300], [30_000, 9_000]]  # the last long after, by something else
    found = {"acknowledged": [[], []], "delivered": [first, [[2_100, 1_000]]]}
    ended = Result.of({"totals": {}, "errors": {}, "faults": [], "late_ms": {}, "queues": 2, **found})
    assert ended.resumed("delivered", [0], harmed_ms=1_900) == 1.0  # 2,900: the end of the longest, not of the last
    assert ended.resumed("delivered", [0, 1], harmed_ms=1_900) == 1.2
    assert ended.resumed("acknowledged", [0, 1], harmed_ms=1_900) == 0


def test_waiting_ends_with_what_is_still_wrong() -> None:
    with pytest.raises(Failed, match="the pod: not within 0 s: it is Pending"):
        wait_until("the pod", lambda: ["it is Pending"], 0)


def test_the_charts_own_images_are_named() -> None:
    repository, _, tag = default_image().rpartition(":")
    assert "/" in repository
    assert tag
    assert operator_image(default_image()) == f"{repository}-operator:{tag}"


def test_each_image_is_built_from_the_target_of_its_name() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    wanted = dict(one.split("=") for one in targets(spark=True))
    assert set(wanted) <= set(stages)
    assert wanted["operator"] == f"docker.io/{operator_image(default_image())}"


def test_a_nodes_scaler_gives_a_number_or_none_for_an_error() -> None:
    answers: list[int | None] = [None, 5]

    def get_metrics(request: keda.GetMetricsRequest, context: grpc.ServicerContext) -> keda.GetMetricsResponse:
        assert dict(request.scaledObjectRef.scalerMetadata) == {"metric": "nodes"}
        if (nodes := answers.pop(0)) is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not known")
        value = keda.MetricValue(metricName=request.metricName, metricValue=nodes, metricValueFloat=nodes)
        return keda.GetMetricsResponse(metricValues=[value])

    handler = grpc.unary_unary_rpc_method_handler(
        get_metrics, keda.GetMetricsRequest.FromString, keda.GetMetricsResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("externalscaler.ExternalScaler", {"GetMetrics": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            scaler = NodeScaler(channel, ClusterUnderTest(Kubectl("kubelab"), "orders", "shop"))
            assert [scaler.nodes(), scaler.nodes()] == [None, 5.0]
            assert (scaler.asked, scaler.refused) == (1, {"UNAVAILABLE": 1})
    finally:
        server.stop(None)
