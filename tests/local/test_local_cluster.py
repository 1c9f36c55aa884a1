"""LocalCluster over fake node processes: starts, deaths, restarts, stops, and what a killed supervisor leaves."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from delaylocal import LocalCluster, LocalClusterError
from delaynode.node.data_lock import lock_data
from delayregistry.model import Durability, ShardObject, TopicSpec

FAKE_NODE = (sys.executable, str(Path(__file__).with_name("fake_node.py")))
Make = Callable[..., LocalCluster]


@pytest.fixture
def events() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def make(tmp_path: Path, events: list[Mapping[str, object]]) -> Iterator[Make]:
    clusters: list[LocalCluster] = []

    def make(**options: object) -> LocalCluster:
        options = {"nodes": 2, "topics": [TopicSpec("orders", 4)], "port": 0, **options}
        cluster = LocalCluster(tmp_path / "data", on_event=events.append, node_command=FAKE_NODE, **options)  # type: ignore[arg-type]
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop(timeout_s=2)


def shards(cluster: LocalCluster) -> dict[str, ShardObject]:
    return {shard.name: shard for shard in cluster.registry.list_shards()}


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def eventually(what: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_every_shard_is_served_when_ready(make: Make, port: int) -> None:
    with make(port=port) as cluster:
        cluster.wait_ready()
        assert cluster.endpoints == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
        assert cluster.http == [f"127.0.0.1:{port + 100}", f"127.0.0.1:{port + 101}"]
        assert sorted(cluster.pids) == ["n0", "n1"]
        assert {(shard.spec.master, shard.spec.epoch) for shard in shards(cluster).values()} == {("n0", 1), ("n1", 1)}
        pids = cluster.pids.values()
        assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids)  # Ctrl-C is not for them
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_ends_is_restarted_with_a_new_term(
    make: Make, events: list[Mapping[str, object]], signum: signal.Signals
) -> None:
    with make() as cluster:
        cluster.wait_ready()
        killed = cluster.kill("n1", signum)
        eventually(lambda: gone(killed))
        cluster.wait_ready()
        assert cluster.pids["n1"] != killed
        assert {shard.spec.epoch for shard in shards(cluster).values() if shard.spec.master == "n1"} == {2}
        assert {shard.spec.epoch for shard in shards(cluster).values() if shard.spec.master == "n0"} == {1}
        (died,) = [event for event in events if event["event"] == "node-died"]
        assert (died["node"], died["pid"]) == ("n1", killed)
        assert died.get("signal") == ("SIGKILL" if signum == signal.SIGKILL else None)
        (restarted,) = [event for event in events if event["event"] == "node-restarted"]
        assert (restarted["node"], restarted["pid"]) == ("n1", cluster.pids["n1"])


def test_ready_right_after_a_kill_means_the_new_process(make: Make) -> None:
    with make() as cluster:
        cluster.wait_ready()
        for _ in range(3):
            killed = cluster.kill("n0")
            assert cluster.unready() != []
            cluster.wait_ready()
            assert cluster.pids["n0"] != killed


def incarnation(cluster: LocalCluster, node: str) -> str:
    (found,) = [lease.incarnation for lease in cluster.registry.list_leases() if lease.node == node]
    return found


def test_a_process_that_was_killed_is_known_to_have_ended_and_no_other(make: Make) -> None:
    with make() as cluster:
        cluster.wait_ready()
        killed = incarnation(cluster, "n1")
        cluster.kill("n0", signal.SIGSTOP)
        cluster.kill("n1")
        eventually(lambda: incarnation(cluster, "n1") != killed)
        assert cluster.ended() == {killed}
        cluster.kill("n0", signal.SIGCONT)
        cluster.wait_ready()


def test_a_process_that_never_had_a_lease_says_nothing_of_the_one_that_has_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, events: list[Mapping[str, object]]
) -> None:
    """The supervisor did not see that earlier process end."""
    with make() as cluster:
        cluster.wait_ready()
    monkeypatch.setenv("FAKE_NODE", "exit")
    with make() as cluster:
        eventually(lambda: len([event for event in events if event["event"] == "node-died"]) > 3)
        assert cluster.ended() == frozenset()


def test_a_process_is_not_taken_for_ended_while_somebody_works_on_its_data(make: Make) -> None:
    """The supervisor may have started a wrapper, not the node's process itself."""
    with make() as cluster:
        cluster.wait_ready()
        killed = incarnation(cluster, "n1")
        with lock_data(str(cluster.data / "n1")):
            cluster.kill("n1")
            eventually(lambda: incarnation(cluster, "n1") != killed)
        assert cluster.ended() == frozenset()


def test_a_cluster_started_again_picks_everything_up(make: Make) -> None:
    with make() as cluster:
        cluster.wait_ready()
        before = shards(cluster)
    with make(nodes=None, topics=[TopicSpec("bills", 1)]) as cluster:
        cluster.wait_ready()
        after = shards(cluster)
    assert set(after) == {*before, "bills-0"}
    for name, shard in before.items():
        assert (after[name].spec.uid, after[name].spec.replicas) == (shard.spec.uid, shard.spec.replicas)
        assert after[name].spec.epoch == 2


def test_one_object_may_be_started_again(make: Make) -> None:
    cluster = make(nodes=1)
    for epoch in (1, 2):
        with cluster:
            cluster.wait_ready()
            assert {shard.spec.epoch for shard in shards(cluster).values()} == {epoch}


def test_spec_reach_the_nodes_and_the_registry(make: Make) -> None:
    with make(durability=Durability.ASYNC, horizon_days=365) as cluster:
        found = cluster.registry.read_cluster()
        assert found is not None
        assert (found.spec.durability, found.spec.horizon_days) == (Durability.ASYNC, 365)
        cluster.wait_ready()
        command = Path(f"/proc/{cluster.pids['n0']}/cmdline").read_bytes().decode().split("\0")
        assert command[command.index("--durability") + 1] == "async"
        assert command[0] == sys.executable
        assert "launch.py" not in " ".join(command)


def test_a_second_cluster_on_the_directory_is_refused(make: Make) -> None:
    with make(), pytest.raises(LocalClusterError, match=rf"already \(pid {os.getpid()}\)"):
        make().start()


def test_a_place_that_can_hold_no_cluster_is_said(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(LocalClusterError, match="cannot keep a cluster in"):
        make().start()


def test_a_port_in_use_is_said_and_leaves_the_directory_free(make: Make, port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(LocalClusterError, match=f"port {port + 1}"),
    ):
        make(port=port).start()
    with make(port=port) as cluster:
        cluster.wait_ready()


def test_spec_that_would_shrink_are_refused(make: Make) -> None:
    with make() as cluster:
        cluster.wait_ready()
    with pytest.raises(LocalClusterError, match="can't shrink"):
        make(nodes=1).start()


def test_a_directory_without_its_registry_is_not_opened_with_fewer_nodes_than_have_shards(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "data" / "n3" / "shards").mkdir(parents=True)
    with pytest.raises(LocalClusterError, match="nodes: 2 asked for, but this cluster has 4"):
        make().start()


def test_a_node_that_does_not_stay_up_is_reported_with_its_log(
    make: Make, monkeypatch: pytest.MonkeyPatch, events: list[Mapping[str, object]]
) -> None:
    monkeypatch.setenv("FAKE_NODE", "exit")
    with make(nodes=1) as cluster, pytest.raises(LocalClusterError, match="FAKE_NODE=exit"):
        cluster.wait_ready()
    waits = [event["restart_in_seconds"] for event in events if event["event"] == "node-died"]
    assert waits[:5] == [0.1, 0.2, 0.5, 1.0, 2.0]


def test_a_node_that_never_serves_is_named_when_the_wait_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODE", "mute")
    why = "orders-0 is not yet served by n0 in epoch 1"
    with make(nodes=1) as cluster:
        eventually(lambda: any(why in it for it in cluster.unready()))
        with pytest.raises(LocalClusterError, match=why):
            cluster.wait_ready(timeout_s=3)


def test_a_node_that_is_not_ready_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry has a term before it serves: who came at once would be turned away."""
    monkeypatch.setenv("FAKE_NODE", "unready")
    why = "n0 is not ready: shards-not-served"
    with make(nodes=1) as cluster:
        eventually(lambda: cluster.unready() == [why])
        with pytest.raises(LocalClusterError, match=why):
            cluster.wait_ready(timeout_s=1)


def test_a_node_that_does_not_stop_is_killed_and_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODE", "deaf")
    cluster = make(nodes=1)
    cluster.start()
    cluster.wait_ready()
    pid = cluster.pids["n0"]
    assert cluster.stop(timeout_s=0.3) == ("n0",)
    assert gone(pid)


def test_a_stopped_process_still_stops_cleanly(make: Make) -> None:
    cluster = make(nodes=1)
    cluster.start()
    cluster.wait_ready()
    cluster.kill("n0", signal.SIGSTOP)
    assert cluster.stop() == ()


def test_a_frozen_node_is_said_and_goes_on_in_its_term(make: Make) -> None:
    with make() as cluster:
        cluster.wait_ready()
        cluster.kill("n1", signal.SIGSTOP)
        blocked = [shard.name for shard in shards(cluster).values() if shard.spec.master == "n1"]
        eventually(lambda: all(shards(cluster)[name].conditions for name in blocked))
        cluster.kill("n1", signal.SIGCONT)
        eventually(lambda: not any(shards(cluster)[name].conditions for name in blocked))
        assert all(shard.spec.epoch == 1 for shard in shards(cluster).values())
