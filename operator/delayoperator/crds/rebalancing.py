"""DelayCluster.spec.rebalance: when a plan is made and who approves it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import CRON, LIST_SET, TOPIC_NAME, Duration, Image, Int, Model, Number, rules
from delayoperator.crds.pod import Resources


class Approval(StrEnum):
    MANUAL = "Manual"
    AUTOMATIC = "Automatic"
    AUTOMATIC_BELOW = "AutomaticBelow"


class AutomaticBelow(Model):
    """A plan within all limits given here is carried out unasked; a larger one waits for approval."""

    moved_bytes: Int | None = Field(
        None, ge=0, le=1 << 53, description="Bytes that the plan's moves copy, all together."
    )
    due_in_window: Int | None = Field(
        None, ge=0, le=1 << 53, description="Messages that fall due on moving shards while they move."
    )


class Spark(Model):
    """How the job runs."""

    master: Annotated[StrictStr, Field(min_length=1, max_length=512)] = Field(
        "local[*]", description="Spark's master: local[*], in the job's own pod, or k8s://https://... for executors."
    )
    image: Image | None = Field(None, description="The job's image; absent: the operator's release of it.")
    resources: Resources | None = Field(None, description="CPU and memory of the job's container.")
    conf: dict[str, Annotated[StrictStr, Field(max_length=4_096)]] | None = Field(
        None, description="More Spark settings, such as spark.executor.instances.", max_length=128
    )


class History(Model):
    """Where the job keeps what it saw of the load, as Parquet."""

    claim_name: Annotated[
        StrictStr, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    ] = Field(
        description="A PersistentVolumeClaim of this namespace that is there already; the job's pod mounts it. With a "
        "k8s:// master its executors do too: then it has to be ReadWriteMany."
    )
    sub_path: (
        Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None
    ) = Field(None, description="A directory in it; absent: the cluster's name.")


class Rebalancing(Model):
    """When the load is looked at and who approves of what is proposed."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.REBALANCING, *limits.REBALANCE_JOB))

    schedule: Annotated[StrictStr, Field(max_length=100, pattern=CRON)] | None = Field(
        None, description="When the job runs, as a CronJob's schedule in UTC: '0 3 * * *'. Absent: only by hand."
    )
    horizon: Duration = Field("24h", description="How far ahead the load is looked at: one slot to 366d.")
    slot: Duration = Field("5m", description="The slots of time in which the load is counted: 1m to 24h.")
    max_moves: Int = Field(100, ge=1, le=1_000, description="The most moves that a plan has.")
    excluded_topics: list[Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)]] | None = Field(
        None, max_length=limits.MAX_TOPICS, description="Topics whose shards stay.", json_schema_extra=LIST_SET
    )
    threshold: Number = Field(
        1.5,
        ge=1,
        le=100,
        description="A node is hot in a slot of time when more than so many times the mean of all nodes falls "
        "due on it.",
    )
    approval: Approval = Field(
        Approval.MANUAL,
        description="Manual: a plan waits for the annotation delaycluster.io/approve=HASH. Automatic: none waits. "
        "AutomaticBelow: those within `automaticBelow` do not wait.",
    )
    automatic_below: AutomaticBelow | None = Field(None, description="With AutomaticBelow: up to what size.")
    spark: Spark | None = Field(None, description="How the job runs; absent: in one pod.")
    history: History | None = Field(None, description="Keeps each look at the load; absent: none is kept.")
