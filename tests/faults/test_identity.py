"""Objects that are lost while the copies are whole, with real nodes: every message comes, or a person is asked."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from delayapi.node_client import NodeClient
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.sync import SyncConsumer, SyncProducer
from delayctl.main import main
from delaylocal import LocalCluster
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import marker
from delayregistry.model import Condition, ShardObject, TopicSpec
from delayregistry.sqlite import SqliteRegistry

from tests.operator.runbook import commands, filled

ORDERS = TopicSpec("orders", 4)
MESSAGES = 500
LATER_MS = 3_600_000


def make_cluster(data: Path, *topics: TopicSpec) -> LocalCluster:
    return LocalCluster(data, nodes=3, replicas=2, topics=topics)


def send(cluster: LocalCluster, count: int, delay_ms: int) -> set[bytes]:
    bodies = {b"message %d" % number for number in range(count)}
    with SyncProducer(cluster.endpoints) as producer:
        producer.send_batch("orders", sorted(bodies), delay_ms=delay_ms)
    return bodies


def receive(cluster: LocalCluster, count: int) -> list[bytes]:
    found: list[bytes] = []
    with SyncConsumer(cluster.endpoints, "orders", "group", auto_ack=True) as consumer:
        while len(found) < count and (message := consumer.receive(30)) is not None:
            found.append(message.body)
    return found


def forget_registry(data: Path) -> None:
    for path in data.glob("registry.db*"):
        path.unlink()


def delayctl(data: Path, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, [*arguments, "--data", str(data), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def from_page(reason: str, item: str, **names: str) -> list[str]:
    """A command of docs/operations.md, as it is typed for a local cluster. item: words of the list item that has it."""
    (command,) = commands(reason, "delayctl", item)
    return filled(command.replace(" --kube NS/NAME", "").removesuffix("..."), **names)[1:]


def refused(data: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--data", str(data), "--json"], catch_exceptions=False)
    assert result.exit_code != 0
    return result.output


def test_a_cluster_whose_registry_is_lost_delivers_what_its_nodes_have(tmp_path: Path) -> None:
    with make_cluster(tmp_path, ORDERS) as cluster:
        cluster.wait_ready()
        uids = {shard.name: shard.spec.uid for shard in cluster.registry.list_shards()}
        sent = send(cluster, MESSAGES, 5_000)
        for node in cluster.desired.node_ids:
            cluster.kill(node)  # no last checkpoint
    forget_registry(tmp_path)
    with make_cluster(tmp_path, ORDERS) as cluster:
        cluster.wait_ready()
        assert {shard.name: shard.spec.uid for shard in cluster.registry.list_shards()} == uids
        assert sorted(receive(cluster, MESSAGES)) == sorted(sent)


def test_copies_of_a_topic_that_nobody_asks_for_are_listed_adopted_and_purged(tmp_path: Path) -> None:
    with make_cluster(tmp_path, ORDERS) as cluster:
        cluster.wait_ready()
        send(cluster, MESSAGES, LATER_MS)
    forget_registry(tmp_path)
    with make_cluster(tmp_path, TopicSpec("other", 1)) as cluster:
        cluster.wait_ready()
        orphans = delayctl(tmp_path, *from_page("OrphanedCopies", "lists them"))
        assert {it["shard"] for it in orphans} == {f"orders-{queue}" for queue in range(4)}
        assert len(orphans) == 8
        assert {it["cluster"] for it in orphans} == {"local"}
        assert sum(it["pending"] for it in orphans) == 2 * MESSAGES
        purge = (*from_page("OrphanedCopies", "Not wanted at all", UID=orphans[0]["uid"]), "--pending")
        assert "nothing is deleted" in refused(tmp_path, *purge, str(orphans[0]["pending"] + 1))
        delayctl(tmp_path, *purge, str(orphans[0]["pending"]))
        left = delayctl(tmp_path, "nodes", "orphans")
        assert {it["uid"] for it in left} == {it["uid"] for it in orphans} - {orphans[0]["uid"]}
        assert not list(tmp_path.rglob(f"orders-*-{orphans[0]['uid']}"))
        adopt = from_page("OrphanedCopies", "of another cluster", SHARD=left[0]["shard"])
        (adopted,) = delayctl(tmp_path, *adopt, "--yes")
        assert adopted["uid"] == left[0]["uid"]
        assert f"{poll_served(cluster, adopted['shard']).spec.uid:016x}" == adopted["uid"]
        wanted = ("nodes", "orphans", "--purge", adopted["uid"], "--pending", "1")
        assert "no copy without a shard has uid" in refused(tmp_path, *wanted)


def poll_served(cluster: LocalCluster, name: str) -> ShardObject:
    deadline_s = time.monotonic() + 30
    while True:
        shard = cluster.registry.get_shard(name)
        if shard is not None and shard.status is not None and shard.status.serving_epoch == shard.spec.epoch:
            return shard
        assert time.monotonic() < deadline_s, shard
        time.sleep(0.05)


def test_a_node_refuses_to_purge_what_is_wanted_or_not_there(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("orders", 1)]) as cluster:
        cluster.wait_ready()
        (shard,) = cluster.registry.list_shards()
        with NodeClient(cluster.endpoints[0]) as client:
            for uid, why in ((shard.spec.uid, "it is no orphan"), (shard.spec.uid + 1, "there is no copy with uid")):
                with pytest.raises(grpc.RpcError) as refused:
                    client.purge_copy(delay_pb2.PurgeCopyRequest(uid=uid, pending=0), timeout=5)
                assert why in refused.value.details()


def test_of_two_histories_a_person_chooses_one_and_purges_the_other(tmp_path: Path) -> None:
    """As docs/operations.md has it under OrphanedCopies. Their copies are on different nodes' disks, or on the same."""
    data, aside, sent = tmp_path / "data", tmp_path / "aside", []
    for count in (MESSAGES, 3):
        with make_cluster(data, TopicSpec("orders", 1)) as cluster:
            cluster.wait_ready()
            (shard,) = cluster.registry.list_shards()
            sent.append((f"{shard.spec.uid:016x}", send(cluster, count, 20_000)))
        forget_registry(data)
        for copy in list(data.glob("n*/shards/orders-0-*")):
            away = aside / copy.relative_to(data)
            away.parent.mkdir(parents=True, exist_ok=True)
            copy.rename(away)
    for copy in list(aside.glob("n*/shards/orders-0-*")):
        copy.rename(data / copy.relative_to(aside))
    (first, wanted), (second, _) = sent
    with make_cluster(data, TopicSpec("orders", 1)) as cluster:
        deadline_s = time.monotonic() + 60
        while "2 histories; choose one with --uid" not in (why := refused(data, "adopt", "orders-0", "--yes")):
            assert time.monotonic() < deadline_s, why  # until every node answers
        delayctl(data, *from_page("OrphanedCopies", "2 histories", SHARD="orders-0", UID=first), "--yes")
        cluster.wait_ready()
        assert {it["uid"] for it in delayctl(data, "nodes", "orphans")} == {second}
        delayctl(data, *from_page("OrphanedCopies", "Not wanted at all", UID=second), "--pending", "3")
        assert delayctl(data, "nodes", "orphans") == []
        assert sorted(receive(cluster, MESSAGES)) == sorted(wanted)


def ask_for(cluster: LocalCluster, *topics: TopicSpec) -> None:
    """Only these are in the spec now."""
    found = cluster.registry.read_cluster()
    assert found is not None
    cluster.registry.put_cluster(replace(found.spec, topics=topics), found.version)


def test_shards_of_a_removed_topic_are_retired_once_their_pending_count_is_typed(tmp_path: Path) -> None:
    with make_cluster(tmp_path, ORDERS, TopicSpec("other", 1)) as cluster:
        cluster.wait_ready()
        send(cluster, MESSAGES, LATER_MS)
        retire = (*from_page("TopicRemoved", "retire", TOPIC="orders"), "--pending")
        assert "orders-0 is wanted" in refused(tmp_path, *retire, str(MESSAGES))
        ask_for(cluster, TopicSpec("other", 1))
        assert "nothing is deleted" in refused(tmp_path, *retire, str(MESSAGES - 1))
        assert "nothing is deleted" in refused(tmp_path, *retire[:-1])
        assert len(cluster.registry.list_shards()) == 5
        gone = delayctl(tmp_path, *retire, str(MESSAGES))
        assert {it["shard"] for it in gone} == {f"orders-{queue}" for queue in range(4)}
        assert sum(it["pending"] for it in gone) == MESSAGES
        assert [shard.name for shard in cluster.registry.list_shards()] == ["other-0"]
        assert not list(tmp_path.glob("**/orders-?-????????????????"))
        assert delayctl(tmp_path, "nodes", "orphans") == []
    with make_cluster(tmp_path, ORDERS, TopicSpec("other", 1)) as cluster:
        cluster.wait_ready()
        assert sorted(send(cluster, 1, 1)) == receive(cluster, 1), "of the new topic, and nothing of the former one"


def test_a_queue_that_is_not_asked_for_any_more_is_consumed_and_then_retired(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("orders", 2)]) as cluster:
        cluster.wait_ready()
        sent = send(cluster, MESSAGES, 1)
        ask_for(cluster, TopicSpec("orders", 1))
        deadline_s = time.monotonic() + 30
        while [it.reason for it in condition_of(cluster, "orders-1")] != ["FewerQueues"]:
            assert time.monotonic() < deadline_s, cluster.registry.list_shards()
            time.sleep(0.05)
        assert sorted(receive(cluster, MESSAGES)) == sorted(sent)
        delayctl(tmp_path, *from_page("FewerQueues", "", SHARD="orders-1"), "--pending", "0")
        assert [shard.name for shard in cluster.registry.list_shards()] == ["orders-0"]
        assert not list(tmp_path.glob("**/orders-1-????????????????"))


def condition_of(cluster: LocalCluster, name: str) -> tuple[Condition, ...]:
    shard = cluster.registry.get_shard(name)
    assert shard is not None
    return shard.conditions


def test_a_retirement_that_a_copy_on_a_silent_node_would_outlive_is_refused(tmp_path: Path) -> None:
    with make_cluster(tmp_path, ORDERS) as cluster:
        cluster.wait_ready()
        ask_for(cluster)
        cluster.kill("n1", signal.SIGSTOP)
        try:
            assert "n1 gives no answer" in refused(tmp_path, "shards", "retire", "--topic", "orders", "--pending", "0")
            assert len(cluster.registry.list_shards()) == 4
        finally:
            cluster.kill("n1", signal.SIGCONT)


def once_all_answer(data: Path, *arguments: str) -> Result:
    """What delayctl says once every node answers."""
    deadline_s = time.monotonic() + 60
    while True:
        result = CliRunner().invoke(main, [*arguments, "--data", str(data), "--json"], catch_exceptions=False)
        if "no answer" not in result.output or time.monotonic() > deadline_s:
            return result
        time.sleep(0.1)


def await_reason(cluster: LocalCluster, name: str, reason: str) -> None:
    deadline_s = time.monotonic() + 60
    while [it.reason for it in condition_of(cluster, name)] != [reason]:
        assert time.monotonic() < deadline_s, cluster.registry.list_shards()
        time.sleep(0.05)


def test_a_shard_that_has_lost_every_copy_begins_anew_at_a_persons_word(tmp_path: Path) -> None:
    with make_cluster(tmp_path, ORDERS) as cluster:
        cluster.wait_ready()
        send(cluster, MESSAGES, LATER_MS)
        former = {it.name: it.spec.uid for it in cluster.registry.list_shards()}
        retire = (*from_page("NoInSyncReplica", "begins anew", SHARD="orders-0"), "--pending")
        assert "has a copy that is not damaged on n" in refused(tmp_path, *retire, "-1")
    directories = list(tmp_path.glob("n*/shards/orders-0-????????????????"))
    assert len(directories) == 2
    for directory in directories:
        shutil.rmtree(directory)
    with make_cluster(tmp_path, ORDERS) as cluster:
        await_reason(cluster, "orders-0", "NoInSyncReplica")
        assert "that nobody can count (-1)" in once_all_answer(tmp_path, *retire, "0").output
        assert delayctl(tmp_path, *retire, "-1") == [
            {"shard": "orders-0", "uid": f"{former['orders-0']:016x}", "pending": None, "nodes": []}
        ]
        cluster.wait_ready()
        later = {it.name: it.spec.uid for it in cluster.registry.list_shards()}
        assert {name for name, uid in later.items() if uid != former[name]} == {"orders-0"}
        assert sorted(send(cluster, 40, 1)) == sorted(receive(cluster, 40))


def test_a_shard_whose_copies_are_all_damaged_begins_anew_at_a_persons_word(tmp_path: Path) -> None:
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        cluster.wait_ready()
        send(cluster, MESSAGES, LATER_MS)
    for directory in tmp_path.glob("n*/shards/orders-0-????????????????"):
        marker.mark_damaged(DiskFiles(), str(directory), "a test says so", 0, 0)
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        await_reason(cluster, "orders-0", "CopyDamaged")
        retire = from_page("NoInSyncReplica", "begins anew", SHARD="orders-0")
        gone = json.loads(once_all_answer(tmp_path, *retire, "--pending", "-1").output)
        assert (gone["shard"], gone["pending"], len(gone["nodes"])) == ("orders-0", None, 2)
        cluster.wait_ready()
        assert sorted(send(cluster, 40, 1)) == sorted(receive(cluster, 40))
        assert delayctl(tmp_path, "nodes", "orphans") == []


def test_a_damaged_copy_is_not_passed_over_by_an_object_without_its_status(tmp_path: Path) -> None:
    """Only its mark is wrong, the other copy is gone, and the object was restored without a status: nobody may begin
    anew with nothing, and throw the copy away."""
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        cluster.wait_ready()
        sent = send(cluster, MESSAGES, 1)
        (shard,) = cluster.registry.list_shards()
    kept, gone = (next(tmp_path.glob(f"{node}/shards/orders-0-*")) for node in shard.spec.replicas)
    marker.mark_damaged(DiskFiles(), str(kept), "a test says so", 0, 0)
    shutil.rmtree(gone)
    with closing(sqlite3.connect(tmp_path / "registry.db")) as rows, rows:
        rows.execute("UPDATE shards SET status = NULL")
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        await_reason(cluster, "orders-0", "StatusLost")
        time.sleep(12)  # a master that was chosen and has not begun is passed over after ten seconds
        (condition,) = condition_of(cluster, "orders-0")
        assert condition.reason == "StatusLost"
        assert "every copy is damaged" in condition.message
    marker.clear_damaged(DiskFiles(), str(kept))
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        adopted = once_all_answer(tmp_path, "adopt", "orders-0", "--unproven", "--yes")
        assert adopted.exit_code == 0, adopted.output
        cluster.wait_ready()
        assert sorted(receive(cluster, MESSAGES)) == sorted(sent)


def test_copies_that_a_newer_release_wrote_are_not_retired_or_purged_by_this_one(tmp_path: Path) -> None:
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        cluster.wait_ready()
        sent = send(cluster, MESSAGES, 1)
    identities = list(tmp_path.glob("n*/shards/orders-0-*/shard.json"))
    before = {path: path.read_bytes() for path in identities}
    for path, text in before.items():
        newer = json.dumps({**json.loads(text.rpartition(b"\n")[0]), "of_the_next_release": 1}).encode()
        path.write_bytes(newer + b"\ncrc32 %08x" % zlib.crc32(newer))
    retire = (*from_page("NoInSyncReplica", "begins anew", SHARD="orders-0"), "--pending", "-1")
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        await_reason(cluster, "orders-0", "CopyDamaged")
        assert "orders-0 can be read by a newer release (n" in once_all_answer(tmp_path, *retire).output
        (shard,) = cluster.registry.list_shards()
        cluster.registry.delete_shard(shard.name, shard.version)
        orphans = delayctl(tmp_path, "nodes", "orphans")
        assert {it["uid"] for it in orphans} == {f"{shard.spec.uid:016x}"}
        purge = from_page("OrphanedCopies", "Not wanted at all", UID=orphans[0]["uid"])
        assert "put the newer release back" in refused(tmp_path, *purge, "--pending", "-1")
    assert sorted(before) == sorted(tmp_path.glob("n*/shards/orders-0-*/shard.json"))
    for path, text in before.items():
        path.write_bytes(text)
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        cluster.wait_ready()
        assert sorted(receive(cluster, MESSAGES)) == sorted(sent)


def test_an_object_made_again_for_copies_that_are_gone_begins_anew_at_a_persons_word(tmp_path: Path) -> None:
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        cluster.wait_ready()
        send(cluster, MESSAGES, LATER_MS)
        (shard,) = cluster.registry.list_shards()
    for directory in tmp_path.glob("n*/shards/orders-0-*"):
        shutil.rmtree(directory)
    with closing(SqliteRegistry(tmp_path / "registry.db")) as registry:  # as `adopt` writes the first of its two parts
        registry.write_spec(shard.name, replace(shard.spec, master=None, incarnation=None), shard.version)
    with closing(sqlite3.connect(tmp_path / "registry.db")) as rows, rows:
        rows.execute("UPDATE shards SET status = NULL")
    with make_cluster(tmp_path, TopicSpec("orders", 1)) as cluster:
        await_reason(cluster, "orders-0", "StatusLost")
        retire = from_page("NoInSyncReplica", "begins anew", SHARD="orders-0")
        gone = once_all_answer(tmp_path, *retire, "--pending", "-1")
        assert gone.exit_code == 0, gone.output
        cluster.wait_ready()
        assert sorted(send(cluster, 40, 1)) == sorted(receive(cluster, 40))
