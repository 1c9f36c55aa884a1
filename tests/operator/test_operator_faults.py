"""kopf really runs, over the fake API server: an API server that misbehaves, operators that are killed, two at once."""

from __future__ import annotations

import threading
import time

import pytest

from tests.kube.fakefaults import Fault
from tests.operator.stage import LEASE, RunningOperator, Stage

ORDERS = {"name": "orders", "queues": 4}
OWNED = ("statefulsets", "services", "poddisruptionbudgets", "serviceaccounts", "roles", "configmaps", "leases")


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_writes_that_fail_are_tried_again(stage: Stage, code: int) -> None:
    fault = stage.server.fault(method="PATCH", path="/(services|statefulsets|roles)/", code=code, times=12)
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert fault.met == 12
    assert [it for it in running.events if it["event"] == "round-incomplete"]


def test_an_error_that_stays_is_said_with_its_object_and_the_rest_goes_on(stage: Stage) -> None:
    fault = stage.server.fault(method="PATCH", path="/poddisruptionbudgets/", code=500, times=None)
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.until(lambda: stage.reason("Degraded") == "ApplyFailed")
    assert "apply PodDisruptionBudget shop: 500 InternalError" in stage.condition("Degraded")["message"]
    stage.until(lambda: stage.reason("Ready") == "Serving")
    since_s, met = time.monotonic(), fault.met
    time.sleep(5)
    assert 0 < fault.met - met < 10, "again and again, but not hastily"
    came = stage.server.writes(since_s, but=("/leases/", "/delayshards/", "/events"))
    assert came <= fault.met - met + 3, "nothing else is written meanwhile"
    fault.times = 0
    stage.settled()


def noticed(operator: RunningOperator) -> bool:
    """Whether its election has seen versions go back."""
    return any(it["event"] == "registry-went-back" and "newest" in it for it in operator.events)


def test_a_cluster_that_is_made_after_an_older_state_was_restored_is_looked_after(stage: Stage) -> None:
    """Its versions are below those that watches had come to: they would tell of it when it is gone, or never."""
    running, store = stage.operator(lease_seconds=10), stage.server.store
    stage.create(nodes=1, replicas=1)
    stage.settled()
    standby = stage.operator(lease_seconds=10)
    stage.until(lambda: [it for it in standby.events if it["event"] == "operator-stands-by"])
    backup = store.backup()
    with store.lock:
        store.version += 10_000  # by writes of others
    began_s = time.monotonic()
    stage.patch("delayclusters", "shop", {"metadata": {"annotations": {"seen": "late"}}})
    heard = store.version
    stage.until(lambda: stage.server.requests("GET", "/delayclusters/shop", began_s))
    renewals = f"/leases/{LEASE.rpartition('/')[2]}"
    stage.until(lambda: len(stage.server.requests("PATCH", renewals, began_s)) > 1)  # the standby has heard of one
    store.restore(backup)
    stage.server.break_watches()
    stage.create("other", nodes=1, replicas=1)
    stage.settled("other")
    assert store.version < heard, "a watch from there would have told of nothing yet"
    stage.until(lambda: noticed(running) and noticed(standby))


def told_and_mended(stage: Stage, fault: Fault, words: str) -> None:
    """A right that is missing is named, and when it is there again all is well."""
    stage.until(lambda: stage.reason("Degraded") == "Forbidden")
    assert words in stage.condition("Degraded")["message"]
    fault.times = 0
    stage.settled()


def test_a_right_that_is_missing_is_named(stage: Stage) -> None:
    fault = stage.server.fault(method="PATCH", path="/roles/", code=403, times=None)
    stage.operator()
    stage.create(topics=[ORDERS])
    told_and_mended(stage, fault, "the operator may not apply Role shop-node")


def test_a_list_that_is_refused_is_said_too(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    fault = stage.server.fault(path="/roles$", code=403, times=None)
    stage.server.break_watches()
    stage.edit(minInSync=2)
    told_and_mended(stage, fault, "the operator may not list Roles of default")


def test_an_api_server_that_asks_for_time_gets_it(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    fault = stage.server.fault(method="PATCH", path="/services/", code=429, retry_after_s=4, times=None)
    stage.delete("services", "shop-client")
    stage.until(lambda: fault.met > 0)
    time.sleep(3)
    assert fault.met <= 3
    fault.times = 0
    stage.settled()


def test_answers_that_never_come_cost_time_and_nothing_else(stage: Stage) -> None:
    stage.server.fault(method="PATCH", path="/(services|statefulsets|configmaps)/", drop="after", times=4)
    stage.server.fault(method="POST", path="/delayshards", drop="after", times=2)
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert len(stage.names("delayshards")) == 4


def test_a_frozen_api_server_fails_nothing_over(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    before = {it["metadata"]["name"]: it["spec"]["epoch"] for it in stage.server.list("delayshards")}
    with stage.kubelet.lock:  # the nodes' renewals go by the same server
        stage.server.freeze()
        time.sleep(8)
        stage.server.thaw()
    time.sleep(6)
    assert before == {it["metadata"]["name"]: it["spec"]["epoch"] for it in stage.server.list("delayshards")}
    stage.settled()
    stage.edit(minInSync=2)
    stage.settled()


def test_broken_and_expired_watches_hide_nothing(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.server.break_watches()
    stage.server.expire_watches()
    stage.edit(topics=[{"name": "orders", "queues": 5}])
    stage.until(lambda: "shop.orders-4" in stage.names("delayshards"))
    stage.delete("services", "shop-client")
    stage.until(lambda: stage.get("services", "shop-client"))
    stage.settled()


def test_two_operators_at_once_come_to_the_same_and_then_to_rest(stage: Stage) -> None:
    first, second = stage.operator(), stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(image="node:2", nodes=4, topics=[{"name": "orders", "queues": 6}])
    stage.until(lambda: {it["spec"]["containers"][0]["image"] for it in stage.server.list("pods")} == {"node:2"})
    stage.settled()
    restarted = [name for name in stage.kubelet.restarts if name != "shop-3"]
    assert sorted(restarted) == ["shop-0", "shop-1", "shop-2"], "each once"
    assert len(stage.names("delayshards")) == 6
    # Shards move to a new node after ten calm seconds; two operators that disagreed would then write for ever.
    stage.until(lambda: "n3" in {node for it in stage.server.list("delayshards") for node in it["spec"]["replicas"]})
    stage.settled()

    def rests() -> bool:
        since_s = time.monotonic()
        time.sleep(4)
        return stage.writes(since_s) == 0

    stage.until(rests)
    for running in (first, second):
        assert not [it for it in running.events if it["event"] in ("round-failed", "control-loop-failed")]


def test_a_faulty_round_is_said_and_the_next_one_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    from delayoperator.kube import reconcile

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "summarize_shards", broken)
        stage.edit(minInSync=2)
        stage.until(lambda: stage.events("OperatorError"))
        stage.until(lambda: stage.reason("Degraded") == "OperatorError")
        assert "ZeroDivisionError: planted" in stage.events("OperatorError")[0]["message"]
    stage.settled()
    assert [it for it in running.events if it["event"] == "round-failed"]


class Killer:
    """Kills the operator's process at odd moments and starts another, until it is told to stop."""

    def __init__(self, stage: Stage, lives_s: tuple[float, ...]) -> None:
        self.stage, self.lives_s, self.kills = stage, lives_s, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for life_s in self.lives_s:
            before, process = self.stage.leader(), self.stage.process()
            until_s = time.monotonic() + 20
            while self.stage.leader() in ("", before) and time.monotonic() < until_s:
                time.sleep(0.02)
            if self.over.wait(life_s):
                return
            self.stage.kill(process)
            self.kills += 1
        self.stage.process()

    def __enter__(self) -> Killer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join()


def test_an_operator_that_is_killed_again_and_again_gets_everything_done(stage: Stage) -> None:
    with Killer(stage, (0.05, 0.2, 0.5)) as killer:
        stage.create(topics=[ORDERS])
    stage.settled()
    assert killer.kills == 3
    assert len(stage.names("delayshards")) == 4


def test_a_restart_goes_on_under_the_next_operator(stage: Stage) -> None:
    first = stage.process()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(image="node:2")
    stage.until(lambda: stage.kubelet.restarts)
    stage.kill(first)
    with Killer(stage, (0.3, 1.0)):
        pass
    stage.until(lambda: {it["spec"]["containers"][0]["image"] for it in stage.server.list("pods")} == {"node:2"})
    stage.settled()
    assert sorted(stage.kubelet.restarts) == ["shop-0", "shop-1", "shop-2"], "no pod was restarted twice"


def test_other_changes_go_on_under_the_next_operator(stage: Stage) -> None:
    first = stage.process()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(nodes=5, storage={"size": "20Gi"}, topics=[{"name": "orders", "queues": 9}])
    stage.until(lambda: len(stage.pods()) > 3 or len(stage.names("delayshards")) > 4)
    stage.kill(first)
    with Killer(stage, (0.3, 1.0)):
        pass

    def done() -> bool:
        claims = stage.server.list("persistentvolumeclaims")
        sizes = {it["spec"]["resources"]["requests"]["storage"] for it in claims}
        return len(stage.pods()) == 5 and sizes == {"20Gi"} and len(stage.names("delayshards")) == 9

    stage.until(done)
    stage.settled()
    assert stage.kubelet.restarts == []


def test_failovers_do_not_wait_for_a_right_that_is_missing(stage: Stage) -> None:
    first = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    first.close()
    stage.server.fault(method="LIST", path="/roles$", code=403, times=None)
    stage.operator()
    stage.kubelet.frozen.add("shop-0")
    stage.until(lambda: all(it["spec"]["master"] != "n0" for it in stage.server.list("delayshards")))


def test_spec_that_another_release_granted_are_driven_on(stage: Stage) -> None:
    first = stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    first.close()
    stage.patch("configmaps", "shop-cluster", {"data": {"granted.json": '{"nodes": "three"}'}})
    stage.edit(nodes=0)
    stage.operator()
    stage.until(lambda: stage.reason("Degraded") == "InvalidSpec")
    stage.kubelet.frozen.add("shop-0")
    stage.until(lambda: all(it["spec"]["master"] != "n0" for it in stage.server.list("delayshards")))
    stage.until(lambda: "of 4 shards" in stage.condition("Ready")["message"])
    stage.kubelet.frozen.clear()
    stage.edit(nodes=3)
    stage.settled()


def test_a_scale_in_goes_on_under_a_new_operator(stage: Stage) -> None:
    first = stage.process()
    stage.create(nodes=5, topics=[{"name": "orders", "queues": 10}])
    stage.settled()
    stage.edit(nodes=3)
    stage.until(lambda: stage.reason("Progressing") == "ScalingIn")
    stage.kill(first)
    with Killer(stage, (0.5, 1.5)):
        pass
    stage.until(lambda: len(stage.pods()) == 3)
    stage.settled()
    placed = {node for it in stage.server.list("delayshards") for node in it["spec"]["replicas"]}
    assert placed <= {"n0", "n1", "n2"}


def test_the_process_ends_when_it_is_asked_to(stage: Stage) -> None:
    process = stage.process()
    stage.create(topics=[ORDERS])
    stage.settled()
    since_s = time.monotonic()
    process.terminate()
    assert process.wait(40) == 0
    assert time.monotonic() - since_s < 30, "well within what Kubernetes grants"


def test_without_an_api_server_the_process_waits_for_one(stage: Stage) -> None:
    stage.server.freeze()
    process = stage.process()
    time.sleep(8)
    assert process.poll() is None
    stage.server.thaw()
    stage.create(topics=[ORDERS])
    stage.settled()
