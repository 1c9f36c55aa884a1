"""`delayctl top`: what its figures are made of, and what it prints of real nodes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from delayapi.units import MINUTE_MS
from delayclient.admin.views import GroupQueue, Wheel
from delayctl.cluster.top import Sample, TopicFigures, group_figures, keys_pressed, rates, topic_figures
from delayctl.main import main

NOW = 1_790_000_000_000


def wheel(slots: dict[int, int], **more: Any) -> Wheel:
    """slots: by minutes from now, messages of one minute each."""
    start = np.array([NOW + at * MINUTE_MS for at in slots], np.int64)
    width, messages = np.full(len(slots), MINUTE_MS, np.int64), np.array(list(slots.values()), np.int64)
    fields: dict[str, Any] = {
        "watermark_ms": 0, "pending": sum(slots.values()), "pending_bytes": 0, "released": 0, "log_end": 0,
        "now_ms": NOW,
    } | more  # fmt: skip
    return Wheel("t", 0, "n0", 1, start, width, messages, messages, **fields)


def figures(stored: int, released: int) -> TopicFigures:
    return TopicFigures(1, 0, stored, released, 0, np.zeros(60))


def test_the_minutes_of_a_topics_shards_are_added_up() -> None:
    found = topic_figures([wheel({0: 5, 3: 7, 90: 100}), wheel({3: 1, 59: 2}, pending=10, released=4)])
    assert (found.shards, found.pending, found.released, found.stored) == (2, 122, 4, 126)
    assert found.minutes.nonzero()[0].tolist() == [0, 3, 59]
    assert [found.due_within(minutes) for minutes in (1, 5, 60)] == [5, 13, 15]
    assert topic_figures([]).pending == 0


def test_what_is_pending_and_was_due_is_late_by_the_nodes_clock() -> None:
    assert topic_figures([wheel({}), wheel({}, next_due_ms=NOW + 5)]).late_ms == 0
    assert topic_figures([wheel({}, next_due_ms=NOW - 250), wheel({}, next_due_ms=NOW - 1_750)]).late_ms == 1_750


def test_rates_are_of_two_looks_and_never_negative() -> None:
    first = Sample(10.0, {"t": figures(100, 40)}, {})
    then = Sample(14.0, {"t": figures(120, 80), "new": figures(9, 9)}, {})
    assert rates("t", then, first) == (5.0, 10.0)
    assert rates("t", then, None) is None
    assert rates("new", then, first) is None
    assert rates("t", Sample(14.0, {"t": figures(60, 40)}, {}), first) == (0.0, 0.0), "cancelled meanwhile"


def test_a_group_is_as_far_behind_as_its_worst_queue() -> None:
    def queue(number: int, oldest_age_ms: int | None) -> GroupQueue:
        return GroupQueue("t", number, "g", (), 0, 9, 1, 2, 3, 4, oldest_age_ms=oldest_age_ms)

    found = group_figures([queue(0, None), queue(1, 700), queue(2, 20)])
    assert (found.available, found.in_flight, found.waiting_retry, found.dead) == (3, 6, 9, 12)
    assert found.oldest_age_ms == 700


def delayctl(*arguments: str, endpoint: str) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--endpoint", endpoint], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def test_two_looks_at_real_nodes(endpoint: str) -> None:
    delayctl("produce", "watched", "--count", "300", "--spread", "10m..20m", endpoint=endpoint)
    delayctl("produce", "watched", "--count", "6", endpoint=endpoint)
    take = ("consume", "watched", "--group", "mail", "--count", "4", "--timeout", "20")
    delayctl(*take, "--no-ack", "--invisible", "10m", endpoint=endpoint)
    deadline_s = time.monotonic() + 30
    while True:
        first, second = (
            json.loads(line)
            for line in delayctl(
                "top", "watched", "--count", "2", "--interval", "500ms", "--json", endpoint=endpoint
            ).stdout.splitlines()
        )
        if second["pending"] == 300 or time.monotonic() > deadline_s:
            break
    assert (first["stored_per_second"], second["stored_per_second"]) == (None, 0)
    assert (second["shards"], second["pending"], second["late_ms"]) == (4, 300, 0)
    assert (second["due_within_1m"], second["due_within_1h"]) == (0, 300)
    group = second["groups"]["mail"]
    assert group["available"] + group["in_flight"] == 6
    assert group["in_flight"] >= 4
    shown = delayctl("top", "watched", "--interval", "500ms", endpoint=endpoint).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["Topic,", "watched", "mail"]
    assert "The next 60 minutes" in shown[0]


@pytest.mark.parametrize("arguments", [("--interval", "499ms"), ("--interval", "soon"), ("--count", "0")])
def test_a_look_too_often_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["top", *arguments]).exit_code == 2


@pytest.mark.timeout(20)
def test_keys_that_ctrl_c_took_back_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop saw them come, and reads too late: it would wait for the next key, deaf to the signal."""
    ours, its = os.openpty()
    with open(its) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)

        async def main() -> bytes:
            with keys_pressed() as pressed:
                assert os.read(its, 64) == b"", "nothing is there, and nothing is waited for"
                os.write(ours, b"q")
                return await pressed.get()

        assert asyncio.run(main()) == b"q"
    os.close(ours)
