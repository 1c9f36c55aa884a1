"""More planted bugs, as in mutations.py: whose a copy on a disk is, and what an object that is gone or older may do."""

from __future__ import annotations

from delaynode.replica import replicas
from delaynode.replica.hosts.host import CopyHost
from delaynode.replica.replica import Replica
from delaynode.replica.stored_copies import is_wanted
from delaynode.store.maintenance.stored_copy import StoredCopy
from delayoperator.control_loop import replica_queries
from delayoperator.plan import Observed, bootstrap, planner, term
from delayregistry.model import ClusterSpec, ShardObject

from tests.simulation.support.mutations.planting import Put, mutation

HIDDEN = "not within .*: served again, with its messages"


@mutation("d1_deleted_object_is_made_again_for_the_copies_that_are_there", HIDDEN)
def makes_an_empty_shard_beside_full_copies(put: Put) -> None:
    def empty(*_: object) -> bootstrap.MakeEmpty:
        return bootstrap.MakeEmpty()

    put(planner, "decide_missing", empty)
    put(term, "decide_missing", empty)


@mutation("d1_creation_that_lands_late_hides_no_copies", HIDDEN)
def leads_an_empty_shard_beside_full_copies(put: Put) -> None:
    put(term, "_older_history", lambda *_: None)


@mutation("d1_cluster_that_is_applied_again_has_its_messages", "nothing is made before every node has said")
def makes_shards_before_all_nodes_were_heard(put: Put) -> None:
    def nobody(desired: ClusterSpec, seen: Observed) -> tuple[str, ...]:
        return ()

    put(planner, "unheard_nodes", nobody)


@mutation("d1_copy_whose_disk_hangs_is_not_named_in_sync", "invariant 1: .* is recorded as in sync and has")
def counts_on_what_a_copy_is_still_storing(put: Put) -> None:
    put(CopyHost, "unsynced", 0)


@mutation("d1b_registry_restored_to_before_a_move_costs_no_copy", "no copy leaves by the word of an older object")
def leaves_by_the_word_of_an_older_object(put: Put) -> None:
    put(Replica, "_older_than_known", lambda self, spec, status: "")


@mutation(
    "d1b_registry_restored_to_before_a_move_of_a_slave_costs_no_copy", "no copy leaves by the word of an older object"
)
def leaves_by_the_word_of_an_older_object_of_its_term(put: Put) -> None:
    put(Replica, "_remember_status", lambda self, object_: None)


@mutation("d1_deleted_object_is_made_again_for_the_copies_that_are_there", HIDDEN)
def looks_for_copies_only_where_the_object_says(put: Put) -> None:
    def found(seen: Observed, answers: object) -> object:
        return replica_queries._NOTHING_FOUND

    put(replica_queries, "_found", found)


@mutation("d1b_registry_restored_to_before_a_move_costs_no_copy", "no copy leaves by the word of an older object")
def gives_back_by_the_word_of_an_older_object(put: Put) -> None:
    def outdated(copy: StoredCopy, node: str, object_: ShardObject) -> bool:
        return object_.spec.uid == copy.uid and not is_wanted(copy, node, object_)

    put(replicas, "is_outdated", outdated)


@mutation("d5_copies_that_were_replaced_while_their_node_was_away_give_their_disk_back", "does without is gone")
def keeps_for_ever_what_was_replaced(put: Put) -> None:
    put(replicas, "is_outdated", lambda *_: False)
