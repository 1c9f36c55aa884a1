from delay.v1 import schedules_pb2 as _schedules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Settlement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLEMENT_UNSPECIFIED: _ClassVar[Settlement]
    SETTLED: _ClassVar[Settlement]
    ATTEMPT_OVER: _ClassVar[Settlement]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    CANCELLED: _ClassVar[Outcome]
    TOO_LATE: _ClassVar[Outcome]
    ALREADY_CANCELLED: _ClassVar[Outcome]
    RESCHEDULED: _ClassVar[Outcome]
    NOT_FOUND: _ClassVar[Outcome]
    MOVED: _ClassVar[Outcome]
SETTLEMENT_UNSPECIFIED: Settlement
SETTLED: Settlement
ATTEMPT_OVER: Settlement
OUTCOME_UNSPECIFIED: Outcome
CANCELLED: Outcome
TOO_LATE: Outcome
ALREADY_CANCELLED: Outcome
RESCHEDULED: Outcome
NOT_FOUND: Outcome
MOVED: Outcome

class Message(_message.Message):
    __slots__ = ("key", "tag", "properties", "body", "born_ms", "message_id")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BORN_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    key: str
    tag: str
    properties: _containers.ScalarMap[str, str]
    body: bytes
    born_ms: int
    message_id: str
    def __init__(self, key: _Optional[str] = ..., tag: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ..., born_ms: _Optional[int] = ..., message_id: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Calls(_message.Message):
    __slots__ = ("call",)
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, call: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "method", "request", "wait_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    request: bytes
    wait_ms: int
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, answer: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    error: Error
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class QueryRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class QueryRouteResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "max_delay_ms", "max_attempts", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    max_delay_ms: int
    max_attempts: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueRoute]
    def __init__(self, topic: _Optional[str] = ..., max_delay_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueRoute, _Mapping]]] = ...) -> None: ...

class QueueRoute(_message.Message):
    __slots__ = ("queue", "uid", "epoch", "node", "endpoint", "readable")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    queue: int
    uid: int
    epoch: int
    node: str
    endpoint: str
    readable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[int] = ..., uid: _Optional[int] = ..., epoch: _Optional[int] = ..., node: _Optional[str] = ..., endpoint: _Optional[str] = ..., readable: _Optional[_Iterable[str]] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("topic", "queue", "count", "time", "relative", "size", "key_hash", "tag_hash", "records", "producer_id", "number", "message_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    TAG_HASH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    count: int
    time: bytes
    relative: bytes
    size: bytes
    key_hash: bytes
    tag_hash: bytes
    records: bytes
    producer_id: int
    number: int
    message_id: bytes
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., count: _Optional[int] = ..., time: _Optional[bytes] = ..., relative: _Optional[bytes] = ..., size: _Optional[bytes] = ..., key_hash: _Optional[bytes] = ..., tag_hash: _Optional[bytes] = ..., records: _Optional[bytes] = ..., producer_id: _Optional[int] = ..., number: _Optional[int] = ..., message_id: _Optional[bytes] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("uid", "first_seq", "count", "due", "duplicate", "error", "seq", "repeated")
    UID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    uid: int
    first_seq: int
    count: int
    due: bytes
    duplicate: bool
    error: Error
    seq: bytes
    repeated: bytes
    def __init__(self, uid: _Optional[int] = ..., first_seq: _Optional[int] = ..., count: _Optional[int] = ..., due: _Optional[bytes] = ..., duplicate: _Optional[bool] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., seq: _Optional[bytes] = ..., repeated: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "queue", "offset", "max_messages", "max_bytes", "wait_ms", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "max_messages", "max_bytes", "wait_ms", "invisible_ms", "tags", "from_end")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FROM_END_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    max_messages: int
    max_bytes: int
    wait_ms: int
    invisible_ms: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    from_end: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., from_end: _Optional[bool] = ...) -> None: ...

class MessageBatch(_message.Message):
    __slots__ = ("uid", "count", "offset", "due", "seq", "size", "attempt", "records", "end_offset", "next_offset", "behind_ms", "reason_size", "reasons")
    UID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_SIZE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    uid: int
    count: int
    offset: bytes
    due: bytes
    seq: bytes
    size: bytes
    attempt: bytes
    records: bytes
    end_offset: int
    next_offset: int
    behind_ms: int
    reason_size: bytes
    reasons: bytes
    def __init__(self, uid: _Optional[int] = ..., count: _Optional[int] = ..., offset: _Optional[bytes] = ..., due: _Optional[bytes] = ..., seq: _Optional[bytes] = ..., size: _Optional[bytes] = ..., attempt: _Optional[bytes] = ..., records: _Optional[bytes] = ..., end_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., behind_ms: _Optional[int] = ..., reason_size: _Optional[bytes] = ..., reasons: _Optional[bytes] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "start", "end", "offset", "attempt")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    start: bytes
    end: bytes
    offset: bytes
    attempt: bytes
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., offset: _Optional[bytes] = ..., attempt: _Optional[bytes] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("acknowledged", "settlement")
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    acknowledged: int
    settlement: bytes
    def __init__(self, acknowledged: _Optional[int] = ..., settlement: _Optional[bytes] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "offset", "attempt", "backoff_ms", "dead", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    offset: bytes
    attempt: bytes
    backoff_ms: int
    dead: bool
    reason: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., offset: _Optional[bytes] = ..., attempt: _Optional[bytes] = ..., backoff_ms: _Optional[int] = ..., dead: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ("retried", "dead", "ignored", "settlement")
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    retried: int
    dead: int
    ignored: int
    settlement: bytes
    def __init__(self, retried: _Optional[int] = ..., dead: _Optional[int] = ..., ignored: _Optional[int] = ..., settlement: _Optional[bytes] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "offset", "attempt", "invisible_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    offset: bytes
    attempt: bytes
    invisible_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., offset: _Optional[bytes] = ..., attempt: _Optional[bytes] = ..., invisible_ms: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("settlement", "until_ms")
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    settlement: bytes
    until_ms: int
    def __init__(self, settlement: _Optional[bytes] = ..., until_ms: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("topic", "queue", "uid", "due", "seq", "key", "from_ms", "to_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    uid: int
    due: bytes
    seq: bytes
    key: str
    from_ms: int
    to_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., uid: _Optional[int] = ..., due: _Optional[bytes] = ..., seq: _Optional[bytes] = ..., key: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("outcome", "due", "seq")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    outcome: bytes
    due: bytes
    seq: bytes
    def __init__(self, outcome: _Optional[bytes] = ..., due: _Optional[bytes] = ..., seq: _Optional[bytes] = ...) -> None: ...

class RescheduleRequest(_message.Message):
    __slots__ = ("topic", "queue", "uid", "due", "seq", "time", "relative")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    uid: int
    due: bytes
    seq: bytes
    time: bytes
    relative: bytes
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., uid: _Optional[int] = ..., due: _Optional[bytes] = ..., seq: _Optional[bytes] = ..., time: _Optional[bytes] = ..., relative: _Optional[bytes] = ...) -> None: ...

class RescheduleResponse(_message.Message):
    __slots__ = ("outcome", "due")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    outcome: bytes
    due: bytes
    def __init__(self, outcome: _Optional[bytes] = ..., due: _Optional[bytes] = ...) -> None: ...

class ListPendingRequest(_message.Message):
    __slots__ = ("topic", "queue", "from_ms", "to_ms", "after_due", "after_seq", "limit", "with_records", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_DUE_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_RECORDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    from_ms: int
    to_ms: int
    after_due: int
    after_seq: int
    limit: int
    with_records: bool
    key: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., after_due: _Optional[int] = ..., after_seq: _Optional[int] = ..., limit: _Optional[int] = ..., with_records: _Optional[bool] = ..., key: _Optional[str] = ...) -> None: ...

class PendingBatch(_message.Message):
    __slots__ = ("uid", "count", "due", "seq", "size", "records", "more")
    UID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    uid: int
    count: int
    due: bytes
    seq: bytes
    size: bytes
    records: bytes
    more: bool
    def __init__(self, uid: _Optional[int] = ..., count: _Optional[int] = ..., due: _Optional[bytes] = ..., seq: _Optional[bytes] = ..., size: _Optional[bytes] = ..., records: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class GetWheelRequest(_message.Message):
    __slots__ = ("topic", "queue", "from_ms", "to_ms", "slot_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    SLOT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    from_ms: int
    to_ms: int
    slot_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., slot_ms: _Optional[int] = ...) -> None: ...

class GetWheelResponse(_message.Message):
    __slots__ = ("shards", "now_ms")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardWheel]
    now_ms: int
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardWheel, _Mapping]]] = ..., now_ms: _Optional[int] = ...) -> None: ...

class ShardWheel(_message.Message):
    __slots__ = ("topic", "queue", "node", "slot_start", "slot_width", "messages", "bytes", "watermark_ms", "pending", "pending_bytes", "released", "epoch", "log_end", "oldest_ms", "next_due_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    node: str
    slot_start: bytes
    slot_width: bytes
    messages: bytes
    bytes: bytes
    watermark_ms: int
    pending: int
    pending_bytes: int
    released: int
    epoch: int
    log_end: int
    oldest_ms: int
    next_due_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., node: _Optional[str] = ..., slot_start: _Optional[bytes] = ..., slot_width: _Optional[bytes] = ..., messages: _Optional[bytes] = ..., bytes: _Optional[bytes] = ..., watermark_ms: _Optional[int] = ..., pending: _Optional[int] = ..., pending_bytes: _Optional[int] = ..., released: _Optional[int] = ..., epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., next_due_ms: _Optional[int] = ...) -> None: ...

class ForecastRequest(_message.Message):
    __slots__ = ("topic", "group", "bucket_ms", "buckets", "own")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BUCKET_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    bucket_ms: int
    buckets: int
    own: bool
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., bucket_ms: _Optional[int] = ..., buckets: _Optional[int] = ..., own: _Optional[bool] = ...) -> None: ...

class ForecastResponse(_message.Message):
    __slots__ = ("now_ms", "bucket_ms", "buckets", "topics")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    bucket_ms: int
    buckets: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicForecast]
    def __init__(self, now_ms: _Optional[int] = ..., bucket_ms: _Optional[int] = ..., buckets: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicForecast, _Mapping]]] = ...) -> None: ...

class TopicForecast(_message.Message):
    __slots__ = ("topic", "queues", "arrivals", "pending", "groups", "firings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    FIRINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedScalarFieldContainer[int]
    arrivals: bytes
    pending: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupForecast]
    firings: bytes
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[int]] = ..., arrivals: _Optional[bytes] = ..., pending: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupForecast, _Mapping]]] = ..., firings: _Optional[bytes] = ...) -> None: ...

class GroupForecast(_message.Message):
    __slots__ = ("group", "available", "in_flight", "waiting_retry", "oldest_age_ms", "unseen")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_RETRY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    available: int
    in_flight: int
    waiting_retry: int
    oldest_age_ms: int
    unseen: int
    def __init__(self, group: _Optional[str] = ..., available: _Optional[int] = ..., in_flight: _Optional[int] = ..., waiting_retry: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., unseen: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("topic", "queue", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("groups", "now_ms")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    now_ms: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., now_ms: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "tags", "floor", "end_offset", "available", "in_flight", "waiting_retry", "dead", "redriven", "dead_limit", "oldest_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_RETRY_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    DEAD_LIMIT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    floor: int
    end_offset: int
    available: int
    in_flight: int
    waiting_retry: int
    dead: int
    redriven: int
    dead_limit: int
    oldest_ms: int
    def __init__(self, group: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., floor: _Optional[int] = ..., end_offset: _Optional[int] = ..., available: _Optional[int] = ..., in_flight: _Optional[int] = ..., waiting_retry: _Optional[int] = ..., dead: _Optional[int] = ..., redriven: _Optional[int] = ..., dead_limit: _Optional[int] = ..., oldest_ms: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("topic", "queue", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("unfinished", "dead")
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    unfinished: int
    dead: int
    def __init__(self, unfinished: _Optional[int] = ..., dead: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "after_offset", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    after_offset: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., after_offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ResolveDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "queue", "group", "action", "offset")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[ResolveDeadLettersRequest.Action]
        REDRIVE: _ClassVar[ResolveDeadLettersRequest.Action]
        DROP: _ClassVar[ResolveDeadLettersRequest.Action]
    ACTION_UNSPECIFIED: ResolveDeadLettersRequest.Action
    REDRIVE: ResolveDeadLettersRequest.Action
    DROP: ResolveDeadLettersRequest.Action
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    action: ResolveDeadLettersRequest.Action
    offset: bytes
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., action: _Optional[_Union[ResolveDeadLettersRequest.Action, str]] = ..., offset: _Optional[bytes] = ...) -> None: ...

class ResolveDeadLettersResponse(_message.Message):
    __slots__ = ("resolved",)
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    resolved: int
    def __init__(self, resolved: _Optional[int] = ...) -> None: ...

class DescribeNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ("node", "endpoint", "now_ms", "clock_disbelieved_ms", "clock_behind_ms", "disk_free_bytes", "disk_reserve_bytes", "not_ready", "conditions", "nodes", "zone", "edge")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_DISBELIEVED_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    endpoint: str
    now_ms: int
    clock_disbelieved_ms: int
    clock_behind_ms: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    not_ready: str
    conditions: _containers.RepeatedScalarFieldContainer[str]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    zone: str
    edge: str
    def __init__(self, node: _Optional[str] = ..., endpoint: _Optional[str] = ..., now_ms: _Optional[int] = ..., clock_disbelieved_ms: _Optional[int] = ..., clock_behind_ms: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_reserve_bytes: _Optional[int] = ..., not_ready: _Optional[str] = ..., conditions: _Optional[_Iterable[str]] = ..., nodes: _Optional[_Iterable[str]] = ..., zone: _Optional[str] = ..., edge: _Optional[str] = ...) -> None: ...

class AcceptClockRequest(_message.Message):
    __slots__ = ("node", "disbelieved_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DISBELIEVED_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    disbelieved_ms: int
    def __init__(self, node: _Optional[str] = ..., disbelieved_ms: _Optional[int] = ...) -> None: ...

class AcceptClockResponse(_message.Message):
    __slots__ = ("moved_ms", "now_ms")
    MOVED_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    moved_ms: int
    now_ms: int
    def __init__(self, moved_ms: _Optional[int] = ..., now_ms: _Optional[int] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("operation", "topic", "group", "principal", "groups")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    operation: str
    topic: str
    group: str
    principal: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, operation: _Optional[str] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., principal: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("allowed", "why", "principal")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    why: str
    principal: str
    def __init__(self, allowed: _Optional[bool] = ..., why: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class ReplicaStatusRequest(_message.Message):
    __slots__ = ("uid",)
    UID_FIELD_NUMBER: _ClassVar[int]
    uid: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, uid: _Optional[_Iterable[int]] = ...) -> None: ...

class ReplicaStatusResponse(_message.Message):
    __slots__ = ("node", "incarnation", "listed", "unfit", "copies")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    listed: bool
    unfit: str
    copies: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., listed: _Optional[bool] = ..., unfit: _Optional[str] = ..., copies: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ...) -> None: ...

class PurgeCopyRequest(_message.Message):
    __slots__ = ("uid", "pending")
    UID_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    uid: int
    pending: int
    def __init__(self, uid: _Optional[int] = ..., pending: _Optional[int] = ...) -> None: ...

class PurgeCopyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("topic", "queue", "uid", "entry", "role", "epoch", "log_epoch", "log_end", "committed", "damaged", "serving_epoch", "beacon_age_ms", "transfer_done", "transfer_total", "kept_epoch", "kept_in_sync", "over_epoch", "not_serving", "pending", "cluster", "disk_bytes", "unsynced", "newer_format")
    class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ROLE_UNSPECIFIED: _ClassVar[ReplicaState.Role]
        OPENING: _ClassVar[ReplicaState.Role]
        SLAVE: _ClassVar[ReplicaState.Role]
        CANDIDATE: _ClassVar[ReplicaState.Role]
        MASTER: _ClassVar[ReplicaState.Role]
        FETCHING: _ClassVar[ReplicaState.Role]
        DAMAGED: _ClassVar[ReplicaState.Role]
        LEAVING: _ClassVar[ReplicaState.Role]
        STORED: _ClassVar[ReplicaState.Role]
    ROLE_UNSPECIFIED: ReplicaState.Role
    OPENING: ReplicaState.Role
    SLAVE: ReplicaState.Role
    CANDIDATE: ReplicaState.Role
    MASTER: ReplicaState.Role
    FETCHING: ReplicaState.Role
    DAMAGED: ReplicaState.Role
    LEAVING: ReplicaState.Role
    STORED: ReplicaState.Role
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    SERVING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEACON_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_DONE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KEPT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEPT_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    OVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVING_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_FIELD_NUMBER: _ClassVar[int]
    NEWER_FORMAT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    uid: int
    entry: str
    role: ReplicaState.Role
    epoch: int
    log_epoch: int
    log_end: int
    committed: int
    damaged: str
    serving_epoch: int
    beacon_age_ms: int
    transfer_done: int
    transfer_total: int
    kept_epoch: int
    kept_in_sync: _containers.RepeatedScalarFieldContainer[str]
    over_epoch: int
    not_serving: str
    pending: int
    cluster: str
    disk_bytes: int
    unsynced: int
    newer_format: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., uid: _Optional[int] = ..., entry: _Optional[str] = ..., role: _Optional[_Union[ReplicaState.Role, str]] = ..., epoch: _Optional[int] = ..., log_epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., committed: _Optional[int] = ..., damaged: _Optional[str] = ..., serving_epoch: _Optional[int] = ..., beacon_age_ms: _Optional[int] = ..., transfer_done: _Optional[int] = ..., transfer_total: _Optional[int] = ..., kept_epoch: _Optional[int] = ..., kept_in_sync: _Optional[_Iterable[str]] = ..., over_epoch: _Optional[int] = ..., not_serving: _Optional[str] = ..., pending: _Optional[int] = ..., cluster: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., unsynced: _Optional[int] = ..., newer_format: _Optional[bool] = ...) -> None: ...
