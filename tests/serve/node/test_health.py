"""The endpoints that others look at: grpc health, reflection, /healthz, /readyz, /metrics."""

from __future__ import annotations

import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import tzdata
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.support.client import Client, Failure, Msg, Sent, Shard, now_ms, poll

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
        asked = health_pb2.HealthCheckRequest(service=name)
        poll(name, lambda: stub.Check(asked).status == health_pb2.HealthCheckResponse.SERVING)  # noqa: B023


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


def test_the_version_of_the_zones_rules_is_a_metric(cluster: LocalCluster) -> None:
    found = [labels for name, labels in scrape(cluster) if name == "delay_zone_rules_info"]
    assert found == [(("version", tzdata.IANA_VERSION),)]


def test_the_metrics_of_a_topic_are_what_happened(take: Callable[[str], Shard], cluster: LocalCluster) -> None:
    shard = take("metered")
    topic = (("topic", "metered"),)
    at = now_ms() + 6_000
    stored = shard.send(*[Msg(b"%d" % n, at_ms=at) for n in range(50)])
    assert shard.cancel(Sent(stored.uid, stored.seqs[:5], stored.due[:5])) == [1] * 5
    shard.send(Msg(delay_ms=40_000), Msg(delay_ms=200_000), Msg(delay_ms=3_000_000), Msg(delay_ms=9_000_000))
    shard.send(Msg(), producer=5, number=0)
    shard.send(Msg(), producer=5, number=0)
    got = shard.receive_all(46, seconds=18)
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
    group = (("group", "g"), *topic)
    work = [found[f"delay_group_{what}", group] for what in ("available", "in_flight", "waiting_retry")]
    assert work == [0, 5, 0]
    assert 0 < found["delay_group_oldest_seconds", group] < 60
    assert found["delay_release_lateness_seconds_count", topic] == 46
    assert found["delay_release_lateness_seconds_bucket", (("le", "+Inf"), *topic)] == 46
    assert found["delay_release_lateness_seconds_bucket", (("le", "1"), *topic)] >= 45
    assert found["delay_enqueue_latency_seconds_count", topic] == 4
    assert 0 < found["delay_enqueue_latency_seconds_sum", topic] < 8
    assert 0 < found["delay_recovery_seconds", ()] < 60


def test_what_dies_unanswered_is_counted_and_what_was_due_long_ago_is_late_since_it_came(
    take: Callable[[str], Shard], cluster: LocalCluster
) -> None:
    shard, topic = take("mortal"), (("topic", "mortal"),)
    shard.send(Msg(at_ms=0), Msg(at_ms=1))
    assert len(shard.receive(max_messages=1, wait_ms=10_000, invisible_ms=50)) == 1
    told = ("delay_dead_letters", topic), ("delay_messages_dead_total", topic)  # the latter once it is committed
    found = poll("it is a dead letter", lambda: (s := scrape(cluster)) and all(map(s.get, told)) and s)
    assert found["delay_messages_dead_total", topic] == 1
    assert (found["delay_dead_letters", topic], found["delay_dead_letters_full", topic]) == (1, 0)
    assert found["delay_group_available", (("group", "g"), *topic)] == 1
    assert found["delay_release_lateness_seconds_count", topic] == 2
    assert found["delay_release_lateness_seconds_sum", topic] < 60
    state = shard.group()
    assert (state.dead, state.redriven, state.dead_limit, state.available) == (1, 0, 100_000, 1)
    assert now_ms() - 60_000 < state.oldest_ms <= now_ms()
    poll("its retention is over", lambda: shard.group().dead == 0)
    assert scrape(cluster)["delay_dead_letters", topic] == 0


def test_metrics_are_quick_while_much_is_pending(shard: Shard, cluster: LocalCluster) -> None:
    for _ in range(5):
        shard.send(*[Msg(b"", delay_ms=90_000)] * 60_000)
    begin = time.monotonic()
    assert scrape(cluster)["delay_messages_pending", (("topic", "t"),)] >= 300_000
    assert time.monotonic() - begin < 5


SLOW_REGISTRY = """
import time
from delaynode import main
from delayregistry.sqlite import SqliteRegistry as Registry
quick = Registry.list_shards
Registry.list_shards = lambda *args: (time.sleep(0.7), quick(*args))[1]
main.main()
"""
SLOW_NODE = (sys.executable, "-P", "-c", SLOW_REGISTRY)


def test_a_node_that_starts_is_alive_before_it_is_ready_and_says_what_it_waits_for(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 2)], node_command=SLOW_NODE) as cluster:
        cluster.wait_ready()
        cluster.kill("n0", signal.SIGKILL)
        unready: list[tuple[int, str]] = []

        def ready() -> bool:
            try:
                status, text = get(cluster, "/readyz")
                if status != 200 and not unready:
                    assert get(cluster, "/healthz")[0] == 200
            except OSError:
                return False
            if status != 200:
                unready.append((status, text))
            return status == 200

        poll("it is ready", ready, 30)
    assert unready, "the registry takes 0.7 s to answer"
    assert {status for status, _ in unready} == {503}
    assert {text for _, text in unready} <= {"waiting-for-registry\n", "shards-not-served\n"}


def test_a_node_that_has_not_heard_from_the_registry_denies_no_topic(tmp_path: Path) -> None:
    """UNKNOWN_TOPIC is final for a client; a node that has just started can't know."""
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 2)], node_command=SLOW_NODE) as cluster:
        cluster.wait_ready()
        cluster.kill("n0")
        failures = []
        with Client(cluster.endpoints[0]) as client:
            calls = [("QueryRoute", b""), ("QueryRoute", b"\x0a\x01t"), ("Receive", b"\x0a\x01t\x1a\x01g")]
            for method, data in calls:
                while isinstance(answer := client.attempt(method, data), Failure):
                    failures.append(answer)
                    time.sleep(0.02)
        assert {failure.code for failure in failures} == {grpc.StatusCode.UNAVAILABLE}
        assert "this node has not heard from the registry yet" in {failure.message for failure in failures}


def test_a_topic_whose_queues_are_being_made_is_not_shown_in_part(tmp_path: Path) -> None:
    """A key's queue depends on how many there are."""
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)]) as cluster:
        cluster.wait_ready()
        found = cluster.registry.read_cluster()
        assert found is not None
        desired = replace(found.spec, topics=(TopicSpec("t", 1), TopicSpec("many", 150)))
        with Client(cluster.endpoints[0]) as client:
            asked = pb.QueryRouteRequest(topic="many").SerializeToString()
            assert client.attempt("QueryRoute", asked).reason == "UNKNOWN_TOPIC"  # type: ignore[union-attr]
            cluster.registry.put_cluster(desired, found.version)
            reasons = set()
            while isinstance(answer := client.attempt("QueryRoute", asked), Failure):
                reasons.add(answer.reason)
            (topic,) = pb.QueryRouteResponse.FromString(answer).topics
        assert len(topic.queues) == 150
        assert reasons <= {"UNKNOWN_TOPIC", "NOT_SERVING"}
        assert "NOT_SERVING" in reasons


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_http_takes_no_other_method(cluster: LocalCluster, path: str) -> None:
    asked = urllib.request.Request(f"http://{cluster.http[0]}{path}", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(asked, timeout=10)
