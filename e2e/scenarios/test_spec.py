"""A DelayCluster is edited under load: nodes, topics and queues, another image, larger volumes, a pause."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result
from e2e.harness.machines import Machines

CHANGE_SECONDS = 300.0
SDK_LOOKS_SECONDS = 60.0  # for queues that a topic has got since
HOST_PATH = "kubernetes.io/host-path"

Kept = Callable[..., Result]


def test_three_nodes_become_five_and_three_again(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, kept: Kept
) -> None:
    """By `kubectl scale`. The volumes of nodes that left empty are of no more use, and go with them."""
    began = time.monotonic()
    scale(cluster, 5)
    cluster.wait_whole(CHANGE_SECONDS)
    grown = time.monotonic() - began
    assert len(cluster.pods()) == 5
    assert len(cluster.claims()) == 5
    time.sleep(CALM_SECONDS)

    began = time.monotonic()
    scale(cluster, 3)
    cluster.wait_whole(CHANGE_SECONDS)
    wait_until(
        "the leaving nodes' pods and volumes are gone",
        lambda: sorted({*cluster.pods(), *cluster.claims()} - {"n0", "n1", "n2"}),
        CHANGE_SECONDS,
    )
    shrunk = time.monotonic() - began
    left = {node for shard in cluster.shards() for node in (*shard.replicas, shard.master)}
    assert left <= {"n0", "n1", "n2"}, "a shard was left behind on a node that is gone"
    assert set(cluster.claims()) == {"n0", "n1", "n2"}, "the volumes of those that stay, stay"
    kept(grown_s=grown, shrunk_s=shrunk)


def test_a_topic_gets_more_queues_and_another_topic_comes(
    cluster: ClusterUnderTest, topic: str, load: Load, kept: Kept
) -> None:
    """The queues that are there go on in the same term, and messages come from the new ones too."""
    loaded = time.monotonic()
    time.sleep(CALM_SECONDS)
    before = {shard.name: (shard.master, shard.epoch) for shard in cluster.shards(topic)}
    began = time.monotonic()
    cluster.add_topic(topic, len(before) + 2)
    cluster.add_topic(f"{topic}-second", 2)
    cluster.wait_whole()
    taken_up = time.monotonic() - began
    after = {shard.name: (shard.master, shard.epoch) for shard in cluster.shards(topic)}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2
    assert len(cluster.shards(f"{topic}-second")) == 2
    time.sleep(max(0.0, loaded + SDK_LOOKS_SECONDS + CALM_SECONDS - time.monotonic()))
    assert kept(taken_up_s=taken_up).queues == len(after), "nothing came from the new queues"


def scale(cluster: ClusterUnderTest, nodes: int) -> None:
    cluster.kube("scale", f"delaycluster/{cluster.name}", f"--replicas={nodes}", "--namespace", cluster.namespace)


@pytest.mark.machines
def test_another_image_is_rolled_out_node_by_node(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, image: str, machines: Machines, kept: Kept
) -> None:
    """Masters hand over before their pod stops, and never is more than one node away."""
    after = f"{image}-next"
    for machine in cluster.kube.workers():  # a pod that is made anew may come to another one
        machines.ctr(machine, "images", "tag", "--force", _full(image), _full(after))
    time.sleep(CALM_SECONDS)
    began = time.monotonic()
    cluster.edit(image=after)
    away = 0

    def unfinished() -> list[str]:
        nonlocal away
        pods = cluster.pods()
        ready = [node for node, pod in pods.items() if _ready(pod)]
        away = max(away, 3 - len(ready))
        old = [node for node, pod in pods.items() if pod["spec"]["containers"][0]["image"] != after]
        return [f"{node} has the old image" for node in old] or cluster.unwhole()

    wait_until("every node has the new image", unfinished, CHANGE_SECONDS)
    kept(rolled_s=time.monotonic() - began)
    assert away == 1, f"{away} nodes were away at once"


def _full(image: str) -> str:
    """The image's name in containerd."""
    return image if image.startswith("docker.io/") else f"docker.io/{image}"


def _ready(pod: dict[str, object]) -> bool:
    status = pod["status"]
    assert isinstance(status, dict)
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


def test_volumes_grow_where_the_class_allows(cluster: ClusterUnderTest, kube: Kubectl, load: Load, kept: Kept) -> None:
    claims = list(cluster.claims().values())
    storage = kube.get("storageclass", claims[0]["spec"]["storageClassName"])
    if not storage.get("allowVolumeExpansion"):
        pytest.skip(f"storage class {storage['metadata']['name']} does not allow it")
    before = {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()}
    size = int(claims[0]["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) + 1
    time.sleep(CALM_SECONDS)
    cluster.edit(storage={"size": f"{size}Gi"})

    def ungrown() -> list[str]:
        found = [kube.get("pvc", one["metadata"]["name"], cluster.namespace) for one in claims]
        sizes = {one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"] for one in found}
        return [f"{name} asks for {asked}" for name, asked in sizes.items() if asked != f"{size}Gi"]

    wait_until("every claim asks for more", ungrown, 60)
    if storage["provisioner"] == HOST_PATH:  # a directory: nobody resizes it, so the test plays the driver
        for one in claims:
            claim = kube.get("pvc", one["metadata"]["name"], cluster.namespace)
            capacity = {"capacity": {"storage": f"{size}Gi"}}
            kube.patch("pv", claim["spec"]["volumeName"], {"spec": capacity})
            kube.patch("pvc", one["metadata"]["name"], {"status": capacity}, cluster.namespace, subresource="status")
    cluster.wait_whole()
    kept()
    assert {node: pod["metadata"]["uid"] for node, pod in cluster.pods().items()} == before, "no pod was restarted"


def test_a_paused_cluster_is_left_as_it_is_but_still_fails_over(
    cluster: ClusterUnderTest, topic: str, load: Load, kept: Kept
) -> None:
    time.sleep(CALM_SECONDS)
    cluster.edit(paused=True)
    try:
        wait_until(
            "the status says so",
            lambda: [] if "Paused" in str(cluster.object["status"]["conditions"]) else [str(cluster.object["status"])],
            30,
        )
        before = cluster.epochs()
        cluster.add_topic(f"{topic}-later", 2)
        victim = cluster.victim(topic)
        led = [shard.name for shard in cluster.shards(topic) if shard.master == victim]
        cluster.kube.delete("pod", cluster.pods()[victim]["metadata"]["name"], cluster.namespace)
        wait_until(
            "every shard that it led has another term",
            lambda: [
                shard.name for shard in cluster.shards() if shard.name in led and shard.epoch <= before[shard.name]
            ],
            60,
        )
        time.sleep(CALM_SECONDS)
        assert set(cluster.epochs()) == set(before), "no shard is made for the new topic"
    finally:
        cluster.edit(paused=False)
    cluster.wait_whole()
    assert len(cluster.shards(f"{topic}-later")) == 2
    kept()
