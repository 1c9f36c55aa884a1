"""The job's wide work, in Spark. The driver gets sums by node and slot, some shards' totals, and
the loads of as many shards as it may hold.

Shards and nodes are numbers here, their places in the map, so that rows are short and joins are of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from delayrebalance.forecast.wheels import WIDEST_SLOT_MS
from delayrebalance.model import F64, I64, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class NodeSums:
    """By node and slot, [N, S]."""

    messages: F64
    bytes: F64
    tallest: F64  # the largest load of a single row: of a shard, where the rows have the span's slots


@dataclass(frozen=True, slots=True)
class Candidates:
    """Shards that weigh where it matters, by number, ascending; k of them."""

    shard: I64
    pending: I64
    pending_bytes: I64


class ShardLoads:
    """The rows of one look at the wheels, kept by Spark: all answers are about the same moment. Close it."""

    def __init__(self, spark: SparkSession, slots: DataFrame, shards: Sequence[str], span: Span) -> None:
        from pyspark import StorageLevel

        self._spark, self._span, self._shards = spark, span, len(shards)
        names = self._frame(shard=pa.array(shards, pa.string()), id=pa.array(range(len(shards)), pa.int32()))
        rows = _rows(slots, span, names)
        self._rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        self._newest = self._rows

    def close(self) -> None:
        self._rows.unpersist()

    def node_sums(self, node_of: I64, nodes: int) -> NodeSums:
        """node_of: i64[shards], the node that has each shard's load."""
        from pyspark.sql import functions as F

        self._only_newest()
        sums = self._placed(node_of).groupBy("node", "slot").agg(
            F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"), F.max("messages").alias("tallest")
        )  # fmt: skip
        found = sums.toArrow()
        at = (_column(found, "node"), _column(found, "slot"))
        arrays = [np.zeros((nodes, self._span.count)) for _ in range(3)]
        for array, name in zip(arrays, ("messages", "bytes", "tallest"), strict=True):
            array[at] = _column(found, name)
        return NodeSums(arrays[0], arrays[1], arrays[2].max(axis=0, initial=0.0))

    def crowded(self, nodes: int, above: float) -> float:
        """The most that two shards have together in one slot of which one node must have both, for there are more such
        shards than nodes: the loads that come `nodes`-th and next in the slot. 0 where none of these is above `above`
        messages. After node_sums().
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        large = self._newest.where(F.col("messages") > above / 2).select("slot", "id").distinct()
        slots = large.groupBy("slot").agg(F.count("id").alias("shards")).where(F.col("shards") >= nodes)
        rank = Window.partitionBy("slot").orderBy(F.desc("messages"), F.asc("id"))
        two = (
            self._newest.join(F.broadcast(slots), "slot")
            .groupBy("slot", "id")
            .agg(F.sum("messages").alias("messages"))
            .withColumn("rank", F.row_number().over(rank))
            .where(F.col("rank").between(nodes, nodes + 1))
            .groupBy("slot")
            .agg(F.sum("messages").alias("messages"))
        )
        most = float(two.agg(F.max("messages").alias("most")).toArrow().column("most")[0].as_py() or 0.0)
        return most if most > above else 0.0

    def candidates(self, node_of: I64, weights: F64, movable: I64, most: I64) -> Candidates:
        """The shards of each node with the highest weighted sum. weights: f64[N, S]; movable: shards by number; most:
        i64[N] how many of a node."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        node, slot = np.nonzero(weights > 0)
        weight = self._frame(
            node=pa.array(node, pa.int32()),
            slot=pa.array(slot, pa.int32()),
            weight=pa.array(weights[node, slot], pa.float64()),
        )
        rank = Window.partitionBy("node").orderBy(F.desc("score"), F.asc("id"))
        limit = self._frame(node=pa.array(range(len(most)), pa.int32()), most=pa.array(most, pa.int64()))
        best = (
            self._placed(node_of, movable)
            .join(F.broadcast(weight), ["node", "slot"])
            .groupBy("id", "node")
            .agg(
                F.sum(F.col("messages") * F.col("weight")).alias("score"),
                F.max("pending").alias("pending"),
                F.max("pending_bytes").alias("pending_bytes"),
            )
            .withColumn("rank", F.row_number().over(rank))
            .join(F.broadcast(limit), "node")
            .where(F.col("rank") <= F.col("most"))
            .select("id", "pending", "pending_bytes")
        )
        found = best.toArrow().sort_by("id")
        return Candidates(*(_column(found, name).astype(np.int64) for name in ("id", "pending", "pending_bytes")))

    def vectors(self, shards: I64, slots: I64) -> F64:
        """f64[k, s]: the messages of some shards in some slots, both by number."""
        from pyspark.sql import functions as F

        row = self._frame(id=pa.array(shards, pa.int32()), row=pa.array(range(len(shards)), pa.int32()))
        column = self._frame(slot=pa.array(slots, pa.int32()), column=pa.array(range(len(slots)), pa.int32()))
        found = (
            self._newest.join(F.broadcast(row), "id")
            .join(F.broadcast(column), "slot")
            .select("row", "column", F.col("messages").cast("float").alias("messages"))
            .toArrow()
        )
        values = np.zeros((len(shards), len(slots)))
        np.add.at(values, (_column(found, "row"), _column(found, "column")), _column(found, "messages"))
        return values

    def _only_newest(self) -> None:
        """A shard that changed its master meanwhile was told of twice: the higher epoch counts."""
        from pyspark.sql import functions as F

        epochs = self._rows.groupBy("id").agg(F.min("epoch").alias("oldest"), F.max("epoch").alias("epoch"))
        changed = epochs.where("oldest < epoch").select("id", F.col("epoch").alias("newest")).toArrow()
        if changed.num_rows:
            newest = self._spark.createDataFrame(changed)
            self._newest = (
                self._rows.join(F.broadcast(newest), "id", "left")
                .where("newest is null or newest = epoch")
                .drop("newest")
            )

    def _placed(self, node_of: I64, only: I64 | None = None) -> DataFrame:
        from pyspark.sql import functions as F

        chosen = np.arange(self._shards) if only is None else only
        places = self._frame(id=pa.array(chosen, pa.int32()), node=pa.array(node_of[chosen], pa.int32()))
        return self._newest.join(F.broadcast(places), "id")

    def _frame(self, **columns: pa.Array) -> DataFrame:
        return self._spark.createDataFrame(pa.table(columns))


def _rows(slots: DataFrame, span: Span, names: DataFrame) -> DataFrame:
    """(id, slot, messages, bytes, epoch, pending, pending_bytes): each row cut at the edges of the span's slots."""
    from pyspark.sql import functions as F

    start = F.col("slot_start")
    low, high = (_instant(span.start_ms - WIDEST_SLOT_MS), _instant(span.start_of(span.count)))
    begin = F.unix_millis(start) - F.lit(span.start_ms)
    length = F.lit(span.slot_ms)
    cut = (
        slots.where((start >= F.lit(low)) & (start < F.lit(high)))
        .join(F.broadcast(names), "shard")
        .withColumn("begin", begin)
        .withColumn("first", F.greatest(F.lit(0), F.floor(F.col("begin") / length)))
        .withColumn(
            "last",
            F.least(F.lit(span.count - 1), F.floor((F.col("begin") + F.col("slot_ms") - 1) / length)),
        )
        .where("first <= last")
        .withColumn("slot", F.explode(F.sequence("first", "last")))
    )
    end = F.col("begin") + F.col("slot_ms")
    inside = F.least((F.col("slot") + 1) * length, end) - F.greatest(F.col("slot") * length, F.col("begin"))
    share = inside / F.col("slot_ms")
    return cut.select(
        "id",
        F.col("slot").cast("int").alias("slot"),
        (F.col("messages") * share).alias("messages"),
        (F.col("bytes") * share).alias("bytes"),
        "epoch",
        "pending",
        "pending_bytes",
    )


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _column(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = table.column(name).to_numpy()
    return array
