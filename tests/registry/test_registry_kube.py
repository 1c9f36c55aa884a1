"""The special parts of the registry over Kubernetes objects: lost answers, and the objects' contents."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayregistry import open_registry
from delayregistry.kube import Credentials, KubeClient, KubeRegistry
from delayregistry.kube.client import ApiRejected
from delayregistry.model import (
    AdvisedNodes,
    ClusterSpec,
    Condition,
    ConditionType,
    Handover,
    ShardSpec,
    ShardStatus,
    Switchover,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, RegistryError, RegistryUnavailable
from kubernetes.client import Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from tests.kube.desired import WritingRegistry
from tests.kube.fakekinds import find
from tests.registry.worlds import CLUSTER, NAMESPACE, OWNER, KubeWorld, until

SPEC = ShardSpec(uid=2**64 - 1, topic="orders", queue=0, replicas=("n0", "n1"))
STATUS = ShardStatus(serving_epoch=1, incarnation="a", in_sync=("copy",))
CONDITION = Condition(ConditionType.BLOCKED, "NodeAway", "n0 is away", since_ms=1_700_000_000_123, epoch=1)
SHARDS = find("delayshards")
NAME = "c.orders-0"


@pytest.fixture
def world() -> Iterator[KubeWorld]:
    world = KubeWorld()
    yield world
    world.close()


@pytest.fixture
def registry(world: KubeWorld) -> WritingRegistry:
    return world.open()


def writes(registry: WritingRegistry, version: Version) -> dict[str, Callable[[], Version]]:
    return {
        "create": lambda: registry.create_shard(replace(SPEC, queue=1)),
        "spec": lambda: registry.write_spec("orders-0", replace(SPEC, epoch=5), version),
        "status": lambda: registry.write_status("orders-0", STATUS, version),
        "conditions": lambda: registry.write_conditions("orders-0", (CONDITION,), version),
        "cluster": lambda: registry.put_cluster(ClusterSpec(CLUSTER, 3), None),
    }


# ------------------------------------------------------------ answers
@pytest.mark.parametrize("kind", ["create", "spec", "status", "conditions", "cluster"])
@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_write_whose_answer_is_lost_is_of_unknown_outcome_and_sent_once(
    world: KubeWorld, registry: KubeRegistry, kind: str, drop: str
) -> None:
    version = registry.create_shard(SPEC)
    world.server.fault(path="/(delayshards|configmaps)", drop=drop)
    before, began_s = world.server.store.version, time.monotonic()
    with pytest.raises(OutcomeUnknown):
        writes(registry, version)[kind]()
    assert world.server.store.version == before + (drop == "after")
    assert world.server.writes(began_s) == 1


def test_a_consistent_read_shows_what_became_of_a_write_without_an_answer(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    version = registry.create_shard(SPEC)
    world.server.fault(method="PATCH", hold=True)
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        registry.write_status("orders-0", STATUS, version)
    assert time.monotonic() - began_s < 20  # 3 s
    found = registry.get_shard("orders-0")
    assert found is not None
    assert found.status == STATUS
    with pytest.raises(Conflict):
        registry.write_status("orders-0", replace(STATUS, serving_epoch=2), version)
    registry.write_status("orders-0", replace(STATUS, serving_epoch=2), found.version)


@pytest.mark.parametrize("code", [401, 403, 408, 429, 500, 503, 504])
def test_an_answer_that_speaks_of_no_object_leaves_the_outcome_open(
    world: KubeWorld, registry: KubeRegistry, code: int
) -> None:
    version = registry.create_shard(SPEC)
    world.server.fault(path="/(delayshards|configmaps|leases)/?", code=code, times=None)
    for write in writes(registry, version).values():
        with pytest.raises(OutcomeUnknown, match=str(code)):
            write()
    for read in (lambda: registry.get_shard("orders-0"), registry.list_leases, registry.probe):
        with pytest.raises(RegistryUnavailable, match=str(code)):
            read()


def test_a_write_that_the_api_server_calls_wrong_is_a_conflict_that_says_why(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    version = registry.create_shard(SPEC)
    world.server.fault(method="PATCH", code=422)
    with pytest.raises(Conflict, match=r"refused: 422 .*on demand"):
        registry.write_spec("orders-0", SPEC, version)


def test_a_frozen_api_server_costs_each_call_a_bounded_time_and_is_no_loss(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    version = registry.create_shard(SPEC)
    seen = registry.list_shards()
    world.server.freeze()
    began_s = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        registry.probe()
    with pytest.raises(RegistryUnavailable):
        registry.get_shard("orders-0")
    with pytest.raises(OutcomeUnknown):
        registry.write_status("orders-0", STATUS, version)
    assert time.monotonic() - began_s < 30  # three times 3 s
    assert registry.list_shards() == seen  # what is known is known
    world.server.thaw()
    until(lambda: registry.list_shards()[0].status == STATUS)  # the one without an answer, done late


def test_of_many_threads_at_one_version_one_wins_and_none_waits_for_another(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    version = registry.create_shard(SPEC)
    world.server.fault(method="PATCH", delay_s=0.5, times=None)
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            registry.write_status("orders-0", replace(STATUS, serving_epoch=number), version)
            outcomes.append("won")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(32)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict"] * 31 + ["won"]
    assert time.monotonic() - began_s < 8  # one after the other: 16


# ------------------------------------------------------------ objects
def test_a_shard_says_whose_it_is_and_its_uid_is_text(world: KubeWorld, registry: KubeRegistry) -> None:
    registry.create_shard(SPEC)
    found = world.server.get("delayshards", NAME)
    assert found["spec"]["uid"] == "18446744073709551615"
    assert found["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "delaycluster.io/v1alpha1",
            "kind": "DelayCluster",
            "name": CLUSTER,
            "uid": OWNER.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    labels = found["metadata"]["labels"]
    assert (labels["delaycluster.io/cluster"], labels["delaycluster.io/topic"]) == (CLUSTER, "orders")


def test_each_field_has_one_writer(world: KubeWorld, registry: KubeRegistry) -> None:
    node = world.open(owner=None)
    version = registry.create_shard(SPEC)
    version = node.write_status("orders-0", replace(STATUS, handover=Handover(1, 77)), version)
    version = registry.write_conditions("orders-0", (CONDITION,), version)
    version = registry.write_spec("orders-0", replace(SPEC, epoch=1, master="n0", incarnation="a"), version)
    node.write_status("orders-0", replace(STATUS, serving_epoch=2), version)
    owned = world.server.store.managers(SHARDS, NAMESPACE, NAME)
    assert owned["delaynode"] == {
        "status.servingEpoch", "status.incarnation", "status.inSync", "status.revision",
    }  # fmt: skip
    theirs = {path for path in owned["delaycluster-operator"] if not path.startswith("metadata.")}
    assert {path.split(".")[0] for path in theirs if not path.startswith("status.conditions.")} == {"spec"}
    assert any(path.startswith("status.conditions.") for path in theirs)


def test_conditions_are_those_of_kubernetes(world: KubeWorld, registry: KubeRegistry) -> None:
    version = registry.create_shard(SPEC)
    registry.write_conditions("orders-0", (CONDITION,), version)
    assert world.server.get("delayshards", NAME)["status"]["conditions"] == [
        {
            "type": "Blocked",
            "status": "True",
            "reason": "NodeAway",
            "message": "n0 is away",
            "lastTransitionTime": "2023-11-14T22:13:20.123Z",
            "epoch": 1,
        }
    ]


def change(world: KubeWorld, patch: dict[str, Any], sub: str = "", name: str = NAME) -> None:
    """Change a shard as a person with kubectl would."""
    world.server.store.patch(SHARDS, NAMESPACE, name, patch, "somebody", sub)


def test_a_word_that_allows_an_unclean_failover_is_read_and_goes_with_the_next_term(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    registry.create_shard(SPEC)
    words = {"delaycluster.io/allow-unclean-failover": "kim:  n1 is burnt", "team": "a"}
    change(world, {"metadata": {"annotations": words}})
    found = registry.get_shard("orders-0")
    assert found is not None
    assert found.unclean_allowed_by == "kim: n1 is burnt"
    version = registry.write_spec("orders-0", replace(SPEC, leaving=("n1",)), found.version)
    assert world.server.get("delayshards", NAME)["metadata"]["annotations"] == words, "the term is the same"
    registry.write_spec("orders-0", replace(SPEC, epoch=1), version)
    assert world.server.get("delayshards", NAME)["metadata"]["annotations"] == {"team": "a"}
    change(world, {"metadata": {"annotations": {"delaycluster.io/allow-unclean-failover": "false"}}})
    until(lambda: (it := registry.get_shard("orders-0")) is not None and it.unclean_allowed_by == "")


def test_fields_and_conditions_of_others_stay_and_ours_that_end_go(world: KubeWorld, registry: KubeRegistry) -> None:
    registry.create_shard(replace(SPEC, switchover=Switchover("n1"), target=("n2",)))
    strange = {"type": "Pretty", "status": "True", "reason": "R", "message": "m"}
    off = {"type": "Blocked", "status": "False", "reason": "R", "message": "m"}
    change(world, {"spec": {"colour": "red"}, "metadata": {"labels": {"team": "a"}}})
    change(world, {"status": {"colour": "red", "conditions": [strange, off]}}, "status")
    found = registry.get_shard("orders-0")
    assert found is not None
    assert (found.status, found.conditions) == (None, ())
    version = registry.write_spec("orders-0", SPEC, found.version)
    version = registry.write_status("orders-0", replace(STATUS, handover=Handover(1, 7)), version)
    registry.write_status("orders-0", STATUS, version)
    after = world.server.get("delayshards", NAME)
    assert (after["spec"]["colour"], after["status"]["colour"]) == ("red", "red")
    assert after["metadata"]["labels"]["team"] == "a"
    assert "switchover" not in after["spec"]
    assert "target" not in after["spec"]
    assert "handover" not in after["status"]
    assert after["status"]["conditions"] == [strange, off]


def test_shards_of_another_cluster_are_none_of_ours(world: KubeWorld, registry: KubeRegistry) -> None:
    other = KubeRegistry(world.client(), NAMESPACE, "c.d", OWNER)
    other.create_shard(SPEC)
    elsewhere = KubeRegistry(world.client(), "another", CLUSTER, OWNER)
    elsewhere.create_shard(SPEC)
    registry.create_shard(SPEC)
    assert [shard.name for shard in registry.list_shards()] == ["orders-0"]
    assert len(world.server.list("delayshards")) == 3
    assert world.events == []


def test_a_shard_that_somebody_took_the_labels_from_gets_them_again(world: KubeWorld, registry: KubeRegistry) -> None:
    registry.create_shard(SPEC)
    before = registry.list_shards()
    node = world.open(owner=None)
    assert node.list_shards() == before
    change(world, {"metadata": {"labels": {"delaycluster.io/cluster": None, "team": "a"}}})
    until(lambda: registry.list_shards() == () and node.list_shards() == ())
    with pytest.raises(Conflict, match="exists already"):  # as the planner has it created
        registry.create_shard(replace(SPEC, uid=5))
    until(lambda: [shard.spec for shard in node.list_shards()] == [SPEC])
    labels = world.server.get("delayshards", NAME)["metadata"]["labels"]
    assert (labels["delaycluster.io/cluster"], labels["team"]) == (CLUSTER, "a")


BROKEN = [
    ({"spec": {"epoch": "soon"}}, "", r"ShardSpec\.epoch"),
    ({"spec": {"uid": None}}, "", "uid"),
    ({"spec": {"queue": 9}}, "", "its spec is of orders-9"),
    ({"status": {"servingEpoch": None}}, "status", "serving_epoch"),
    ({"status": {"conditions": [{"type": "Blocked", "status": "True"}]}}, "status", "reason"),
]


@pytest.mark.parametrize(("patch", "sub", "fault"), BROKEN)
def test_a_shard_that_somebody_broke_is_said_once_and_stays_as_it_last_was(
    world: KubeWorld, registry: KubeRegistry, patch: dict[str, Any], sub: str, fault: str
) -> None:
    version = registry.write_status("orders-0", STATUS, registry.create_shard(SPEC))
    registry.create_shard(replace(SPEC, queue=1))
    before = registry.list_shards()
    change(world, patch, sub)
    until(lambda: any(event["event"] == "object-unreadable" for event in world.events))
    change(world, {"metadata": {"labels": {"x": "y"}}}, name="c.orders-1")
    until(lambda: registry.list_shards()[1].version != before[1].version)
    assert registry.list_shards()[0] == before[0]
    (said,) = [event for event in world.events if event["event"] == "object-unreadable"]
    assert (said["name"], said["cluster"]) == (NAME, CLUSTER)
    with pytest.raises(RegistryUnavailable, match=fault):
        registry.get_shard("orders-0")
    with pytest.raises(Conflict):
        registry.write_spec("orders-0", SPEC, version)


def test_a_shard_that_never_could_be_read_is_not_listed_and_not_made_again(
    world: KubeWorld, registry: KubeRegistry
) -> None:
    obj = {"metadata": {"name": NAME, "labels": {"delaycluster.io/cluster": CLUSTER}}, "spec": {"uid": "nine"}}
    world.server.store.create(SHARDS, NAMESPACE, obj)
    assert registry.list_shards() == ()
    began_s = time.monotonic()
    with pytest.raises(Conflict, match="exists already"):
        registry.create_shard(SPEC)
    assert world.server.requests("POST", since_s=began_s) == []
    change(world, {"spec": {"uid": "9", "topic": "orders", "queue": 0, "replicas": ["n0"]}})
    until(lambda: [shard.spec.uid for shard in registry.list_shards()] == [9])


def test_more_shards_than_a_page_are_all_listed(world: KubeWorld) -> None:
    for queue in range(1_100):
        spec = {"uid": "1", "topic": "t", "queue": queue, "replicas": ["n0"]}
        metadata = {"name": f"c.t-{queue}", "labels": {"delaycluster.io/cluster": CLUSTER}}
        world.server.store.create(SHARDS, NAMESPACE, {"metadata": metadata, "spec": spec})
    found = world.open(owner=None).list_shards()
    assert [shard.spec.queue for shard in found] == list(range(1_100))
    assert len(world.server.requests("LIST", "delayshards")) == 3


# ------------------------------------------------------------ who does not lead
@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
def test_who_may_not_write_sends_no_write_and_reads_on(world: KubeWorld, method: str) -> None:
    leads = True
    client = world.client(may_write=lambda: leads)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": NAMESPACE}}
    client.post(path, one, {})
    leads, began_s = False, time.monotonic()
    with pytest.raises(ApiRejected, match="this process does not lead, so nothing was sent") as refused:
        client.request(method, path if method == "POST" else f"{path}/one", {"metadata": {"name": "two"}})
    assert refused.value.code == 412
    assert client.get(f"{path}/one")["metadata"]["name"] == "one"
    assert world.server.writes(began_s) == 0


def test_it_is_asked_before_a_write_is_sent_again_with_other_credentials(world: KubeWorld) -> None:
    answers = iter([True, False])
    client = world.client(may_write=lambda: next(answers))
    world.server.tokens, began_s = {"another"}, time.monotonic()
    with pytest.raises(ApiRejected, match="this process does not lead"):
        client.post(f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": "one"}}, {})
    assert [it.status for it in world.server.written(began_s)] == [401]


# ------------------------------------------------------------ starting
def test_a_token_that_is_replaced_in_its_file_is_read_again_at_once(world: KubeWorld, tmp_path: Path) -> None:
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    certificate.write_text("-")
    environment = {"KUBERNETES_SERVICE_HOST": "x", "KUBERNETES_SERVICE_PORT": "1"}

    def load(configuration: Any) -> None:
        loader = InClusterConfigLoader(str(token), str(certificate), environ=environment)
        loader.load_and_set(configuration)
        loader.host, loader.ssl_ca_cert = world.server.url, None  # the fake one has no TLS
        loader._set_config(configuration)

    client = KubeClient(Credentials(Configuration(), load), agent="test")
    registry = KubeRegistry(client, NAMESPACE, CLUSTER, OWNER)
    world.server.tokens = {"first"}
    version = registry.create_shard(SPEC)
    world.server.tokens = {"second"}
    with pytest.raises(OutcomeUnknown, match="401"):
        registry.write_spec("orders-0", replace(SPEC, epoch=1), version)
    token.write_text("second")
    registry.write_spec("orders-0", replace(SPEC, epoch=1), version)
    client.close()


def test_a_nodes_registry_opens_at_once_and_says_what_is_missing_until_the_spec_are_there(
    world: KubeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(world.server.write_kubeconfig(tmp_path / "config")))
    registry = open_registry("kube:default/c")
    with pytest.raises(RegistryUnavailable, match=r"default: ConfigMap c-cluster is missing; the operator writes it"):
        registry.read_cluster()
    world.open().put_cluster(ClusterSpec(CLUSTER, 3), None)
    until(lambda: not raises(registry.read_cluster))
    registry.close()
    world.server.freeze()
    registry = open_registry("kube:default/c")
    with pytest.raises(RegistryUnavailable, match="nothing was heard from the API server"):
        registry.read_cluster()
    registry.close()
    world.server.thaw()


def test_closing_ends_a_call_that_waits_for_the_first_answer(
    world: KubeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(world.server.write_kubeconfig(tmp_path / "config")))
    world.server.freeze()
    registry = open_registry("kube:default/c")
    waiting = threading.Thread(target=raises, args=(registry.read_cluster,))
    waiting.start()
    time.sleep(0.3)
    begin_s = time.monotonic()
    registry.close()
    waiting.join()
    assert time.monotonic() - begin_s < 2.0
    world.server.thaw()


def raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except RegistryUnavailable:
        return True
    return False


@pytest.mark.parametrize("place", ["", "default", "/c", "default/", "default/c/d"])
def test_a_strange_place_is_said_clearly(place: str) -> None:
    with pytest.raises(ValueError, match="expected kube:NAMESPACE/CLUSTER"):
        open_registry(f"kube:{place}")


def test_without_credentials_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(RegistryError, match="no credentials for Kubernetes"):
        open_registry("kube:default/c")


def test_a_node_with_another_registry_imports_nothing_of_kubernetes() -> None:
    code = "import sys, delaynode.main; sys.exit(any(name.split('.')[0] == 'kubernetes' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------ what is not there
def test_only_a_404_that_names_the_object_says_that_it_is_gone(world: KubeWorld, registry: KubeRegistry) -> None:
    """A proxy without a backend answers 404, and so does an API server whose CRD is not served for a moment."""
    version = registry.create_shard(SPEC)
    assert registry.get_shard("orders-7") is None
    world.server.fault(path="/(delayshards|leases)/", code=404, times=None)
    with pytest.raises(RegistryUnavailable, match="404"):
        registry.get_shard("orders-0")
    with pytest.raises(RegistryUnavailable, match="404"):
        registry.probe()
    with pytest.raises(OutcomeUnknown, match="404"):
        registry.write_status("orders-0", STATUS, version)
    assert [shard.name for shard in registry.list_shards()] == ["orders-0"]


def test_the_operators_advice_is_read_from_the_delaycluster(world: KubeWorld, registry: WritingRegistry) -> None:
    clusters = find("delayclusters")

    def says(autoscaling: Any) -> None:
        world.server.store.patch(clusters, NAMESPACE, CLUSTER, {"status": {"autoscaling": autoscaling}}, "op", "status")

    with pytest.raises(RegistryUnavailable, match=f"DelayCluster {CLUSTER} not read"):
        registry.read_advice()
    world.server.store.create(clusters, NAMESPACE, {"metadata": {"name": CLUSTER}, "spec": {}}, "kubectl")
    assert registry.read_advice() is None
    says({"desired": 5, "because": "a herd", "at": "2027-01-15T08:00:00Z"})
    assert registry.read_advice() == AdvisedNodes(5, 1_800_000_000_000)
    for wrong in ({"desired": 0}, {"desired": "5"}, {"because": "nothing"}, None):
        says({"desired": None, "at": None, "because": None} | (wrong or {}))
        assert registry.read_advice() is None
