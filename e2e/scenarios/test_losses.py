"""Pods, machines and networks are lost under load: nothing acknowledged is, and every shard finds a master."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import wait_until
from e2e.harness.load import Load, Result
from e2e.harness.machines import Machines

FAILOVER_SECONDS = 60.0  # generous: the machines share two cores with all of Kubernetes
FREEZE_SECONDS = 60.0
CALM_SECONDS = 4.0  # of load before the harm, and after all is whole again

Figure = Callable[..., None]


def now_ms() -> int:
    return int(time.time() * 1000)


def masters_elsewhere(cluster: ClusterUnderTest, topic: str, before: dict[str, int], node: str) -> list[str]:
    """What is left of a failover: the shards of `topic` that `node` led and nobody else leads yet."""
    return [
        f"{shard.name}: {shard.master} in epoch {shard.epoch}, serving {shard.serving_epoch}"
        for shard in cluster.shards(topic)
        if shard.name in before and (shard.master == node or shard.serving_epoch <= before[shard.name])
    ]


def led_by(cluster: ClusterUnderTest, topic: str, node: str) -> dict[str, int]:
    """Epochs of the shards of `topic` that `node` leads."""
    return {shard.name: shard.epoch for shard in cluster.shards(topic) if shard.master == node}


def report(figure: Figure, result: Result, cluster_queues: list[int], since_ms: int, **more: float) -> None:
    totals = result.totals
    figure(
        acknowledged=totals["acknowledged"],
        delivered=min(totals["delivered"]),
        errors=result.errors,
        pause_of_sends_s=result.longest("acknowledged", cluster_queues, since_ms),
        pause_of_deliveries_s=result.longest("delivered", cluster_queues, since_ms),
        **{name: round(value, 1) for name, value in more.items()},
    )


def queues_of(led: dict[str, int]) -> list[int]:
    return sorted(int(name.rpartition("-")[2]) for name in led)


@pytest.mark.quick
@pytest.mark.machines
def test_a_killed_container_fails_over_and_loses_nothing(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic)
    led = led_by(cluster, topic, victim)
    pod = cluster.pods()[victim]
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    harmed_ms = now_ms()
    machines.ctr(pod["spec"]["nodeName"], "tasks", "kill", "--signal", "SIGKILL", container)
    # a container that is back within a second may lead again, in a new epoch
    elsewhere = wait_until(
        "another reign of every shard that it led",
        lambda: [
            fault
            for shard in cluster.shards(topic)
            if shard.name in led and shard.serving_epoch <= led[shard.name]
            for fault in [f"{shard.name}: epoch {shard.epoch}, serving {shard.serving_epoch}"]
        ],
        FAILOVER_SECONDS,
    )
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, failover_s=elsewhere, whole_s=whole)
    result.assert_kept()


def test_a_deleted_pod_hands_over_and_loses_nothing(
    cluster: ClusterUnderTest, topic: str, load: Load, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic)
    led = led_by(cluster, topic, victim)
    harmed_ms = now_ms()
    cluster.kube.delete("pod", cluster.pods()[victim]["metadata"]["name"], cluster.namespace)
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, whole_s=whole)
    result.assert_kept()
    assert not masters_elsewhere(cluster, topic, led, ""), "every shard that it led has another reign"


@pytest.mark.machines
def test_a_machine_that_loses_power_loses_no_message(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic, spare=[operator.node])
    machine, led = cluster.machine_of(victim), led_by(cluster, topic, victim)
    harmed_ms = now_ms()
    machines.power_off(machine)
    try:
        elsewhere = wait_until(
            "another master", lambda: masters_elsewhere(cluster, topic, led, victim), FAILOVER_SECONDS
        )
        time.sleep(CALM_SECONDS)
    finally:
        machines.power_on(machine)
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, failover_s=elsewhere, whole_s=whole)
    result.assert_kept()


@pytest.mark.machines
def test_an_unplugged_machine_is_replaced_and_comes_back(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic, spare=[operator.node])
    machine, led = cluster.machine_of(victim), led_by(cluster, topic, victim)
    harmed_ms = now_ms()
    machines.unplug(machine)
    try:
        elsewhere = wait_until(
            "another master", lambda: masters_elsewhere(cluster, topic, led, victim), FAILOVER_SECONDS
        )
        time.sleep(CALM_SECONDS)
    finally:
        machines.plug_in(machine)
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, failover_s=elsewhere, whole_s=whole)
    result.assert_kept()


@pytest.mark.machines
def test_a_machine_cut_from_the_api_server_only_is_never_a_second_master(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    """It still reaches clients and copies, but its lease runs out: the set checker would see two masters."""
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic, spare=[operator.node])
    machine, led = cluster.machine_of(victim), led_by(cluster, topic, victim)
    harmed_ms = now_ms()
    machines.cut_api(machine)
    try:
        elsewhere = wait_until(
            "another master", lambda: masters_elsewhere(cluster, topic, led, victim), FAILOVER_SECONDS
        )
        time.sleep(CALM_SECONDS)
    finally:
        machines.join_api(machine)
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, failover_s=elsewhere, whole_s=whole)
    result.assert_kept()


@pytest.mark.machines
def test_a_frozen_api_server_stops_no_message_and_fails_nothing_over(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    before, restarts = cluster.epochs(), operator.restarts()
    harmed_ms = now_ms()
    machines.freeze_api()
    try:
        time.sleep(FREEZE_SECONDS)
    finally:
        machines.thaw_api()
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, list(range(len(cluster.shards(topic)))), harmed_ms, whole_s=whole)
    result.assert_kept()
    assert cluster.epochs() == before, "a shard failed over though only the API server was away"
    assert operator.restarts() == restarts, "the operator was restarted"


@pytest.mark.machines
def test_a_loss_while_the_operator_is_down_waits_for_it_and_the_others_go_on(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    time.sleep(CALM_SECONDS)
    victim = cluster.victim(topic, spare=[operator.node])
    machine, led = cluster.machine_of(victim), led_by(cluster, topic, victim)
    others = [shard.queue for shard in cluster.shards(topic) if shard.name not in led]
    operator.scale(0)
    harmed_ms = now_ms()
    try:
        machines.power_off(machine)
        time.sleep(15)
        assert led_by(cluster, topic, victim) == led, "nobody but the operator may choose masters"
        operator.scale(1)
        elsewhere = wait_until(
            "another master", lambda: masters_elsewhere(cluster, topic, led, victim), FAILOVER_SECONDS
        )
    finally:
        operator.scale(1)
        machines.power_on(machine)
    whole = cluster.wait_whole()
    time.sleep(CALM_SECONDS)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, failover_s=elsewhere, whole_s=whole)
    result.assert_kept()
    assert others, "some shards are led by others"
    waited = result.longest("delivered", others, harmed_ms)
    assert waited < 15, f"shards with a living master delivered nothing for {waited} s"


@pytest.mark.machines
def test_two_operators_at_once_choose_one_master_each(
    cluster: ClusterUnderTest, operator: Release, topic: str, load: Load, machines: Machines, figure: Figure
) -> None:
    operator.scale(2)
    try:
        time.sleep(CALM_SECONDS)
        victim = cluster.victim(topic)
        led = led_by(cluster, topic, victim)
        pod = cluster.pods()[victim]
        harmed_ms = now_ms()
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        machines.ctr(pod["spec"]["nodeName"], "tasks", "kill", "--signal", "SIGKILL", container)
        whole = cluster.wait_whole()
        time.sleep(CALM_SECONDS)
        assert operator.restarts() == 0, "an operator fell"
    finally:
        operator.scale(1)
    result = load.finish()
    report(figure, result, queues_of(led), harmed_ms, whole_s=whole)
    result.assert_kept()
    assert cluster.wait_whole(30) >= 0, "one operator less changes nothing"
