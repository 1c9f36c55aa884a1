"""DelaySchedule: a message that a topic sends again and again, as an object of the team that owns the topic.

The operator puts it to the topic's shard (schedule_convert.py), which fires it: no time hangs on the operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from delayapi.cron import MAX_CRON_BYTES
from delayapi.schedule_checks import MAX_CRONS, MAX_INSTANTS, MAX_SCHEDULE_BYTES
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds.base import (
    ATOMIC,
    ATOMIC_MAP,
    TOPIC_NAME,
    Bool,
    Duration,
    Int,
    Model,
    Text,
    list_map,
    rule,
    rules,
)
from delayoperator.crds.status import ConditionModel, Timestamp
from delayoperator.crds.tenancy import FIXED_CLUSTER, ClusterReference

_ONE_WHEN: Final = rule(
    "[has(self.cron), has(self.every), has(self.at)].filter(it, it).size() == 1",
    "it has one of cron, every and at",
)
_FIXED_TOPIC: Final = rule("self.topic == oldSelf.topic", "topic can't be changed", field=".topic")
_SHORT_NAME: Final = rule("self.metadata.name.size() <= 63", "the name of a DelaySchedule has at most 63 characters")

CronText = Annotated[StrictStr, Field(min_length=9, max_length=MAX_CRON_BYTES)]


class DaylightSavingRule(StrEnum):
    DEBIAN = "Debian"
    LITERAL = "Literal"


class CatchUpRule(StrEnum):
    LATEST = "Latest"
    NONE = "None"
    ALL = "All"


class ScheduleReason(StrEnum):
    """Why a DelaySchedule is Ready, or is not."""

    ARMED = "Armed"  # its next time is known to the shard that fires it
    OVER = "Over"  # no further time comes
    PAUSED = "Paused"
    INVALID_SPEC = "InvalidSpec"  # what the shard had before stays in force
    TOPIC_UNKNOWN = "TopicUnknown"  # the cluster has no such topic of the DelaySchedule's namespace
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"  # spec.allowedNamespaces of the cluster does not have it
    NOT_APPLIED = "NotApplied"  # the topic's shard does not answer, or can't take it now


class ScheduledMessage(Model):
    """A message, as written: there are no templates."""

    body: Annotated[StrictStr, Field(max_length=MAX_SCHEDULE_BYTES)] | None = Field(
        None, description="What it says, as text."
    )
    body_base64: Annotated[StrictStr, Field(max_length=MAX_SCHEDULE_BYTES * 4 // 3 + 4)] | None = Field(
        None, description="Instead: bytes, in base64."
    )
    key: Text | None = Field(None, description="The key of the message.")
    tag: Text | None = Field(None, description="The tag of the message.")
    properties: dict[str, Text] | None = Field(
        None, max_length=64, description="Its properties, by name.", json_schema_extra=ATOMIC_MAP
    )


class DelayScheduleSpec(Model):
    """What is sent, and when. docs/schedules.md says what each field means."""

    model_config = ConfigDict(json_schema_extra=rules(FIXED_CLUSTER, _FIXED_TOPIC, _ONE_WHEN))

    cluster: ClusterReference = Field(description="The DelayCluster that has the topic. Can't be changed.")
    topic: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] = Field(
        description="The topic's name. Can't be changed."
    )
    message: ScheduledMessage | None = Field(None, description="The message of each firing.")
    cron: list[CronText] | None = Field(
        None, min_length=1, max_length=MAX_CRONS, json_schema_extra=ATOMIC,
        description="Cron expressions of 5 fields, or of 6 with seconds first, such as '0 9 * * 1-5'.",
    )  # fmt: skip
    time_zone: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, description="The zone of cron, by its IANA name such as Europe/Berlin; absent: UTC."
    )
    daylight_saving: DaylightSavingRule = Field(
        DaylightSavingRule.DEBIAN,
        description="What cron does when clocks are changed. Debian: a time that does not exist comes right after the "
        "gap, one that comes twice counts once. Literal: whenever the clock shows the time.",
    )
    every: Duration | None = Field(None, description="Instead of cron: an interval of 1s or more, such as 90m.")
    phase: Duration | None = Field(None, description="With every: so long after its multiples since 1970 UTC.")
    at: list[Timestamp] | None = Field(
        None, min_length=1, max_length=MAX_INSTANTS, description="Instead of cron: instants.", json_schema_extra=ATOMIC
    )
    start: Timestamp | None = Field(None, description="No time before this one.")
    end: Timestamp | None = Field(None, description="No time from this one on.")
    max_firings: Int | None = Field(
        None, ge=1, le=1 << 53, description="Over once it has fired so often; absent: no limit."
    )
    jitter: Duration | None = Field(None, description="Each firing is later by 0 up to this, at most a day.")
    catch_up: CatchUpRule = Field(
        CatchUpRule.LATEST,
        description="What becomes of times that passed more than a minute ago while no node served the schedule: the "
        "latest fires, none, or all.",
    )
    catch_up_window: Duration | None = Field(None, description="How old such a time may be; absent: a day.")
    skip_while: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = Field(
        None, description="A group: a time is left out while it has not acknowledged the firing before."
    )
    paused: Bool | None = Field(
        None, description="Whether it fires nothing for now. Absent: as `delayctl schedules pause` has left it."
    )
    note: Annotated[StrictStr, Field(max_length=1_000)] | None = Field(None, description="Why it is paused.")


class DelayScheduleStatus(Model):
    """What became of it, as of a minute ago."""

    observed_generation: Int | None = Field(None, ge=0, description="The metadata.generation that this is about.")
    conditions: list[ConditionModel] | None = Field(
        None,
        max_length=32,
        description="Ready: the topic's shard has it, and fires it unless it is over.",
        json_schema_extra=list_map("type"),
    )
    next_time: Text | None = Field(None, description="When its next message is due, RFC 3339.")
    last_time: Timestamp | None = Field(None, description="When it fired last.")
    fired: Int | None = Field(None, ge=0, description="How often it has fired.")


class DelaySchedule(Model):
    """A message that a topic of a DelayCluster sends again and again. The topic's shard fires it, whether or not the
    operator runs. Deleted, it fires no more; what it has fired stays.
    """

    model_config = ConfigDict(json_schema_extra=rules(_SHORT_NAME))

    spec: DelayScheduleSpec = Field(description="What is sent, and when.")
    status: DelayScheduleStatus | None = Field(None, description="What became of it.")
