"""More planted bugs, as in mutations.py: reigns that end, or never begin, without a word in the shard's object."""

from __future__ import annotations

from collections.abc import Sequence

from delaynode.registry.model import ClusterSpec, NodeLease, ShardObject
from delaynode.replicate.leader import Leader
from delayoperator.asking import Asking
from delayoperator.plan import Observed, reign

from tests.simulation.planting import Put, mutation


@mutation("h3_one_404_ends_no_reign", "not within .*: (the dead slave is out of|the master goes on)|had to be chosen")
def believes_one_404(put: Put) -> None:
    put(Leader, "_not_found", lambda self: self._end("the shard is gone from the registry"))


@mutation("h3_forged_epoch_makes_way_for_another_reign", "not within .*: the shard is served again")
def asks_no_master_whether_it_serves(put: Put) -> None:
    def patrolled(self: Asking, seen: Observed, leases: Sequence[NodeLease], now_ms: int) -> Observed:
        return seen

    put(Asking, "_patrolled", patrolled)


@mutation(
    "m1_in_sync_copy_that_is_back_leads_where_another_was_chosen_uncleanly",
    "not within .*: (a condition says who is awaited|the in-sync copy is chosen when it is back)",
)
def keeps_a_master_that_refuses(put: Put) -> None:
    def never(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> None:
        return None

    put(reign, "_can_never_serve", never)
