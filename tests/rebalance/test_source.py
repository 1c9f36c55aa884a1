"""`delaycluster.slots` in a real Spark, over nodes that answer as told and over real ones."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from delayapi.units import HOUR_MS, MINUTE_MS
from delayclient.sync import SyncProducer
from delaylocal import LocalCluster
from delayrebalance.forecast.source import NAME, PUSHDOWN
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tests.rebalance.nodes import NOW_MS, Told, WheelNode, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR = NOW_MS // HOUR_MS * HOUR_MS


def read(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format(NAME).options(**{name: str(value) for name, value in options.items()}).load()


def minutes(count: int) -> list[tuple[int, int, int]]:
    return [(HOUR + n * MINUTE_MS, MINUTE_MS, n + 1) for n in range(count)]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_every_slot_of_every_node_is_a_row_and_each_node_a_partition(spark: SparkSession) -> None:
    first = WheelNode("n0", [Told("orders-0", [(HOUR, MINUTE_MS, 7)], epoch=3), Told("orders-2", [])])
    second = WheelNode("n1", [Told("orders-1", [(HOUR, MINUTE_MS, 5), (HOUR + HOUR_MS, HOUR_MS, 9)])])
    with serving(first, second) as endpoints:
        rows = read(spark, endpoints=endpoints).withColumn("part", F.spark_partition_id()).collect()
    found = {
        (it.shard, it.node, int(it.slot_start.timestamp() * 1000), it.slot_ms, it.messages, it.bytes, it.epoch, it.part)
        for it in (row for row in rows)
    }
    assert found == {
        ("orders-0", "n0", HOUR, MINUTE_MS, 7, 700, 3, 0),
        ("orders-1", "n1", HOUR, MINUTE_MS, 5, 500, 1, 1),
        ("orders-1", "n1", HOUR + HOUR_MS, HOUR_MS, 9, 900, 1, 1),
    }
    assert {(it.shard, it.pending, it.pending_bytes) for it in rows} == {("orders-0", 7, 700), ("orders-1", 14, 1400)}


def test_a_range_of_time_is_the_nodes_to_answer(spark: SparkSession) -> None:
    node = WheelNode("n0", [Told("orders-0", minutes(600))])
    low, high = HOUR + 10 * MINUTE_MS, HOUR + 20 * MINUTE_MS
    inside = (F.col("slot_start") >= F.lit(at(low))) & (F.col("slot_start") < F.lit(at(high)))
    with serving(node) as endpoints:
        assert read(spark, endpoints=endpoints, pushdown="true").where(inside).count() == 10
        assert read(spark, endpoints=endpoints, **{"from": low, "to": at(high).isoformat()}).count() == 10
        assert node.asked == [(low, high)] * 2
        assert node.slots_sent == [10, 10]


def test_two_queries_of_one_read_see_all_rows(spark: SparkSession) -> None:
    node = WheelNode("n0", [Told("orders-0", minutes(60))])
    with serving(node) as endpoints:
        slots = read(spark, endpoints=endpoints)
        early = slots.where(F.col("slot_start") < F.lit(at(HOUR + 5 * MINUTE_MS)))
        late = slots.where(F.col("slot_start") >= F.lit(at(HOUR + 50 * MINUTE_MS)))
        assert early.count() == 5
        assert slots.count() == 60
        assert early.union(late).count() == 15


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("slot_start > timestamp_millis({m})", 9),
        ("slot_start in (timestamp_millis({m}), timestamp_millis({h}))", 2),
        ("slot_start >= timestamp_millis({m}) and messages > 55 and shard = 'orders-0'", 5),
        ("slot_start < timestamp_millis({h}) or messages = 60", 1),
        ("not slot_start > timestamp_millis({m})", 51),
        ("slot_start > timestamp_millis({m}) and slot_start < timestamp_millis({m})", 0),
    ],
)
def test_a_filter_gives_the_same_rows_pushed_down_or_not(spark: SparkSession, condition: str, expected: int) -> None:
    node = WheelNode("n0", [Told("orders-0", minutes(60))])
    text = condition.format(m=HOUR + 50 * MINUTE_MS, h=HOUR)
    with serving(node) as endpoints:
        assert read(spark, endpoints=endpoints, pushdown="true").where(text).count() == expected
        assert read(spark, endpoints=endpoints).where(text).count() == expected


def test_a_node_that_does_not_answer_fails_the_read_by_its_name(spark: SparkSession) -> None:
    node = WheelNode("n0", [Told("orders-0", minutes(3))])
    with serving(node) as endpoints, pytest.raises(PySparkException, match=r"node at 127\.0\.0\.1:1 did not answer"):
        read(spark, endpoints=f"{endpoints},127.0.0.1:1", timeout=5).count()


def test_a_node_that_does_not_answer_is_left_out_where_that_is_asked_for(spark: SparkSession) -> None:
    node = WheelNode("n0", [Told("orders-0", minutes(3))])
    with serving(node) as endpoints:
        assert read(spark, endpoints=f"{endpoints},127.0.0.1:1", timeout=5, silent="skip").count() == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "one of the options endpoints"),
        ({"endpoints": "a:1", "registry": "sqlite:x"}, "one of the options endpoints"),
        ({"endpoints": "a:1", "silent": "ignore"}, "silent is 'ignore'; allowed: fail, skip"),
        ({"endpoints": "a:1", "timeout": "soon"}, "timeout is 'soon'; allowed"),
        ({"endpoints": "a:1", "from": "noon"}, "option from"),
        ({"endpoints": "a:1", "slot": "-5"}, "slot is '-5'; allowed"),
        ({"registry": "mysql:x"}, "expected sqlite:PATH or kube:NAMESPACE/CLUSTER"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_in_words(
    spark: SparkSession, options: dict[str, str], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        read(spark, **options).count()


def test_without_pushdown_the_session_says_what_to_set(spark: SparkSession) -> None:
    spark.conf.set(PUSHDOWN, "false")
    try:
        with serving(WheelNode("n0", [])) as endpoints, pytest.raises(PySparkException, match=PUSHDOWN):
            read(spark, endpoints=endpoints, pushdown="true").count()
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_real_nodes_tell_what_waits_in_them(spark: SparkSession, local: LocalCluster) -> None:
    now_ms = int(time.time() * 1000)
    dues = [now_ms + HOUR_MS + n * 10_000 for n in range(600)] + [now_ms + 10 * 24 * HOUR_MS] * 5
    with SyncProducer(local.endpoints) as producer:
        producer.send_batch("orders", [b"x" * 100] * len(dues), due_ms=dues)
    rows = read(spark, registry=f"sqlite:{local.data / 'registry.db'}")
    near = rows.where(F.col("slot_start") < F.lit(at(now_ms + 24 * HOUR_MS)))
    assert near.agg(F.sum("messages")).head()[0] == 600  # type: ignore[index]
    assert rows.agg(F.sum("messages")).head()[0] == 605  # type: ignore[index]
    masters = {it.name: it.spec.master for it in local.registry.list_shards()}
    assert all(masters[it.shard] == it.node for it in rows.select("shard", "node").distinct().collect())
    folded = read(spark, registry=f"sqlite:{local.data / 'registry.db'}", slot=300)
    assert folded.agg(F.sum("messages")).head()[0] == 605  # type: ignore[index]
    assert folded.where("slot_ms != 300000").count() == 0
