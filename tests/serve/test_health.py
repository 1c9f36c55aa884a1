"""What others look at: grpc health, reflection, /healthz, /readyz, /metrics."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from delayoperator.local import LocalCluster
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.client import Client, Msg, Sent, Shard, now_ms, poll

SERVICE = "delay.v1.DelayService"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def get(cluster: LocalCluster, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{cluster.http[0]}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(cluster: LocalCluster) -> Samples:
    families = text_string_to_metric_families(get(cluster, "/metrics")[1])
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_grpc_health_is_serving_for_the_node_and_its_service(client: Client) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", SERVICE):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_and_describes_the_service(client: Client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked))
    assert {SERVICE, "grpc.health.v1.Health"} <= {one.name for one in listed.list_services_response.service}
    assert described.file_descriptor_response.file_descriptor_proto


def test_healthz_and_readyz_say_ok(cluster: LocalCluster) -> None:
    assert get(cluster, "/healthz") == (200, "ok\n")
    assert get(cluster, "/readyz") == (200, "ok\n")
    assert get(cluster, "/nothing")[0] == 404


def test_the_metrics_of_a_topic_are_what_happened(take: Callable[[str], Shard], cluster: LocalCluster) -> None:
    shard = take("metered")
    topic = (("topic", "metered"),)
    at = now_ms() + 700
    stored = shard.send(*[Msg(b"%d" % n, at_ms=at) for n in range(50)])
    shard.send(Msg(delay_ms=30_000), Msg(delay_ms=200_000), Msg(delay_ms=3_000_000), Msg(delay_ms=9_000_000))
    shard.send(Msg(), producer=5, number=0)
    shard.send(Msg(), producer=5, number=0)
    assert shard.cancel(Sent(stored.uid, stored.seqs[:5], stored.due[:5])) == [1] * 5
    got = shard.receive_all(46)
    assert len(got) == 46
    shard.ack((0, 40))
    for _ in range(3):
        shard.nack(shard.receive_all(1) if _ else got[40:41], backoff_ms=0)
    found = poll(
        "the tick is counted", lambda: (s := scrape(cluster)) and s.get(("delay_messages_dead_total", topic)) and s
    )
    assert found["delay_messages_enqueued_total", topic] == 55
    assert found["delay_messages_released_total", topic] == 46
    assert found["delay_messages_acknowledged_total", topic] == 40
    assert found["delay_messages_cancelled_total", topic] == 5
    assert found["delay_messages_pending", topic] == 4
    assert found["delay_messages_dead_total", topic] == 1
    due = [found["delay_due_messages", (("le", le), *topic)] for le in ("60", "300", "3600")]
    assert 0 <= due[0] <= 1  # slots are minutes and taken to be even
    assert 1 <= due[1] <= 2
    assert 2 <= due[2] <= 3
    assert found["delay_release_lateness_seconds_count", topic] == 46
    assert found["delay_release_lateness_seconds_bucket", (("le", "+Inf"), *topic)] == 46
    assert found["delay_release_lateness_seconds_bucket", (("le", "1"), *topic)] >= 45
    assert found["delay_enqueue_latency_seconds_count", topic] == 4
    assert 0 < found["delay_enqueue_latency_seconds_sum", topic] < 8
    assert 0 < found["delay_recovery_seconds", ()] < 60


def test_metrics_are_quick_while_much_is_pending(shard: Shard, cluster: LocalCluster) -> None:
    for _ in range(5):
        shard.send(*[Msg(b"", delay_ms=90_000)] * 60_000)
    begin = time.monotonic()
    assert scrape(cluster)["delay_messages_pending", (("topic", "t"),)] >= 300_000
    assert time.monotonic() - begin < 5


def test_a_node_that_starts_is_alive_before_it_is_ready_and_says_what_it_waits_for(own: LocalCluster) -> None:
    own.kill("n0", signal.SIGKILL)
    seen: set[tuple[int, str]] = set()

    def ready() -> bool:
        try:
            answer = get(own, "/readyz")
        except OSError:
            return False
        seen.add(answer)
        return answer[0] == 200

    poll("it is ready", ready, 30)
    for status, text in seen - {(200, "ok\n")}:
        assert status == 503
        assert "not served yet: t-" in text or "registry has not answered" in text


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_http_takes_no_other_method(cluster: LocalCluster, path: str) -> None:
    asked = urllib.request.Request(f"http://{cluster.http[0]}{path}", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(asked, timeout=10)
