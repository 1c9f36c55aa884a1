"""A slave's side of the protocol, over a real copy: what messages that come late do to its log."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaynode.replica.context import ReplicaContext
from delaynode.replica.follower import ReplicaFollower, refuse_unknown
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.local_copy import LocalCopy
from delaynode.replication.protocol import (
    Ack,
    Commit,
    Follow,
    FollowerState,
    FollowRefused,
    Frames,
    Message,
    Start,
)
from delaynode.replication.transport.until import wait_until

from tests.serve.replica.test_slave_host import slave_of
from tests.serve.support.hosts import node

EPOCH = 1


class Connection:
    node, incarnation = "n1", "0001"

    def __init__(self) -> None:
        self.replies: list[Message] = []

    def reply(self, message: Message) -> None:
        self.replies.append(message)


class Storage:
    fetching, replica_id = None, "r"

    async def accept_epoch(self, epoch: int) -> None:
        pass  # it is the copy's epoch already


class Copy:
    """A copy that is good, and follows."""

    storage = Storage()

    def __init__(self, host: SlaveHost) -> None:
        self.uid, self.host = host.shard.identity.uid, host

    def damaged(self) -> str | None:
        return self.host.failure


class Leases:
    def min_epoch(self, uid: int) -> int:
        return EPOCH

    def raise_min_epoch(self, uid: int, epoch: int) -> None:
        pass

    def heard_ms(self, uid: int) -> int | None:
        return None


@pytest.mark.parametrize("committed", [False, True])
def test_an_answer_to_what_the_slave_said_earlier_cuts_nothing(tmp_path: Path, committed: bool) -> None:
    """The master asks twice, is told the same twice, and answers each: seed 15422 of the simulation.

    The second START comes after frames that the slave has stored and acknowledged. It used to cut them off (a master
    that counts the acknowledgement may then be the only one that has them), or, where they were committed already, to
    call the copy damaged.
    """

    async def main() -> None:
        async with node(tmp_path) as made:
            log = made.hosts["a"].shard.log
            await made.send("a", [made.clock.now_ms() + 60_000])
            slave, connection = slave_of(made), Connection()
            slave.on_stored = lambda: follower.acknowledge()
            uid, cut = slave.shard.identity.uid, slave.shard.log.end
            context = cast(ReplicaContext, SimpleNamespace(replica_leases=Leases(), boot_ms=lambda: 0))
            follower = ReplicaFollower(cast(LocalCopy, Copy(slave)), context, lambda *names, **facts: None)

            async def tell(message: Any) -> None:
                await follower.handle(connection, message)

            for _ in range(2):
                await tell(Follow(uid, EPOCH))
            states = [reply for reply in connection.replies if isinstance(reply, FollowerState)]
            assert [state.log_end for state in states] == [cut, cut]
            await made.send("a", [made.clock.now_ms() + 60_000])
            end = log.end
            frames = Frames(uid, EPOCH, cut, end if committed else cut, (log.read_raw(cut, end - cut),))
            await tell(Start(uid, EPOCH, cut, cut))
            await tell(frames)
            await wait_until(lambda: Ack in [type(r) for r in connection.replies] and slave.durable == end, 0.005)
            await tell(Start(uid, EPOCH, cut, cut))
            assert slave.failure is None
            assert slave.shard.log.end == end
            assert slave.durable == end

            connection.replies.clear()
            await tell(frames)  # the master goes on where it was told the log ends
            (state,) = connection.replies
            assert isinstance(state, FollowerState)
            assert state.log_end == end
            await tell(Start(uid, EPOCH, end, end))
            assert follower.streaming
            await slave.end("done")

    asyncio.run(main())


def of_kind_99(frame: bytes) -> bytes:
    """The same frame with a kind that a later release brings, sealed as that release would."""
    changed = bytearray(frame)
    changed[12:14] = (99).to_bytes(2, "little")
    changed[4:8] = zlib.crc32(changed[8:]).to_bytes(4, "little")
    return bytes(changed)


def test_a_frame_of_a_newer_release_stops_the_copy_and_is_no_damage(tmp_path: Path) -> None:
    """It used to be asked for again and again. The copy is left for a process that can read what comes next."""

    async def main() -> None:
        async with node(tmp_path) as made:
            log = made.hosts["a"].shard.log
            await made.send("a", [made.clock.now_ms() + 60_000])
            slave, connection = slave_of(made), Connection()
            uid, cut = slave.shard.identity.uid, slave.shard.log.end
            context = cast(ReplicaContext, SimpleNamespace(replica_leases=Leases(), boot_ms=lambda: 0))
            follower = ReplicaFollower(cast(LocalCopy, Copy(slave)), context, lambda *names, **facts: None)
            await follower.handle(connection, Follow(uid, EPOCH))
            await made.send("a", [made.clock.now_ms() + 60_000])
            data = log.read_raw(cut, log.end - cut)
            await follower.handle(connection, Start(uid, EPOCH, cut, cut))
            await follower.handle(connection, Frames(uid, EPOCH, cut, cut, (of_kind_99(data),)))
            assert "frame from n1: unknown kind 99, written by a newer release" in (slave.failure or "")
            assert slave.newer_format
            assert not slave.lasting
            await slave.end("done")
            assert slave.shard.log.end == cut

    asyncio.run(main())
    assert not list(tmp_path.rglob("damaged"))


@pytest.mark.parametrize("of", [Frames(1, EPOCH, 0, 0, (b"",)), Commit(1, EPOCH, 0), Start(1, EPOCH, 0, 0)])
def test_a_master_that_streams_to_a_copy_that_was_here_before_is_told(of: Message) -> None:
    """It missed that the copy was thrown away, and that there is to be another; it would wait for acks for ever."""
    context = cast(ReplicaContext, SimpleNamespace(replica_leases=Leases(), boot_ms=lambda: 0))
    made = SimpleNamespace(uid=1, host=None, damaged=lambda: None)
    follower = ReplicaFollower(cast(LocalCopy, made), context, lambda *names, **facts: None)
    before, anew = Connection(), Connection()
    asyncio.run(follower.handle(before, of))
    refuse_unknown(before, of)
    assert [type(reply) for reply in before.replies] == [FollowRefused, FollowRefused]
    asyncio.run(follower.handle(anew, Follow(1, EPOCH)))
    asyncio.run(follower.handle(before, of))
    assert len(before.replies) == 2, "what is over needs no answer"
    assert [type(reply) for reply in anew.replies] == [FollowerState]
