"""Bugs planted in the protocol, one at a time, by putting another method in place of a real one.

Each stands for a mistake that somebody could make, most of them from the attacks on an earlier wording of the design.
The simulation must find each of them; `schedule` names the attack that was written against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from delaynode.registry.model import ShardObject, Version
from delaynode.registry.port import OutcomeUnknown
from delaynode.replicate import shipping
from delaynode.replicate.insync import Entries
from delaynode.replicate.leader import Leader
from delaynode.replicate.messages import Beacon, BeaconReply, Follow
from delaynode.replicate.promises import Promises
from delaynode.replicate.shipping import Member, Phase, Shipping
from delaynode.serve import reigning, yard
from delaynode.serve.copyhost import CopyHost
from delaynode.serve.follower import Follower
from delaynode.serve.host import ShardHost
from delaynode.serve.reigning import Reigning
from delaynode.serve.replica import Replica, Role
from delaynode.serve.slave import SlaveHost
from delaynode.store import persist
from delaynode.store.producers import Producers
from delaynode.store.shard import Shard
from delayoperator.plan import planner, standing

from tests.simulation.control import Supervisor
from tests.simulation.world import World

Put = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Mutation:
    """plant(put) puts the wrong methods in place. schedule: of attacks.py, finds it with one seed or another."""

    name: str
    plant: Callable[[Put], None]
    schedule: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        before: list[tuple[Any, str, Any]] = []

        def put(owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)

        self.plant(put)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)


MUTATIONS: dict[str, Mutation] = {}


def mutation(schedule: str) -> Callable[[Callable[[Put], None]], Callable[[Put], None]]:
    def keep(plant: Callable[[Put], None]) -> Callable[[Put], None]:
        MUTATIONS[plant.__name__] = Mutation(plant.__name__, plant, schedule)
        return plant

    return keep


# ---------------------------------------------------------------- commit and the in-sync set
@mutation("b1_master_dies_between_the_larger_set_and_its_answer")
def commits_before_the_slave_has_it(put: Put) -> None:
    put(Leader, "commit_limit", Leader.own_durable)


def _limit(leader: Leader, entries: frozenset[str]) -> int:
    limit = leader.own_durable()
    for entry in entries - {leader.reign.entry}:
        member = leader.member_of(entry)
        limit = min(limit, member.durable if member is not None else 0)
    return limit


@mutation("b3_deposed_master_drops_what_was_not_committed")
def goes_on_without_a_slave_and_records_that_after(put: Put) -> None:
    put(Leader, "commit_limit", lambda self: _limit(self, self._wanted()))


@mutation("b1_master_dies_between_the_larger_set_and_its_answer")
def records_a_slave_before_commits_wait_for_it(put: Put) -> None:  # B1
    put(Leader, "commit_limit", lambda self: _limit(self, self.in_sync.written))


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up")
def records_a_slave_that_has_not_caught_up(put: Put) -> None:
    def join(self: Leader) -> None:
        for member in self.shipping.members.values():
            if member.phase is Phase.STREAMING and member.entry and member.entry not in self.in_sync.counted():
                self.in_sync.join(member.entry)

    def wanted(self: Leader) -> Entries:
        members = [self.member_of(entry) for entry in self.in_sync.counted()]
        return frozenset({self.reign.entry, *(one.entry for one in members if one is not None and self._fit(one))})

    put(Leader, "_join", join)
    put(Leader, "_wanted", wanted)


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up")
def takes_no_answer_for_success(put: Put) -> None:
    write = yard.Statuses.write

    async def hopeful(self: Any, status: Any, version: Version) -> Version:
        try:
            return await write(self, status, version)
        except OutcomeUnknown:
            return Version("hoped")

    put(yard.Statuses, "write", hopeful)


@mutation("b1_larger_set_lands_after_the_master_has_given_it_up")
def takes_no_answer_for_failure(put: Put) -> None:  # B1, the second half
    write = Leader._write

    async def doubtful(self: Leader, *args: Any) -> bool:
        written = await write(self, *args)
        if not written:
            self.in_sync.tried.clear()
            self.in_sync.joining.clear()
        return written

    put(Leader, "_write", doubtful)


@mutation("damaged_copy_stays_while_a_write_under_way_names_it")
def spares_a_copy_that_a_write_under_way_names(put: Put) -> None:
    def ask(self: Shipping, member: Member) -> None:
        self._fall(member, Phase.ASKED)
        self._peers.send(member.node, Follow(self.uid, self.epoch, member.damaged))

    put(Shipping, "_ask", ask)


@mutation("b5_master_whose_disk_failed_once_gives_way")
def names_as_in_sync_who_does_not_follow_the_new_master(put: Put) -> None:  # A7 turned round
    put(Leader, "_following", lambda self, entries: entries)


@mutation("b1_master_dies_between_the_larger_set_and_its_answer")
def acknowledges_before_the_disk_has_it(put: Put) -> None:
    put(CopyHost, "durable", property(lambda self: self.shard.log.end))
    put(Leader, "own_durable", lambda self: self._log.end)


@mutation("b1_master_dies_between_the_larger_set_and_its_answer")
def applies_what_is_not_committed(put: Put) -> None:  # B3
    receive = SlaveHost.receive

    def eager(self: SlaveHost, data: memoryview) -> None:
        receive(self, data)
        self.commit_to(self.shard.log.end)

    put(SlaveHost, "receive", eager)


# ---------------------------------------------------------------- promises
@mutation("a2_promise_counts_from_before_its_beacon_however_late_the_reply")
def counts_a_promise_from_its_reply(put: Put) -> None:
    took = Promises.took

    def late(self: Promises, reply: BeaconReply) -> None:
        peer = self._peers.get(reply.node)
        if peer is not None and reply.beacon_id in peer.sent:
            peer.sent[reply.beacon_id] = self._boot_ms()
        took(self, reply)

    put(Promises, "took", late)


@mutation("frozen_master_answers_nothing_after_its_promises")
def serves_without_promises(put: Put) -> None:
    put(Promises, "live", lambda self, uid, nodes: True)


@mutation("a2_chosen_slave_stops_to_promise_though_its_replies_get_lost")
def promises_to_lower_epochs(put: Put) -> None:  # A2 b
    answer = Promises._answer

    def meek(self: Promises, beacon: Beacon, uid: int, epoch: int, now: int) -> Any:
        floor, self._floor[uid] = self._floor.get(uid, 0), 0
        try:
            return answer(self, beacon, uid, epoch, now)
        finally:
            self._floor[uid] = max(floor, self._floor.get(uid, 0))

    put(Promises, "_answer", meek)


@mutation("a2_chosen_slave_waits_while_a_master_that_is_cut_off_may_serve")
def does_not_wait_out_its_own_promise(put: Put) -> None:
    put(Promises, "wait_ms", lambda self, uid: 0)


@mutation("a2_slave_restarted_when_it_is_chosen_waits_all_the_same")
def forgets_its_promises_at_a_restart(put: Put) -> None:  # A2 a
    start = Promises.__init__

    def forgetful(self: Promises, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        self._started_ms -= 1_000_000

    put(Promises, "__init__", forgetful)


@mutation("a2_late_release_does_not_void_a_newer_promise")
def takes_an_old_release_for_a_newer_promise(put: Put) -> None:  # A2 d
    def release(self: Promises, uid: int, node: str, incarnation: int, epoch: int, beacon: int) -> None:
        given = self._given.get(uid)
        if given is not None:
            given.until_ms = 0

    put(Promises, "release", release)


@mutation("switchover_whose_old_master_hears_of_nothing_more")
def goes_on_serving_while_it_hands_over(put: Put) -> None:
    put(ShardHost, "pause", lambda self, why: None)

    def stop_asking(self: Promises, uid: int) -> int:
        self._asking.pop(uid, None)
        return self._next_id - 1

    put(Promises, "stop_asking", stop_asking)
    live = Leader.live

    def busy(self: Leader) -> bool:
        handover, self.handover = self.handover, None
        try:
            return live(self)
        finally:
            self.handover = handover

    put(Leader, "live", busy)


# ---------------------------------------------------------------- epochs and reigns
@mutation("a13_acknowledgement_is_good_at_the_next_master")
def does_not_persist_its_epoch(put: Put) -> None:
    def accept(files: Any, directory: str, shard: Any, epoch: int) -> None:
        shard.identity = replace(shard.identity, epoch=epoch)

    put(persist, "accept_epoch", accept)


@mutation("b2_master_that_comes_back_alone_does_not_write_its_epoch_twice")
def resumes_its_reign_after_a_restart(put: Put) -> None:  # B2
    chosen, begin, accept = Reigning.chosen, Shard.begin_reign, persist.accept_epoch

    def resumed(self: Reigning) -> bool:
        spec, shard = self._copy.object.spec, self._copy.shard
        mine = spec.master == self._yard.node and self.leader is None and self._copy.role is Role.SLAVE
        return chosen(self) or (mine and shard is not None and spec.epoch == shard.identity.epoch)

    def accept_again(files: Any, directory: str, shard: Shard, epoch: int) -> None:
        if epoch != shard.identity.epoch:
            accept(files, directory, shard, epoch)

    def begin_again(self: Shard, epoch: int, node: str, now_ms: int) -> None:
        if epoch != self.epoch:
            begin(self, epoch, node, now_ms)

    put(Reigning, "chosen", resumed)
    put(persist, "accept_epoch", accept_again)
    put(Shard, "begin_reign", begin_again)


@mutation("third_copy_follows_no_deposed_master")
def follows_lower_epochs(put: Put) -> None:
    handle = Follower.handle

    async def meek(self: Follower, origin: Any, message: Any) -> None:
        floor = self._promises._floor.pop(self._copy.uid, 0)
        self.epoch = min(self.epoch, message.epoch)
        try:
            await handle(self, origin, message)
        finally:
            self._promises._floor[self._copy.uid] = max(floor, self._promises._floor.get(self._copy.uid, 0))

    put(Follower, "handle", meek)


@mutation("b3_deposed_master_drops_what_was_not_committed")
def cuts_nothing_when_it_rejoins(put: Put) -> None:
    put(shipping, "common_end", lambda mine, my_end, theirs, their_end: min(my_end, their_end))


@mutation("a1_other_writers_of_the_object_depose_nobody")
def takes_a_refused_write_for_a_new_reign(put: Put) -> None:  # A1
    async def read(self: Leader) -> bool:
        self.deposed(self.reign.epoch + 1)
        return False

    put(Leader, "_read", read)


@mutation("a11_sole_copy_is_waited_for")
def chooses_from_outside_the_in_sync_set(put: Put) -> None:
    judge = standing._standing

    def lenient(*args: Any) -> standing.Standing:
        found = judge(*args)
        return standing.Standing.IN_SYNC if found is standing.Standing.OUTSIDE else found

    put(standing, "_standing", lenient)
    put(Reigning, "_unclean", lambda self: True)


@mutation("a10_node_that_leaves_and_is_wanted_again_keeps_nothing_by_mistake")
def leaves_by_a_stale_reading_of_the_registry(put: Put) -> None:  # A10 a
    async def read(self: Replica) -> ShardObject:
        return self.object

    put(Replica, "_read", read)


# ---------------------------------------------------------------- processes that have ended
@mutation("chosen_master_that_ends_before_it_serves_leaves_a_promise_to_wait_out")
def takes_a_reign_that_nobody_took_up_for_vacant(put: Put) -> None:
    put(planner, "is_vacant", lambda shard, seen: shard.spec.incarnation in seen.ended)
    put(reigning, "_vacated", lambda status, spec: spec.vacant)


@mutation("frozen_master_has_not_ended")
def takes_a_frozen_process_for_one_that_has_ended(put: Put) -> None:
    freeze = World.freeze

    def seen(self: World, name: str) -> None:
        freeze(self, name)
        process = self.machines[name].process
        if process is not None:
            self.control.supervisor.process_ended(process)

    put(World, "freeze", seen)


@mutation("master_that_only_its_supervisor_takes_for_ended_would_serve_on")
def takes_whoever_runs_there_now_for_the_one_that_has_ended(put: Put) -> None:
    def tell(self: Supervisor, incarnation: str) -> None:
        now = self._world.machines[f"n{int(incarnation[:4], 16) - 1}"].process
        self.ended |= {incarnation, now.incarnation if now is not None else incarnation}

    put(Supervisor, "tell", tell)


# ---------------------------------------------------------------- answers
@mutation("b2_master_ships_before_its_own_disk_has_it_and_comes_back_at_once")
def answers_before_the_commit(put: Put) -> None:  # B4
    async def at_once(self: ShardHost, offset: int) -> None:
        self.check_serving()

    put(ShardHost, "committed", at_once)


@mutation("frozen_master_answers_nothing_after_its_promises")
def answers_when_it_has_not_heard_from_its_slaves(put: Put) -> None:
    def check(self: ShardHost) -> None:
        if not self.serving:
            raise self._refusal("no reign")

    put(ShardHost, "check_serving", check)


@mutation("a9_below_min_in_sync_nothing_is_acknowledged_but_releases_go_on")
def stores_a_retry_again(put: Put) -> None:
    put(Producers, "check", lambda self, producer, number, now_ms: None)
