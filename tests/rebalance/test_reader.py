"""The reader that Spark is given, by itself: which range each filter and option asks the nodes for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delayrebalance.forecast.source import BadOption, NodePartition, PushingReader, SlotsReader, SlotsSource
from delayrebalance.forecast.wheels import LAST_MS
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tests.rebalance.nodes import NOW_MS, Told, WheelNode, serving

HOUR = NOW_MS // HOUR_MS * HOUR_MS
AT = datetime.fromtimestamp(HOUR / 1000, UTC)
COLUMN = ("slot_start",)
TWO_OF_THEM = In(COLUMN, (AT, AT + timedelta(minutes=5)))


def parts(reader: SlotsReader) -> list[tuple[int, int]]:
    found = reader.partitions()
    assert all(isinstance(it, NodePartition) for it in found)
    return [(it.from_ms, it.to_ms) for it in found if isinstance(it, NodePartition)]


def rows(reader: SlotsReader) -> list[dict[str, object]]:
    return [row for part in reader.partitions() for row in pa.Table.from_batches(reader.read(part)).to_pylist()]


@pytest.mark.parametrize(
    ("given", "low", "high", "left"),
    [
        ([GreaterThanOrEqual(COLUMN, AT)], HOUR, LAST_MS, 0),
        ([GreaterThan(COLUMN, AT)], HOUR + 1, LAST_MS, 0),
        ([GreaterThanOrEqual(COLUMN, AT + timedelta(microseconds=1))], HOUR + 1, LAST_MS, 0),
        ([LessThan(COLUMN, AT)], 0, HOUR, 0),
        ([LessThan(COLUMN, AT + timedelta(microseconds=1))], 0, HOUR + 1, 0),
        ([LessThanOrEqual(COLUMN, AT)], 0, HOUR + 1, 0),
        ([EqualTo(COLUMN, AT)], HOUR, HOUR + 1, 0),
        ([TWO_OF_THEM], HOUR, HOUR + 5 * MINUTE_MS + 1, 1),  # and Spark drops what is between
        ([Not(LessThan(COLUMN, AT))], 0, LAST_MS, 1),
        ([IsNotNull(COLUMN), EqualTo(("shard",), "a-0")], 0, LAST_MS, 2),
        ([GreaterThan(COLUMN, AT), LessThan(COLUMN, AT + timedelta(hours=1))], HOUR + 1, HOUR + HOUR_MS, 0),
    ],
)
def test_a_filter_narrows_what_the_node_is_asked_for(given: list[Filter], low: int, high: int, left: int) -> None:
    reader = PushingReader({"endpoints": "a:1"})
    assert len(list(reader.pushFilters(given))) == left
    assert parts(reader) == [(low, high)]


def test_a_range_that_holds_nothing_asks_nobody() -> None:
    reader = PushingReader({"endpoints": "a:1"})
    list(reader.pushFilters([GreaterThan(COLUMN, AT), LessThan(COLUMN, AT)]))
    assert parts(reader) == []


def test_filters_are_only_pushed_where_that_is_asked_for() -> None:
    schema = None
    assert type(SlotsSource({"endpoints": "a:1"}).reader(schema)) is SlotsReader  # type: ignore[arg-type]
    assert type(SlotsSource({"Endpoints": "a:1", "pushDown": "True"}).reader(schema)) is PushingReader  # type: ignore[arg-type]


def test_the_options_from_and_to_are_the_nodes_to_answer() -> None:
    node = WheelNode("n0", [Told("a-0", [(HOUR + n * MINUTE_MS, MINUTE_MS, n + 1) for n in range(60)])])
    with serving(node) as endpoints:
        reader = SlotsReader({"endpoints": endpoints, "from": AT.isoformat(), "to": str(HOUR + 5 * MINUTE_MS)})
        assert [it["messages"] for it in rows(reader)] == [1, 2, 3, 4, 5]
    assert node.asked == [(HOUR, HOUR + 5 * MINUTE_MS)]
    assert node.slots_sent == [5]


def test_a_part_of_an_hour_is_that_part_of_its_messages() -> None:
    node = WheelNode("n0", [Told("a-0", [(HOUR, HOUR_MS, 120)])])
    low, high = HOUR + 30 * MINUTE_MS, HOUR + 40 * MINUTE_MS
    with serving(node) as endpoints:
        found = rows(SlotsReader({"endpoints": endpoints, "slot": "300", "from": str(low), "to": str(high)}))
    assert [it["messages"] for it in found] == [10, 10]
    assert [it["slot_start"] for it in found] == [AT + timedelta(minutes=30), AT + timedelta(minutes=35)]


@pytest.mark.parametrize(
    ("option", "value"), [("from", "noon"), ("slot", "x"), ("timeout", "0"), ("pushdown", "maybe")]
)
def test_what_cannot_be_meant_is_refused_with_the_options_name(option: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"option {option}"):
        SlotsSource({"endpoints": "a:1", option: value}).reader(None)  # type: ignore[arg-type]
