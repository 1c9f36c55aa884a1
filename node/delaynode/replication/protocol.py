"""What nodes say to each other about shards, and how it looks on the wire.

stream message, little-endian
    length u32 (of all that follows) | kind u8 | 3 zero bytes | shard uid u64 | epoch u32 | body

    master -> slave   FOLLOW, START, FRAMES, COMMIT, BOOTSTRAP, CHUNK, RELEASE
    slave -> master   STATE, ACK, REFUSED, CHUNK_REQUEST

heartbeat, one datagram   magic u32 | kind u8 | 3 zero bytes | heartbeat id u64 | sender's wall time i64 ms | body

Every message names the shard's uid and the epoch it is said in: a receiver that knows a higher epoch refuses it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from delaynode.store.types import Buffer

MAX_MESSAGE_BYTES = 20 << 20  # a frame is at most 16 MiB
_HEAD = struct.Struct("<IB3xQI")
HEAD_BYTES = _HEAD.size
_STATE = struct.Struct("<qqIH")
_EPOCH = struct.Struct("<Iq")
_OFFSET = struct.Struct("<q")
_OFFSETS = struct.Struct("<qq")


class BadMessage(Exception):
    """A peer sent something that no such program sends; says what."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The sender is the shard's master in this epoch. Asks what the receiver has.

    discardable: the receiver has said that its copy is of no use, and no commit waits for that copy any more; nor can a
    write that is under way name it in the in-sync set.
    """

    uid: int
    epoch: int
    discardable: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Cut your log at log offset `cut`; FRAMES go on from there. All before `commit` is committed."""

    uid: int
    epoch: int
    cut: int
    commit: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole frames as they stand in the log from log offset `offset` on. All before `commit` is committed.

    data: the frames' bytes, in one or more buffers when sent, in one when received.
    """

    uid: int
    epoch: int
    offset: int
    commit: int
    data: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """All before log offset `commit` is committed."""

    uid: int
    epoch: int
    commit: int


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Your copy can't be continued: fetch mine, which these files are. manifest: JSON, see
    store/maintenance/snapshot.py.
    """

    uid: int
    epoch: int
    manifest: bytes


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes of a file of the manifest, from `offset` on. `file` is its place in the manifest."""

    uid: int
    epoch: int
    file: int
    offset: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class Release:
    """Gives back the leases that the receiver granted for heartbeats up to the id `heartbeat`: the sender serves no
    more.
    """

    uid: int
    epoch: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class FollowerState:
    """What a slave has: its in-sync entry ("" without a copy), its log. epochs: (epoch, start offset), ascending."""

    uid: int
    epoch: int
    replica_id: str
    log_end: int
    committed: int
    epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """All before `durable` is stored as the cluster's durability asks; all before `applied` is in the checkpointed
    state or needed no more for it."""

    uid: int
    epoch: int
    durable: int
    applied: int


@dataclass(frozen=True, slots=True)
class FollowRefused:
    """The slave does not follow. known_epoch: the highest it knows of; damaged: its copy is of no use any more."""

    uid: int
    epoch: int
    known_epoch: int
    damaged: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Asks for bytes [offset, offset + length) of a file of the manifest; file -1: it has all of them."""

    uid: int
    epoch: int
    file: int
    offset: int
    length: int


Message = (
    Follow
    | Start
    | Frames
    | Commit
    | Bootstrap
    | SnapshotChunk
    | Release
    | FollowerState
    | Ack
    | FollowRefused
    | ChunkRequest
)


class MessageKind(IntEnum):
    """What the byte `kind` says."""

    FOLLOW = 1
    START = 2
    FRAMES = 3
    COMMIT = 4
    BOOTSTRAP = 5
    CHUNK = 6
    RELEASE = 7
    STATE = 8
    ACK = 9
    REFUSED = 10
    CHUNK_REQUEST = 11


_FLAG = struct.Struct("<?")
_REFUSED = struct.Struct("<IB")
_CHUNK = struct.Struct("<qq")
_CHUNK_REQUEST = struct.Struct("<qqq")


def encode(message: Message) -> list[Buffer]:
    """The message as buffers to be written one after the other. Raises ValueError for one that nobody would take."""
    match message:
        case Frames():
            kind, body = MessageKind.FRAMES, [_OFFSETS.pack(message.offset, message.commit), *message.data]
        case Ack():
            kind, body = MessageKind.ACK, [_OFFSETS.pack(message.durable, message.applied)]
        case Commit():
            kind, body = MessageKind.COMMIT, [_OFFSET.pack(message.commit)]
        case Follow():
            kind, body = MessageKind.FOLLOW, [_FLAG.pack(message.discardable)]
        case Start():
            kind, body = MessageKind.START, [_OFFSETS.pack(message.cut, message.commit)]
        case Bootstrap():
            kind, body = MessageKind.BOOTSTRAP, [message.manifest]
        case SnapshotChunk():
            kind, body = MessageKind.CHUNK, [_CHUNK.pack(message.file, message.offset), message.data]
        case Release():
            kind, body = MessageKind.RELEASE, [_OFFSET.pack(message.heartbeat)]
        case FollowerState():
            replica_id = message.replica_id.encode()
            head = _STATE.pack(message.log_end, message.committed, len(message.epochs), len(replica_id))
            kind, body = MessageKind.STATE, [head, replica_id, *(_EPOCH.pack(*pair) for pair in message.epochs)]
        case FollowRefused():
            known = _REFUSED.pack(message.known_epoch, message.damaged)
            kind, body = MessageKind.REFUSED, [known, message.reason.encode()]
        case ChunkRequest():
            kind, body = MessageKind.CHUNK_REQUEST, [_CHUNK_REQUEST.pack(message.file, message.offset, message.length)]
        case _:
            assert_never(message)
    length = HEAD_BYTES - 4 + sum(map(len, body))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are taken")
    return [_HEAD.pack(length, kind, message.uid, message.epoch), *body]


def decode(data: memoryview) -> Message:
    """A message without its length field. Buffers in it are views of `data`. Raises BadMessage."""
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise BadMessage(f"message of {len(data)} bytes: {error}") from error


_BODY = struct.Struct("<B3xQI")


def _decode(data: memoryview) -> Message:
    kind, uid, epoch = _BODY.unpack_from(data)
    body = data[_BODY.size :]
    match kind:
        case MessageKind.FRAMES:
            offset, commit = _OFFSETS.unpack_from(body)
            return Frames(uid, epoch, offset, commit, (body[_OFFSETS.size :],))
        case MessageKind.ACK:
            return Ack(uid, epoch, *_OFFSETS.unpack(body))
        case MessageKind.COMMIT:
            return Commit(uid, epoch, *_OFFSET.unpack(body))
        case MessageKind.FOLLOW:
            return Follow(uid, epoch, *_FLAG.unpack(body))
        case MessageKind.START:
            return Start(uid, epoch, *_OFFSETS.unpack(body))
        case MessageKind.BOOTSTRAP:
            return Bootstrap(uid, epoch, bytes(body))
        case MessageKind.CHUNK:
            file, offset = _CHUNK.unpack_from(body)
            return SnapshotChunk(uid, epoch, file, offset, body[_CHUNK.size :])
        case MessageKind.RELEASE:
            return Release(uid, epoch, *_OFFSET.unpack(body))
        case MessageKind.STATE:
            log_end, committed, count, size = _STATE.unpack_from(body)
            at = _STATE.size + size
            replica_id = bytes(body[_STATE.size : at]).decode()
            if len(body) != at + count * _EPOCH.size:
                raise BadMessage(f"STATE of {len(body)} bytes does not hold {count} epochs")
            epochs = tuple((e, start) for e, start in _EPOCH.iter_unpack(body[at:]))
            return FollowerState(uid, epoch, replica_id, log_end, committed, epochs)
        case MessageKind.REFUSED:
            known, damaged = _REFUSED.unpack_from(body)
            return FollowRefused(uid, epoch, known, bool(damaged), bytes(body[_REFUSED.size :]).decode())
        case MessageKind.CHUNK_REQUEST:
            return ChunkRequest(uid, epoch, *_CHUNK_REQUEST.unpack(body))
        case _:
            raise BadMessage(f"unknown kind {kind}")


# ---------------------------------------------------------------- heartbeats
HEARTBEAT_MAGIC = 0x42594C44  # "DLYB"
MAX_HEARTBEAT_SHARDS = 1_000
_HEARTBEAT = struct.Struct("<IB3xQqQHH")
_SHARD = struct.Struct("<QI")
_REPLY = struct.Struct("<QIB")
_LEASE = struct.Struct("<I")  # of a reply, before its rows


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is the master of these (uid, epoch) and asks for a lease on each.

    heartbeat_id grows with each heartbeat of a process; incarnation: of that process, 8 bytes as a number.
    """

    node: str
    incarnation: int
    heartbeat_id: int
    wall_ms: int
    shards: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Per shard: uid, the highest epoch that the sender knows of, and whether it grants a lease, of lease_ms from
    now.
    """

    node: str
    incarnation: int  # of whoever asked
    heartbeat_id: int
    wall_ms: int
    lease_ms: int
    shards: tuple[tuple[int, int, bool], ...]


def encode_heartbeat(message: Heartbeat | HeartbeatReply) -> bytes:
    node = message.node.encode()
    reply = isinstance(message, HeartbeatReply)
    head = _HEARTBEAT.pack(
        HEARTBEAT_MAGIC, 2 if reply else 1, message.heartbeat_id, message.wall_ms, message.incarnation, len(node),
        len(message.shards),
    )  # fmt: skip
    form, lease = (_REPLY, _LEASE.pack(message.lease_ms)) if isinstance(message, HeartbeatReply) else (_SHARD, b"")
    return b"".join((head, node, lease, *(form.pack(*shard) for shard in message.shards)))


def decode_heartbeat(data: bytes) -> Heartbeat | HeartbeatReply:
    """Raises BadMessage."""
    try:
        magic, kind, heartbeat_id, wall_ms, incarnation, size, count = _HEARTBEAT.unpack_from(data)
        at = _HEARTBEAT.size + size
        node = data[_HEARTBEAT.size : at].decode()
        form = {1: _SHARD, 2: _REPLY}[kind]
        lease_ms = 0
        if kind == 2:
            (lease_ms,) = _LEASE.unpack_from(data, at)
            at += _LEASE.size
        if magic != HEARTBEAT_MAGIC or len(data) != at + count * form.size:
            raise BadMessage(f"datagram of {len(data)} bytes is no heartbeat")
        rows = form.iter_unpack(data[at:])
        if kind == 1:
            return Heartbeat(node, incarnation, heartbeat_id, wall_ms, tuple((uid, epoch) for uid, epoch in rows))
        replies = tuple((uid, epoch, bool(ok)) for uid, epoch, ok in rows)
        return HeartbeatReply(node, incarnation, heartbeat_id, wall_ms, lease_ms, replies)
    except (struct.error, KeyError, UnicodeDecodeError, ValueError) as error:
        raise BadMessage(f"datagram of {len(data)} bytes is no heartbeat: {error!r}") from error
