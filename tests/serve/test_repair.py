"""`delaynode repair` on the files of real nodes: no copy can apply a frame, and a person gets the shard past it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from delaylocal import LocalCluster
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.frames import FrameKind, Trim
from delaynode.store.maintenance import persist
from delayregistry.model import ShardObject, TopicSpec

from tests.serve.support.client import Client, Failure, Msg, Shard

NODE = "from delaynode.main import main; main()"


def delaynode(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", NODE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def poison(directory: Path) -> int:
    """Append a TRIM of a segment that is not there, as a master would that does not look first; its log offset."""
    files = DiskFiles()
    shard, _ = persist.recover(files, str(directory), ShardConfig())
    trim = Trim(shard.queue.start, np.array([77], np.int64))
    at = shard.log.propose(FrameKind.TRIM, shard.epoch, 1, 0, shard.wall_ms, trim.payload()).offset
    batch = shard.next_batch(sync=True)
    assert batch is not None
    batch.run()
    files.close()
    return at


def copies(cluster: LocalCluster) -> list[Path]:
    return sorted(path.parent for path in cluster.data.rglob("shard.json"))


def the_shard(cluster: LocalCluster) -> ShardObject:
    (found,) = cluster.registry.list_shards()
    return found


def eventually(what: Callable[[], bool], timeout_s: float = 40.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def received(cluster: LocalCluster, count: int) -> set[bytes]:
    """Bodies, from whoever serves."""
    found: set[bytes] = set()

    def some() -> bool:
        for endpoint in cluster.endpoints:
            with Client(endpoint) as client:
                try:
                    found.update(one.body for one in Shard(client, "t", 0).receive(group="g", max_messages=count))
                except (Failure, grpc.RpcError):
                    continue
        return len(found) >= count

    eventually(some)
    return found


def fetches(data: Path) -> int:
    """How many copies the cluster's nodes have begun to fetch, since its first start."""
    logs = (data / "logs").glob("n*.log")
    return sum(log.read_text().count('"event": "fetching"') for log in logs)


def desired(path: Path) -> LocalCluster:
    return LocalCluster(path, nodes=2, replicas=2, topics=[TopicSpec("t", 1)], lease_seconds=2)


def served_by_both(cluster: LocalCluster) -> bool:
    shard = the_shard(cluster)
    status = shard.status
    if status is None or status.resigned is not None or shard.conditions:
        return False
    return status.serving_epoch == shard.spec.epoch and len(status.in_sync) == 2


@pytest.mark.parametrize("way", ["skip", "cut"])
def test_a_frame_that_no_copy_can_apply_is_got_past_and_the_other_copy_follows(tmp_path: Path, way: str) -> None:
    bodies = {b"%d" % n for n in range(20)}
    with desired(tmp_path / "c") as cluster:
        cluster.wait_ready()
        eventually(lambda: served_by_both(cluster))
        endpoint = dict(zip(("n0", "n1"), cluster.endpoints, strict=True))[the_shard(cluster).spec.master or ""]
        with Client(endpoint) as client:
            Shard(client, "t", 0).send(*[Msg(body) for body in sorted(bodies)])
    mended, other = copies(cluster)
    at = poison(mended)
    assert poison(other) == at
    with desired(tmp_path / "c") as cluster:
        eventually(lambda: any(one.reason == "CopyDamaged" for one in the_shard(cluster).conditions))
        refused = delaynode("repair", mended)
        assert (refused.returncode, refused.stdout) == (2, "")
    told = delaynode("repair", mended)
    assert told.returncode == 1, told
    assert f"the frame at log offset {at} can't be applied: can't free CommitLog segments [77]" in told.stdout
    (command,) = re.findall(rf"delaynode (repair .* --{way} {at} --confirm \w+)", told.stdout)
    wrong = delaynode(*command.split()[:-1], "00000000")
    assert wrong.returncode == 1
    assert "refused" in wrong.stdout
    done = delaynode(*command.split())
    assert done.returncode == 0, done
    assert "repaired" in done.stdout
    assert delaynode("verify", mended).returncode == 0
    if way == "cut":
        other.rename(tmp_path / "moved away")  # its log is longer: chosen, it would send the frame again
    before = fetches(tmp_path / "c")
    with desired(tmp_path / "c") as cluster:
        cluster.wait_ready()
        assert received(cluster, 20) == bodies
        # The other copy may be chosen first, or be in sync by its log for as long as it has not applied the frame.
        eventually(lambda: fetches(tmp_path / "c") > before)
        eventually(lambda: served_by_both(cluster))
    for copy in copies(cluster):
        verified = delaynode("verify", copy)
        assert verified.returncode == 0, verified.stdout
