"""`delayctl --kube`: a cluster in Kubernetes by its name, from the kubeconfig to the answer on the screen."""

from __future__ import annotations

import getpass
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from delayctl.main import main, plugin
from delayctl.targets.kube_target import KubeTarget, parse_target

from tests.client.support.kubeworld import NAME, KubeWorld, kube_world
from tests.kube.fakekinds import find


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    kubeconfig = tmp_path / "kubeconfig"
    # Read by the kubernetes package when it is imported; a test may be the first to do that, or not.
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    for name in ("DELAYCTL_ENDPOINT", "DELAYCTL_KUBE"):
        monkeypatch.delenv(name, raising=False)
    with kube_world(kubeconfig) as found:
        yield found


def delayctl(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.stderr
    return result


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("orders", KubeTarget("orders")),
        ("shop/orders", KubeTarget("orders", "shop")),
        ("kind-test/shop/orders", KubeTarget("orders", "shop", "kind-test")),
        ("arn:aws:eks:eu:1:cluster/prod/shop/orders", KubeTarget("orders", "shop", "arn:aws:eks:eu:1:cluster/prod")),
    ],
)
def test_the_target_is_read_from_its_end(text: str, target: KubeTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "/", "shop/", "/orders", "ctx//orders", "//orders", "/shop/orders"])
def test_a_target_with_an_empty_part_is_wrong_usage(text: str) -> None:
    result = delayctl("pending", "t", "--kube", text)
    assert result.exit_code == 2
    assert "expected CLUSTER, NAMESPACE/CLUSTER or CONTEXT/NAMESPACE/CLUSTER" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("target", ["orders", "shop/orders", "fake/shop/orders"])
def test_messages_are_sent_through_the_pods(world: KubeWorld, target: str) -> None:
    done(delayctl("produce", "t", "--delay", "1h", "--count", "3", "--kube", target))
    assert len(world.nodes[0].cluster.shards[0].bodies()) == 3
    assert {pod for pod, _ in world.api.kubelet.opened} <= {"orders-0", "orders-1"}
    assert {port for _, port in world.api.kubelet.opened} == {7070}


def test_the_option_may_stand_before_the_command_or_in_the_environment(
    world: KubeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(delayctl("--kube", "shop/orders", "produce", "t"))
    monkeypatch.setenv("DELAYCTL_KUBE", "shop/orders")
    done(delayctl("produce", "t"))
    assert len(world.nodes[0].cluster.shards[0].bodies()) == 2
    elsewhere = delayctl("produce", "t", "--endpoint", "127.0.0.1:1")
    assert (elsewhere.exit_code, "127.0.0.1:1" in elsewhere.stderr) == (3, True), "an option goes before"


def test_two_clusters_at_once_are_wrong_usage(
    world: KubeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (
        ("pending", "t", "--kube", "orders", "--endpoint", "127.0.0.1:1"),
        ("nodes", "drain", "n0", "--kube", "orders", "--data", str(tmp_path)),
    ):
        result = delayctl(*arguments)
        assert result.exit_code == 2
        assert "two clusters" in result.stderr
    monkeypatch.setenv("DELAYCTL_KUBE", "orders")
    monkeypatch.setenv("DELAYCTL_ENDPOINT", "127.0.0.1:1")
    assert "$DELAYCTL_ENDPOINT and $DELAYCTL_KUBE name two clusters" in delayctl("pending", "t").stderr


def test_a_benchmark_is_not_run_through_a_port_forward() -> None:
    result = delayctl("--kube", "orders", "bench", "w1")
    assert result.exit_code == 2
    assert "takes no --kube" in result.stderr


# ------------------------------------------------------------------------------------- what can be wrong with the way


def test_an_unknown_context_is_told_with_those_there_are(world: KubeWorld) -> None:
    result = delayctl("pending", "t", "--kube", "prod/shop/orders")
    assert result.exit_code == 2
    assert "the kubeconfig has no context 'prod'; it has fake" in result.stderr


def test_without_a_kubeconfig_there_is_no_way(
    world: KubeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    result = delayctl("pending", "t", "--kube", "orders")
    assert result.exit_code == 2
    assert "kube-config" in result.stderr


def test_a_delaycluster_that_is_not_there_is_named(world: KubeWorld) -> None:
    result = delayctl("pending", "t", "--kube", "elsewhere/orders")
    assert result.exit_code == 3
    assert "there is no DelayCluster 'orders' in namespace 'elsewhere' (context 'fake')" in result.stderr


def test_a_cluster_without_pods_says_where_to_look(world: KubeWorld) -> None:
    world.delete("pods")
    result = delayctl("pending", "t", "--kube", "orders")
    assert result.exit_code == 3
    assert (
        "has no node pods yet: `kubectl --context fake -n shop describe delaycluster orders` says why" in result.stderr
    )


def test_missing_rights_are_named(world: KubeWorld) -> None:
    world.api.fault(path="/pods", code=403, times=None)
    result = delayctl("pending", "t", "--kube", "orders")
    assert result.exit_code == 3
    assert "context 'fake' may not list pods: 403 on demand" in result.stderr


def test_a_refused_port_forward_is_named_with_the_nodes_that_could_not_be_asked(world: KubeWorld) -> None:
    world.api.kubelet.refuse = 403
    result = delayctl("pending", "t", "--kube", "orders")
    assert result.exit_code == 3
    assert "cannot reach the cluster: 198.18.0." in result.stderr
    assert "pods/portforward in namespace 'shop' needs the verbs get and create" in result.stderr


def test_an_api_server_that_is_down_is_named(world: KubeWorld) -> None:
    world.api.close()
    result = delayctl("pending", "t", "--kube", "orders")
    assert result.exit_code == 3
    assert f"the API server of context 'fake', {world.api.url}, gives no answer" in result.stderr


# ------------------------------------------------------------------------------------------------------ steering


@pytest.mark.parametrize("delay_s", [0.0, 0.7])
def test_a_switchover_is_asked_of_the_operator_and_waited_for(world: KubeWorld, delay_s: float) -> None:
    """Also where the API server is far away: a node that answers late is not one that does not run."""
    world.api.kubelet.delay_s = delay_s

    def operator() -> None:
        world.led_by("n1")

    helper = when(lambda: world.shard_spec().get("switchover") == {"to": "n1"}, operator)
    result = done(delayctl("shards", "switchover", "t-0", "--to", "n1", "--kube", "orders", "--json"))
    helper.join()
    said = json.loads(result.stdout)
    assert (said["shard"], said["from"], said["to"], said["epoch"]) == ("t-0", "n0", "n1", 2)


def test_a_switchover_that_nobody_carries_out_is_withdrawn(world: KubeWorld) -> None:
    result = delayctl("shards", "switchover", "t-0", "--to", "n1", "--timeout", "300ms", "--kube", "orders")
    assert result.exit_code == 1
    assert "n1 has not taken over within 300 ms; withdrawn" in result.stderr
    assert not world.shard_spec().get("switchover")


def test_a_move_is_written_into_the_delayshard(world: KubeWorld) -> None:
    result = delayctl("shards", "move", "t-0", "--to", "n1", "--kube", "orders")
    assert result.exit_code == 1
    assert "n1 has, or is about to have, a copy of t-0" in result.stderr
    assert (
        "no node 'n7'; there are n0, n1" in delayctl("shards", "move", "t-0", "--to", "n7", "--kube", "orders").stderr
    )
    world.shard = type(world.shard)(7, "t", 0, ("n0",), master="n0", epoch=1, incarnation="i0")
    world.api.store.patch(find("delayshards"), "shop", "orders.t-0", {"spec": {"replicas": ["n0"], "uid": "100"}})
    done(delayctl("shards", "move", "t-0", "--to", "n1", "--from", "n0", "--kube", "orders"))
    assert world.shard_spec()["target"] == ["n1"]


def annotated(world: KubeWorld) -> dict[str, str]:
    return world.delaycluster()["metadata"].get("annotations") or {}


def test_a_drain_annotates_the_delaycluster_with_who_asked_and_is_taken_back(world: KubeWorld) -> None:
    spec = world.delaycluster()["spec"]
    done(delayctl("nodes", "drain", "n1", "--kube", "orders"))
    assert f"{getpass.getuser()}@" in annotated(world)["delaycluster.io/drain-n1"]
    settings = world.api.get("configmaps", f"{NAME}-cluster", "shop")["data"]["cluster.json"]
    assert json.loads(settings)["drained"] == [], "the operator's to write"
    done(delayctl("nodes", "drain", "n1", "--undo", "--kube", "orders"))
    assert annotated(world) == {}
    assert world.delaycluster()["spec"] == spec, "what Git has"


def test_a_drain_that_the_spec_asks_for_is_taken_back_too(world: KubeWorld) -> None:
    world.request(drained=["n1", "n0"], nodes=3)
    done(delayctl("nodes", "drain", "n1", "--undo", "--kube", "orders"))
    assert world.delaycluster()["spec"]["drained"] == ["n0"]


def test_a_drain_counts_those_that_other_annotations_ask_for(world: KubeWorld) -> None:
    word = {"delaycluster.io/drain-n0": "lee"}
    world.api.store.patch(find("delayclusters"), "shop", NAME, {"metadata": {"annotations": word}})
    result = delayctl("nodes", "drain", "n1", "--kube", "orders")
    assert (result.exit_code, annotated(world)) == (1, word)
    assert "0 other nodes would be left" in result.stderr


def test_a_drain_that_leaves_too_few_nodes_is_refused_before_anything_is_written(world: KubeWorld) -> None:
    world.request(drained=["n0"])
    before = world.delaycluster()
    result = delayctl("nodes", "drain", "n1", "--kube", "orders")
    assert result.exit_code == 1
    assert "1 copy is wanted of each shard, and 0 other nodes would be left" in result.stderr
    assert world.delaycluster() == before


def test_a_drain_meets_somebody_elses_change_and_looks_again(world: KubeWorld) -> None:
    held = world.api.fault(method="PATCH", path="/delayclusters/", delay_s=0.5)
    helper = when(lambda: held.met > 0, lambda: world.request(drained=["n0"]))
    result = delayctl("nodes", "drain", "n1", "--kube", "orders")
    helper.join()
    assert (result.exit_code, world.delaycluster()["spec"]["drained"]) == (1, ["n0"])
    assert "0 other nodes would be left" in result.stderr


def test_a_patch_that_the_schema_forbids_is_refused_with_the_rule(world: KubeWorld) -> None:
    world.api.fault(method="PATCH", path="/delayclusters/", code=422)
    result = delayctl("nodes", "drain", "n1", "--kube", "orders")
    assert result.exit_code == 1
    assert "422 on demand" in result.stderr


def test_a_restart_annotates_the_delaycluster_and_waits_for_new_processes(world: KubeWorld) -> None:
    spec = world.delaycluster()["spec"]

    def operator() -> None:
        for node in (0, 1):
            world.renewed(node, f"j{node}")
        world.api.store.patch(find("delayshards"), "shop", "orders.t-0", {"spec": {"incarnation": "j0"}})

    helper = when(lambda: "delaycluster.io/restart" in annotated(world), operator)
    result = done(delayctl("nodes", "restart", "--kube", "orders", "--timeout", "30s", "--json"))
    helper.join()
    assert json.loads(result.stdout)["restarted"] == ["n0", "n1"]
    assert world.delaycluster()["spec"] == spec, "what Git has"


@pytest.mark.parametrize(
    "command", [("shards", "move", "t-0", "--to", "n1"), ("nodes", "drain", "n1"), ("nodes", "restart")]
)
def test_a_paused_cluster_is_not_moved_nor_restarted(world: KubeWorld, command: tuple[str, ...]) -> None:
    world.request(paused=True)
    result = delayctl(*command, "--kube", "orders")
    assert result.exit_code == 1
    assert "is paused (spec.paused): until that ends, nothing is moved or restarted" in result.stderr


def test_a_cluster_paused_by_annotation_says_who_asked(world: KubeWorld) -> None:
    word = {"metadata": {"annotations": {"delaycluster.io/paused": "kim: new disks"}}}
    world.api.store.patch(find("delayclusters"), "shop", NAME, word)
    result = delayctl("nodes", "drain", "n1", "--kube", "orders")
    assert result.exit_code == 1
    assert "is paused (annotation delaycluster.io/paused: kim: new disks)" in result.stderr


def test_nothing_is_adopted_where_the_registry_knows_all(world: KubeWorld) -> None:
    assert "nothing to adopt" in done(delayctl("adopt", "--kube", "orders")).stdout


def test_a_write_without_the_right_to_it_says_so(world: KubeWorld) -> None:
    world.api.fault(method="PATCH", path="/delayshards/", code=403, times=None)
    result = delayctl("shards", "switchover", "t-0", "--to", "n1", "--kube", "orders")
    assert result.exit_code == 3
    assert "t-0 could not be written: " in result.stderr
    assert "403" in result.stderr


def test_who_may_not_administer_shards_is_told_so_in_the_api_servers_words(world: KubeWorld) -> None:
    """The chart's admission policy refuses it: docs/security.md."""
    words = "denied request: DelayShards are written by the operator and by their cluster's nodes. anna needs the verb"
    world.api.fault(method="PATCH", path="delayshards/orders.t-0", code=403, message=words, times=None)
    result = delayctl("shards", "switchover", "t-0", "--to", "n1", "--kube", "orders")
    assert result.exit_code == 3
    assert words in result.stderr


def when(true: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """A thread that calls `then` once something is true, as another person would."""

    def watch() -> None:
        until_s = time.monotonic() + 30
        while not true() and time.monotonic() < until_s:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


# ------------------------------------------------------------------------------------------------ the plugin of kubectl


def kubectl_delay(*arguments: str) -> Result:
    return CliRunner().invoke(plugin, arguments, catch_exceptions=False)


def add_cluster(world: KubeWorld, name: str) -> None:
    other = {**world.delaycluster(), "metadata": {"name": name, "namespace": "shop"}}
    world.api.store.create(find("delayclusters"), "shop", other)


def test_the_plugin_finds_the_only_cluster_of_a_namespace(world: KubeWorld) -> None:
    for place in ((), ("-n", "shop"), ("--context", "fake"), ("--context", "fake", "-n", "shop", "-c", "orders")):
        done(kubectl_delay(*place, "produce", "t", "--delay", "1h"))
    assert len(world.nodes[0].cluster.shards[0].bodies()) == 4


def test_the_plugin_says_which_clusters_there_are(world: KubeWorld) -> None:
    nothing = kubectl_delay("-n", "empty", "pending", "t")
    assert nothing.exit_code == 2
    assert "there is no DelayCluster in namespace 'empty' (context 'fake'): give --namespace" in nothing.stderr
    add_cluster(world, "mail")
    several = kubectl_delay("pending", "t")
    assert several.exit_code == 2
    assert (
        "there are 2 DelayClusters in namespace 'shop' (context 'fake'), mail, orders: give --cluster" in several.stderr
    )
    done(kubectl_delay("-c", "orders", "produce", "t"))
    unknown = kubectl_delay("--context", "prod", "pending", "t")
    assert (unknown.exit_code, "no context 'prod'; it has fake" in unknown.stderr) == (2, True)


def test_the_plugin_may_not_list_clusters(world: KubeWorld) -> None:
    world.api.fault(path="/delayclusters", code=403, times=None)
    result = kubectl_delay("pending", "t")
    assert (result.exit_code, "context 'fake' may not list delayclusters" in result.stderr) == (3, True)


def test_the_plugins_help_asks_nobody_and_has_no_commands_of_ones_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayctl.targets.kube_route.whole_name", None)
    offered = done(kubectl_delay("--help")).stdout
    assert "  top " in offered
    assert "  local " not in offered
    assert "Watch TOPIC" in done(kubectl_delay("top", "--help")).stdout
    assert kubectl_delay("local").exit_code == 2
