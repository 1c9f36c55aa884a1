"""Whether the term in a shard's spec is taken up, and what the operator is told when it is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from delaynode.replica.context import ReplicaContext
from delaynode.replica.leadership import Leadership
from delaynode.replica.local_copy import LocalCopy
from delaynode.replica.role import ReplicaRole
from delaynode.store.shard import MAX_AHEAD_MS
from delayregistry.model import ClusterSpec, ShardObject, ShardSpec, ShardStatus, Version
from delayregistry.port import RegistryUnavailable

UNCLEAN = ClusterSpec("c", 2, replicas=2, allow_unclean_failover=True)
CLEAN = replace(UNCLEAN, allow_unclean_failover=False)
SPEC = ShardSpec(1, "orders", 0, ("n1", "n2"), master="n2", epoch=5, incarnation="p2")
OUTSIDE = ShardObject("orders-0", Version("7"), SPEC, ShardStatus(4, "p1", ("c1",)))


class Chosen:
    """n2's copy c2, named for epoch 5. spec: as this node has heard them; registry: what a consistent read shows."""

    def __init__(self, desired: ClusterSpec) -> None:
        self.desired, self.reads = desired, 0
        self.registry: ShardObject | Exception | None = OUTSIDE
        context = SimpleNamespace(
            node="n2", incarnation="p2", boot_ms=lambda: 0, cluster=lambda: self.desired, registry=self,
            release_rate=lambda _: None, quotas=lambda _: None,
        )  # fmt: skip
        self.copy = SimpleNamespace(
            uid=1, name="orders-0", object=OUTSIDE, role=ReplicaRole.SLAVE, storage=SimpleNamespace(replica_id="c2"),
            shard=SimpleNamespace(identity=SimpleNamespace(epoch=4)),
        )  # fmt: skip
        self.leadership = Leadership(
            cast(LocalCopy, self.copy),
            cast(ReplicaContext, context),
            lambda *_, **__: None,
            lambda: None,
            lambda _: None,
        )

    async def get_shard(self, name: str) -> ShardObject | None:
        self.reads += 1
        if isinstance(self.registry, Exception):
            raise self.registry
        return self.registry

    def heard(self, desired: ClusterSpec, object_: ShardObject = OUTSIDE) -> None:
        self.desired, self.copy.object = desired, object_
        self.leadership.refresh()


@pytest.fixture
def refusing() -> Chosen:
    chosen = Chosen(CLEAN)
    asyncio.run(chosen.leadership.begin_term())
    assert not chosen.leadership.is_chosen()
    return chosen


def test_a_refused_term_is_tried_again_when_the_spec_come_late(refusing: Chosen) -> None:
    refusing.heard(CLEAN)
    assert not refusing.leadership.is_chosen(), "nothing has changed"
    refusing.heard(UNCLEAN)
    assert refusing.leadership.is_chosen()


@pytest.mark.parametrize(("epoch", "allowed"), [(4, False), (5, True), (6, False)])
def test_a_copy_out_of_sync_takes_up_the_one_epoch_that_it_was_allowed(
    refusing: Chosen, epoch: int, *, allowed: bool
) -> None:
    refusing.heard(CLEAN, replace(OUTSIDE, spec=replace(SPEC, unclean_epoch=epoch)))
    assert refusing.leadership.is_chosen() == allowed


def test_a_refused_term_is_tried_again_when_the_status_differs(refusing: Chosen) -> None:
    status = ShardStatus(4, "p1", ("c1", "c2"))
    refusing.heard(CLEAN, replace(OUTSIDE, status=status))
    assert refusing.leadership.is_chosen()


def test_a_refusal_is_told(refusing: Chosen) -> None:
    assert refusing.leadership.not_serving() == (0, "copy c2 is not in sync: c1 are")


@pytest.mark.parametrize(
    ("registry", "told"),
    [
        (None, "the registry has no such shard, by what this node is told"),
        (RegistryUnavailable("403 Forbidden"), "the registry did not show it the shard: 403 Forbidden"),
    ],
)
def test_what_keeps_a_chosen_copy_from_looking_at_the_object_is_told_while_it_lasts(
    registry: Exception | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr(asyncio, "sleep", at_once)
    chosen = Chosen(CLEAN)
    chosen.leadership._last = 3, "what ended an earlier term"
    chosen.registry = registry
    asyncio.run(chosen.leadership.begin_term())
    assert chosen.leadership.not_serving() == (0, told)
    assert chosen.leadership.is_chosen(), "it tries again"
    chosen.registry = replace(OUTSIDE, spec=replace(SPEC, master="n1"))
    asyncio.run(chosen.leadership.begin_term())
    assert chosen.leadership.not_serving() == (3, "what ended an earlier term")


def test_all_that_a_log_released_is_due_before_the_registry_hears_of_the_next_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients come once they can see there that it serves, and a wait after that would turn them away."""
    leadership = Chosen(CLEAN).leadership
    waits_ms: list[float] = []

    async def note(seconds: float) -> None:
        waits_ms.append(seconds * 1000)

    async def begin(*_: object, **__: object) -> bool:
        assert waits_ms == [MAX_AHEAD_MS]
        return False

    leader = SimpleNamespace(begin=begin, ended="it is not this test's", stop=lambda: None)
    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(leadership, "_make_leader", lambda *_: leader)
    monkeypatch.setattr(leadership, "end_term", note_end := AsyncMock())
    asyncio.run(leadership._lead(cast(Any, object()), SPEC, None))
    note_end.assert_awaited_once()


def test_a_candidate_tells_what_keeps_it_from_writing_its_status() -> None:
    leadership = Chosen(CLEAN).leadership
    leadership._last = 3, "what ended an earlier term"
    hindered = "the registry did not take its status: 403"
    leader = SimpleNamespace(term=SimpleNamespace(epoch=5), ended=None, stepped_down=None, blocked_reason=hindered)
    leadership.leader = cast(Any, leader)
    assert leadership.not_serving() == (0, hindered)
    leadership.master = cast(Any, object())  # it has begun: a later write that fails keeps nobody waiting
    assert leadership.not_serving() == (3, "what ended an earlier term")


def test_a_term_that_is_over_or_being_given_up_is_told() -> None:
    leadership = Chosen(CLEAN).leadership
    leader = SimpleNamespace(term=SimpleNamespace(epoch=4), ended=None, stepped_down=None, blocked_reason=None)
    leadership.leader = cast(Any, leader)
    assert leadership.not_serving() == (0, "")
    leader.stepped_down = "its disk is slow"
    assert leadership.not_serving() == (4, "its disk is slow")
    leader.stepped_down = None
    leadership._on_term_ended("the shard is gone from the registry")
    leadership.leader = None
    assert leadership.not_serving() == (4, "the shard is gone from the registry")
