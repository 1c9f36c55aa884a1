"""Bugs planted in the protocol, one at a time, by putting another method in place of a real one.

Each stands for a mistake that a developer could make, most of them from attacks on an earlier wording of the design.
The simulation must find each of them; `schedule` names the attack that was written against it.
"""

from __future__ import annotations

from typing import Any

from delaynode.replica import context
from delaynode.replica.hosts.host import CopyHost
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replication.in_sync import ReplicaIds
from delaynode.replication.peer_replica import PeerReplica, Phase
from delaynode.replication.protocol import Follow, Heartbeat, HeartbeatReply
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.commit_rule import CommitRule
from delaynode.replication.term.in_sync_rule import InSyncRule
from delaynode.replication.term.in_sync_writer import InSyncWriter, WriteResult
from delaynode.replication.term.leader import Leader
from delaynode.store.queue.consume_queue import NEVER, ConsumeQueue
from delayregistry.model import Version
from delayregistry.port import OutcomeUnknown

from tests.simulation.support.mutations.planting import DEPOSED, LACKS, NOBODY, TWO, Put, mutation


# ---------------------------------------------------------------- commit and the in-sync set
@mutation("b1_master_dies_between_the_larger_set_and_its_answer", LACKS)
def commits_before_the_slave_has_it(put: Put) -> None:
    put(CommitRule, "commit_limit", CommitRule.own_durable)


def _limit(leader: Leader, entries: frozenset[str]) -> int:
    limit = leader.commit_rule.own_durable()
    for entry in entries - {leader.term.replica_id}:
        member = leader.shipping.member_of(entry)
        limit = min(limit, member.durable if member is not None else 0)
    return limit


@mutation("b3_deposed_master_drops_what_was_not_committed", LACKS)
def goes_on_without_a_slave_and_records_that_after(put: Put) -> None:
    put(Leader, "commit_limit", lambda self: _limit(self, self.in_sync_rule.desired()))


@mutation("b1_master_that_may_have_recorded_a_slave_waits_for_it", LACKS)
def records_a_slave_before_commits_wait_for_it(put: Put) -> None:  # B1
    put(Leader, "commit_limit", lambda self: _limit(self, self.in_sync.written))


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up", LACKS)
def records_a_slave_that_has_not_caught_up(put: Put) -> None:
    def join(self: InSyncRule) -> None:
        for member in self._shipping.members.values():
            if (
                member.phase is Phase.STREAMING
                and member.replica_id
                and member.replica_id not in self._in_sync.counted()
            ):
                self._in_sync.join(member.replica_id)

    def wanted(self: InSyncRule) -> ReplicaIds:
        members = [self._shipping.member_of(entry) for entry in self._in_sync.counted()]
        return frozenset(
            {self._term.replica_id, *(one.replica_id for one in members if one is not None and self._is_eligible(one))}
        )

    put(InSyncRule, "join", join)
    put(InSyncRule, "desired", wanted)


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up", LACKS)
def takes_no_answer_for_success(put: Put) -> None:
    write = context.ShardStatusAccess.write

    async def hopeful(self: Any, status: Any, version: Version) -> Version:
        try:
            return await write(self, status, version)
        except OutcomeUnknown:
            return Version("hoped")

    put(context.ShardStatusAccess, "write", hopeful)


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up", LACKS)
def takes_no_answer_for_failure(put: Put) -> None:  # B1, the second half
    def doubtful(publish: Any) -> Any:
        async def publish_once(self: InSyncWriter, *args: Any, **named: Any) -> WriteResult:
            result: WriteResult = await publish(self, *args, **named)
            if result is not WriteResult.WRITTEN:
                self._in_sync.tried.clear()
                self._in_sync.joining.clear()
            return result

        return publish_once

    put(InSyncWriter, "publish_in_sync_set", doubtful(InSyncWriter.publish_in_sync_set))
    put(InSyncWriter, "publish_handover", doubtful(InSyncWriter.publish_handover))


@mutation("damaged_copy_stays_while_a_write_under_way_names_it", NOBODY)
def spares_a_copy_that_a_write_under_way_names(put: Put) -> None:
    def ask(self: Shipping, member: PeerReplica) -> None:
        self._reset(member, Phase.ASKED)
        self._peers.send(member.node, Follow(self.uid, self.epoch, member.damaged))

    put(Shipping, "_request_follow", ask)


@mutation("a7_copy_that_follows_the_new_master_and_lacks_its_logs_end_is_not_named", LACKS)
def names_as_in_sync_who_does_not_follow_the_new_master(put: Put) -> None:  # A7 turned round
    put(Leader, "_following", lambda self, entries: entries)


@mutation("b1_master_dies_between_the_larger_set_and_its_answer", LACKS)
def acknowledges_before_the_disk_has_it(put: Put) -> None:
    put(CopyHost, "durable", property(lambda self: self.shard.log.end))
    put(CommitRule, "own_durable", lambda self: self.log.end)


@mutation("b1_master_dies_between_the_larger_set_and_its_answer", r"no master, takes \d+ for committed")
def applies_what_is_not_committed(put: Put) -> None:  # B3
    receive = SlaveHost.receive

    def eager(self: SlaveHost, data: memoryview) -> None:
        receive(self, data)
        self.commit_to(self.shard.log.end)

    put(SlaveHost, "receive", eager)


@mutation(
    "a9_retry_is_not_acknowledged_while_the_second_copy_lacks_the_batch", "acknowledged while the second copy lacks it"
)
def counts_for_min_in_sync_who_only_joins(put: Put) -> None:  # A9
    put(Leader, "in_sync_size", property(lambda self: len(self.in_sync.counted())))


class _ToBeRead(Exception):
    """The master must read the registry's object again before it writes it."""


@mutation("master_that_dies_while_a_copy_leaves_is_followed", "it serves, though its master stays away")
def waits_for_a_leaving_copy_before_it_serves(put: Put) -> None:
    as_replicas, publish = InSyncWriter._as_replicas, InSyncWriter.publish_in_sync_set

    def strict(self: InSyncWriter, entries: ReplicaIds) -> ReplicaIds:
        named = as_replicas(self, entries)
        if named != entries and named == self._in_sync.written:
            self._version = None
            raise _ToBeRead
        return named

    async def waiting(self: InSyncWriter, *args: Any) -> WriteResult:
        try:
            return await publish(self, *args)
        except _ToBeRead:
            return WriteResult.UNREAD

    put(InSyncWriter, "_as_replicas", strict)
    put(InSyncWriter, "publish_in_sync_set", waiting)


# ---------------------------------------------------------------- promises
@mutation("a2_lease_counts_from_before_its_heartbeat_however_late_the_reply", TWO)
def counts_a_lease_from_its_reply(put: Put) -> None:
    took = ReplicaLeases.on_reply

    def late(self: ReplicaLeases, reply: HeartbeatReply) -> None:
        peer = self._peers.get(reply.node)
        if peer is not None and reply.heartbeat_id in peer.sent:
            peer.sent[reply.heartbeat_id] = self._boot_ms()
        took(self, reply)

    put(ReplicaLeases, "on_reply", late)


@mutation("frozen_master_answers_nothing_after_its_leases", DEPOSED)
def serves_without_leases(put: Put) -> None:
    put(ReplicaLeases, "live", lambda self, uid, nodes: True)


@mutation("a2_chosen_slave_stops_granting_leases_though_its_replies_get_lost", "the lease that it granted ran out")
def grants_leases_to_lower_epochs(put: Put) -> None:  # A2 b
    answer = ReplicaLeases._answer

    def meek(self: ReplicaLeases, heartbeat: Heartbeat, uid: int, epoch: int, now: int, ahead: list[int]) -> Any:
        floor = self._min_epochs.get(uid, 0)
        self._min_epochs[uid] = min(floor, epoch)
        try:
            return answer(self, heartbeat, uid, epoch, now, ahead)
        finally:
            self._min_epochs[uid] = floor

    put(ReplicaLeases, "_answer", meek)


@mutation("a2_chosen_slave_waits_while_a_master_that_is_cut_off_may_serve", TWO)
def does_not_wait_out_its_own_lease(put: Put) -> None:
    put(ReplicaLeases, "wait_ms", lambda self, uid: 0)


@mutation("a2_slave_restarted_when_it_is_chosen_waits_all_the_same", TWO)
def forgets_its_leases_at_a_restart(put: Put) -> None:  # A2 a
    start = ReplicaLeases.__init__

    def forgetful(self: ReplicaLeases, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        self._started_ms -= 1_000_000

    put(ReplicaLeases, "__init__", forgetful)


@mutation("a2_late_release_does_not_void_a_newer_lease", "what was promised anew stands")
def takes_an_old_release_for_a_newer_lease(put: Put) -> None:  # A2 d
    def release(self: ReplicaLeases, uid: int, node: str, incarnation: int, epoch: int, heartbeat: int) -> None:
        given = self._granted.get(uid)
        if given is not None:
            given.until_ms = 0

    put(ReplicaLeases, "release", release)


@mutation("switchover_whose_old_master_hears_of_nothing_more", TWO)
def goes_on_serving_while_it_hands_over(put: Put) -> None:
    put(ShardHost, "pause", lambda self, why: None)

    def stop_asking(self: ReplicaLeases, uid: int) -> int:
        self._requests.pop(uid, None)
        return self._next_id - 1

    put(ReplicaLeases, "stop_requesting", stop_asking)
    live = CommitRule.live

    def busy(self: CommitRule) -> bool:
        handover, self.state.handover = self.state.handover, None
        try:
            return live(self)
        finally:
            self.state.handover = handover

    put(CommitRule, "live", busy)


# ---------------------------------------------------------------- what is released before it is due
SHOWN_EARLY = "invariant 2: .* shows .* at "


@mutation(None, SHOWN_EARLY, (4, 7))
def shows_what_is_not_due(put: Put) -> None:
    show = ConsumeQueue.show
    put(ConsumeQueue, "show", lambda self, now_ms: show(self, NEVER))


@mutation(None, SHOWN_EARLY, (4, 7))
def shows_at_once_what_it_follows(put: Put) -> None:
    master_ms = CopyHost.master_ms
    put(CopyHost, "master_ms", lambda self: master_ms(self) if self.leads else NEVER)
