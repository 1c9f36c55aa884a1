"""The heat map's numbers, and where its links lead."""

from __future__ import annotations

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayclient.admin.views import Wheel
from delayconsole.heat import MAX_ROWS, OTHERS, heat_map, natural
from delayconsole.pages.wheel import zooms

NOW = 1_790_000_040_000 // HOUR_MS * HOUR_MS


def wheel(topic: str, queue: int, node: str, slots: dict[int, int], width_ms: int = MINUTE_MS) -> Wheel:
    """slots: messages by ms from NOW."""
    start, messages = np.array([NOW + at for at in slots], np.int64), np.array(list(slots.values()), np.int64)
    width, total = np.full(len(slots), width_ms, np.int64), sum(slots.values())
    return Wheel(topic, queue, node, 1, start, width, messages, messages, 0, total, total * 100, 0, 0, NOW)


def test_rows_are_nodes_topics_or_shards_and_columns_add_up() -> None:
    wheels = [
        wheel("orders", 0, "n0", {0: 5, 10 * MINUTE_MS: 7}),
        wheel("orders", 1, "n1", {0: 1}),
        wheel("mail", 0, "n1", {59 * MINUTE_MS: 9}),
    ]
    nodes = heat_map(wheels, "node", NOW, NOW + HOUR_MS)
    assert [(row.name, row.shards, row.due, row.highest) for row in nodes.rows] == [("n0", 1, 12, 7), ("n1", 2, 10, 9)]
    assert (nodes.column_ms, nodes.total.sum(), nodes.pending, nodes.pending_bytes) == (MINUTE_MS, 22, 22, 2_200)
    assert [row.name for row in heat_map(wheels, "topic", NOW, NOW + HOUR_MS).rows] == ["mail", "orders"]
    shards = heat_map(wheels, "shard", NOW, NOW + HOUR_MS)
    assert [(row.name, row.node) for row in shards.rows] == [("mail-0", "n1"), ("orders-0", "n0"), ("orders-1", "n1")]
    start, end, messages, row = shards.busiest()[0]
    assert (start - NOW, end - start, messages, row.name) == (59 * MINUTE_MS, MINUTE_MS, 9, "mail-0")


def test_what_is_counted_by_the_hour_is_not_shown_finer() -> None:
    far = wheel("t", 0, "n0", {3 * DAY_MS: 60}, HOUR_MS)
    heat = heat_map([far], "shard", NOW + 3 * DAY_MS, NOW + 3 * DAY_MS + 10 * MINUTE_MS)
    assert (heat.column_ms, heat.rows[0].due) == (HOUR_MS, 60)


def test_of_a_thousand_shards_the_hottest_have_rows_and_nothing_is_lost() -> None:
    wheels = [wheel("t", n, f"n{n % 3}", {0: n + 1}) for n in range(1_000)]
    heat = heat_map(wheels, "shard", NOW, NOW + HOUR_MS)
    assert len(heat.rows) == MAX_ROWS
    assert heat.rows[-1].name == OTHERS
    assert heat.rows[-1].shards == 1_000 - (MAX_ROWS - 1)
    assert heat.total.sum() == sum(range(1, 1_001))
    assert "t-999" in {row.name for row in heat.rows}


def test_nothing_pending_is_an_empty_map() -> None:
    heat = heat_map([], "node", NOW, NOW + HOUR_MS)
    assert (heat.rows, heat.busiest(), heat.total.sum(), heat.late_ms) == ((), [], 0, 0)


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["n10", "n9", "a-2", "a-10"], key=natural) == ["a-2", "a-10", "n9", "n10"]


def test_links_never_lead_before_now_nor_below_a_minute() -> None:
    there = zooms(NOW, NOW + MINUTE_MS, NOW)
    assert there["Zoom in"] == (NOW, NOW + MINUTE_MS)
    assert there["Earlier"] == (NOW, NOW + MINUTE_MS)
    assert there["Later"] == (NOW + MINUTE_MS, NOW + 2 * MINUTE_MS)
    assert there["Zoom out"] == (NOW, NOW + 2 * MINUTE_MS)


def test_links_lead_to_whole_minutes_so_that_each_zoom_shows_less() -> None:
    """Columns are whole minutes: half of five shows three of them, and then half of that three again."""
    start, end, spans = NOW, NOW + 5 * MINUTE_MS, [5 * MINUTE_MS]
    while spans[-1] > MINUTE_MS:
        there = zooms(start, end, NOW)
        assert {at % MINUTE_MS for pair in there.values() for at in pair} == {0}
        start, end = there["Zoom in"]
        edges_ms = heat_map([], "shard", start, end).edges_ms
        spans.append(int(edges_ms[-1] - edges_ms[0]))
    assert spans == [5 * MINUTE_MS, 2 * MINUTE_MS, MINUTE_MS]
