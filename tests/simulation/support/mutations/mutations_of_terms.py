"""More planted bugs, as in mutations.py: terms and their ends, answers, copies, the shard's object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

from delaynode.clock import GuardedClock
from delaynode.node.node import Node
from delaynode.replica import follower, leadership, replica, replicas
from delaynode.replica.follower import ReplicaFollower, refuse_unknown
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.leadership import Leadership
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication import shipping
from delaynode.replication.protocol import Follow, Message
from delaynode.replication.term import in_sync_rule
from delaynode.replication.term.in_sync_writer import InSyncWriter
from delaynode.replication.term.leader import Leader
from delaynode.replication.transport.peers import Origin
from delaynode.store.errors import Damaged
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.maintenance import persist
from delaynode.store.queue.producers import Producers
from delaynode.store.shard import Shard
from delayoperator.control_loop import replica_queries
from delayoperator.plan import moves, planner, replica_health, term
from delayregistry.model import ShardObject, ShardSpec, ShardStatus

from tests.simulation.support.control import Supervisor
from tests.simulation.support.mutations.planting import DEPOSED, LACKS, NOBODY, TWO, UNCOMMITTED, Put, mutation
from tests.simulation.support.world import World


# ---------------------------------------------------------------- epochs and terms
@mutation("a13_acknowledgement_is_good_at_the_next_master", "called damaged: .* is persisted, the log is at")
def does_not_persist_its_epoch(put: Put) -> None:
    def accept(files: Any, directory: str, shard: Any, epoch: int) -> None:
        shard.identity = replace(shard.identity, epoch=epoch)

    put(persist, "accept_epoch", accept)


@mutation("chosen_copy_that_cannot_apply_its_log_has_told_nobody_of_commits", "no master, takes .* for committed")
def tells_of_commits_before_its_log_is_applied(put: Put) -> None:
    """Then a term that can't apply its log leaves members with commits that those of the former in-sync set lack."""
    begin = Leader.begin

    async def tells(self: Leader, *args: Any, **more: Any) -> bool:
        began = await begin(self, *args, **more)
        if began:
            self.shipping.on_committed(self._log.end)
        return began

    put(Leader, "begin", tells)


@mutation("term_that_never_begins_commits_nothing", "no master, takes .* for committed")
def applies_its_log_before_the_registry_names_the_term(put: Put) -> None:
    """Which commits it, in a term that may never begin."""
    lead = Leadership._lead

    async def early(self: Leadership, shard: Shard, spec: ShardSpec, status: ShardStatus | None) -> None:
        if status is None or set(status.in_sync) == {self._copy.storage.replica_id}:
            await self._copy.storage.apply_all()
        await lead(self, shard, spec, status)

    put(Leadership, "_lead", early)


@mutation("copy_that_went_and_is_wanted_again_behind_its_masters_back_is_made_anew", "moved back")
def tells_only_a_master_that_asks_that_a_copy_is_gone(put: Put) -> None:
    def answer(origin: Origin, message: Message) -> None:
        if isinstance(message, Follow):
            refuse_unknown(origin, message)

    for module in (follower, replica, replicas):
        put(module, "refuse_unknown", answer)


@mutation(None, "healthy again: t-0: 2 in sync", seeds=(412,))
def takes_the_answer_to_its_write_for_the_latest_status(put: Put) -> None:
    """A status that a person put back before the answer came stays for ever."""
    on_status = InSyncWriter.on_status

    def forgets(self: InSyncWriter, status: ShardStatus | None) -> None:
        on_status(self, status)
        self._shown = ANY

    put(InSyncWriter, "on_status", forgets)


@mutation("b2_master_that_comes_back_alone_does_not_write_its_epoch_twice", r"commits in epoch \d+, .* did before")
def resumes_its_term_after_a_restart(put: Put) -> None:  # B2
    chosen, begin, accept = Leadership.is_chosen, Shard.begin_term, persist.accept_epoch

    def resumed(self: Leadership) -> bool:
        spec, shard = self._copy.object.spec, self._copy.shard
        mine = spec.master == self._context.node and self.leader is None and self._copy.role is ReplicaRole.SLAVE
        return chosen(self) or (mine and shard is not None and spec.epoch == shard.identity.epoch)

    def accept_again(files: Any, directory: str, shard: Shard, epoch: int) -> None:
        if epoch != shard.identity.epoch:
            accept(files, directory, shard, epoch)

    def begin_again(self: Shard, epoch: int, node: str, now_ms: int) -> None:
        if epoch != self.epoch:
            begin(self, epoch, node, now_ms)

    put(Leadership, "is_chosen", resumed)
    put(persist, "accept_epoch", accept_again)
    put(Shard, "begin_term", begin_again)


@mutation("third_copy_follows_no_deposed_master", "slaves have applied everything|invariant 8: .* parts from its")
def follows_lower_epochs(put: Put) -> None:
    handle = ReplicaFollower.handle

    async def meek(self: ReplicaFollower, origin: Any, message: Any) -> None:
        floor = self._replica_leases._min_epochs.pop(self._copy.uid, 0)
        self.epoch = min(self.epoch, message.epoch)
        try:
            await handle(self, origin, message)
        finally:
            self._replica_leases._min_epochs[self._copy.uid] = max(
                floor, self._replica_leases._min_epochs.get(self._copy.uid, 0)
            )

    put(ReplicaFollower, "handle", meek)


@mutation("b3_deposed_master_drops_what_was_not_committed", r"invariant 3: .* of epoch \d+ at \d+, others EPOCH")
def cuts_nothing_when_it_rejoins(put: Put) -> None:
    put(shipping, "common_end", lambda mine, my_end, theirs, their_end: min(my_end, their_end))


@mutation("a1_other_writers_of_the_object_depose_nobody", "not within 20 s: the new cluster is healthy")
def takes_a_refused_write_for_a_new_term(put: Put) -> None:  # A1
    async def read(self: InSyncWriter) -> bool:
        self._superseded(self._term.epoch + 1)
        return False

    put(InSyncWriter, "_read", read)


@mutation("a11_sole_copy_is_waited_for", LACKS)
def chooses_from_outside_the_in_sync_set(put: Put) -> None:
    judge = replica_health._health

    def lenient(*args: Any) -> replica_health.ReplicaHealth:
        found = judge(*args)
        return replica_health.ReplicaHealth.IN_SYNC if found is replica_health.ReplicaHealth.OUTSIDE else found

    put(replica_health, "_health", lenient)
    put(Leadership, "_unclean", lambda self: True)


@mutation("a10_node_that_leaves_and_is_wanted_again_keeps_nothing_by_mistake", "the copy that was wanted again")
def leaves_by_a_stale_reading_of_the_registry(put: Put) -> None:  # A10 a
    async def read(self: Replica) -> ShardObject:
        return self.local.object

    put(Replica, "_read", read)


# ---------------------------------------------------------------- processes that have ended
@mutation("chosen_master_that_ends_before_it_serves_leaves_a_lease_to_wait_out", TWO)
def takes_a_term_that_nobody_took_up_for_vacant(put: Put) -> None:
    put(planner, "previous_master_exited", lambda shard, seen: shard.spec.incarnation in seen.ended)
    put(leadership, "_previous_master_stopped", lambda status, spec: spec.vacant)


@mutation("frozen_master_has_not_ended", DEPOSED + "|its term goes on")
def takes_a_frozen_process_for_one_that_has_ended(put: Put) -> None:
    freeze = World.freeze

    def seen(self: World, name: str) -> None:
        freeze(self, name)
        process = self.machines[name].process
        if process is not None:
            self.control.supervisor.process_ended(process)

    put(World, "freeze", seen)


@mutation("master_that_only_its_supervisor_takes_for_ended_would_serve_on", TWO)
def takes_whoever_runs_there_now_for_the_one_that_has_ended(put: Put) -> None:
    def tell(self: Supervisor, incarnation: str) -> None:
        now = self._world.machines[f"n{int(incarnation[:4], 16) - 1}"].process
        self.ended |= {incarnation, now.incarnation if now is not None else incarnation}

    put(Supervisor, "tell", tell)


# ---------------------------------------------------------------- answers, copies, objects
@mutation("b2_master_ships_before_its_own_disk_has_it_and_comes_back_at_once", UNCOMMITTED)
def answers_before_the_commit(put: Put) -> None:  # B4
    async def at_once(self: ShardHost, offset: int) -> None:
        self.check_serving()

    put(ShardHost, "wait_committed", at_once)


@mutation("frozen_master_answers_nothing_after_its_leases", DEPOSED)
def answers_when_it_has_not_heard_from_its_slaves(put: Put) -> None:
    def check(self: ShardHost) -> None:
        if not self.serving:
            raise self._refusal("no term")

    put(ShardHost, "check_serving", check)


@mutation("a9_below_min_in_sync_nothing_is_acknowledged_but_releases_go_on", "invariant 4: .*stored twice")
def stores_a_retry_again(put: Put) -> None:
    put(Producers, "check", lambda self, producer, number, now_ms: None)


@mutation("b4_nothing_is_answered_from_what_is_not_committed", "answered from what is not committed: .*its retry")
def answers_a_retry_from_the_producer_table(put: Put) -> None:  # B4
    answer = ShardHost.answer_at_commit

    def at_once(self: ShardHost, waiting: Any, appended: Any) -> None:
        answer(self, waiting, replace(appended, log_end=0) if appended.duplicate else appended)

    put(ShardHost, "answer_at_commit", at_once)


@mutation("b5_bit_flip_in_what_was_synced_is_no_torn_tail", "invariant 3: .* commits EPOCH .*, others")
def takes_damage_for_a_torn_tail(put: Put) -> None:  # B5 b
    put(CommitLog, "_check_tail", lambda self, offset, known_synced, reason: None)


@mutation(
    "b5_good_frame_after_a_bad_one_in_an_unsynced_tail_stops_no_sole_copy",
    "invariant 8: .* called damaged: no frame magic",
)
def takes_any_frame_after_a_bad_one_for_damage(put: Put) -> None:  # B5 c
    def check(self: CommitLog, offset: int, known_synced: int, reason: str) -> None:
        if any(True for _ in self._frames_after(offset)):
            raise Damaged(reason)

    put(CommitLog, "_check_tail", check)


@mutation("b6_all_machines_start_again_with_async", LACKS)
def takes_the_first_machine_that_is_back(put: Put) -> None:  # B6
    judge = replica_health._health

    def lenient(*args: Any) -> replica_health.ReplicaHealth:
        found = judge(*args)
        return replica_health.ReplicaHealth.IN_SYNC if found is replica_health.ReplicaHealth.REBOOTED else found

    put(replica_health, "_health", lenient)


@mutation("a10_topic_that_is_made_again_has_nothing_of_the_former_one", NOBODY)
def names_directories_by_their_topic_alone(put: Put) -> None:  # A10 b
    start = ReplicaStorage.__init__

    def named(self: ReplicaStorage, *args: Any) -> None:
        start(self, *args)
        self.directory = self.directory.rpartition("-")[0]

    put(ReplicaStorage, "__init__", named)


@mutation(
    "a10_registry_restored_from_an_older_state_names_no_master_of_the_past",
    "it is seen, and said|an epoch that was had before",
)
def believes_a_registry_that_is_behind(put: Put) -> None:  # A10 c
    put(term, "_registry_behind", lambda shard, seen: None)


@mutation("d1_object_of_a_term_that_nobody_began_is_put_back", "an epoch that was given before")
def adopts_as_if_the_copies_knew_of_every_term(put: Put) -> None:  # seed 64668
    put(planner, "UNKNOWN_TERMS", 0)


@mutation("d1_epoch_that_another_process_serves_than_the_registry_names_is_said", "it is seen, and said")
def takes_whoever_serves_the_epoch_for_the_one_that_the_registry_names(put: Put) -> None:
    put(term, "serves_unnamed", lambda spec, node, copy: False)
    put(replica_queries, "serves_unnamed", lambda spec, node, copy: False)


# ---------------------------------------------------------------- the planner
@mutation("move_of_all_copies_under_load", "invariant 7: the planner undoes")
def withdraws_the_switchover_that_a_move_waits_for(put: Put) -> None:
    def withdrawn(shard: ShardObject, *_: Any) -> moves.SpecStep | None:
        spec = shard.spec
        return moves.SpecStep(replace(spec, switchover=None), "not now") if spec.switchover is not None else None

    put(moves, "_switchover", withdrawn)


# ---------------------------------------------------------------- a node that leaves
@mutation("node_that_stops_by_itself_keeps_nobody_waiting", "as soon as others lead")
def copy_that_leaves_follows_the_next_master(put: Put) -> None:
    leave = ReplicaFollower.leave

    def once(self: ReplicaFollower, why: str) -> None:
        leave(self, why)
        self._leaving = None

    put(ReplicaFollower, "leave", once)


@mutation(
    "successor_waits_for_the_former_master_though_a_third_node_is_stopped_for_long", "copy has followed from the start"
)
def takes_each_node_that_stops_for_one_of_the_former_in_sync_set(put: Put) -> None:
    def naive(self: Leadership, spec: Any, others: int, *, ended: int) -> int:
        return max(ended, sum(self._context.stopping(node) for node in spec.replicas if node != self._context.node))

    put(Leadership, "_count_missing", naive)


@mutation("copy_that_has_its_log_to_apply_keeps_no_commit_waiting", "it has its log to apply")
def counts_on_a_copy_that_stores_and_applies_nothing(put: Put) -> None:
    put(in_sync_rule, "APPLIED_MS", 0)


# ---------------------------------------------------------------- clocks
@mutation("b13_clock_set_far_ahead_releases_nothing_early", "ms early by a true clock")
def believes_any_step_of_its_clock(put: Put) -> None:  # B13
    put(GuardedClock, "_spent_ms", lambda self, boot: -(1 << 40))


@mutation("b13_master_whose_clock_is_set_far_back_gives_its_shards_away", "most peers' clocks say that it is wrong")
def leads_on_though_its_clock_is_out_voted(put: Put) -> None:  # B13
    put(Node, "_clock_skewed", lambda self, reason: None)
