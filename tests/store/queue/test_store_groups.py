"""Groups against the model, and the cases that walks meet seldom."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delaynode.store.errors import Refused
from delaynode.store.log.offsets import as_ranges, expand, rows_at
from delaynode.store.queue import groups
from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.dead_letters import DeadLetters
from delaynode.store.queue.groups import CommitDependency, Group
from delaynode.store.types import I64, U32, Bools
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.consuming import World, tag_of
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, GROUPS, JOBS, TIDYING, Draw, Step
from tests.store.support.walks import Steps, times, walk
from tests.store.support.world import SMALL

CI = settings.get_profile("ci")
RED, BLUE = tag_of("red"), tag_of("blue")


COMMON: Steps = CONSUMERS | {
    "checkpoint": (1, lambda world, draw: world.checkpoint()),
    "power cut": (1, lambda world, draw: world.power_cut()),
    "pump": (3, lambda world, draw: world.pump()),
}


def send_now(world: World, tags: list[int]) -> None:
    world.enqueue([Item(0, tag=tag) for tag in tags])
    world.pump()


def restart(world: World) -> None:
    world.pump()
    world.kill()


def released(tags: list[int], **limits: int) -> World:
    """A world whose queue holds one message of each tag, at offsets 0, 1, ..."""
    world = World(1, replace(SMALL, **limits))
    send_now(world, tags)
    return world


def under_way(seed: int) -> World:
    """With limits that trims, dead letters and windows meet soon."""
    rng = random.Random(seed)
    keep = replace(SMALL.keep, retention_ms=rng.choice([1, 1000]))
    sizes = {"log_segment_bytes": rng.choice([200, 600, 2000]), "queue_segment_bytes": rng.choice([40, 280])}
    return World(
        seed, replace(SMALL, max_unacked=rng.choice([3, 10]), max_attempts=rng.choice([1, 2]), keep=keep, **sizes)
    )


def walks_with_much_under_way() -> None:
    """Nothing is committed unless a step says so."""

    def send(world: World, draw: Draw) -> None:
        tags = (0, RED, BLUE)
        world.enqueue([Item(0, size=draw(1, 40), tag=tags[draw(0, 2)]) for _ in range(draw(1, 6))])

    steps: Steps = {
        "send": (6, send),
        "wait": (2, lambda world, draw: world.advance((1, 100, 1000, 61_000)[draw(0, 3)])),
        "trim": (3, lambda world, draw: world.trim()),
    }
    steps |= {name: (1, JOBS[name][1]) for name in ("begin write", "run write", "finish write", "commit")}
    steps |= {name: (2, TIDYING[name][1]) for name in ("begin empty", "run empty", "finish empty")}
    for seed in range(4 * 10**6, 4 * 10**6 + times(150)):
        walk(seed, COMMON | steps, length=120, make=under_way)


def test_hand_outs_rest_on_no_more_than_they_say() -> None:
    walks_with_much_under_way()


def test_walks_tell_that_a_window_rests_on_a_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumers, "on_trim", lambda self, start, end: None)
    with pytest.raises(AssertionError, match="rests on frames"):
        walks_with_much_under_way()


def die_and_come_back(world: World, draw: Draw) -> None:
    """A group's next messages are dead letters at once, and redriven."""
    group = GROUPS[draw(0, 2)]
    if group in world.model.groups:
        known = world.model.groups[group]
        rows = [(offset, world._state(known, offset).attempt) for offset in world.deliver(group, draw(1, 3))]
        world.nack(group, rows, 0, dead=True)
        world.resolve(group, None, redrive=True)


def walks() -> None:
    now: Step = lambda world, draw: send_now(world, [(0, RED, BLUE)[draw(0, 2)] for _ in range(draw(1, 6))])  # noqa: E731
    steps: Steps = {
        "send": (6, now),
        "wait": (4, lambda world, draw: world.advance((1, 500, 1000, 5000)[draw(0, 3)])),
        "die and come back": (4, die_and_come_back),
        "kill": (1, lambda world, draw: world.kill()),
    }
    for seed in range(3 * 10**6, 3 * 10**6 + times(300)):
        walk(seed, COMMON | steps, length=80)


def test_groups_do_what_the_model_does() -> None:
    walks()


PLANTED: dict[str, Callable[[CommitDependency, int], int]] = {
    "on nothing": lambda rests, floor: 0,
    "on no ack": lambda rests, floor: rests.last_change,
    "on acks only": lambda rests, floor: replace(rests, last_change=0).last,
    "on the first ack that counts": lambda rests, floor: max(
        [rests.last_change, *(end for end, _ in list(rests._moves)[:1])]
    ),
}


def test_a_hand_out_rests_on_the_acks_without_which_its_window_would_end_before_it() -> None:
    """Each ACK takes 10 offsets, ends 100 further in the log, and is committed two ACKs later."""
    rests = CommitDependency(last_change=7)
    for n in range(1, 50):
        rests.add_window_move(10 * (n - 1), 100 * n, 100 * (n - 2))
    assert rests.depends_on(470) == 7, "the committed floor is enough"
    assert [rests.depends_on(floor) for floor in (471, 480)] == [4800, 4800]
    assert [rests.depends_on(floor) for floor in (481, 490)] == [4900, 4900]
    assert rests.last == 4900


@pytest.mark.parametrize("planted", PLANTED)
def test_walks_tell_what_a_hand_out_rests_on(monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    monkeypatch.setattr(CommitDependency, "depends_on", PLANTED[planted])
    with pytest.raises(AssertionError, match=r"rests on|handed anything before"):
        walks()


def takes_any_attempt(patch: pytest.MonkeyPatch) -> None:
    current = Group.is_current_attempt

    def any_attempt(self: Group, offsets: I64, attempts: U32, queue: ConsumeQueue) -> Bools:
        return current(self, offsets, np.ones_like(attempts), queue) | current(self, offsets, attempts, queue)

    patch.setattr(Group, "is_current_attempt", any_attempt)


def extends_and_does_not_wake(patch: pytest.MonkeyPatch) -> None:
    extend = Group.extend

    def asleep(self: Group, offsets: I64, until_ms: int) -> None:
        before = self._next_expiry
        extend(self, offsets, until_ms)
        self._next_expiry = before

    patch.setattr(Group, "extend", asleep)


def hides_what_is_given_back(patch: pytest.MonkeyPatch) -> None:
    extend = Group.extend

    def hidden(self: Group, offsets: I64, until_ms: int) -> None:
        before = self._next_visible
        extend(self, offsets, until_ms)
        self._next_visible = before

    patch.setattr(Group, "extend", hidden)


def does_not_extend_what_was_redriven(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadLetters, "extend", lambda self, positions, until_ms: None)


def kills_beyond_the_limit(patch: pytest.MonkeyPatch) -> None:
    end = Consumers._end_attempts

    def unlimited(self: Consumers, *args: Any, dead: bool = False, reason: str = "") -> tuple[int, int]:
        limits = self.limits
        self.limits = replace(limits, max_dead=10**6) if dead else limits
        try:
            return end(self, *args, dead=dead, reason=reason)
        finally:
            self.limits = limits

    patch.setattr(Consumers, "_end_attempts", unlimited)


OF_ATTEMPTS = (
    takes_any_attempt, extends_and_does_not_wake, hides_what_is_given_back, does_not_extend_what_was_redriven,
    kills_beyond_the_limit,
)  # fmt: skip


@pytest.mark.parametrize("plant", OF_ATTEMPTS)
def test_walks_tell_what_attempts_are_over(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        walks()


def test_messages_below_an_ack_ahead_are_still_handed_out() -> None:
    """An ack names what another master handed out; what lies between has not been looked at here."""
    world = released([0] * 10, max_unacked=100)
    world.join("g")
    assert world.deliver("g", 0) == []
    world.ack("g", [(5, 6)])
    assert world.deliver("g", 100) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("attempts", [1, 2])
def test_messages_below_a_nack_ahead_are_still_handed_out(attempts: int) -> None:
    world = released([0] * 10, max_attempts=attempts)
    world.join("g")
    world.nack("g", [(5, 1)], 10_000)
    assert world.deliver("g", 100) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_redriven_letter_above_the_floor_is_handed_out_once() -> None:
    """It lies in the window as done; to give it back must not open that row as well."""
    world = released([0] * 4, max_attempts=1)
    world.join("g")
    world.deliver("g", 4)
    world.nack("g", [(1, 1), (2, 1)], 0)
    world.resolve("g", None, redrive=True)
    assert world.deliver("g", 2, most_bytes=1) == [1]  # the second does not fit and is given back
    assert world.deliver("g", 5) == [2]
    assert world.deliver("g", 5) == []


def test_a_redriven_letter_above_the_floor_can_be_nacked_at_its_attempt_only() -> None:
    world = released([0] * 3, max_attempts=2)
    world.join("g")
    world.deliver("g", 3)
    world.nack("g", [(1, 1)], 0)
    world.deliver("g", 3)
    world.nack("g", [(1, 2)], 0)
    assert world.model.groups["g"].dead == {1: 2}
    world.resolve("g", [1], redrive=True)
    assert world.deliver("g", 3) == [1]
    world.nack("g", [(1, 2)], 0)
    world.nack("g", [(1, 1)], 0)
    assert world.deliver("g", 3) == [1]
    assert world.model.groups["g"].redriven[1].attempt == 2


def test_an_ack_counts_only_the_groups_own_messages() -> None:
    world = released([RED, 0, 0, RED, 0, BLUE], max_unacked=100)
    world.join("g", ("red",))
    world.ack("g", [(0, 6)])  # checked against the model: 2


@pytest.mark.parametrize("step", [1, 3, 4096])
def test_after_a_restart_a_filtered_group_takes_acks_and_nacks_far_above_its_floor(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master that delivered skipped the messages that the filter leaves out, and wrote no frame about them."""
    monkeypatch.setattr(groups, "FILTER_STEP", step)
    world = released([0] * 50 + [RED, RED, 0, RED], max_unacked=5)
    world.join("g", ("red",))
    assert world.deliver("g", 2) == [50, 51]
    restart(world)
    world.ack("g", [(50, 51)])
    world.nack("g", [(51, 1)], 0)
    restart(world)
    assert world.deliver("g", 9) == [51, 53]
    assert len(world.shard.consumers.group("g")._state) < 2000


def test_what_a_filter_leaves_out_takes_no_memory() -> None:
    world = released([0], max_unacked=10)
    for _ in range(20):
        world.enqueue([Item(0, size=1)] * 2000)
    world.enqueue([Item(0, tag=RED)])
    world.pump()
    world.join("g", ("red",))
    restart(world)
    assert world.deliver("g", 1) == [40_001]
    restart(world)
    world.ack("g", [(40_001, 40_002)])
    restart(world)
    group = world.shard.consumers.group("g")
    assert (group.first_unacked, world.deliver("g", 1)) == (40_002, [])
    assert len(group._state) <= 2 * 8192


def test_a_window_holds_at_most_max_unacked_offsets() -> None:
    world = released([0] * 30, max_unacked=10)
    world.join("g")
    assert world.deliver("g", 100) == list(range(10))
    world.ack("g", [(3, 5)])
    assert world.deliver("g", 100) == []
    world.ack("g", [(0, 2)])
    assert world.deliver("g", 100) == [10, 11]
    world.ack("g", [(25, 26)])  # refused: too far
    world.ack("g", [(0, 20)])  # a commit from the floor on may go as far as it likes
    assert world.deliver("g", 100) == list(range(20, 30))


def test_a_delivery_chooses_little_more_than_its_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is put back: once all that was there, half of a herd's work."""
    world, undo, put_back = released([0] * 12_000, max_unacked=12_000), Group.undo_delivery, []
    monkeypatch.setattr(
        Group, "undo_delivery", lambda self, rows, until: (put_back.append(len(rows)), undo(self, rows, until))
    )
    world.join("g")
    size = world.shard.queue.read(0, 12_000)["size"]
    assert len(set(size.tolist())) == 1
    counts = [len(world.deliver("g", 65_536, 2000 * int(size[0]))) for _ in range(7)]
    assert (counts, sum(put_back)) == ([2000] * 6 + [0], groups.FIRST_CHOSEN - 2000)


def test_small_messages_behind_a_large_one_come_within_two_deliveries() -> None:
    world = released([0], max_unacked=5000)
    world.join("g")
    for size, count in ((9000, 1), (3, 3000)):
        world.enqueue([Item(0, size=size)] * count)
        world.pump()
    assert [len(world.deliver("g", most, 9500)) for most in (1, 1, 5000, 5000, 5000)] == [
        1,
        1,
        groups.LEAST_CHOSEN,
        3000 - groups.LEAST_CHOSEN,
        0,
    ]


def test_attempts_grow_until_the_message_is_a_dead_letter() -> None:
    world = released([0], max_attempts=3)
    world.join("g")
    for attempt in (1, 2, 3):
        assert world.deliver("g", 1) == [0]
        world.nack("g", [(0, attempt), (0, attempt)], -1)
        world.nack("g", [(0, attempt)], -1)  # a second one is a no-op
        assert world.deliver("g", 1) == []  # it waits
        world.advance(300_000)
        restart(world)
    assert world.model.groups["g"].dead == {0: 3}
    assert world.model.floor("g", 1) == 1
    world.resolve("g", None, redrive=False)
    assert world.deliver("g", 1) == []


def test_no_answer_in_time_ends_an_attempt_and_an_answer_in_time_does_not() -> None:
    world = released([0, 0], max_attempts=2)
    world.join("g")
    world.deliver("g", 1, invisible_ms=1000)
    world.deliver("g", 1, invisible_ms=5000)
    world.advance(999)
    world.expire()
    assert world.deliver("g", 2) == []
    world.advance(1)
    world.expire()
    assert world.deliver("g", 2) == [0]
    world.ack("g", [(0, 1)])
    world.advance(10_000)
    world.expire()
    assert world.deliver("g", 2) == [1]


def test_a_group_can_start_at_the_end_and_one_that_was_deleted_starts_anew() -> None:
    world = released([0, 0])
    world.join("late", from_end=True)
    assert world.deliver("late", 5) == []
    send_now(world, [0])
    assert world.deliver("late", 5) == [2]
    world.ack("late", [(0, 1)])  # released, but never its own
    world.delete_group("late")
    restart(world)
    world.join("late")
    assert world.deliver("late", 5) == [0, 1, 2]


def test_what_a_group_may_not_be_asked() -> None:
    world = released([0] * 3)
    consumers = world.shard.consumers
    column = np.array([0])
    for wrong in (
        lambda: consumers.deliver("nobody", world.now, 1, 1, 1),
        lambda: consumers.acknowledge("nobody", column, column + 1, world.now),
        lambda: consumers.nack("nobody", column, column.astype(np.uint32), 0, world.now),
        lambda: consumers.delete("nobody", world.now),
        lambda: consumers.join("", (), from_end=False, now_ms=world.now),
        lambda: consumers.join("x" * 256, (), from_end=False, now_ms=world.now),
        lambda: consumers.join("g", tuple(map(str, range(65))), from_end=False, now_ms=world.now),
    ):
        with pytest.raises(Refused):
            wrong()
    world.join("g")
    for ranges in ([(-1, 1)], [(2, 2)], [(2, 1)], [(0, 4)], [(0, 2), (1, 3)], [(2**62, 2**63 - 1)]):
        start, end = (np.array([r[i] for r in ranges], np.int64) for i in (0, 1))
        with pytest.raises(Refused):
            consumers.acknowledge("g", start, end, world.now)
    with pytest.raises(Refused):
        consumers.acknowledge("g", np.array([0, 1]), np.array([1]), world.now)
    with pytest.raises(Refused):
        consumers.nack("g", np.array([0, 1]), np.array([1], np.uint32), 0, world.now)
    world.nack("g", [(-5, 1), (99, 1), (2**62, 1), (0, 0), (0, 7)], 0)  # ignored, every one
    assert world.deliver("g", 5) == [0, 1, 2]


@CI
@given(st.lists(st.integers(0, 40), unique=True).map(sorted))
def test_offsets_are_ranges_and_back(offsets: list[int]) -> None:
    start, end = as_ranges(np.array(offsets, np.int64))
    assert expand(start, end).tolist() == offsets
    assert (start[1:] > end[:-1]).all()


def test_counts_add_up_while_a_group_works() -> None:
    rng = random.Random(1)
    world = released([0] * 8, max_attempts=2)
    world.join("g")
    for _ in range(times(100)):
        got = world.deliver("g", rng.randint(1, 4))
        world.ack("g", [(o, o + 1) for o in got if rng.random() < 0.3])
        world.nack("g", [(o, world._state(world.model.groups["g"], o).attempt) for o in got[:1]], 700)
        world.advance(400)
        world.expire()
        world.check_groups()
        counts = world.shard.consumers.group("g").counts(world.shard.queue, world.now)
        done = len(world.model.groups["g"].done)
        assert counts.available + counts.in_flight + counts.waiting_retry == world.visible - done
        if rng.random() < 0.2:
            send_now(world, [0, 0])


def test_a_hand_out_that_is_given_back_late_takes_nothing_from_who_has_it_now() -> None:
    """Its message expired, was buried and redriven, and so is at the same attempt again."""
    world = released([0], max_attempts=1)
    world.join("g")
    consumers, queue = world.shard.consumers, world.shard.queue
    group = consumers.group("g")
    for redriven in (False, True):
        late = consumers.deliver("g", world.now, 1000, 1, 1 << 20)
        world.advance(1000)
        assert consumers.expire(world.now).dead == 1
        consumers.resolve("g", None, redrive=True, now_ms=world.now)
        now = consumers.deliver("g", world.now, 1000, 1, 1 << 20)
        assert now.attempt.tolist() == late.attempt.tolist() == [1]
        group.undo_delivery(late.offset, late.until_ms)
        assert group.counts(queue, world.now).in_flight == 1, redriven
        group.undo_delivery(now.offset, now.until_ms)
        assert group.counts(queue, world.now).in_flight == 0


def test_an_offset_that_a_frame_names_twice_is_read_twice() -> None:
    """No master writes such a DEAD; a letter must not get another message's row by it."""
    queue = released([RED] * 4).shard.queue
    named = np.array([1, 1, 3])
    assert rows_at(queue, named)["seq"].tolist() == queue.read(0, 4)["seq"][named].tolist()
