"""RebalanceDriver: in which order it writes, and that a rebalance which somebody else has changed gets nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from delayoperator.crds.rebalance import DelayRebalanceSpec, DelayRebalanceStatus, PlannedMove, RebalanceState
from delayoperator.plan import Liveness, ObservedNode
from delayoperator.rebalance_plan import (
    Job,
    RebalanceConflict,
    RebalanceDriver,
    RebalanceEvent,
    RebalanceRequest,
    World,
)
from delayoperator.rebalance_plan.driver import RebalanceRound
from delayregistry.model import ClusterSpec, ShardSpec, ShardStatus, TopicSpec
from delayregistry.sqlite import SqliteRegistry

from tests.plan.rebalancing.driver import START_MS, a_plan

MOVE = {"shard": "t-0", "from": "n0", "to": "n1", "replicas": ["n0"], "bytes": 1_000}
PLAN = a_plan([PlannedMove.model_validate(MOVE)])
NODES = {name: ObservedNode(Liveness.ALIVE, f"i{name}") for name in ("n0", "n1")}


class Store:
    """Notes what it is asked for. conflict: the call that finds the rebalance changed."""

    def __init__(self, done: list[str], conflict: str = "", **status: object) -> None:
        spec = DelayRebalanceSpec.model_validate({"cluster": "local"})
        self.request = RebalanceRequest(spec, approve=PLAN.hash)
        self.status = DelayRebalanceStatus.model_validate({"plan": PLAN, "plan_seen": PLAN.hash, **status})
        self._done, self._conflict = done, conflict

    def keep(self, status: DelayRebalanceStatus) -> bool:
        self._note("keep")
        return status != self.status

    def remove_verbs(self, verbs: frozenset[str]) -> None:
        self._note("remove_verbs")

    def record(self, event: RebalanceEvent) -> None:
        self._note(event.reason)

    def job(self) -> Job:
        return Job()

    def start_job(self, status: DelayRebalanceStatus) -> bool:
        self._note("start_job")
        return True

    def _note(self, call: str) -> None:
        self._done.append(call)
        if call == self._conflict:
            raise RebalanceConflict


@pytest.fixture
def registry(tmp_path: Path) -> SqliteRegistry:
    found = SqliteRegistry(tmp_path / "registry.db", create=True)
    found.put_cluster(ClusterSpec("local", 2, (TopicSpec("t", 1),)), None)
    version = found.create_shard(ShardSpec(7, "t", 0, ("n0",), master="n0", epoch=1, incarnation="in0"))
    found.write_status("t-0", ShardStatus(1, "in0", ("c0",)), version)
    return found


def driven(registry: SqliteRegistry, store: Store, done: list[str], world: World | None = None) -> RebalanceRound:
    def log(event: Mapping[str, object]) -> None:
        done.append(f"edit {event['shard']} {event['outcome']}")

    driver = RebalanceDriver(registry, lambda moving, shards: {}, log)
    seen = world or driver.observe(NODES)
    assert seen is not None
    return driver.round(store, seen, START_MS)


READY = {"state": RebalanceState.PROPOSAL_READY}


def test_the_status_is_written_before_the_edit_and_events_are_told_last(registry: SqliteRegistry) -> None:
    done: list[str] = []
    came = driven(registry, Store(done, **READY), done)
    assert done[:3] == ["keep", "edit t-0 done", "remove_verbs"]
    assert {"PlanApproved", "MoveStarted"} <= set(done[3:])
    assert (came.wrote, came.retry) == (True, False)


def test_a_rebalance_that_somebody_has_changed_gets_nothing_written(registry: SqliteRegistry) -> None:
    done: list[str] = []
    came = driven(registry, Store(done, "keep", **READY), done)
    assert done == ["keep"]
    assert came == RebalanceRound(None, wrote=False, retry=True)
    shard = registry.get_shard("t-0")
    assert shard is not None
    assert shard.spec.target is None


def test_an_edit_that_meets_another_write_is_asked_for_again(registry: SqliteRegistry) -> None:
    done: list[str] = []
    seen = RebalanceDriver(registry, lambda moving, shards: {}, print).observe(NODES)
    shard = registry.get_shard("t-0")
    assert shard is not None
    registry.write_spec("t-0", shard.spec, shard.version)
    came = driven(registry, Store(done, **READY), done, seen)
    assert "edit t-0 conflict" in done
    assert came.retry


def test_a_job_is_started_when_a_plan_is_asked_for(registry: SqliteRegistry) -> None:
    done: list[str] = []
    came = driven(registry, Store(done, state=RebalanceState.PENDING_PROPOSAL, requested_at="x"), done)
    assert "start_job" in done
    assert done.index("keep") < done.index("start_job") < done.index("remove_verbs")
    assert came.wrote
