"""More planted bugs, as in mutations.py: terms that end, or never begin, without a word in the shard's object."""

from __future__ import annotations

from collections.abc import Sequence

from delaynode.replication.term.in_sync_writer import InSyncWriter
from delayoperator.control_loop import term_starts
from delayoperator.control_loop.replica_queries import ReplicaQueries
from delayoperator.plan import CopyView, NotBegun, Observed, term
from delayregistry.model import ClusterSpec, NodeLease, ShardObject

from tests.simulation.support.mutations.planting import Put, mutation


@mutation("h3_one_404_ends_no_term", "not within .*: (the dead slave is out of|the master goes on)|had to be chosen")
def believes_one_404(put: Put) -> None:
    put(InSyncWriter, "_not_found", lambda self: self._end("the shard is gone from the registry"))


@mutation("h3_forged_epoch_makes_way_for_another_term", "not within .*: the shard is served again")
def asks_no_master_whether_it_serves(put: Put) -> None:
    def patrolled(self: ReplicaQueries, seen: Observed, leases: Sequence[NodeLease], now_ms: int) -> Observed:
        return seen

    put(ReplicaQueries, "_patrolled", patrolled)


@mutation(
    "m1_in_sync_copy_that_is_back_leads_where_another_was_chosen_uncleanly",
    "not within .*: (a condition says who is awaited|the in-sync copy is chosen when it is back)",
)
def keeps_a_master_that_refuses(put: Put) -> None:
    def never(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> None:
        return None

    put(term, "_can_never_serve", never)


@mutation("h3_404_for_the_chosen_one_alone_makes_way_for_another", "not within .*: another serves")
def keeps_a_chosen_master_that_never_begins(put: Put) -> None:
    def kept(desired: ClusterSpec, shard: ShardObject, late: NotBegun, seen: Observed) -> term.Decision:
        return term.Keep()

    put(term, "_passed_over", kept)


@mutation("two_that_find_no_such_shard_are_not_chosen_in_turn_all_the_time", "the pause doubles")
def chooses_those_that_can_not_begin_in_turn(put: Put) -> None:
    def in_turn(nodes: Sequence[str], late: NotBegun) -> list[str]:
        return [node for node in nodes if node != late.in_vain[-1]]

    put(term, "_not_in_vain", in_turn)


@mutation("chosen_copy_that_is_long_at_work_is_kept", "a copy at work was passed over")
def passes_over_a_copy_that_is_at_work(put: Put) -> None:
    def never(copy: CopyView) -> bool:
        return False

    put(term_starts, "_at_work", never)


@mutation("served_shard_is_not_given_back_to_one_that_could_not_begin", "the shard was stopped for it again")
def gives_a_shard_back_to_a_copy_that_could_not_begin(put: Put) -> None:
    put(term_starts, "EXCLUDED_MS", 0)
