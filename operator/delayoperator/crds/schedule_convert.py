"""DelaySchedule -> what is put to the topic's shard, or why not."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Final

from delayapi.durations import instant_ms, parse_duration_ms
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_checks import BadSchedule, check
from pydantic import ValidationError

from delayoperator.crds.base import Json
from delayoperator.crds.schedule import CatchUpRule, DaylightSavingRule, DelayScheduleSpec

ID_PREFIX: Final = "kubernetes/"
"""Schedules with such ids are the operator's: one that no DelaySchedule stands for is deleted."""

_CATCH_UP: Final = {
    CatchUpRule.LATEST: pb.CATCH_UP_LATEST, CatchUpRule.NONE: pb.CATCH_UP_NONE, CatchUpRule.ALL: pb.CATCH_UP_ALL,
}  # fmt: skip


def schedule_id(body: Json) -> str:
    """Of the schedule that a DelaySchedule stands for."""
    return f"{ID_PREFIX}{body['metadata']['namespace']}/{body['metadata']['name']}"


def wanted(body: Json) -> pb.PutScheduleRequest:
    """Raises BadSchedule."""
    try:
        spec = DelayScheduleSpec.model_validate(body.get("spec") or {})
        request = pb.PutScheduleRequest(
            topic=spec.topic, schedule=_schedule(spec, schedule_id(body)), paused=spec.paused,
            note=spec.note or "" if spec.paused is not None else "",
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise BadSchedule(f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except binascii.Error as error:
        raise BadSchedule(f"spec.message.bodyBase64: {error}") from None
    except ValueError as error:
        raise BadSchedule(str(error)) from None
    check(request.schedule)
    return request


def _schedule(spec: DelayScheduleSpec, id: str) -> pb.Schedule:
    """Raises ValueError."""
    message = spec.message
    literal = spec.daylight_saving is DaylightSavingRule.LITERAL
    found = pb.Schedule(
        id=id, topic=spec.topic, cron=spec.cron or (), zone=spec.time_zone or "", max_firings=spec.max_firings or 0,
        daylight_saving=pb.DAYLIGHT_SAVING_LITERAL if literal else pb.DAYLIGHT_SAVING_DEBIAN,
        catch_up=_CATCH_UP[spec.catch_up], overlap_group=spec.skip_while or "",
        overlap=pb.OVERLAP_SKIP if spec.skip_while else pb.OVERLAP_ALLOW,
    )  # fmt: skip
    if message is not None:
        found.key, found.tag = message.key or "", message.tag or ""
        found.properties.update(message.properties or {})
        if message.body is not None and message.body_base64 is not None:
            raise BadSchedule("spec.message: it has body or bodyBase64")
        if message.body_base64 is not None:
            found.body = b64decode(message.body_base64, validate=True)
        else:
            found.body_text = message.body or ""
    if spec.every is not None:
        found.every.interval.FromMilliseconds(parse_duration_ms(spec.every))
    if spec.phase is not None:
        if spec.every is None:
            raise BadSchedule("spec.phase: it is of every")
        found.every.phase.FromMilliseconds(parse_duration_ms(spec.phase))
    for one in spec.at or ():
        found.at.add().FromMilliseconds(instant_ms(one))
    for name, instant in (("start", spec.start), ("end", spec.end)):
        if instant is not None:
            getattr(found, name).FromMilliseconds(instant_ms(instant))
    for name, span in (("jitter", spec.jitter), ("catch_up_window", spec.catch_up_window)):
        if span is not None:
            getattr(found, name).FromMilliseconds(parse_duration_ms(span))
    return found
