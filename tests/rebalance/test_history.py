"""The wheels' loads, kept as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delayapi.units import MINUTE_MS
from delayrebalance.forecast import history
from delayrebalance.forecast.source import NAME
from delayrebalance.model import RebalanceError

from tests.rebalance.nodes import NOW_MS, Told, WheelNode, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_looks_are_kept_apart_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    node = WheelNode("n0", [Told("orders-0", [(NOW_MS, MINUTE_MS, 4)])])
    with serving(node) as endpoints:
        slots = spark.read.format(NAME).option("endpoints", endpoints).load()
        first = history.keep(slots, str(tmp_path), NOW_MS)
        node.tells = [Told("orders-0", [(NOW_MS, MINUTE_MS, 9)])]
        second = history.keep(slots, str(tmp_path), NOW_MS + MINUTE_MS)
        history.keep(slots, str(tmp_path), NOW_MS + MINUTE_MS)  # again: replaced, not doubled
        schema = slots.schema
    assert (first, second) == ("2026-09-21T14-13-20Z", "2026-09-21T14-14-20Z")
    assert {path.name for path in tmp_path.glob("taken=*")} == {f"taken={first}", f"taken={second}"}
    both = history.load(spark, str(tmp_path))
    assert sorted((it.taken, it.messages) for it in both.collect()) == [(first, 4), (second, 9)]
    latest = history.load(spark, str(tmp_path), "latest")
    assert latest.schema == schema
    assert [it.messages for it in latest.collect()] == [9]
    assert [it.messages for it in history.load(spark, str(tmp_path), first).collect()] == [4]


def test_a_history_that_is_not_there_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(RebalanceError, match="no history can be read in"):
        history.load(spark, str(tmp_path / "nowhere")).count()
    with pytest.raises(RebalanceError, match="expected latest"):
        history.load(spark, str(tmp_path), "yesterday")
