import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DaylightSaving(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DAYLIGHT_SAVING_DEBIAN: _ClassVar[DaylightSaving]
    DAYLIGHT_SAVING_LITERAL: _ClassVar[DaylightSaving]

class CatchUp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATCH_UP_LATEST: _ClassVar[CatchUp]
    CATCH_UP_NONE: _ClassVar[CatchUp]
    CATCH_UP_ALL: _ClassVar[CatchUp]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_ALLOW: _ClassVar[Overlap]
    OVERLAP_SKIP: _ClassVar[Overlap]

class FiringKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIRING_KIND_SCHEDULED: _ClassVar[FiringKind]
    FIRING_KIND_TRIGGERED: _ClassVar[FiringKind]
    FIRING_KIND_BACKFILLED: _ClassVar[FiringKind]
    FIRING_KIND_SKIPPED: _ClassVar[FiringKind]
DAYLIGHT_SAVING_DEBIAN: DaylightSaving
DAYLIGHT_SAVING_LITERAL: DaylightSaving
CATCH_UP_LATEST: CatchUp
CATCH_UP_NONE: CatchUp
CATCH_UP_ALL: CatchUp
OVERLAP_ALLOW: Overlap
OVERLAP_SKIP: Overlap
FIRING_KIND_SCHEDULED: FiringKind
FIRING_KIND_TRIGGERED: FiringKind
FIRING_KIND_BACKFILLED: FiringKind
FIRING_KIND_SKIPPED: FiringKind

class Schedule(_message.Message):
    __slots__ = ("id", "topic", "key", "tag", "properties", "body", "body_text", "cron", "every", "at", "zone", "daylight_saving", "start", "end", "max_firings", "jitter", "catch_up", "catch_up_window", "overlap", "overlap_group")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_TEXT_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    DAYLIGHT_SAVING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_FIRINGS_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_WINDOW_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_GROUP_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    key: str
    tag: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    body_text: str
    cron: _containers.RepeatedScalarFieldContainer[str]
    every: Every
    at: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    zone: str
    daylight_saving: DaylightSaving
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    max_firings: int
    jitter: _duration_pb2.Duration
    catch_up: CatchUp
    catch_up_window: _duration_pb2.Duration
    overlap: Overlap
    overlap_group: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., body_text: _Optional[str] = ..., cron: _Optional[_Iterable[str]] = ..., every: _Optional[_Union[Every, _Mapping]] = ..., at: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ..., zone: _Optional[str] = ..., daylight_saving: _Optional[_Union[DaylightSaving, str]] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_firings: _Optional[int] = ..., jitter: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, str]] = ..., catch_up_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., overlap: _Optional[_Union[Overlap, str]] = ..., overlap_group: _Optional[str] = ...) -> None: ...

class Every(_message.Message):
    __slots__ = ("interval", "phase")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    phase: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., phase: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Firing(_message.Message):
    __slots__ = ("number", "nominal", "due", "fired", "kind")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NOMINAL_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    number: int
    nominal: _timestamp_pb2.Timestamp
    due: _timestamp_pb2.Timestamp
    fired: _timestamp_pb2.Timestamp
    kind: FiringKind
    def __init__(self, number: _Optional[int] = ..., nominal: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fired: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[FiringKind, str]] = ...) -> None: ...

class ScheduleState(_message.Message):
    __slots__ = ("schedule", "version", "created", "changed", "paused", "note", "next_nominal", "next_due", "fired", "skipped", "missed", "last", "upcoming", "over", "zone_rules")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    NEXT_NOMINAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    UPCOMING_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ZONE_RULES_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    version: int
    created: _timestamp_pb2.Timestamp
    changed: _timestamp_pb2.Timestamp
    paused: bool
    note: str
    next_nominal: _timestamp_pb2.Timestamp
    next_due: _timestamp_pb2.Timestamp
    fired: int
    skipped: int
    missed: int
    last: _containers.RepeatedCompositeFieldContainer[Firing]
    upcoming: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    over: bool
    zone_rules: str
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., version: _Optional[int] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., changed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused: _Optional[bool] = ..., note: _Optional[str] = ..., next_nominal: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fired: _Optional[int] = ..., skipped: _Optional[int] = ..., missed: _Optional[int] = ..., last: _Optional[_Iterable[_Union[Firing, _Mapping]]] = ..., upcoming: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ..., over: _Optional[bool] = ..., zone_rules: _Optional[str] = ...) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "schedule", "expected_version", "paused", "note")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    schedule: Schedule
    expected_version: int
    paused: bool
    note: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., expected_version: _Optional[int] = ..., paused: _Optional[bool] = ..., note: _Optional[str] = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("state", "changed")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    state: ScheduleState
    changed: bool
    def __init__(self, state: _Optional[_Union[ScheduleState, _Mapping]] = ..., changed: _Optional[bool] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    id: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., id: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("topic", "queue", "page_size", "page_token", "id_prefix")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    page_size: int
    page_token: str
    id_prefix: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., id_prefix: _Optional[str] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "next_page_token")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleState]
    next_page_token: str
    def __init__(self, schedules: _Optional[_Iterable[_Union[ScheduleState, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PauseScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "id", "note", "expected_version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    id: str
    note: str
    expected_version: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., id: _Optional[str] = ..., note: _Optional[str] = ..., expected_version: _Optional[int] = ...) -> None: ...

class TriggerScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "id", "expected_fired")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIRED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    id: str
    expected_fired: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., id: _Optional[str] = ..., expected_fired: _Optional[int] = ...) -> None: ...

class BackfillScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "id", "to", "expected_fired")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIRED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    id: str
    to: _timestamp_pb2.Timestamp
    expected_fired: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., id: _Optional[str] = ..., to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expected_fired: _Optional[int] = ..., **kwargs) -> None: ...

class FireScheduleResponse(_message.Message):
    __slots__ = ("firings", "state")
    FIRINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    firings: _containers.RepeatedCompositeFieldContainer[Firing]
    state: ScheduleState
    def __init__(self, firings: _Optional[_Iterable[_Union[Firing, _Mapping]]] = ..., state: _Optional[_Union[ScheduleState, _Mapping]] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "id", "expected_version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    id: str
    expected_version: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., id: _Optional[str] = ..., expected_version: _Optional[int] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
