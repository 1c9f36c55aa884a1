"""The shard against the model, with crashes: thousands of walks by seed, and hypothesis to shrink what they find.

A failure names its seed; `walk(seed, steps, length)` does it again.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.store.support.consuming import World
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, TIDYING, TROUBLE, Draw, finale
from tests.store.support.walks import Steps, tidy_world, times, walk, world_of

WITHOUT_TROUBLE: Steps = MESSAGES | JOBS | TIDYING | CONSUMERS
EVERYTHING: Steps = WITHOUT_TROUBLE | TROUBLE
CHUNKS = 10
EACH_CHUNK = [0, *(pytest.param(chunk, marks=pytest.mark.long) for chunk in range(1, CHUNKS))]

pytestmark = pytest.mark.timeout(3600)  # a chunk of walks takes 100 s; CI runs it beside others


@pytest.mark.parametrize("chunk", EACH_CHUNK)
def test_a_shard_does_what_the_model_does_through_crashes(chunk: int) -> None:
    for seed in range(chunk, times(900), CHUNKS):
        walk(seed, EVERYTHING, length=(20, 60, 120)[seed % 3])


@pytest.mark.parametrize("chunk", EACH_CHUNK)
def test_short_lives_are_lived_right(chunk: int) -> None:
    """Few steps and a crash: the cheapest way to meet a state that a long walk seldom passes."""
    for seed in range(10**6 + chunk, 10**6 + times(1200), CHUNKS):
        walk(seed, MESSAGES | JOBS | TIDYING | TROUBLE, length=12)


def test_a_shard_does_what_the_model_does_without_crashes() -> None:
    for seed in range(2 * 10**6, 2 * 10**6 + times(100)):
        walk(seed, WITHOUT_TROUBLE, length=150)


def weighted(steps: Steps, **weights: int) -> Steps:
    """The steps with other weights, by name with _ for a space."""
    changed = {name.replace("_", " "): weight for name, weight in weights.items()}
    return {name: (changed.get(name, weight), step) for name, (weight, step) in steps.items()}


FREEING = weighted(
    EVERYTHING, enqueue=20, pump=10, checkpoint=8, trim=6, empty_all=5, clean=5, live_a_while=8, ack=8, nack=6,
    there_and_back=3, reschedule=4, power_cut=0, stop=0, crash_soon=1,
)  # fmt: skip


@pytest.mark.parametrize("chunk", EACH_CHUNK)
def test_nothing_that_is_needed_is_freed(chunk: int) -> None:
    for seed in range(3 * 10**6 + chunk, 3 * 10**6 + times(300), CHUNKS):
        walk(seed, FREEING, length=120, make=tidy_world)


def enqueue_within_a_minute(world: World, draw: Draw) -> None:
    world.enqueue([Item(draw(-1000, 59_000), size=draw(1, 60)) for _ in range(draw(1, 6))])


def die(world: World, draw: Draw) -> None:
    """A group is handed what it can get and nacks it until it is dead; then the queue is trimmed."""
    world.join("a")
    world.pump()
    for attempt in range(1, world.config.max_attempts + 1):
        world.nack("a", [(offset, attempt) for offset in world.deliver("a", draw(1, 6))], 0)
    world.pump()
    world.trim()


QUICK_DEATHS = {
    **weighted(FREEING, begin_empty=8, run_empty=8, finish_empty=8, live_a_while=4, delete_group=0, advance=1, kill=0),
    "enqueue within a minute": (20, enqueue_within_a_minute),
    "seconds pass": (8, lambda world, draw: world.advance(draw(100, 9000))),
    "settle": (8, lambda world, draw: world.settle()),
    "die": (12, die),
}


@pytest.mark.parametrize("chunk", EACH_CHUNK)
def test_segments_are_emptied_while_messages_of_the_present_minute_die(chunk: int) -> None:
    """Emptying must name a message once, whether it is pending, kept for its groups, or a letter."""
    for seed in range(4 * 10**6 + chunk, 4 * 10**6 + times(100), CHUNKS):
        walk(seed, QUICK_DEATHS, length=100, make=tidy_world)


class ShardMachine(RuleBasedStateMachine):
    """One rule: a step of any kind, its choices drawn by hypothesis."""

    @initialize(seed=st.integers(0, 10_000))
    def a_new_shard(self, seed: int) -> None:
        self.world = world_of(seed)

    @rule(step=st.sampled_from(sorted(EVERYTHING)), data=st.data())
    def something_happens(self, step: str, data: st.DataObject) -> None:
        EVERYTHING[step][1](self.world, lambda low, high: data.draw(st.integers(low, high)))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finale(self.world)


def test_hypothesis_finds_no_history_that_breaks_a_shard() -> None:
    run_state_machine_as_test(ShardMachine, settings=settings(settings.get_profile("ci")))
