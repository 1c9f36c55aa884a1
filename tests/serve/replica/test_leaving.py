"""A copy that is given up, and what comes in meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delaynode.replica.replica import Replica
from delaynode.replica.stored_copies import StoredCopies
from delaynode.replication.protocol import Follow, FollowRefused
from delaynode.store.log.files import DiskFiles
from delayregistry.model import ShardObject, ShardSpec, ShardStatus, Version

from tests.serve.replica.test_follower import Connection

ELSEWHERE = ShardSpec(1, "orders", 0, ("n1", "n2"), master="n1", epoch=5, incarnation="p1")
SERVED = ShardStatus(5, "p1", ("c1", "c2"), revision=3)
GONE = ShardObject("orders-0", Version("7"), ELSEWHERE, SERVED)
WANTED_AGAIN = replace(GONE, version=Version("8"), spec=replace(ELSEWHERE, replicas=("n1", "n2", "n3")))


def leaver(found: ShardObject, discarded: list[str]) -> Any:
    """n3's replica of the shard, which the registry shows as `found`."""
    replica: Any = Replica.__new__(Replica)

    async def discard(why: str) -> None:
        discarded.append(why)

    async def get_shard(name: str) -> ShardObject:
        return found

    replica.uid, replica.name, replica.discarded, replica._inbox = 1, "orders-0", False, deque()
    replica.context = SimpleNamespace(node="n3", registry=SimpleNamespace(get_shard=get_shard))
    replica.local = SimpleNamespace(
        object=found, storage=SimpleNamespace(replica_id="c3", newer_format=False), discard=discard
    )
    replica._follower = SimpleNamespace(stop=lambda: None)
    replica._known_epoch = lambda: GONE.spec.epoch
    replica._newest_status, replica._kept_because = SERVED.sequence, ""
    replica.log_event = lambda event, **fields: None
    return replica


@pytest.mark.parametrize(
    ("found", "goes"),
    [
        (GONE, True),
        (replace(GONE, status=None), False),  # restored without its status: who has everything is not known
        (replace(GONE, spec=replace(ELSEWHERE, epoch=6)), False),  # nobody has taken the term up yet
        (replace(GONE, status=replace(SERVED, in_sync=("c1", "c3"))), False),
        (replace(GONE, status=replace(SERVED, in_sync=("c1",))), False),  # another one is still to come in its place
        (replace(GONE, status=replace(SERVED, revision=2)), False),  # from earlier in this term
        (replace(GONE, status=replace(SERVED, revision=4)), True),
    ],
)
def test_a_copy_goes_only_where_a_term_is_served_without_it(found: ShardObject, goes: bool) -> None:
    discarded: list[str] = []
    asyncio.run(leaver(found, discarded)._leave())
    assert bool(discarded) is goes


def test_the_registry_is_not_asked_while_the_watch_says_that_the_copy_stays() -> None:
    """That may last as long as a machine is away."""
    discarded: list[str] = []
    replica = leaver(GONE, discarded)
    replica.local.object = replace(GONE, status=replace(SERVED, in_sync=("c1",)))
    replica.context.registry = None
    asyncio.run(replica._leave())
    assert not discarded


@pytest.mark.parametrize("heard", [False, True])
def test_a_master_that_asks_while_the_copy_goes_is_not_left_without_an_answer(heard: bool) -> None:
    """n3's copy is thrown away, and wanted again before it is gone: seed 38245 of the simulation. heard: n3 knows."""
    master, follow = Connection(), Follow(1, 5, discardable=False)
    replica = leaver(GONE, [])

    async def discard(why: str) -> None:
        replica._inbox.append((master, follow))
        if heard:
            replica.local.object = WANTED_AGAIN

    replica.local.discard = discard
    asyncio.run(replica._leave())

    if heard:  # it stays, without a copy, and takes the question up
        assert (replica.discarded, list(replica._inbox), master.replies) == (False, [(master, follow)], [])
    else:  # the master asks again; then the registry's news will have made another replica
        assert replica.discarded
        assert [type(reply) for reply in master.replies] == [FollowRefused]


def test_a_copy_that_a_replica_gives_back_is_there_while_it_is_read(tmp_path: Path) -> None:
    """Else the operator would hear that this node has nothing, and might make an empty shard beside it."""

    async def main() -> None:
        read, directory = threading.Event(), f"{tmp_path}/orders-0-{7:016x}"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(read.wait)
            context: Any = SimpleNamespace(resources=SimpleNamespace(files=DiskFiles(), pool=pool))
            stored = StoredCopies(context)
            adding = asyncio.create_task(stored.add(directory))
            await asyncio.sleep(0)
            meanwhile = [(it.uid, it.shard, it.damage) for it in stored]
            read.set()
            await adding
        assert meanwhile == [(7, "orders-0", "it is being read")]
        assert [it.damage for it in stored] != ["it is being read"]

    asyncio.run(main())
