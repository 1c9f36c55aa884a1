"""Pods, machines and networks are lost under load: nothing acknowledged is, and every shard finds a master."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import pytest

from e2e.conftest import QUEUES
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import REPLICAS, Release
from e2e.harness.kubectl import Object, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result
from e2e.harness.machines import Machines

FAILOVER_SECONDS = 60.0  # generous: the machines share two cores with all of Kubernetes
NEW_MASTERS_SECONDS = 15.0  # after the machine of the operator that leads has lost power
ALONE_SECONDS = 180.0  # without any operator: Kubernetes notices that a machine is lost after 50 s
PLANNED_PAUSE_SECONDS = 1.0  # of sends and of deliveries, while that machine is drained and while it takes over again
FREEZE_SECONDS = 60.0
REPLACE_AFTER_SECONDS = 15
REPLACED_SECONDS = 90.0

Epochs = dict[str, int]  # by shard
Figure = Callable[..., None]


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Trial:
    """A whole cluster with a load on one topic, to be harmed."""

    cluster: ClusterUnderTest
    operator: Release
    topic: str
    load: Load
    figure: Figure

    def led_by(self, node: str) -> Epochs:
        """The epochs of the topic's shards that `node` leads."""
        return {shard.name: shard.epoch for shard in self.cluster.shards(self.topic) if shard.master == node}

    def wait_leads(self, node: str) -> None:
        wait_until(f"{node} leads something", lambda: [] if self.led_by(node) else ["nothing yet"], FAILOVER_SECONDS)

    def choose(self, spare: str = "") -> tuple[str, Epochs]:
        """After a calm moment: the node to harm, and what it leads. spare: a Kubernetes node to leave alone."""
        time.sleep(CALM_SECONDS)
        victim = self.cluster.victim(self.topic, [spare] if spare else [])
        return victim, self.led_by(victim)

    def machine(self) -> tuple[str, str, Epochs]:
        """The Kubernetes node to harm, not the operator's; the node id on it, and what that leads."""
        victim, led = self.choose(self.operator.node)
        return self.cluster.machine_of(victim), victim, led

    def container(self, node: str) -> tuple[str, str]:
        """The Kubernetes node under a node id, and the container's name in its containerd."""
        pod = self.cluster.pods()[node]
        name: str = pod["status"]["containerStatuses"][0]["containerID"]
        return pod["spec"]["nodeName"], name.removeprefix("containerd://")

    def wait_terms(self, led: Epochs, not_by: str = "", seconds: float = FAILOVER_SECONDS) -> float:
        """Until each of those shards is served in a later epoch, and not by that node: seconds."""
        return wait_until(
            "another term of every shard that it led",
            lambda: [
                f"{shard.name}: {shard.master} in epoch {shard.epoch}, serving {shard.serving_epoch}"
                for shard in self.cluster.shards(self.topic)
                if shard.name in led and (shard.master == not_by or shard.serving_epoch <= led[shard.name])
            ],
            seconds,
        )

    def lose_machine(
        self,
        harm: Callable[[str], None],
        mend: Callable[[str], None],
        meanwhile: Callable[[str], dict[str, float]] = lambda node: {},
    ) -> Result:
        """A machine under some masters goes: others take over. It comes back: all is whole again.

        meanwhile: what is to be seen before it comes back, with the seconds that it took. It is given the node id.
        """
        machine, victim, led = self.machine()
        harmed_ms = now_ms()
        harm(machine)
        try:
            elsewhere = self.wait_terms(led, not_by=victim)
            seen = meanwhile(victim)
            time.sleep(CALM_SECONDS)
        finally:
            mend(machine)
        return self.settle(led, harmed_ms, failover_s=elsewhere, **seen)

    def settle(self, led: Epochs, harmed_ms: int, **seconds: float) -> Result:
        """Waits until all is whole, ends the load, notes the figures: every promise was kept."""
        whole = self.cluster.wait_whole()
        time.sleep(CALM_SECONDS)
        result = self.load.finish()
        queues = sorted(int(name.rpartition("-")[2]) for name in led)
        self.figure(
            acknowledged=result.totals["acknowledged"],
            delivered=min(result.totals["delivered"]),
            missing=sum(result.totals["missing"]),
            errors=result.errors,
            pause_of_sends_s=result.longest("acknowledged", queues, harmed_ms),
            pause_of_deliveries_s=result.longest("delivered", queues, harmed_ms),
            first_delivery_s=result.resumed("delivered", queues, harmed_ms),
            **{name: round(value, 1) for name, value in seconds.items()},
            whole_s=round(whole, 1),
        )
        result.assert_kept()
        return result


@pytest.fixture
def trial(cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, figure: Figure) -> Trial:
    return Trial(cluster, operator, topic, load, figure)


@pytest.mark.quick
@pytest.mark.machines
def test_a_killed_container_fails_over_and_loses_nothing(trial: Trial, machines: Machines) -> None:
    victim, led = trial.choose()
    machine, container = trial.container(victim)
    harmed_ms = now_ms()
    machines.ctr(machine, "tasks", "kill", "--signal", "SIGKILL", container)
    elsewhere = trial.wait_terms(led)  # a container that is back within a second may lead again, in a new epoch
    trial.settle(led, harmed_ms, failover_s=elsewhere)


def test_a_deleted_pod_hands_over_and_loses_nothing(trial: Trial) -> None:
    victim, led = trial.choose()
    harmed_ms = now_ms()
    cluster = trial.cluster
    cluster.kube.delete("pod", cluster.pods()[victim]["metadata"]["name"], cluster.namespace)
    elsewhere = trial.wait_terms(led)
    trial.settle(led, harmed_ms, failover_s=elsewhere)


@pytest.mark.quick
@pytest.mark.machines
def test_a_machine_that_loses_power_loses_no_message(trial: Trial, machines: Machines) -> None:
    trial.lose_machine(machines.power_off, machines.power_on)


@pytest.mark.machines
def test_a_pod_that_hangs_in_terminating_holds_no_shard_back(trial: Trial, machines: Machines) -> None:
    """The machine lost power, so its kubelet can't report that the pod has ended, and Kubernetes keeps the pod."""
    cluster = trial.cluster
    lost: list[Object] = []

    def off(machine: str) -> None:
        lost.extend(pod for pod in cluster.pods().values() if pod["spec"]["nodeName"] == machine)
        machines.power_off(machine)
        for pod in lost:
            cluster.kube("delete", "pod", pod["metadata"]["name"], "--namespace", cluster.namespace, "--wait=false")

    def hangs(node: str) -> dict[str, float]:
        pod = cluster.pods()[node]["metadata"]
        assert pod["uid"] in [one["metadata"]["uid"] for one in lost], "it was replaced: nothing hung"
        assert "deletionTimestamp" in pod, "it was not deleted"
        return {}

    trial.lose_machine(off, machines.power_on, hangs)


@pytest.fixture
def soon_replaced(cluster: ClusterUnderTest) -> Iterator[None]:
    """A node that is away for a few seconds counts as lost for good."""
    cluster.edit(failover={"replaceAfterSeconds": REPLACE_AFTER_SECONDS})
    yield
    cluster.edit(failover={"replaceAfterSeconds": None})


@pytest.mark.machines
def test_an_unplugged_machine_is_replaced_and_comes_back(soon_replaced: None, trial: Trial, machines: Machines) -> None:
    """Its copies are made anew on the others while it is away; what it still has when it is back is of no use."""
    cluster = trial.cluster

    def replaced(node: str) -> dict[str, float]:
        def left() -> list[str]:
            holds = [f"{shard.name} has a copy on {node}" for shard in cluster.shards() if node in shard.replicas]
            return holds or [fault for shard in cluster.shards() for fault in shard.faults]

        return {"replaced_s": wait_until(f"no copy is left to {node}, all others are in sync", left, REPLACED_SECONDS)}

    trial.lose_machine(machines.unplug, machines.plug_in, replaced)


@pytest.mark.machines
def test_a_machine_cut_from_the_api_server_only_is_never_a_second_master(trial: Trial, machines: Machines) -> None:
    """It still reaches clients and copies, but its lease runs out: the set checker would see two masters."""
    trial.lose_machine(machines.cut_api, machines.join_api)


@pytest.mark.machines
def test_a_frozen_api_server_stops_no_message_and_fails_nothing_over(trial: Trial, machines: Machines) -> None:
    time.sleep(CALM_SECONDS)
    before, restarts = trial.cluster.epochs(), trial.operator.restarts()
    all_of_them = {shard.name: shard.epoch for shard in trial.cluster.shards(trial.topic)}
    harmed_ms = now_ms()
    machines.freeze_api()
    try:
        time.sleep(FREEZE_SECONDS)
    finally:
        machines.thaw_api()
    trial.settle(all_of_them, harmed_ms)
    assert trial.cluster.epochs() == before, "a shard failed over though only the API server was away"
    assert trial.operator.restarts() == restarts, "the operator was restarted"


@pytest.mark.machines
def test_a_loss_while_the_operator_is_down_waits_for_it_and_the_others_go_on(trial: Trial, machines: Machines) -> None:
    machine, victim, led = trial.machine()
    others = [shard.queue for shard in trial.cluster.shards(trial.topic) if shard.name not in led]
    assert others, "some shards are led by others"
    trial.operator.scale(0)
    harmed_ms = now_ms()
    try:
        machines.power_off(machine)
        time.sleep(15)
        assert trial.led_by(victim) == led, "nobody but the operator may choose masters"
        trial.operator.scale(1)
        elsewhere = trial.wait_terms(led, not_by=victim)
    finally:
        machines.power_on(machine)
        trial.operator.scale(REPLICAS)
    result = trial.settle(led, harmed_ms, failover_s=elsewhere)
    waited = result.longest("delivered", others, harmed_ms)
    assert waited < 15, f"shards with a living master delivered nothing for {waited} s"


def place_operators(operator: Release, machines: Collection[str]) -> set[str]:
    """Operators anew, on these machines alone, and on two of them if there are two: the ones that they are on."""
    closed = [it for it in operator.kube.workers() if it not in machines]
    try:
        for machine in closed:
            operator.kube("cordon", machine)
        operator.restart()
        (first, *_), found = operator.pods(), operators_machines(operator)
        if len(found) < min(REPLICAS, len(machines)):  # Kubernetes prefers two, and may give them one
            closed += found
            operator.kube("cordon", *found)
            operator.kube.delete("pod", first["metadata"]["name"], operator.namespace)
            operator.wait_ready()
            found = operators_machines(operator)
    finally:
        for machine in closed:
            operator.kube("uncordon", machine)
    assert found <= set(machines)
    return found


def operators_machines(operator: Release) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in operator.pods()}


def start_trial(cluster: ClusterUnderTest, operator: Release, topic: str, image: str, figure: Figure) -> Trial:
    """With the load on a machine without an operator, and without a node if there is one."""
    under_nodes = {pod["spec"]["nodeName"] for pod in cluster.pods().values()}
    busy = {pod["spec"]["nodeName"] for pod in operator.pods()}
    machine = min(set(cluster.kube.workers()) - busy, key=lambda it: (it in under_nodes, it))
    settings = {"endpoints": [cluster.endpoint], "topic": topic, "queues": QUEUES, "rate": 400}
    load = Load.start(cluster.kube, cluster.namespace, "load", image, machine, **settings)
    return Trial(cluster, operator, topic, load, figure)


def spread_nodes(cluster: ClusterUnderTest, spare: str) -> set[str]:
    """The machines that nodes are on, but for `spare`: at least as many as there are operators. A drain may have moved
    one to a machine that had one."""
    while True:
        where = {node: pod["spec"]["nodeName"] for node, pod in sorted(cluster.pods().items())}
        found = set(where.values()) - {spare}
        if len(found) >= REPLICAS:
            return found
        alone = {machine: node for node, machine in where.items() if machine != spare}  # one of each machine stays
        moved = next(node for node in where if node not in alone.values())
        taken = found | {spare}
        for machine in taken:
            cluster.kube("cordon", machine)
        try:
            cluster.kube.delete("pod", cluster.pods()[moved]["metadata"]["name"], cluster.namespace)
            cluster.wait_whole()
        finally:
            for machine in taken:
                cluster.kube("uncordon", machine)


def put_beside_nodes(operator: Release, cluster: ClusterUnderTest, spare: str = "") -> None:
    """Each of the operator's pods shares a machine with a node, and with no other operator. spare: a machine to leave
    alone: a node may have moved to the load's."""
    under_nodes = spread_nodes(cluster, spare)
    found = operators_machines(operator)
    if len(found) < REPLICAS or not found <= under_nodes:
        found = place_operators(operator, under_nodes)
    assert len(found) == REPLICAS, f"two operators are on one machine: {found}"


@pytest.fixture
def beside(cluster: ClusterUnderTest, operator: Release, topic: str, image: str, figure: Figure) -> Iterator[Trial]:
    """A trial whose operators are beside nodes."""
    put_beside_nodes(operator, cluster)
    trial = start_trial(cluster, operator, topic, image, figure)
    yield trial
    trial.load.remove()


@pytest.fixture
def together(cluster: ClusterUnderTest, operator: Release, topic: str, image: str, figure: Figure) -> Iterator[Trial]:
    """A trial in which all of the operator's pods are on one machine, with a node that leads something."""
    place_operators(operator, [cluster.machine_of(cluster.victim(topic))])
    trial = start_trial(cluster, operator, topic, image, figure)
    yield trial
    trial.load.remove()


def beside_the_leader(trial: Trial) -> tuple[str, str, Epochs]:
    """The machine of the operator that leads, the node on it, and what that leads, once it leads something."""
    machine = trial.operator.node
    (victim,) = (node for node in trial.cluster.pods() if trial.cluster.machine_of(node) == machine)
    trial.wait_leads(victim)
    time.sleep(CALM_SECONDS)
    return machine, victim, trial.led_by(victim)


@pytest.mark.machines
def test_the_leading_operators_machine_loses_power_with_masters_on_it(
    beside: Trial, machines: Machines, pytestconfig: pytest.Config
) -> None:
    """--rounds 10: so often, one leader after the other."""
    took: list[float] = []
    for _ in range(pytestconfig.option.rounds):
        put_beside_nodes(beside.operator, beside.cluster, beside.load.machine)
        machine, victim, led = beside_the_leader(beside)
        leader, harmed_s, harmed_ms = beside.operator.leader, time.monotonic(), now_ms()
        machines.power_off(machine)
        try:
            beside.wait_terms(led, not_by=victim)
            took.append(round(time.monotonic() - harmed_s, 1))
            assert beside.operator.leader not in ("", leader)
        finally:
            machines.power_on(machine)
        beside.cluster.wait_whole()
        beside.operator.wait_ready()
    beside.figure(new_masters_s=took, median_s=statistics.median(took), worst_s=max(took))
    beside.settle(led, harmed_ms)
    assert max(took) < NEW_MASTERS_SECONDS


@pytest.mark.machines
def test_a_lost_machine_with_both_operators_is_followed_once_they_run_elsewhere(
    together: Trial, machines: Machines
) -> None:
    machine, victim, led = beside_the_leader(together)
    harmed_s, harmed_ms = time.monotonic(), now_ms()
    machines.power_off(machine)
    try:
        together.wait_terms(led, not_by=victim, seconds=ALONE_SECONDS)
        took = time.monotonic() - harmed_s
        assert together.operator.node != machine
    finally:
        machines.power_on(machine)
    together.operator.wait_ready()
    together.settle(led, harmed_ms, failover_s=took)


def test_a_drain_of_the_leading_operators_machine_pauses_nothing(beside: Trial, pytestconfig: pytest.Config) -> None:
    """Nor does the way back of its masters, once it is uncordoned. --rounds 10: so often."""
    kube, cluster, operator = beside.cluster.kube, beside.cluster, beside.operator
    drains: list[tuple[int, int]] = []  # began, ended, ms since 1970 UTC
    returns: list[tuple[int, int]] = []
    for _ in range(pytestconfig.option.rounds):
        put_beside_nodes(operator, cluster, beside.load.machine)
        machine, victim, led = beside_the_leader(beside)
        leader, harmed_ms = operator.leader, now_ms()
        try:
            kube("drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", seconds=130)
            beside.wait_terms(led, not_by=victim)
            assert operator.leader not in ("", leader)
            time.sleep(CALM_SECONDS)
            drained_ms = now_ms()
        finally:
            kube("uncordon", machine)
        operator.wait_ready()
        cluster.wait_whole()
        beside.wait_leads(victim)
        cluster.wait_whole()
        time.sleep(CALM_SECONDS)
        drains.append((harmed_ms, drained_ms))
        returns.append((drained_ms, now_ms()))
    result = beside.settle(led, harmed_ms)
    pauses = {
        f"{name}_pause_{which}_s": [result.longest(which, range(QUEUES), *one) for one in times]
        for name, times in (("drains", drains), ("returns", returns))
        for which in ("acknowledged", "delivered")
    }
    beside.figure(**pauses)
    assert max(map(max, pauses.values())) <= PLANNED_PAUSE_SECONDS, pauses
