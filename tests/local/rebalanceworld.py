"""Shared by the tests of the local rebalance: plans, and a cluster of two nodes without processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from delaylocal.rebalance import Rebalancer
from delaylocal.rebalance_file import RebalanceFile, StoredRebalance
from delayoperator.control_loop.probe import NodeAnswer
from delayoperator.crds import APPROVE
from delayoperator.crds.rebalance import (
    DelayRebalance,
    DelayRebalanceSpec,
    DelayRebalanceStatus,
    PlanModel,
)
from delayoperator.plan import Liveness, ObservedNode
from delayoperator.rebalance_plan import digest
from delayregistry.model import ClusterSpec, NodeLease, ShardSpec, ShardStatus, TopicSpec
from delayregistry.sqlite import SqliteRegistry


class Silent:
    """A prober that gets no answers."""

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        return {}

    def close(self) -> None:
        pass


def plan_of(
    moves: Sequence[tuple[str, str, str, tuple[str, ...]]], *, expires: timedelta = timedelta(hours=1)
) -> PlanModel:
    """A plan of these moves: (shard, from, to, present replicas)."""
    now = datetime.now(UTC)
    listed = [
        {"shard": shard, "from": origin, "to": to, "replicas": list(replicas), "bytes": 1_000, "messages": 1}
        for shard, origin, to, replicas in moves
    ]
    times = {"madeAt": now.isoformat(), "expiresAt": (now + expires).isoformat()}
    plan = PlanModel.model_validate({**times, "moves": listed})
    return plan.model_copy(update={"hash": digest(plan)})


def kept(plan: PlanModel, **spec: Any) -> StoredRebalance:
    status = DelayRebalanceStatus.model_validate({"plan": plan})
    return StoredRebalance(DelayRebalance(spec=DelayRebalanceSpec(cluster="local", **spec), status=status))


A_MOVE = plan_of([("t-0", "n0", "n1", ("n0",))])


class World:
    """Two live nodes, and a shard on n0 that has a copy there only."""

    def __init__(self, directory: Path) -> None:
        self.file = RebalanceFile(directory)
        self.registry = SqliteRegistry(directory / "registry.db", create=True)
        self.registry.put_cluster(ClusterSpec("local", 2, (TopicSpec("t", 1),)), None)
        version = self.registry.create_shard(ShardSpec(7, "t", 0, ("n0",), master="n0", epoch=1, incarnation="i0"))
        self.registry.write_status("t-0", ShardStatus(1, "i0", ("c0",)), version)
        self.nodes = {name: ObservedNode(Liveness.ALIVE, f"i{name}") for name in ("n0", "n1")}
        self.events: list[Mapping[str, object]] = []
        self.directory = directory

    def rebalancer(self) -> Rebalancer:
        return Rebalancer(self.directory, self.registry, lambda: self.nodes, Silent, self.events.append)

    def target(self) -> tuple[str, ...] | None:
        shard = self.registry.get_shard("t-0")
        assert shard is not None
        return shard.spec.target

    def state(self) -> str | None:
        found = self.file.read()
        assert found is not None
        assert found.rebalance.status is not None
        return found.rebalance.status.state

    def approve(self, name: str | None = None) -> None:
        self.file.edit(lambda now: now and replace(now, annotations={APPROVE: name or A_MOVE.hash or ""}))


def await_true(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
