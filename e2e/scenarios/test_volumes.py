"""A node's volume while the node is stopped, as docs/damage.md says under "On Kubernetes"."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from e2e.harness.acts import in_pod, uids
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until

MESSAGES, QUEUES = 400, 4
SECONDS = 120.0
PAUSED = "delaycluster.io/paused"
FLIP = (  # and back
    "import glob; log = open(sorted(glob.glob('/data/shards/orders-0-*/log/*'))[0], 'r+b'); "
    "log.seek(700); old = log.read(1)[0]; log.seek(700); log.write(bytes([old ^ 4]))"
)


@contextmanager
def stopped(cluster: ClusterUnderTest, ordinal: int) -> Iterator[Callable[..., str]]:
    """The node is stopped meanwhile. To be called with a command that is to see its volume; the command may fail."""
    kube, namespace = cluster.kube, ("--namespace", cluster.namespace)
    pod = f"{cluster.name}-{ordinal}"
    volume = f"{pod}-volume"
    kube("annotate", "delaycluster", cluster.name, f"{PAUSED}=a scenario", *namespace)
    kube("delete", "statefulset", cluster.name, "--cascade=orphan", *namespace)
    copied = ("--profile=restricted", f"--copy-to={volume}", "--same-node", "--container=node")
    kube("debug", pod, *namespace, *copied, "--", "sleep", "infinity")
    kube("delete", "pod", pod, *namespace, seconds=SECONDS)
    kube("wait", "--for=condition=Ready", f"pod/{volume}", *namespace, f"--timeout={SECONDS:g}s", seconds=SECONDS + 10)
    yield lambda *command: kube("exec", volume, *namespace, "--", *command, check=False)
    kube("delete", "pod", volume, *namespace, "--grace-period=1", seconds=SECONDS)
    kube("annotate", "delaycluster", cluster.name, f"{PAUSED}-", *namespace)


def send(cluster: ClusterUnderTest) -> None:
    """In all queues, the same messages to the same queue each time."""
    lines = (json.dumps({"body": f"message {number}", "key": f"{number}"}) + "\n" for number in range(MESSAGES))
    in_pod(cluster, "produce", "orders", "--input", "-", "--delay", "2h", stdin="".join(lines))


def pending_by_queue(cluster: ClusterUnderTest) -> dict[int, int]:
    """By the answer of each shard's master."""
    lines = (json.loads(line) for line in in_pod(cluster, "shards", "orders").splitlines())
    return {line["queue"]: line["pending"] for line in lines}


def test_a_volume_is_looked_at_and_shards_whose_only_copy_is_lost_begin_anew(
    operator: Release, kube: Kubectl, namespace: str, figure: Callable[..., None]
) -> None:
    cluster = ClusterUnderTest(kube, "volumes", namespace)
    topics = [{"name": "orders", "queues": QUEUES}]
    cluster.apply(nodes=3, replicas=1, storage={"size": "1Gi"}, topics=topics)
    cluster.wait_whole()
    send(cluster)
    before, pending = uids(cluster), pending_by_queue(cluster)
    assert sum(pending.values()) == MESSAGES
    node = next(shard.replicas[0] for shard in cluster.shards() if shard.queue == 0)

    with stopped(cluster, int(node[1:])) as seen:
        assert "DAMAGE" not in seen("delaynode", "verify", "/data")
        seen("python", "-c", FLIP)
        assert "DAMAGE: /data/shards/orders-0-" in seen("delaynode", "verify", "/data")
        seen("python", "-c", FLIP)
    cluster.wait_whole()
    assert (uids(cluster), pending_by_queue(cluster)) == (before, pending)

    lost = [shard for shard in cluster.shards() if shard.replicas == (node,)]
    claim = cluster.claims()[node]["metadata"]["name"]
    kube("delete", "pvc", claim, "--wait=false", "--namespace", cluster.namespace)
    kube("delete", "pod", cluster.pods()[node]["metadata"]["name"], "--namespace", cluster.namespace, seconds=SECONDS)

    def unsaid() -> list[str]:
        found = {shard.name: shard.conditions for shard in cluster.shards()}
        return [f"{it.name}: {found[it.name]}" for it in lost if "Blocked/NoInSyncReplica" not in found[it.name]]

    said = wait_until(f"{lost} say that they have no copy", unsaid, SECONDS)
    cluster.delayctl("shards", "retire", *(f"orders-{shard.queue}" for shard in lost), "--pending", "-1")
    whole = cluster.wait_whole()
    after = uids(cluster)
    assert {name for name in before if after[name] != before[name]} == {shard.name for shard in lost}
    assert pending_by_queue(cluster) == {**pending, **{shard.queue: 0 for shard in lost}}
    send(cluster)
    assert all(pending_by_queue(cluster)[shard.queue] == pending[shard.queue] for shard in lost)
    figure(act="a disk lost, begun anew", shards=len(lost), said_s=round(said, 1), whole_s=round(whole, 1))
