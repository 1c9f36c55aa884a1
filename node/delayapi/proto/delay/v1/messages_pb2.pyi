import datetime

from delayapi.proto.delay.v1 import schedules_pb2 as _schedules_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union
from delayapi.proto.delay.v1.schedules_pb2 import Schedule as Schedule
from delayapi.proto.delay.v1.schedules_pb2 import Every as Every
from delayapi.proto.delay.v1.schedules_pb2 import Firing as Firing
from delayapi.proto.delay.v1.schedules_pb2 import ScheduleState as ScheduleState
from delayapi.proto.delay.v1.schedules_pb2 import PutScheduleRequest as PutScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import PutScheduleResponse as PutScheduleResponse
from delayapi.proto.delay.v1.schedules_pb2 import GetScheduleRequest as GetScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import ListSchedulesRequest as ListSchedulesRequest
from delayapi.proto.delay.v1.schedules_pb2 import ListSchedulesResponse as ListSchedulesResponse
from delayapi.proto.delay.v1.schedules_pb2 import PauseScheduleRequest as PauseScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import TriggerScheduleRequest as TriggerScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import BackfillScheduleRequest as BackfillScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import FireScheduleResponse as FireScheduleResponse
from delayapi.proto.delay.v1.schedules_pb2 import DeleteScheduleRequest as DeleteScheduleRequest
from delayapi.proto.delay.v1.schedules_pb2 import DeleteScheduleResponse as DeleteScheduleResponse
from delayapi.proto.delay.v1.schedules_pb2 import DaylightSaving as DaylightSaving
from delayapi.proto.delay.v1.schedules_pb2 import CatchUp as CatchUp
from delayapi.proto.delay.v1.schedules_pb2 import Overlap as Overlap
from delayapi.proto.delay.v1.schedules_pb2 import FiringKind as FiringKind

DESCRIPTOR: _descriptor.FileDescriptor
DAYLIGHT_SAVING_DEBIAN: _schedules_pb2.DaylightSaving
DAYLIGHT_SAVING_LITERAL: _schedules_pb2.DaylightSaving
CATCH_UP_LATEST: _schedules_pb2.CatchUp
CATCH_UP_NONE: _schedules_pb2.CatchUp
CATCH_UP_ALL: _schedules_pb2.CatchUp
OVERLAP_ALLOW: _schedules_pb2.Overlap
OVERLAP_SKIP: _schedules_pb2.Overlap
FIRING_KIND_SCHEDULED: _schedules_pb2.FiringKind
FIRING_KIND_TRIGGERED: _schedules_pb2.FiringKind
FIRING_KIND_BACKFILLED: _schedules_pb2.FiringKind
FIRING_KIND_SKIPPED: _schedules_pb2.FiringKind

class BodyFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BODY_FORMAT_BYTES: _ClassVar[BodyFormat]
    BODY_FORMAT_TEXT: _ClassVar[BodyFormat]
    BODY_FORMAT_JSON: _ClassVar[BodyFormat]
BODY_FORMAT_BYTES: BodyFormat
BODY_FORMAT_TEXT: BodyFormat
BODY_FORMAT_JSON: BodyFormat

class OutgoingMessage(_message.Message):
    __slots__ = ("at", "delay", "key", "tag", "properties", "body", "body_text", "message_id")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    delay: _duration_pb2.Duration
    key: str
    tag: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    body_text: str
    message_id: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., body_text: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("topic", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[OutgoingMessage]
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[OutgoingMessage, _Mapping]]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SendResult, _Mapping]]] = ...) -> None: ...

class SendResult(_message.Message):
    __slots__ = ("handle", "due", "duplicate", "error")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    handle: str
    due: _timestamp_pb2.Timestamp
    duplicate: bool
    error: MessageError
    def __init__(self, handle: _Optional[str] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duplicate: _Optional[bool] = ..., error: _Optional[_Union[MessageError, _Mapping]] = ...) -> None: ...

class MessageError(_message.Message):
    __slots__ = ("code", "reason", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    message: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ReceiveMessagesRequest(_message.Message):
    __slots__ = ("topic", "group", "max_messages", "wait", "lease", "tags", "from_end", "body_format", "max_in_flight")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FROM_END_FIELD_NUMBER: _ClassVar[int]
    BODY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    max_messages: int
    wait: _duration_pb2.Duration
    lease: _duration_pb2.Duration
    tags: _containers.RepeatedScalarFieldContainer[str]
    from_end: bool
    body_format: BodyFormat
    max_in_flight: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., max_messages: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tags: _Optional[_Iterable[str]] = ..., from_end: _Optional[bool] = ..., body_format: _Optional[_Union[BodyFormat, str]] = ..., max_in_flight: _Optional[int] = ...) -> None: ...

class ReceiveMessagesResponse(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("receipt", "key", "tag", "properties", "body", "body_text", "message_id", "due", "sent", "attempt", "lease_ends", "dead_reason")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ENDS_FIELD_NUMBER: _ClassVar[int]
    DEAD_REASON_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    key: str
    tag: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    body_text: str
    message_id: str
    due: _timestamp_pb2.Timestamp
    sent: _timestamp_pb2.Timestamp
    attempt: int
    lease_ends: _timestamp_pb2.Timestamp
    dead_reason: str
    def __init__(self, receipt: _Optional[str] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., body_text: _Optional[str] = ..., message_id: _Optional[str] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sent: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., lease_ends: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dead_reason: _Optional[str] = ...) -> None: ...

class AckMessagesRequest(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, receipts: _Optional[_Iterable[str]] = ...) -> None: ...

class NackMessagesRequest(_message.Message):
    __slots__ = ("receipts", "backoff", "dead", "reason")
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[str]
    backoff: _duration_pb2.Duration
    dead: bool
    reason: str
    def __init__(self, receipts: _Optional[_Iterable[str]] = ..., backoff: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dead: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class ExtendMessagesRequest(_message.Message):
    __slots__ = ("receipts", "lease")
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedScalarFieldContainer[str]
    lease: _duration_pb2.Duration
    def __init__(self, receipts: _Optional[_Iterable[str]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SettleResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SettleResult, _Mapping]]] = ...) -> None: ...

class SettleResult(_message.Message):
    __slots__ = ("settled", "error")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    settled: bool
    error: MessageError
    def __init__(self, settled: _Optional[bool] = ..., error: _Optional[_Union[MessageError, _Mapping]] = ...) -> None: ...

class CancelMessagesRequest(_message.Message):
    __slots__ = ("handles", "topic", "key", "to")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[str]
    topic: str
    key: str
    to: _timestamp_pb2.Timestamp
    def __init__(self, handles: _Optional[_Iterable[str]] = ..., topic: _Optional[str] = ..., key: _Optional[str] = ..., to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., **kwargs) -> None: ...

class CancelMessagesResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PendingResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PendingResult, _Mapping]]] = ...) -> None: ...

class PendingResult(_message.Message):
    __slots__ = ("outcome", "handle", "due", "error")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    handle: str
    due: _timestamp_pb2.Timestamp
    error: MessageError
    def __init__(self, outcome: _Optional[str] = ..., handle: _Optional[str] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[MessageError, _Mapping]] = ...) -> None: ...

class RescheduleMessagesRequest(_message.Message):
    __slots__ = ("handles", "at", "delay")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[str]
    at: _timestamp_pb2.Timestamp
    delay: _duration_pb2.Duration
    def __init__(self, handles: _Optional[_Iterable[str]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RescheduleMessagesResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PendingResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PendingResult, _Mapping]]] = ...) -> None: ...

class ListPendingMessagesRequest(_message.Message):
    __slots__ = ("topic", "to", "page_size", "page_token", "with_content", "body_format")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WITH_CONTENT_FIELD_NUMBER: _ClassVar[int]
    BODY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    to: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    with_content: bool
    body_format: BodyFormat
    def __init__(self, topic: _Optional[str] = ..., to: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_content: _Optional[bool] = ..., body_format: _Optional[_Union[BodyFormat, str]] = ..., **kwargs) -> None: ...

class ListPendingMessagesResponse(_message.Message):
    __slots__ = ("messages", "next_page_token")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PendingMessage]
    next_page_token: str
    def __init__(self, messages: _Optional[_Iterable[_Union[PendingMessage, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PendingMessage(_message.Message):
    __slots__ = ("handle", "due", "size_bytes", "key", "tag", "properties", "body", "body_text", "message_id", "sent")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    handle: str
    due: _timestamp_pb2.Timestamp
    size_bytes: int
    key: str
    tag: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    body_text: str
    message_id: str
    sent: _timestamp_pb2.Timestamp
    def __init__(self, handle: _Optional[str] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., size_bytes: _Optional[int] = ..., key: _Optional[str] = ..., tag: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., body_text: _Optional[str] = ..., message_id: _Optional[str] = ..., sent: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "tags", "available", "in_flight", "waiting_retry", "dead", "oldest")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_RETRY_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    group: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    available: int
    in_flight: int
    waiting_retry: int
    dead: int
    oldest: _timestamp_pb2.Timestamp
    def __init__(self, group: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., available: _Optional[int] = ..., in_flight: _Optional[int] = ..., waiting_retry: _Optional[int] = ..., dead: _Optional[int] = ..., oldest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeleteMessageGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteMessageGroupResponse(_message.Message):
    __slots__ = ("unfinished", "dead")
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    unfinished: int
    dead: int
    def __init__(self, unfinished: _Optional[int] = ..., dead: _Optional[int] = ...) -> None: ...

class ListDeadMessagesRequest(_message.Message):
    __slots__ = ("topic", "group", "page_size", "page_token", "body_format")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BODY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    page_size: int
    page_token: str
    body_format: BodyFormat
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., body_format: _Optional[_Union[BodyFormat, str]] = ...) -> None: ...

class ListDeadMessagesResponse(_message.Message):
    __slots__ = ("deliveries", "next_page_token")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    next_page_token: str
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeadLettersRequest(_message.Message):
    __slots__ = ("topic", "group", "receipts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    receipts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., receipts: _Optional[_Iterable[str]] = ...) -> None: ...

class DeadLettersResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...
