"""kopf really runs, over the fake API server, in two processes of one release: one acts, the other stands by."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from delayoperator.kube import worker
from delayoperator.plan import Liveness

from tests.kube import fakekinds
from tests.operator.stage import LEASE, LEASE_SECONDS, RunningOperator, Stage

ORDERS = {"name": "orders", "queues": 4}


def leading(stage: Stage, lease_seconds: int = LEASE_SECONDS) -> subprocess.Popen[bytes]:
    """A process that leads, and one whole cluster."""
    process = stage.process(lease_seconds)
    stage.create(topics=[ORDERS])
    stage.settled()
    return process


def warm_standby(stage: Stage, lease_seconds: int = LEASE_SECONDS) -> RunningOperator:
    """One that has seen every node of the cluster renew its lease."""
    standby = stage.operator(lease_seconds=lease_seconds)

    def warm() -> bool:
        alive = [
            view.liveness is Liveness.ALIVE
            for worker in standby.operator.clusters.workers()
            if worker._shards is not None
            for view in worker._shards.nodes.values()
        ]
        return len(alive) == 3 and all(alive)

    stage.until(warm)
    assert standby.operator.election.tenure() is None
    return standby


def template_image(stage: Stage) -> str:
    return str(stage.there("statefulsets", "shop")["spec"]["template"]["spec"]["containers"][0]["image"])


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def masters(stage: Stage) -> set[str]:
    return {it["spec"]["master"] for it in stage.server.list("delayshards")}


def test_a_leader_and_masters_that_die_together_are_replaced_without_a_list(stage: Stage) -> None:
    leader = leading(stage)
    standby = warm_standby(stage)
    lost_s = time.monotonic()
    stage.kubelet.frozen.add("shop-0")  # the machine under both
    stage.kill(leader)
    stage.until(lambda: "n0" not in masters(stage))
    took_s = time.monotonic() - lost_s
    assert standby.operator.election.tenure() == 1
    first = next(it for it in stage.server.requests("PATCH", "/delayshards/", lost_s) if it.status == 200)
    lists = [it for it in stage.server.requests("LIST", "/delayshards", lost_s) if it.at_s < first.at_s]
    assert not lists, "the map was listed before the first master was chosen"
    assert took_s < LEASE_SECONDS + 3, "the nodes' leases were counted while it stood by, not one after the other"


def test_a_standby_writes_nothing_though_it_sees_what_is_to_be_done(stage: Stage) -> None:
    leader = leading(stage)
    standby = warm_standby(stage)
    namespace, _, name = LEASE.partition("/")
    with stopped(leader):  # whatever is written now, the standby has written
        since_s = time.monotonic()
        stage.kubelet.frozen.add("shop-0")
        stage.edit(topics=[{**ORDERS, "queues": 5}])
        while time.monotonic() < since_s + 5:
            renewal = {"spec": {"renewTime": str(time.monotonic())}}  # in the leader's place
            stage.server.store.patch(fakekinds.find("leases"), namespace, name, renewal, "test")
            time.sleep(0.2)
        (worker,) = standby.operator.clusters.workers()
        assert worker._shards is not None
        assert worker._shards.nodes["n0"].liveness is Liveness.DEAD
        assert stage.writes(since_s) == 0
        stage.kubelet.frozen.clear()


def test_a_leader_that_was_frozen_writes_nothing_when_it_wakes(stage: Stage) -> None:
    leader = leading(stage)
    was = stage.leader()
    standby = warm_standby(stage)
    for number in (2, 4):
        stage.edit(topics=[{**ORDERS, "queues": 4 + number}])  # it has something under way
        time.sleep(0.1 * number)
        with stopped(leader):
            stage.until(lambda: standby.operator.election.tenure() is not None)
            stage.settled()
            has = stage.leader()
            # the new leader's last event may come just after its status
            stage.until(lambda: stage.writes(time.monotonic() - 2) == 0)
            since_s = time.monotonic()
            assert has not in ("", was)
        time.sleep(2)
        assert stage.leader() == has, "it does not take its Lease back"
        # What it was about to send when it was stopped, between its last look at the clock and the socket, goes out
        # now: that one request, and the API server refuses it.
        late = stage.written(since_s)
        assert len(late) <= 1, late
        assert all(it.status == 409 for it in late), late
    assert leader.poll() is None


def test_a_write_of_a_dead_leader_that_comes_late_is_refused(stage: Stage) -> None:
    leader = leading(stage)
    warm_standby(stage)
    late = stage.server.fault(method="PATCH", path="/statefulsets/", delay_s=LEASE_SECONDS * 3)
    stage.edit(image="node:2")
    stage.until(lambda: late.met)
    stage.kill(leader)
    sent_s = time.monotonic()
    stage.edit(image="node:3")
    stage.until(lambda: template_image(stage) == "node:3")
    stage.until(lambda: [it for it in stage.server.requests("PATCH", "/statefulsets/", sent_s - 1) if it.status == 409])
    stage.until(lambda: {it["spec"]["containers"][0]["image"] for it in stage.server.list("pods")} == {"node:3"})
    assert template_image(stage) == "node:3"


def test_a_leader_that_is_told_to_stop_gives_its_lease_up_at_once(stage: Stage) -> None:
    seconds = 40  # and 12 until a standby that hears nothing looks for itself
    leader = leading(stage, seconds)
    was = stage.leader()
    standby = warm_standby(stage, seconds)
    stopped_s = time.monotonic()
    leader.terminate()
    stage.until(lambda: stage.leader() not in ("", was))
    took_s = time.monotonic() - stopped_s
    stage.until(lambda: standby.operator.election.tenure() == 1)
    assert took_s < 1.0, f"{took_s} s without a leader"
    assert leader.wait(40) == 0


def test_a_leader_that_may_not_renew_stops_acting_and_begins_again(stage: Stage) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    former = running.operator.election.tenure()
    fault = stage.server.fault(method="PATCH", path="/namespaces/operators/leases/", code=500, times=None)
    stage.until(lambda: running.operator.election.tenure() is None)
    since_s = time.monotonic()
    stage.edit(topics=[{**ORDERS, "queues": 5}])
    time.sleep(2)
    assert stage.writes(since_s) == 0
    fault.times = 0
    stage.settled()
    assert running.operator.election.tenure() not in (None, former)
    assert len(stage.names("delayshards")) == 5


def test_failover_in_a_new_tenure_waits_for_no_pause_after_faults(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "AGAIN_S", (0.1,) * (len(worker.AGAIN_S) - 1) + (30.0,))
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.server.fault(method="PATCH", path="/poddisruptionbudgets/", code=500, times=None)
    stage.delete("poddisruptionbudgets", "shop")
    stage.until(lambda: [it for it in running.events if it.get("again_in_seconds") == 30])
    former = running.operator.election.tenure()
    renewals = stage.server.fault(method="PATCH", path="/namespaces/operators/leases/", code=500, times=None)
    stage.until(lambda: running.operator.election.tenure() is None)
    stage.kubelet.frozen.add("shop-0")
    renewals.times = 0
    stage.until(lambda: running.operator.election.tenure() not in (None, former))
    leads_s = time.monotonic()
    stage.until(lambda: "n0" not in masters(stage))
    assert time.monotonic() - leads_s < 10, "it waited for the worker, which rests for 30 s"


def readiness(running: RunningOperator) -> str:
    try:
        with urllib.request.urlopen(f"http://{running.operator.http_address}/readyz", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def test_a_process_that_may_not_read_the_lease_is_not_ready_and_says_why(stage: Stage) -> None:
    """As with a new image and the chart of before: docs/upgrade.md."""
    words = 'cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "operators"'
    stage.server.fault(path="/namespaces/operators/leases", code=403, message=words, times=None)
    running = stage.operator()
    stage.until(lambda: running.operator.http_address)
    stage.until(lambda: readiness(running) == "lead-unknown\n", lambda: readiness(running))
    (told,) = [it for it in running.events if it["event"] == "lead-unknown"]
    assert told["error"].startswith("Lease delaycluster of namespace operators: ")
    assert f"{words}; the Role delaycluster-leader of this release's chart has the rights to it" in told["error"]
    assert stage.writes(0.0) == 0


def test_a_standby_that_may_not_watch_the_lease_is_ready_and_reads_it(stage: Stage) -> None:
    """Somebody else grants the rights, as of the release before: an operator that is never ready would keep that
    release's running beside the new one."""
    leader = stage.operator()
    stage.until(lambda: leader.operator.election.tenure() == 1)
    refused = stage.server.fault(method="WATCH", path="/namespaces/operators/leases", code=403, times=None)
    standby = stage.operator()
    stage.until(lambda: standby.operator.http_address and "stands by" in readiness(standby))
    met = refused.met
    stage.until(lambda: refused.met > met + 2)
    assert standby.operator.election.fault is None
    assert not [it for it in standby.events if it["event"] == "lead-unknown"]
    leader.close()
    stage.until(lambda: standby.operator.election.tenure() == 1)


def test_the_lease_says_who_leads_since_when_and_for_how_long(stage: Stage) -> None:
    first = stage.operator()
    stage.until(lambda: stage.leader() == first.operator.election.identity)
    namespace, _, name = LEASE.partition("/")
    spec = stage.server.get("leases", name, namespace)["spec"]
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (LEASE_SECONDS, 0)
    first.close()
    assert stage.leader() == ""
    second = stage.operator()
    stage.until(lambda: stage.leader() == second.operator.election.identity)
    assert stage.server.get("leases", name, namespace)["spec"]["leaseTransitions"] == 1
    stage.server.store.delete(fakekinds.find("leases"), namespace, name)
    stage.until(lambda: stage.leader() == second.operator.election.identity)


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_renewal_without_an_answer_costs_no_tenure(stage: Stage, drop: str) -> None:
    running = stage.operator(lease_seconds=10)
    stage.until(lambda: running.operator.election.tenure() == 1)
    fault = stage.server.fault(method="PATCH", path="/namespaces/operators/leases/", drop=drop)
    stage.until(lambda: fault.met)
    began_s, renewals = time.monotonic(), f"/leases/{LEASE.rpartition('/')[2]}"
    # one each two seconds: five take longer than a leader acts by a renewal that was answered before
    stage.until(lambda: sum(it.status == 200 for it in stage.server.requests("PATCH", renewals, began_s)) >= 5)
    assert running.operator.election.tenure() == 1
