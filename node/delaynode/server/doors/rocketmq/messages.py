"""RocketMQ's messages from and to delay.v1's: a message that was sent by one door is received by any.

tag, user properties, body, born time and message id are the same in both. The first key is delay.v1's key; all of them,
if there are more, the host where the message was born and its trace context are properties that begin with "rocketmq.".
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, Final

from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import format_bytes
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from delaynode.server.doors.core import Outgoing
from delaynode.server.doors.receiving import Delivered
from delaynode.server.doors.rocketmq.statuses import Wrong
from delaynode.store.log.incoming_batch import MAX_MESSAGE_BYTES

OWN: Final = "rocketmq."
KEYS, BORN_HOST, TRACE = OWN + "keys", OWN + "born_host", OWN + "trace_context"
MAX_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16 << 10  # with tag and keys
MAX_ID_BYTES = 256
MAX_HOST_CHARS = 255
MAX_BODY_BYTES = MAX_MESSAGE_BYTES - (32 << 10)  # what stands beside it fits the rest
MAX_SECONDS = 253_402_300_800  # the year 10000, where Timestamp ends


def name_of(resource: Any, code: Any) -> str:
    """The name of a topic or group. Raises Wrong."""
    if resource.resource_namespace:
        raise Wrong(code, f"namespace {resource.resource_namespace!r}: a cluster has one, which has no name")
    return str(resource.name)


def topic_of(resource: Any) -> str:
    """Raises Wrong."""
    return name_of(resource, mq.ILLEGAL_TOPIC)


def group_of(resource: Any) -> str:
    """Raises Wrong."""
    return name_of(resource, mq.ILLEGAL_CONSUMER_GROUP)


def milliseconds(time: Timestamp | Duration) -> int:
    """A part of one is rounded up. Raises Wrong."""
    if not 0 <= time.nanos < 1_000_000_000 or not 0 <= time.seconds < MAX_SECONDS:
        raise Wrong(mq.BAD_REQUEST, f"{time.seconds} s and {time.nanos} ns is no time of this protocol")
    return int(time.seconds) * 1_000 + -(-int(time.nanos) // 1_000_000)


def timestamp(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


# ------------------------------------------------------------ in
def outgoing(message: mq.Message, now_ms: int) -> Outgoing:
    """What a client sends. now_ms: when it was born, if it does not say. Raises Wrong."""
    system = message.system_properties
    _check_type(system)
    _check_names(system, message.user_properties)
    body = _body(message)
    properties = dict(message.user_properties)
    if len(system.keys) > 1:
        properties[KEYS] = " ".join(system.keys)
    if system.born_host:
        properties[BORN_HOST] = system.born_host[:MAX_HOST_CHARS]
    if system.trace_context:
        properties[TRACE] = system.trace_context
    key = system.keys[0] if system.keys else ""
    born_ms = milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    record = pb.Message(
        key=key, tag=system.tag, properties=properties, body=body, born_ms=born_ms, message_id=system.message_id
    )
    time_ms = 0
    if system.HasField("delivery_timestamp"):
        time_ms = milliseconds(system.delivery_timestamp)
    topic = topic_of(message.topic)
    return Outgoing(topic, time_ms, False, record.SerializeToString(), key, system.tag, system.message_id)


def _check_type(system: mq.SystemProperties) -> None:
    if system.message_type in (mq.FIFO, mq.TRANSACTION, mq.LITE, mq.PRIORITY):
        kind = mq.MessageType.Name(system.message_type)
        raise Wrong(mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"messages are NORMAL or DELAY here, not {kind}")
    for field in ("message_group", "lite_topic", "priority"):
        if system.HasField(field):
            raise Wrong(mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"{field}: messages are NORMAL or DELAY here")


def _check_names(system: mq.SystemProperties, user: Any) -> None:
    if not system.message_id.strip() or len(system.message_id.encode()) > MAX_ID_BYTES:
        raise Wrong(mq.ILLEGAL_MESSAGE_ID, f"message_id is blank, or has more than {MAX_ID_BYTES} bytes")
    tag = system.tag
    if system.HasField("tag") and (not tag.strip() or "|" in tag or not tag.isprintable()):
        raise Wrong(mq.ILLEGAL_MESSAGE_TAG, f"tag {tag[:50]!r} is blank, or has a '|' or a control character")
    for key in system.keys:
        if not key.strip() or not key.isprintable():
            raise Wrong(mq.ILLEGAL_MESSAGE_KEY, f"key {key[:50]!r} is blank, or has a control character")
    for name in user:
        if not name or not name.isprintable() or name.startswith(OWN):
            raise Wrong(
                mq.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name[:50]!r} is empty, has a control character, or begins with {OWN!r}, which is reserved",
            )
    size = len(tag.encode()) + len(system.trace_context.encode()) + sum(len(key.encode()) for key in system.keys)
    size += sum(len(name.encode()) + len(value.encode()) for name, value in user.items())
    if len(user) > MAX_PROPERTIES or size > MAX_PROPERTIES_BYTES:
        raise Wrong(
            mq.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user):,} properties, {size:,} bytes with tag and keys; the limits are {MAX_PROPERTIES} and "
            f"{MAX_PROPERTIES_BYTES:,}",
        )


def _body(message: mq.Message) -> bytes:
    """As the sender's program had it: consumers of other doors know of no encoding. Raises Wrong."""
    system, body = message.system_properties, message.body
    _check_digest(system.body_digest, body)
    if system.body_encoding == mq.GZIP:
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            body = inflate.decompress(body, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            raise Wrong(mq.MESSAGE_CORRUPTED, f"the body is not GZIP, as body_encoding says: {error}") from None
        if len(body) <= MAX_BODY_BYTES and not inflate.eof:
            raise Wrong(mq.MESSAGE_CORRUPTED, "the body's GZIP is cut off")
    elif system.body_encoding not in (mq.IDENTITY, mq.ENCODING_UNSPECIFIED):
        raise Wrong(mq.MESSAGE_CORRUPTED, f"body_encoding {system.body_encoding} is neither IDENTITY nor GZIP")
    if not body:
        raise Wrong(mq.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > MAX_BODY_BYTES:
        raise Wrong(
            mq.MESSAGE_BODY_TOO_LARGE, f"the body has over {MAX_BODY_BYTES:,} bytes ({format_bytes(MAX_BODY_BYTES)})"
        )
    return body


def _check_digest(digest: mq.Digest, body: bytes) -> None:
    said = digest.checksum.upper()
    match digest.type:
        case mq.MD5:
            found = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        case mq.SHA1:
            found = hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()
        case mq.CRC32:  # some clients write leading zeros, some do not
            found, said = f"{zlib.crc32(body):X}", said.lstrip("0") or "0"
        case _:
            return
    if found != said:
        raise Wrong(mq.MESSAGE_CORRUPTED, f"the body's digest is {found}, the message says {said[:50]}")


# ------------------------------------------------------------ out
def incoming(one: Delivered, record: pb.Message, lease_ms: int) -> mq.Message:
    """What a consumer gets. record: decoded."""
    receipt = one.receipt
    properties = dict(record.properties)
    keys = properties.pop(KEYS, record.key).split(" ") if record.key else []
    born_host, trace = properties.pop(BORN_HOST, ""), properties.pop(TRACE, None)
    system = mq.SystemProperties(
        keys=keys,
        message_id=record.message_id or f"{receipt.uid:016X}{one.seq:016X}",
        body_digest=mq.Digest(
            type=mq.MD5, checksum=hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
        ),
        body_encoding=mq.IDENTITY,
        message_type=mq.DELAY if one.due_ms else mq.NORMAL,
        born_timestamp=timestamp(min(max(0, record.born_ms), MAX_SECONDS * 1_000 - 1)),  # clients check the limit
        born_host=born_host,
        receipt_handle=receipt.encode(),
        queue_id=receipt.queue,
        queue_offset=receipt.offset,
        invisible_duration=duration(lease_ms),
        delivery_attempt=receipt.attempt,
    )
    if one.due_ms:  # 0: it was sent without one
        system.delivery_timestamp.CopyFrom(timestamp(one.due_ms))
    if record.tag:
        system.tag = record.tag
    if trace is not None:
        system.trace_context = trace
    return mq.Message(
        topic=mq.Resource(name=receipt.topic), user_properties=properties, system_properties=system, body=record.body
    )
