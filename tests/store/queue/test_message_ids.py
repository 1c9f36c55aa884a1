"""Message ids: each is stored once within its window, whatever is restarted meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from delayapi.message_ids import hash_id
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.store import formats, shard
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import ID
from delaynode.store.queue import message_ids
from delaynode.store.queue.message_ids import MessageIds
from delaynode.store.types import I64, Array, Ids
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.consuming import World
from tests.store.support.producing import Item
from tests.store.support.steps import JOBS, MESSAGES, TROUBLE, Draw, message_id
from tests.store.support.walks import Steps, times, walk
from tests.store.support.world import SMALL

CI = settings.get_profile("ci")
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


@contextmanager
def small_runs(recent: int = 3, few: int = 3, most: int = 20) -> Iterator[None]:
    """Ids are sealed and merged after a few, as thousands are otherwise."""
    with (
        patch.object(message_ids, "RECENT", recent),
        patch.object(message_ids, "FEW", few),
        patch.object(message_ids, "MAX_RUN", most),
    ):
        yield


def ids_world(seed: int) -> World:
    limit = random.Random(f"{seed}/ids").choice([6, 10**6, 10**6])
    return World(seed, replace(SMALL, format=formats.NEWEST, max_message_ids=limit), page=64)


def send_some(world: World, draw: Draw) -> None:
    count = (1, 1, 2, 3, 12)[draw(0, 4)]
    items = [Item(draw(0, 5 * MINUTE_MS), bool(draw(0, 1)), draw(1, 40)) for _ in range(count)]
    world.enqueue_ids(items, [message_id(draw(0, 40)) for _ in range(count)])


def some_hours_pass(world: World, draw: Draw) -> None:
    """Frame time steps by an hour at most, so hours pass one by one."""
    for _ in range(draw(1, 12)):
        world.advance(draw(1, HOUR_MS))
        world.settle()


STEPS: Steps = {
    "send some": (20, send_some),
    "some hours pass": (3, some_hours_pass),
    "checkpoint": (3, lambda world, draw: world.checkpoint()),
    "check ids": (2, lambda world, draw: world.check_ids()),
    **{
        name: (1, step)
        for name, (_, step) in (JOBS | TROUBLE).items()
        if name not in ("half an hour down", "check wheel")
    },
    "cancel": (1, MESSAGES["cancel"][1]),
}


def walks(count: int = 60) -> None:
    for seed in range(6 * 10**6, 6 * 10**6 + count):
        with small_runs(few=2 + seed % 4):
            walk(seed, STEPS, length=80, make=ids_world)


def test_each_id_is_stored_once_within_its_window_through_crashes() -> None:
    walks(times(60))


def forgets_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageIds, "restore", lambda self, arrays: None)


def keeps_what_is_recent_out_of_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageIds, "_seal", lambda self: None)


def forgets_what_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = shard.Shard._apply

    def forgetful(self: shard.Shard, frame: object) -> None:
        with patch.object(MessageIds, "add", lambda *args: None):
            apply(self, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(shard.Shard, "_apply", forgetful)


def compares_half_of_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    find, add = MessageIds.find, MessageIds.add

    def half(ids: Ids) -> Ids:
        return np.array([one[:8] for one in message_ids._each(ids)], ID)

    monkeypatch.setattr(MessageIds, "find", lambda self, ids, time_ms: find(self, half(ids), time_ms))
    monkeypatch.setattr(MessageIds, "add", lambda self, ids, *rest: add(self, half(ids), *rest))


def forgets_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "EXPIRY_MS", DAY_MS - HOUR_MS)


def never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "_is_over", lambda hour, time_ms: False)


def overlooks_repeats_within_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "first_of_each", lambda ids: (np.arange(len(ids)), np.ones(len(ids), bool)))


def merges_and_does_not_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsorted(hour: int, ids: Ids, seq: I64, due: I64) -> message_ids._Run:
        return message_ids._Run(hour, ids, seq, due)

    monkeypatch.setattr(message_ids, "_sorted", unsorted)


def has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageIds, "check_room", lambda self, count, time_ms: None)


PLANTED = (
    forgets_at_a_restart, keeps_what_is_recent_out_of_checkpoints, forgets_what_it_replays, compares_half_of_an_id,
    forgets_early, never_forgets, overlooks_repeats_within_a_request, merges_and_does_not_sort,
    has_no_limit,
)  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED)
def test_walks_find_a_mistake(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        walks()


id_numbers = st.integers(0, 60)
events = st.lists(st.tuples(st.lists(id_numbers, min_size=1, max_size=30, unique=True), st.integers(0, HOUR_MS)))


@CI
@given(events, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_a_table_knows_what_a_dict_knows(
    events: list[tuple[list[int], int]], few: int, most: int, restarts: bool
) -> None:
    table, known, now, seq = MessageIds(), {}, START_MS, 0
    everything = np.array([message_id(number) for number in range(61)], ID)
    with small_runs(recent=4, few=few, most=most):
        for numbers, step in events:
            now += step
            ids = everything[numbers]
            new = ids[table.find(ids, now)[0] < 0]
            assert len(new) == sum(known.get(number, (0, 0))[1] <= now for number in numbers)
            seqs = np.arange(seq, seq + len(new))
            seq += len(new)
            table.add(new, seqs, seqs + now, now)
            until = (now // HOUR_MS + 1) * HOUR_MS + DAY_MS
            fresh = [number for number in numbers if known.get(number, (0, 0))[1] <= now]
            known |= {number: (one, until) for number, one in zip(fresh, seqs.tolist(), strict=True)}
            if restarts:
                arrays: dict[str, Array] = table.snapshot()
                table = MessageIds()
                table.restore(arrays)
            found = table.find(everything, now)[0].tolist()
            assert found == [known[n][0] if n in known and known[n][1] > now else -1 for n in range(61)]
            assert len(table) == sum(found_one >= 0 for found_one in found) or not restarts


def test_a_shard_that_knows_its_limit_of_ids_takes_no_new_ones_until_an_hour_is_over() -> None:
    world = World(1, replace(SMALL, format=formats.NEWEST, max_message_ids=5))
    for number in range(5):
        world.enqueue_ids([Item(1000)], [message_id(number)])
    shard_ = world.shard
    with pytest.raises(Refused, match=r"knows 5 message ids of the last day, at most 5") as caught:
        shard_.message_ids.check_room(1, shard_.producers.time_ms)
    assert int(caught.value.metadata["retry_after_ms"]) == 60_000
    world.enqueue_ids([Item(1000)] * 2, [message_id(3), message_id(7)])  # the whole request is refused, see the model
    world.enqueue_ids([Item(1000)], [message_id(3)])  # one that is known takes no room
    world.idle(26 * HOUR_MS)
    world.enqueue_ids([Item(1000)], [message_id(7)])
    assert list(world.model.known_ids(shard_.producers.time_ms)) == [message_id(7)]


def test_ids_that_differ_in_one_bit_are_different() -> None:
    table = MessageIds()
    base = bytearray(hash_id("a"))
    table.add(np.frombuffer(bytes(base), ID), np.array([7]), np.array([8]), START_MS)
    for bit in range(128):
        other = bytearray(base)
        other[bit // 8] ^= 1 << bit % 8
        ids = np.frombuffer(bytes(other) + bytes(base), ID)
        assert table.find(ids, START_MS)[0].tolist() == [-1, 7]
    assert len({hash_id(f"{n}") for n in range(1000)}) == 1000


@pytest.mark.parametrize("wrong", ["", "x" * 257, "é" * 129])
def test_a_text_that_is_no_message_id_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="1 to 256 bytes"):
        hash_id(wrong)
