"""Several copies of each shard, over fake node processes: failover, moves, drains, rolling restarts, and the commands
that ask for them."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from delayctl.main import main
from delaylocal import LocalCluster
from delayregistry.model import ShardObject, TopicSpec

FAKE_NODE = (sys.executable, str(Path(__file__).with_name("fake_node.py")))


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Its parameter: lease_seconds; 2 without one."""
    topics, lease_s = [TopicSpec("orders", 6)], getattr(request, "param", 2)
    cluster = LocalCluster(tmp_path, nodes=3, replicas=2, topics=topics, lease_seconds=lease_s, node_command=FAKE_NODE)
    with cluster:
        cluster.wait_ready()
        yield cluster


def shards(cluster: LocalCluster) -> dict[str, ShardObject]:
    return {shard.name: shard for shard in cluster.registry.list_shards()}


def masters(cluster: LocalCluster) -> dict[str, str | None]:
    return {name: shard.spec.master for name, shard in shards(cluster).items()}


def eventually(what: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def delayctl(cluster: LocalCluster, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--data", str(cluster.data)], catch_exceptions=False)


def elsewhere(cluster: LocalCluster, name: str) -> str:
    spec = shards(cluster)[name].spec
    return next(node for node in cluster.desired.node_ids if node not in spec.replicas)


def test_the_masters_of_a_node_that_stays_away_are_taken_over_within_seconds(cluster: LocalCluster) -> None:
    frozen = [name for name, master in masters(cluster).items() if master == "n1"]
    assert frozen
    cluster.kill("n1", signal.SIGSTOP)
    eventually(lambda: "n1" not in masters(cluster).values())
    assert all(shards(cluster)[name].spec.epoch == 2 for name in frozen)
    cluster.kill("n1", signal.SIGCONT)
    cluster.wait_ready()
    assert not any(shard.conditions for shard in shards(cluster).values())


def test_a_killed_node_costs_one_more_epoch_of_its_shards_only(cluster: LocalCluster) -> None:
    before = masters(cluster)
    cluster.kill("n0")
    cluster.wait_ready()
    for name, shard in shards(cluster).items():
        assert shard.spec.epoch >= (2 if before[name] == "n0" else 1)
        assert before[name] == "n0" or shard.spec.epoch == 1 or shard.spec.master != before[name]


def test_the_masters_of_a_killed_node_are_taken_over_because_it_has_ended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Whatever its lease or its next process says."""
    lost = [name for name, master in masters(cluster).items() if master == "n1"]
    cluster.kill("n1")
    eventually(lambda: all(shards(cluster)[name].spec.epoch == 2 for name in lost))
    assert all(shards(cluster)[name].spec.vacant for name in lost)
    cluster.wait_ready()
    events = [json.loads(line) for line in (tmp_path / "logs" / "operator.log").read_text().splitlines()]
    reasons = {it["shard"]: it["reason"] for it in events if it.get("action") == "StartTerm" and it["epoch"] == 2}
    assert lost
    assert all(reasons[name].startswith("n1's process has ended: ") for name in lost), reasons


@pytest.mark.parametrize("cluster", [15], indirect=True)
def test_a_rolling_restart_needs_no_failover(cluster: LocalCluster, tmp_path: Path) -> None:
    before, steps = cluster.pids, []
    cluster.restart_each(steps.append)
    assert steps == ["n0", "n1", "n2"]
    assert all(cluster.pids[node] != pid for node, pid in before.items())
    events = [json.loads(line) for line in (tmp_path / "logs" / "operator.log").read_text().splitlines()]
    terms = [event["reason"] for event in events if event.get("action") == "StartTerm" and event["epoch"] > 1]
    assert terms
    assert all("hands over to" in reason for reason in terms), terms


def test_nodes_restart_asks_the_supervisor_and_waits(cluster: LocalCluster) -> None:
    handled = threading.Event()

    def restart() -> None:
        handled.wait(30)
        cluster.restart_each()

    thread = threading.Thread(target=restart)
    thread.start()
    former = signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    try:
        result = delayctl(cluster, "nodes", "restart", "--json")
    finally:
        handled.set()
        thread.join()
        signal.signal(signal.SIGUSR1, former)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["restarted"] == ["n0", "n1", "n2"]


def test_a_copy_is_moved_and_the_old_one_gone(cluster: LocalCluster) -> None:
    there = elsewhere(cluster, "orders-0")
    spec = shards(cluster)["orders-0"].spec
    gone, stays = spec.replicas
    result = delayctl(cluster, "shards", "move", "orders-0", "--from", gone, "--to", there, "--wait", "--json")
    assert result.exit_code == 0, result.output
    moved = json.loads(result.stdout)
    assert (moved["target"], moved["done"]) == ([there, stays], True)
    after = shards(cluster)["orders-0"]
    assert (after.spec.replicas, after.spec.target, after.spec.leaving) == ((there, stays), None, ())
    assert after.spec.master != gone
    assert after.status is not None
    assert len(after.status.in_sync) == 2


# A node that the machine holds up for a lease loses its masters, and they stay where they are then.
@pytest.mark.parametrize("cluster", [15], indirect=True)
def test_without_from_the_masters_copy_moves_and_leads_where_it_comes_to(cluster: LocalCluster) -> None:
    there, master = elsewhere(cluster, "orders-0"), shards(cluster)["orders-0"].spec.master
    result = delayctl(cluster, "shards", "move", "orders-0", "--to", there, "--wait")
    assert result.exit_code == 0, result.output
    after = shards(cluster)["orders-0"].spec
    assert there in after.replicas
    assert master not in after.replicas
    eventually(lambda: shards(cluster)["orders-0"].spec.master == there)


def test_a_move_that_can_not_be_is_refused_with_the_reason(cluster: LocalCluster) -> None:
    one, two = shards(cluster)["orders-0"].spec.replicas
    there = elsewhere(cluster, "orders-0")
    for options, words in [
        (("orders-9", "--to", there), "no shard 'orders-9'"),
        (("orders-0", "--to", "n7"), "no node 'n7'; there are n0, n1, n2"),
        (("orders-0", "--to", two, "--from", one), f"{two} has, or is about to have, a copy"),
        (("orders-0", "--to", there, "--from", there), f"{there} has no copy of orders-0"),
    ]:
        result = delayctl(cluster, "shards", "move", *options)
        assert result.exit_code == 1
        assert words in result.stderr
    assert shards(cluster)["orders-0"].spec.target is None


def test_a_move_into_a_zone_with_a_copy_is_refused_while_a_node_elsewhere_lives(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path, nodes=4, replicas=2, topics=[TopicSpec("orders", 1)], zones=("east", "east", "west", "west"),
        lease_seconds=2, node_command=FAKE_NODE,
    )  # fmt: skip
    with cluster:
        cluster.wait_ready()
        place = {lease.node: lease.zone for lease in cluster.registry.list_leases()}
        eventually(
            lambda: [place[node] for node in sorted(shards(cluster)["orders-0"].spec.replicas)] == ["east", "west"]
        )
        one, two = sorted(shards(cluster)["orders-0"].spec.replicas)  # in east, in west
        east, west = ({"n0", "n1"} - {one}).pop(), ({"n2", "n3"} - {two}).pop()

        result = delayctl(cluster, "shards", "move", "orders-0", "--from", one, "--to", west)
        assert result.exit_code == 1
        assert f"{west} is in zone west, as {two} with another copy" in result.stderr
        assert f"take a node in another zone: {east} (zone east)" in result.stderr
        assert shards(cluster)["orders-0"].spec.target is None

        cluster.kill(east, signal.SIGSTOP)
        cluster.kill(one, signal.SIGSTOP)
        assert delayctl(cluster, "shards", "move", "orders-0", "--from", one, "--to", west).exit_code == 0
        for node in (east, one):
            cluster.kill(node, signal.SIGCONT)


@pytest.mark.parametrize("cluster", [15], indirect=True)
def test_a_switchover_is_waited_for_and_lasts(cluster: LocalCluster) -> None:
    shard = shards(cluster)["orders-1"]
    (other,) = set(shard.spec.replicas) - {shard.spec.master}
    result = delayctl(cluster, "shards", "switchover", "orders-1", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["from"], said["to"], said["epoch"]) == (shard.spec.master, other, 2)
    time.sleep(0.5)
    assert shards(cluster)["orders-1"].spec.master == other  # it is not switched back for balance
    again = delayctl(cluster, "shards", "switchover", "orders-1", "--to", other)
    assert again.exit_code == 1
    assert "is the master of orders-1 already" in again.stderr
    outside = delayctl(cluster, "shards", "switchover", "orders-1", "--to", elsewhere(cluster, "orders-1"))
    assert outside.exit_code == 1
    assert "has no copy of orders-1" in outside.stderr


def test_a_drained_node_ends_up_empty_and_may_be_used_again(cluster: LocalCluster) -> None:
    result = delayctl(cluster, "nodes", "drain", "n2", "--wait")
    assert result.exit_code == 0, result.output
    assert result.stdout == "n2 is empty\n"
    assert all("n2" not in shard.spec.replicas for shard in shards(cluster).values())
    assert all(len(shard.spec.replicas) == 2 for shard in shards(cluster).values())
    to_it = delayctl(cluster, "shards", "move", "orders-0", "--from", "n0", "--to", "n2")
    assert "n2 is being drained" in to_it.stderr
    one_more = delayctl(cluster, "nodes", "drain", "n1")
    assert one_more.exit_code == 1
    assert "2 copies are wanted of each shard, and 1 other nodes would be left" in one_more.stderr
    assert delayctl(cluster, "nodes", "drain", "n2", "--undo").exit_code == 0
    eventually(lambda: sum("n2" in shard.spec.replicas for shard in shards(cluster).values()) == 4)


def test_adopt_brings_a_registry_up_to_what_the_copies_know(cluster: LocalCluster) -> None:
    assert "nothing to adopt" in delayctl(cluster, "adopt").stdout
    delayctl(cluster, "shards", "switchover", "orders-1")
    cluster.wait_ready()
    # The registry looks restored from before the shard was there; the fakes' copies hold one frame each.
    shard = shards(cluster)["orders-1"]
    with cluster.registry._writes.transaction() as db:
        db.execute("UPDATE meta SET version = version + 1")
        spec = json.dumps({"uid": str(shard.spec.uid), "topic": "orders", "queue": 1, "replicas": ["n0", "n1"]})
        db.execute(
            "UPDATE shards SET version = (SELECT version FROM meta), spec = ?, status = NULL WHERE name = 'orders-1'",
            (spec,),
        )
    eventually(lambda: any(it.reason == "RegistryBehind" for it in shards(cluster)["orders-1"].conditions))
    unasked = delayctl(cluster, "adopt")
    assert unasked.exit_code == 2
    assert "orders-1: its status is gone" in unasked.stderr
    result = delayctl(cluster, "adopt", "orders-1", "--yes", "--json")
    assert result.exit_code == 0, result.output
    eventually(lambda: shards(cluster)["orders-1"].conditions == () and cluster.unready() == [])


def test_adopt_refuses_while_a_node_is_silent(cluster: LocalCluster) -> None:
    cluster.kill("n1", signal.SIGSTOP)
    result = delayctl(cluster, "adopt", "--yes")
    cluster.kill("n1", signal.SIGCONT)
    assert result.exit_code == 1
    assert "n1 gives no answer: all nodes have to" in result.stderr


def test_a_node_that_is_slow_to_answer_is_waited_for(cluster: LocalCluster) -> None:
    cluster.kill("n1", signal.SIGSTOP)
    later = threading.Timer(1.0, cluster.kill, ("n1", signal.SIGCONT))
    later.start()
    result = delayctl(cluster, "adopt")
    later.join()
    assert "nothing to adopt" in result.stdout, result.output


def test_where_there_is_no_cluster_it_is_said(tmp_path: Path) -> None:
    for command in (("shards", "switchover", "orders-0"), ("nodes", "drain", "n0"), ("adopt",), ("nodes", "restart")):
        result = CliRunner().invoke(main, [*command, "--data", str(tmp_path / "none")], catch_exceptions=False)
        assert result.exit_code == 3
        assert "--data DIR" in result.stderr


def test_more_copies_are_made_when_they_are_wished_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": 3, "topics": [TopicSpec("orders", 3)], "node_command": FAKE_NODE}
    with LocalCluster(tmp_path, **options) as cluster:
        cluster.wait_ready()
    with LocalCluster(tmp_path, replicas=3, **options) as cluster:
        eventually(lambda: all(len(shard.spec.replicas) == 3 for shard in shards(cluster).values()))
        cluster.wait_ready()
