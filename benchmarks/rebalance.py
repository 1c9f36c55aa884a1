"""The rebalance job on wheels that a seed makes up: `python -m benchmarks.rebalance [--shards 10000]`.

7 days of 5-minute slots over 100 nodes, made in Spark, never on the driver: topics of 1 to 200 shards and of very
different size (log-normal), each with its own time of day, quieter weekends, herds that hit all shards of a topic, and
spikes of single shards. The cluster starts as an equal count of shards a node leaves it, in an order that knows
nothing of loads; round robin (topic by topic, queue by queue) is the other baseline. Two copies a shard, three zones.

One JSON line a run: the highest node-slot load of each over the lower bound, moves, seconds, memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from delayapi.units import DAY_MS, MINUTE_MS
from delayrebalance.decision.search import lower_bound
from delayrebalance.forecast.loads import ShardLoads
from delayrebalance.job import study
from delayrebalance.model import ClusterMap, MapNode, MapShard, SearchSettings, Span
from delayrebalance.session import spark_session

from benchmarks import loadsvg

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

START_MS = 1_790_000_100_000  # on the edge of a slot
SLOT_MS = 5 * MINUTE_MS
ZONES = 3


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        spark = spark_session(
            options.master,
            conf={
                "spark.driver.memory": options.memory,
                "spark.local.dir": scratch,
                "spark.sql.shuffle.partitions": "16",
                "spark.log.level": "ERROR",
            },
        )
        try:
            for shards in options.shards:
                print(json.dumps(run(spark, shards, options)), flush=True)
        finally:
            spark.stop()


def run(spark: SparkSession, shards: int, options: argparse.Namespace) -> dict[str, Any]:
    days, nodes, seed = options.days, options.nodes, options.seed
    names, topics = made_names(shards, seed)
    slots = made_slots(spark, topics, days, seed)
    span = Span(START_MS, SLOT_MS, days * DAY_MS // SLOT_MS)
    order = np.random.default_rng(seed).permutation(shards)
    equal_count = np.empty(shards, dtype=np.int64)
    equal_count[order] = np.arange(shards) % nodes
    placements = {"equal count": equal_count, "round robin": np.arange(shards) % nodes}

    began = time.monotonic()
    loads = ShardLoads(spark, slots, names, span)
    sums = {name: loads.node_sums(node_of, nodes) for name, node_of in placements.items()}
    loads.close()
    baselines_s = time.monotonic() - began
    of_all = next(iter(sums.values()))
    bound = float(lower_bound(of_all.messages, np.ones(nodes, dtype=bool), of_all.tallest).max())

    settings = SearchSettings(horizon_ms=days * DAY_MS, max_moves=options.max_moves, candidates=options.candidates)
    jvm = str(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    began, used = time.monotonic(), [cpu_seconds(it) for it in ("self", jvm)]
    found = study(spark, slots, made_map(names, equal_count, nodes, seed), settings, now_ms=START_MS)
    seconds = time.monotonic() - began
    if options.svg:
        loadsvg.write(found, Path(options.svg))
    cpu = [cpu_seconds(it) - before for it, before in zip(("self", jvm), used, strict=True)]
    return {
        "shards": shards,
        "nodes": nodes,
        "slots": span.count,
        "rows": shards * span.count,
        "lower_bound": round(bound),
        "over_lower_bound": {
            **{name: round(float(it.messages.max()) / bound, 3) for name, it in sums.items()},
            "job": round(found.ratio, 3),
        },
        "hot_slots": [found.before.hot_slots, found.after.hot_slots],
        "moves": len(found.moves),
        "switchovers": sum(not it.copies for it in found.moves),
        "moved_share_of_shards": round(len(found.moves) / shards, 4),
        "seconds": round(seconds, 1),
        "cpu_seconds": {"search": round(cpu[0], 1), "spark": round(cpu[1], 1)},
        "seconds_of_two_baselines": round(baselines_s, 1),
        "driver_python_peak_mib": peak_mib("self"),
        "jvm_peak_mib": peak_mib(jvm),
        "cells_at_the_driver": nodes * span.count,
        "master": options.master,
        "driver_memory": options.memory,
    }


def made_names(shards: int, seed: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Shards by topic and queue, and the topics with their sizes."""
    sizes = np.random.default_rng(seed).integers(1, 201, shards)
    topics, left = [], shards
    for number, size in enumerate(sizes.tolist()):
        if not left:
            break
        topics.append((f"topic{number}", min(size, left)))
        left -= topics[-1][1]
    return [f"{topic}-{queue}" for topic, size in topics for queue in range(size)], topics


def made_slots(spark: SparkSession, topics: list[tuple[str, int]], days: int, seed: int) -> DataFrame:
    """Rows in the schema of delaycluster.slots. The load of each shard in each slot is a function of the seed alone."""
    from pyspark.sql import functions as F

    count = days * DAY_MS // SLOT_MS

    def uniform(what: str, *of: Column) -> Column:
        """0 .. 1, by what is drawn and for whom."""
        return F.pmod(F.xxhash64(F.lit(seed), F.lit(what), *of), F.lit(1 << 40)) / F.lit(float(1 << 40))

    def normal(what: str, *of: Column) -> Column:
        """The sum of four uniform numbers is near enough."""
        parts = [uniform(f"{what}{part}", *of) for part in range(4)]
        return (parts[0] + parts[1] + parts[2] + parts[3] - 2) * F.lit(3**0.5)

    topic, queue, slot = F.col("topic"), F.col("queue"), F.col("slot")
    shards = (
        spark.createDataFrame(topics, "topic string, size int")
        .withColumn("queue", F.explode(F.sequence(F.lit(0), F.col("size") - 1)))
        .select(
            topic,
            F.concat_ws("-", topic, queue).alias("shard"),
            (F.exp(4 + normal("size", topic) + 0.5 * normal("share", topic, queue))).alias("mean"),
            (0.35 + 0.15 * normal("hour", topic)).alias("noon"),
            *[(uniform(f"herd{n}", topic) * count).cast("int").alias(f"herd{n}") for n in range(3)],
            *[(uniform(f"spike{n}", topic, queue) * count).cast("int").alias(f"spike{n}") for n in range(2)],
        )
        .repartition(32, "shard")
    )
    day = F.floor(slot / 288)
    wave = 1 + 0.7 * F.cos(2 * np.pi * (slot / 288 - F.col("noon")))
    weekend = F.when(F.pmod(day, F.lit(7)) >= 5, 0.6).otherwise(1.0)
    herd = sum((F.when(slot == F.col(f"herd{n}"), 6.0).otherwise(0.0) for n in range(3)), F.lit(1.0))
    spike = sum((F.when(slot == F.col(f"spike{n}"), 15.0).otherwise(0.0) for n in range(2)), F.lit(0.0))
    noise = 0.8 + 0.4 * uniform("noise", F.col("shard"), slot)
    messages = F.col("mean") * (wave * weekend * herd * noise + spike)
    return (
        shards.withColumn("slot", F.explode(F.sequence(F.lit(0), F.lit(count - 1))))
        .select(
            "shard",
            F.lit("").alias("node"),
            F.timestamp_millis(F.lit(START_MS) + slot * F.lit(SLOT_MS).cast("bigint")).alias("slot_start"),
            F.lit(SLOT_MS).cast("bigint").alias("slot_ms"),
            F.floor(messages).alias("messages"),
            (F.floor(messages) * 300).alias("bytes"),
            F.lit(1).cast("bigint").alias("epoch"),
            F.floor(F.col("mean") * count).alias("pending"),
            F.floor(F.col("mean") * count * 300).alias("pending_bytes"),
            F.timestamp_millis(F.lit(START_MS)).alias("taken_at"),
        )
        .where("messages > 0")
    )


def made_map(names: list[str], node_of: np.ndarray[Any, Any], nodes: int, seed: int) -> ClusterMap:
    """The second copy is in another zone."""
    away = np.random.default_rng(seed + 1).integers(1, nodes, len(names))
    others = (node_of + np.where(away % ZONES == 0, away + 1, away)) % nodes
    return ClusterMap(
        "benchmark",
        tuple(MapNode(f"n{node}", zone=f"zone{node % ZONES}") for node in range(nodes)),
        tuple(
            MapShard(name, f"n{first}", (f"n{first}",) if first == second else (f"n{first}", f"n{second}"))
            for name, first, second in zip(names, node_of.tolist(), others.tolist(), strict=True)
        ),
    )


def peak_mib(pid: str) -> int:
    """The most memory that a process had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def cpu_seconds(pid: str) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--max-moves", type=int, default=1_000)
    parser.add_argument("--candidates", type=int, default=4_000, help="shards whose loads the driver may hold")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="3g", help="of the JVM: driver and, with local[N], executor in one")
    parser.add_argument("--svg", help="draw the nodes' loads before and after into this file")
    parser.add_argument("--directory", help="for Spark's files  [default: the system's]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
