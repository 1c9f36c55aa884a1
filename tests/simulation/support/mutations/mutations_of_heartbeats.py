"""More planted bugs, as in mutations.py: which heartbeats count."""

from __future__ import annotations

from delaynode.replication.heartbeat_guard import HeartbeatGuard
from delaynode.replication.protocol import HeartbeatReply
from delaynode.replication.replica_lease import ReplicaLeases

from tests.simulation.support.mutations.planting import TWO, Put, mutation


@mutation("p1_forged_replies_keep_no_master_that_is_cut_off", TWO)
def takes_heartbeats_without_a_seal(put: Put) -> None:
    put(HeartbeatGuard, "_needs_seal", lambda self, message: False)


@mutation("p2_altered_replies_keep_no_master_that_is_cut_off", TWO)
def does_not_compare_the_seal(put: Put) -> None:
    put(HeartbeatGuard, "_authentic", lambda self, session, said, mac: True)


@mutation("p3_replayed_replies_keep_no_master_that_is_cut_off", TWO)
def takes_a_reply_to_what_it_has_not_just_sent(put: Put) -> None:
    real = ReplicaLeases.on_reply

    def on_reply(self: ReplicaLeases, reply: HeartbeatReply) -> None:
        if (peer := self._peers.get(reply.node)) is not None:
            peer.sent.setdefault(reply.heartbeat_id, self._boot_ms())
        real(self, reply)

    put(ReplicaLeases, "on_reply", on_reply)


@mutation("p4_heartbeat_that_was_held_back_binds_nobody", "a heartbeat of long ago counts")
def grants_leases_for_heartbeats_of_long_ago(put: Put) -> None:
    put(HeartbeatGuard, "_is_fresh", lambda self, echo_ms: True)


@mutation("p5_a_heartbeat_counts_once", "a heartbeat counts twice")
def takes_a_heartbeat_twice(put: Put) -> None:
    put(HeartbeatGuard, "_first_time", lambda self, session, message: True)
