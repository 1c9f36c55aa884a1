"""Asking one node: in parts where it must be, what is said when it does not answer, and slots of another length."""

from __future__ import annotations

import numpy as np
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delayrebalance.forecast.wheels import LAST_MS, NodeUnanswered, ShardSlots, read_wheel, resampled, silent
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.nodes import NOW_MS, Told, WheelNode, serving

HOUR = NOW_MS // HOUR_MS * HOUR_MS
MINUTES = [(HOUR + n * MINUTE_MS, MINUTE_MS, n + 1) for n in range(300)]


def slots_of(answers: list[ShardSlots]) -> list[tuple[int, int]]:
    return [
        (int(start), int(messages))
        for one in answers
        for start, messages in zip(one.slot_start, one.messages, strict=True)
    ]


def test_a_range_too_large_for_one_answer_comes_whole_in_parts() -> None:
    node = WheelNode("n0", [Told("a-0", MINUTES), Told("b-0", MINUTES)], most_slots=250)
    with serving(node):
        found = slots_of(list(read_wheel(node.endpoint)))
    assert sorted(found) == sorted((start, messages) for start, _, messages in MINUTES * 2)
    assert len(node.slots_sent) > 2
    assert max(node.slots_sent) <= 250


def test_a_slot_that_begins_before_the_range_is_not_in_it() -> None:
    node = WheelNode("n0", [Told("a-0", [(HOUR, HOUR_MS, 60), (HOUR + HOUR_MS, HOUR_MS, 30)])])
    with serving(node):
        assert slots_of(list(read_wheel(node.endpoint, HOUR + 1, HOUR + 2 * HOUR_MS))) == [(HOUR + HOUR_MS, 30)]


def test_a_node_that_is_too_slow_is_named_with_the_time_it_had() -> None:
    node = WheelNode("n0", [], delay_s=5.0)
    with (
        serving(node),
        pytest.raises(NodeUnanswered, match=rf"{node.endpoint} gave no answer to GetWheel within 0.2 s"),
    ):
        list(read_wheel(node.endpoint, timeout_s=0.2))


def test_a_node_that_is_not_there_is_named() -> None:
    with pytest.raises(NodeUnanswered, match=r"127\.0\.0\.1:1 did not answer"):
        list(read_wheel("127.0.0.1:1", timeout_s=5))


def test_those_that_do_not_answer_are_told_from_those_that_do() -> None:
    node = WheelNode("n0", [Told("a-0", MINUTES)])
    with serving(node):
        found = silent([node.endpoint, "127.0.0.1:1"], 5.0)
    assert list(found) == ["127.0.0.1:1"]
    assert node.slots_sent == [0]  # to be asked costs it next to nothing


def shard(slots: list[tuple[int, int, int]]) -> ShardSlots:
    columns = np.array(slots, dtype=np.int64).reshape(-1, 3)
    return ShardSlots("a-0", "n0", 1, 0, 0, NOW_MS, columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 2] * 100)


def test_minutes_become_five_minutes_and_an_hour_twelve_of_them() -> None:
    found = resampled(
        shard([(HOUR, MINUTE_MS, 3), (HOUR + 4 * MINUTE_MS, MINUTE_MS, 4), (HOUR + HOUR_MS, HOUR_MS, 25)]), 300_000
    )
    assert found.messages.tolist()[0] == 7
    assert sorted(found.messages.tolist()[1:]) == [2] * 11 + [3]
    assert (found.slot_start % 300_000 == 0).all()
    assert (found.slot_ms == 300_000).all()


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from([MINUTE_MS, HOUR_MS]), st.integers(1, 1000)), max_size=20),
    st.sampled_from([30_000, MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS]),
)
def test_slots_of_another_length_hold_as_many_messages(slots: list[tuple[int, int, int]], slot_ms: int) -> None:
    given_slots = [(number * width, width, messages) for number, width, messages in slots]
    found = resampled(shard(given_slots), slot_ms)
    assert found.messages.sum() == sum(it[2] for it in given_slots)
    assert len(np.unique(found.slot_start)) == len(found.slot_start)
    for start, messages in zip(found.slot_start.tolist(), found.messages.tolist(), strict=True):
        near = sum(it[2] for it in given_slots if it[0] < start + slot_ms and it[0] + it[1] > start)
        assert 0 <= messages <= near


def test_without_an_end_the_node_is_asked_to_its_horizon() -> None:
    node = WheelNode("n0", [Told("a-0", MINUTES)])
    with serving(node):
        list(read_wheel(node.endpoint, 0, LAST_MS))
    assert node.asked == [(0, 0)]
