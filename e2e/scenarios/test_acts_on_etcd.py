"""etcd is put back to an older state while pods and volumes go on: 10,000 messages are pending, all are delivered.

What a person does then is docs/operations.md's, under RegistryBehind and OrphanedCopies.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.harness.acts import SPEC, adopt, check_all_is_there, says, send, uids
from e2e.harness.delaycluster import API_VERSION, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.machines import Kubelab, Machines

ACT_SECONDS = 120.0
REBALANCE = "e2e-acts"

Figure = Callable[..., None]


@pytest.fixture
def etcd(machines: Machines) -> Kubelab:
    if not isinstance(machines, Kubelab):
        pytest.skip("only kubelab can put etcd back")
    return machines


def spares(cluster: ClusterUnderTest) -> dict[str, str]:
    """By shard (`orders-0`): the node without a copy."""
    nodes = set(cluster.pods())
    return {f"{it.topic}-{it.queue}": next(iter(nodes - {*it.replicas})) for it in cluster.shards()}


def move(cluster: ClusterUnderTest) -> None:
    for shard, to in spares(cluster).items():
        cluster.delayctl("shards", "move", shard, "--to", to, "--wait")


def switch_over(cluster: ClusterUnderTest) -> None:
    for shard in spares(cluster):
        cluster.delayctl("shards", "switchover", shard)


def rebalance(cluster: ClusterUnderTest) -> None:
    kube, to = cluster.kube, spares(cluster)
    masters = {f"{it.topic}-{it.queue}": it.replicas[0] for it in cluster.shards()}
    moves = [{"shard": shard, "from": masters[shard], "to": to[shard]} for shard in masters]
    names = {"name": REBALANCE, "namespace": cluster.namespace}
    spec = {"cluster": cluster.name, "moves": moves}
    kube.apply({"apiVersion": API_VERSION, "kind": "DelayRebalance", "metadata": names, "spec": spec})

    def wait_state(wanted: str) -> dict[str, dict[str, str]]:
        def other() -> list[str]:
            status = kube.get("delayrebalance", REBALANCE, cluster.namespace).get("status", {})
            return [] if status.get("state") == wanted else [str(status)]

        wait_until(f"the DelayRebalance is {wanted}", other, ACT_SECONDS)
        found: dict[str, dict[str, str]] = kube.get("delayrebalance", REBALANCE, cluster.namespace)["status"]
        return found

    approve = f"delaycluster.io/approve={wait_state('ProposalReady')['plan']['hash']}"
    kube("annotate", "delayrebalance", REBALANCE, approve, "--namespace", cluster.namespace)
    wait_state("Ready")


@pytest.mark.machines
@pytest.mark.parametrize("act", [move, switch_over, rebalance])
def test_etcd_of_before_an_act_on_shards_costs_no_message(
    acted: ClusterUnderTest, etcd: Kubelab, figure: Figure, act: Callable[[ClusterUnderTest], None]
) -> None:
    before, older = uids(acted), acted.epochs()
    etcd.save_etcd()
    act(acted)
    acted.wait_whole()
    newer = acted.epochs()
    assert all(newer[name] > epoch for name, epoch in older.items()), f"no other term began: {older}, {newer}"
    etcd.restore_etcd()
    said = says(acted, "`delayctl adopt` brings it up")
    adopt(acted)
    figure(act=f"etcd of before a {act.__name__}", said_s=said, **check_all_is_there(acted, before))


def unsaid(cluster: ClusterUnderTest, before: dict[str, str]) -> list[str]:
    """Nothing once conditions tell of the shards: the cluster's, of copies without a topic; or, where the operator took
    these up by the topics that it still knew before it heard that there are none any more, the shards' own."""
    degraded = cluster.condition("Degraded")
    surplus = {it.name for it in cluster.shards() if it.surplus}
    told = "no topic has this shard" in degraded.get("message", "") or surplus == before.keys()
    return [] if told else [f"Degraded: {degraded}, shards: {cluster.shards()}"]


@pytest.mark.machines
def test_etcd_of_before_a_topic_costs_no_message(
    operator: Release, kube: Kubectl, namespace: str, etcd: Kubelab, figure: Figure
) -> None:
    cluster = ClusterUnderTest(kube, "acts", namespace)
    cluster.apply(**{**SPEC, "topics": []})
    cluster.wait_whole()
    etcd.save_etcd()
    cluster.apply(**SPEC)
    cluster.wait_whole()
    send(cluster)
    before = uids(cluster)
    etcd.restore_etcd()
    said = wait_until("the conditions say that no topic has these shards", lambda: unsaid(cluster, before), ACT_SECONDS)
    cluster.apply(**SPEC)
    figure(act="etcd of before a topic", said_s=round(said, 1), **check_all_is_there(cluster, before))
