"""Whether the reign in a shard's spec is taken up, and what the operator is told when it is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaynode.registry.model import ClusterSpec, ShardObject, ShardSpec, ShardStatus, Version
from delaynode.serve.reigning import Copy, Reigning
from delaynode.serve.role import Role
from delaynode.serve.yard import Yard

UNCLEAN = ClusterSpec("c", 2, replicas=2, allow_unclean_failover=True)
CLEAN = replace(UNCLEAN, allow_unclean_failover=False)
SPEC = ShardSpec(1, "orders", 0, ("n1", "n2"), master="n2", epoch=5, incarnation="p2")
OUTSIDE = ShardObject("orders-0", Version("7"), SPEC, ShardStatus(4, "p1", ("c1",)))


class Chosen:
    """n2's copy c2, named for epoch 5. wishes: as this node has heard them; registry: what a consistent read shows."""

    def __init__(self, wishes: ClusterSpec) -> None:
        self.wishes, self.registry, self.reads = wishes, OUTSIDE, 0
        yard = SimpleNamespace(
            node="n2", incarnation="p2", boot_ms=lambda: 0, cluster=lambda: self.wishes, registry=self,
            release_rate=lambda _: None,
        )  # fmt: skip
        self.copy = SimpleNamespace(
            uid=1, name="orders-0", object=OUTSIDE, role=Role.SLAVE, holding=SimpleNamespace(entry="c2"),
            shard=SimpleNamespace(identity=SimpleNamespace(epoch=4)),
        )  # fmt: skip
        self.reigning = Reigning(cast(Copy, self.copy), cast(Yard, yard), lambda *_, **__: None, lambda: None)

    async def get_shard(self, name: str) -> ShardObject:
        self.reads += 1
        return self.registry

    def heard(self, wishes: ClusterSpec, object_: ShardObject = OUTSIDE) -> None:
        self.wishes, self.copy.object = wishes, object_
        self.reigning.look()


@pytest.fixture
def refusing() -> Chosen:
    chosen = Chosen(CLEAN)
    asyncio.run(chosen.reigning.take_up())
    assert not chosen.reigning.chosen()
    return chosen


def test_a_refused_reign_is_tried_again_when_the_wishes_come_late(refusing: Chosen) -> None:
    refusing.heard(CLEAN)
    assert not refusing.reigning.chosen(), "nothing has changed"
    refusing.heard(UNCLEAN)
    assert refusing.reigning.chosen()


def test_a_refused_reign_is_tried_again_when_the_status_differs(refusing: Chosen) -> None:
    status = ShardStatus(4, "p1", ("c1", "c2"))
    refusing.heard(CLEAN, replace(OUTSIDE, status=status))
    assert refusing.reigning.chosen()


def test_a_refusal_is_told(refusing: Chosen) -> None:
    assert refusing.reigning.not_serving() == (0, "copy c2 is not in sync: c1 are")


def test_a_reign_that_is_over_or_being_given_up_is_told() -> None:
    reigning = Chosen(CLEAN).reigning
    leader = SimpleNamespace(reign=SimpleNamespace(epoch=4), ended=None, resigned=None)
    reigning.leader = cast(Any, leader)
    assert reigning.not_serving() == (0, "")
    leader.resigned = "its disk is slow"
    assert reigning.not_serving() == (4, "its disk is slow")
    leader.resigned = None
    reigning._reign_over("the shard is gone from the registry")
    reigning.leader = None
    assert reigning.not_serving() == (4, "the shard is gone from the registry")
