"""History of the wheels in Parquet: `delaycluster.slots` rows, partitioned by the time at which they were read.

DIRECTORY/taken=2026-11-21T13-05-00Z/part-....parquet
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from delayrebalance.model import RebalanceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMN = "taken"
_FORM = "%Y-%m-%dT%H-%M-%SZ"  # a file's name may have no colon everywhere
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")


def keep(slots: DataFrame, directory: str, taken_ms: int) -> str:
    """Writes the rows of one look at the wheels; what was kept for that second before is replaced. Its name."""
    from pyspark.sql import functions as F

    taken = datetime.fromtimestamp(taken_ms // 1000, UTC).strftime(_FORM)
    rows = slots.withColumn(COLUMN, F.lit(taken))
    rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(COLUMN).parquet(directory)
    return taken


def load(spark: SparkSession, directory: str, taken: str | None = None) -> DataFrame:
    """All that was kept, or one look at the wheels: its name as keep() gave it, or "latest". Raises RebalanceError."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    from delayrebalance.forecast.source import SCHEMA

    # The schema is given: else Spark looks into a file for it, and takes the partition's name for a date.
    try:
        rows = spark.read.schema(f"{SCHEMA}, {COLUMN} string").parquet(directory)
    except AnalysisException as error:
        raise RebalanceError(f"no history can be read in {directory}: {error}") from error
    if taken is None:
        return rows
    if taken == "latest":
        taken = rows.agg(F.max(COLUMN)).head()[0]  # type: ignore[index]
        if taken is None:
            raise RebalanceError(f"the history in {directory} is empty")
    elif not _NAME.fullmatch(taken):
        raise RebalanceError(
            f"{taken!r} names nothing in the history: expected latest, or such as 2026-11-21T13-05-00Z"
        )
    return rows.where(F.col(COLUMN) == taken).drop(COLUMN)
