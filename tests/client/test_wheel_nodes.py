"""`delayctl wheel --nodes`: the load by node and slot, before and after a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from delayapi.units import MINUTE_MS
from delayclient.admin.views import Wheel
from delayctl.cluster.wheel_nodes import BadPlan, CopyMove, SlotLoads, loads_of, peak_of, plan_moves, read_plan
from delayctl.main import main

SLOT_MS = 5 * MINUTE_MS
NOON_MS = 1_800_000_000_000 // SLOT_MS * SLOT_MS


def wheel(shard: str, node: str, counts: Sequence[int], *, width_ms: int = MINUTE_MS, start_ms: int = NOON_MS) -> Wheel:
    """Slots of one width, one after the other."""
    topic, _, queue = shard.rpartition("-")
    messages = np.array(counts, np.int64)
    return Wheel(
        topic, int(queue), node, 1, start_ms + width_ms * np.arange(len(counts), dtype=np.int64),
        np.full(len(counts), width_ms, np.int64), messages, messages * 100, 0, int(messages.sum()), 0, 0, 0, start_ms,
    )  # fmt: skip


def seen(*wheels: Wheel, nodes: Sequence[str] = ("n0", "n1", "n2")) -> SlotLoads:
    return loads_of(wheels, nodes, NOON_MS, NOON_MS + 4 * SLOT_MS, SLOT_MS)


def delayctl(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, catch_exceptions=False)


def test_a_slot_of_a_node_is_the_sum_of_what_its_masters_release_in_it() -> None:
    loads = seen(wheel("a-0", "n1", [10] * 10), wheel("a-1", "n1", [1] * 5), wheel("a-2", "n0", [7]))
    assert loads.by_node(loads.messages).tolist() == [[7, 0, 0, 0], [55, 50, 0, 0], [0, 0, 0, 0]]
    assert loads.by_node(loads.bytes)[1].tolist() == [5_500, 5_000, 0, 0]


def test_a_slot_of_the_wheel_that_is_wider_counts_evenly_in_each() -> None:
    loads = seen(wheel("a-0", "n0", [120], width_ms=60 * MINUTE_MS))
    assert loads.by_node(loads.messages)[0].tolist() == [10, 10, 10, 10]


def test_what_is_due_outside_the_time_asked_for_is_left_out() -> None:
    loads = seen(wheel("a-0", "n0", [9] * 40, start_ms=NOON_MS - 10 * MINUTE_MS))
    assert loads.messages.tolist() == [[45, 45, 45, 45]]


def test_a_node_without_load_counts_for_mean_and_lower_bound() -> None:
    loads = seen(wheel("a-0", "n0", [30]), wheel("a-1", "n0", [30]))
    assert peak_of(loads).messages == 60
    assert peak_of(loads).mean == 20
    assert loads.lower_bound() == 30, "a shard is not cut in pieces"
    assert seen(*(wheel(f"a-{n}", "n0", [30]) for n in range(6))).lower_bound() == 60


def test_a_move_of_the_copy_that_has_the_load_moves_the_load_and_another_one_does_not() -> None:
    loads = seen(wheel("a-0", "n0", [30]), wheel("a-1", "n0", [20]))
    assert loads.moved([CopyMove("a-0", "n0", "n2")]).homes == ("n2", "n0")
    assert loads.moved([CopyMove("a-0", "n1", "n2")]).homes == ("n0", "n0")
    assert loads.moved([CopyMove("a-0", "n0", "n1"), CopyMove("a-0", "n1", "n2")]).homes == ("n2", "n0")
    assert loads.moved([CopyMove("a-1", "n0", "n10")]).nodes == ("n0", "n1", "n2", "n10")


def test_a_plan_for_other_shards_is_refused() -> None:
    with pytest.raises(BadPlan, match="moves b-0, and there is no such shard"):
        seen(wheel("a-0", "n0", [30])).moved([CopyMove("b-0", "n0", "n1")])


def test_nothing_at_all_is_a_picture_too() -> None:
    loads = seen(nodes=())
    assert (peak_of(loads).messages, loads.lower_bound()) == (0, 0)


def test_too_many_slots_are_wrong_usage() -> None:
    with pytest.raises(click.UsageError, match="give a wider --slot"):
        loads_of([], [], NOON_MS, NOON_MS + 40 * 86_400_000, 1_000)


MOVES = [{"shard": "a-0", "from": "n0", "to": "n1", "bytes": 7}]


@pytest.mark.parametrize(
    "value",
    [{"moves": MOVES}, {"plan": {"moves": MOVES}}, {"kind": "DelayRebalance", "status": {"plan": {"moves": MOVES}}}],
)
def test_a_plan_is_found_alone_and_in_its_object(value: Any) -> None:
    assert plan_moves(value, "here") == (CopyMove("a-0", "n0", "n1"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[]", "has its moves in a list"),
        ('{"moves": 3}', "has its moves in a list"),
        ('{"status": {}}', "has its moves in a list"),
        ('{"moves": [{"shard": "a-0", "from": "n0"}]}', "move 0: expected shard, from and to"),
        ('{"moves": [{"shard": "a-0", "from": "n0", "to": 1}]}', "move 0: expected shard, from and to"),
        ('{"moves": ["a-0"]}', "move 0: expected shard, from and to"),
    ],
)
def test_what_is_no_plan_is_said_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(BadPlan, match=why) as error:
        read_plan(path)
    assert str(path) in str(error.value)


def test_a_real_cluster_is_shown_before_and_after(endpoint: str) -> None:
    at = ("--endpoint", endpoint)
    # In a day of its own: other tests' messages are due sooner.
    assert delayctl("produce", "cli7", "--count", "4000", "--spread", "50h..50h20m", *at).exit_code == 0
    shards = [json.loads(line) for line in delayctl("shards", "cli7", "--json", *at).stdout.splitlines()]
    heavy = max(shards, key=lambda shard: int(shard["pending"]))
    home, other = heavy["node"], "n1" if heavy["node"] == "n0" else "n0"
    plan = json.dumps({"moves": [{"shard": heavy["shard"], "from": home, "to": other}]})
    of = ("wheel", "cli7", "--nodes", "--slot", "10m", "--to", "2100-01-01", "--from")
    now_ms = json.loads(delayctl("wheel", "cli7", "--json", *at).stdout.splitlines()[0])["now_ms"]
    day = (str(now_ms + 49 * 3_600_000), "--to", str(now_ms + 52 * 3_600_000))
    shown = delayctl(*of, *day, "--plan", "-", "--json", *at, stdin=plan)
    assert shown.exit_code == 0, shown.stderr
    picture = json.loads(shown.stdout)
    due = {when: {it["node"]: it["messages"] for it in picture[when]["nodes"]} for when in ("before", "after")}
    assert sum(due["before"].values()) == pytest.approx(4_000)
    assert due["before"][home] - due["after"][home] == pytest.approx(heavy["pending"])
    assert due["after"][other] - due["before"][other] == pytest.approx(heavy["pending"])
    assert (picture["slot_ms"], picture["moves"], picture["shards"]) == (600_000, 1, 4)
    table = delayctl(*of, *day, "--plan", "-", *at, stdin=plan).stdout
    assert "with 1 move: " in table
    assert {"n0 now", "n0 then", "n1 now", "n1 then"} <= {line[:7].strip() for line in table.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--plan", "x"), "give --nodes too"),
        (("--nodes", "--plan", "x", "--proposed"), "name two plans"),
        (("--nodes", "--slot", "10ms"), "at least 1 s"),
        (("--nodes", "--from", "2030-01-02", "--to", "2030-01-01"), "--to is not later than --from"),
        (("--nodes", "--plan", "/nonexistent"), "No such file"),
    ],
)
def test_wrong_usage_of_the_nodes_picture_asks_nobody(arguments: tuple[str, ...], why: str) -> None:
    result = delayctl("wheel", *arguments, "--endpoint", "127.0.0.1:1")
    assert result.exit_code == 2
    assert why in result.stderr
