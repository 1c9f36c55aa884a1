"""What nodes say to each other about shards, and how it looks on the wire.

stream message, little-endian
    length u32 (of all that follows) | kind u8 | 3 zero bytes | shard uid u64 | epoch u32 | body

    master -> slave   Follow, Start, Frames, Commit, Bootstrap, SnapshotChunk, LeaseRelease
    slave -> master   FollowerState, Ack, FollowRefused, ChunkRequest

heartbeat, one datagram   magic u32 | kind u8 | 3 zero bytes | heartbeat id u64 | sender's wall time i64 ms | body

Every message names the shard's uid and the epoch it is said in: a receiver that knows a higher epoch refuses it. FORMS
has the kind of each and how its body looks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from delaynode.store.types import Buffer

MAX_MESSAGE_BYTES = 20 << 20  # a frame is at most 16 MiB
_HEAD = struct.Struct("<IB3xQI")
HEAD_BYTES = _HEAD.size
_BODY = struct.Struct("<B3xQI")  # the same without the length
_STATE = struct.Struct("<qqIH")
_EPOCH = struct.Struct("<Iq")


class BadMessage(Exception):
    """A peer sent something that no such program sends; says what."""


@dataclass(frozen=True, slots=True)
class ShardMessage:
    """What every message says first."""

    uid: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Follow(ShardMessage):
    """The sender is the shard's master in this epoch. Asks what the receiver has.

    discardable: the receiver has said that its copy is of no use, and no commit waits for that copy any more; nor can a
    write that is under way name it in the in-sync set.
    """

    discardable: bool = False


@dataclass(frozen=True, slots=True)
class Start(ShardMessage):
    """Cut your log at log offset `cut`; Frames go on from there. All before `commit` is committed."""

    cut: int
    commit: int


@dataclass(frozen=True, slots=True)
class Frames(ShardMessage):
    """Whole frames as they stand in the log from log offset `offset` on. All before `commit` is committed.

    data: the frames' bytes, in one or more buffers when sent, in one when received.
    """

    offset: int
    commit: int
    data: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Commit(ShardMessage):
    """All before log offset `commit` is committed."""

    commit: int


@dataclass(frozen=True, slots=True)
class Bootstrap(ShardMessage):
    """Your copy can't be continued: fetch mine, which these files are. manifest: JSON, see
    store/maintenance/snapshot.py.
    """

    manifest: bytes


@dataclass(frozen=True, slots=True)
class SnapshotChunk(ShardMessage):
    """Bytes of a file of the manifest, from `offset` on. `file` is its place in the manifest."""

    file: int
    offset: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class LeaseRelease(ShardMessage):
    """Gives back the leases that the receiver granted for heartbeats up to the id `heartbeat`: the sender serves no
    more.
    """

    heartbeat: int


@dataclass(frozen=True, slots=True)
class FollowerState(ShardMessage):
    """What a slave has: its replica id ("" without a copy), its log. epochs: (epoch, start offset), ascending."""

    replica_id: str
    log_end: int
    committed: int
    epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ack(ShardMessage):
    """All before `durable` is stored as the cluster's durability asks; all before `applied` is in the checkpointed
    state or needed no more for it."""

    durable: int
    applied: int


@dataclass(frozen=True, slots=True)
class FollowRefused(ShardMessage):
    """The slave does not follow. known_epoch: the highest it knows of; damaged: its copy is of no use any more."""

    known_epoch: int
    damaged: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkRequest(ShardMessage):
    """Asks for bytes [offset, offset + length) of a file of the manifest; file -1: it has all of them."""

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
    | LeaseRelease
    | FollowerState
    | Ack
    | FollowRefused
    | ChunkRequest
)


class MessageForm(NamedTuple):
    """How one class of messages looks on the wire."""

    kind: int
    message: type[Message]
    pack: Callable[[Any], list[Buffer]]  # the body
    unpack: Callable[[memoryview], tuple[Any, ...]]  # the fields that follow uid and epoch, in the class's order


def _fixed(kind: int, message: type[Message], layout: str) -> MessageForm:
    """The body is the fields in their order."""
    body, names = struct.Struct(layout), [field.name for field in fields(message)][2:]
    return MessageForm(kind, message, lambda said: [body.pack(*[getattr(said, name) for name in names])], body.unpack)


def _open(
    kind: int,
    message: type[Message],
    layout: str,
    pack_last: Callable[[Any], Iterable[Buffer]],
    unpack_last: Callable[[memoryview], object],
) -> MessageForm:
    """The body is the fields in their order. The last one takes all bytes that are left."""
    head, names = struct.Struct(layout), [field.name for field in fields(message)][2:]
    last = names.pop()
    return MessageForm(
        kind,
        message,
        lambda said: [head.pack(*[getattr(said, name) for name in names]), *pack_last(getattr(said, last))],
        lambda body: (*head.unpack_from(body), unpack_last(body[head.size :])),
    )


def _pack_state(state: FollowerState) -> list[Buffer]:
    replica_id = state.replica_id.encode()
    head = _STATE.pack(state.log_end, state.committed, len(state.epochs), len(replica_id))
    return [head, replica_id, *(_EPOCH.pack(*pair) for pair in state.epochs)]


def _unpack_state(body: memoryview) -> tuple[Any, ...]:
    log_end, committed, count, size = _STATE.unpack_from(body)
    at = _STATE.size + size
    replica_id = bytes(body[_STATE.size : at]).decode()
    if len(body) != at + count * _EPOCH.size:
        raise BadMessage(f"FollowerState of {len(body)} bytes does not hold {count} epochs")
    return replica_id, log_end, committed, tuple(_EPOCH.iter_unpack(body[at:]))


FORMS = (
    _fixed(1, Follow, "<?"),
    _fixed(2, Start, "<qq"),
    _open(3, Frames, "<qq", lambda data: data, lambda rest: (rest,)),
    _fixed(4, Commit, "<q"),
    MessageForm(5, Bootstrap, lambda said: [said.manifest], lambda body: (bytes(body),)),
    _open(6, SnapshotChunk, "<qq", lambda data: (data,), lambda rest: rest),
    _fixed(7, LeaseRelease, "<q"),
    MessageForm(8, FollowerState, _pack_state, _unpack_state),
    _fixed(9, Ack, "<qq"),
    _open(10, FollowRefused, "<I?", lambda reason: (reason.encode(),), lambda rest: bytes(rest).decode()),
    _fixed(11, ChunkRequest, "<qqq"),
)
_FORM_OF_KIND = {form.kind: form for form in FORMS}
_FORM_OF_CLASS: dict[type[Message], MessageForm] = {form.message: form for form in FORMS}


def encode(message: Message) -> list[Buffer]:
    """The message as buffers to be written one after the other. Raises ValueError for one that nobody would take."""
    form = _FORM_OF_CLASS[type(message)]
    body = form.pack(message)
    length = HEAD_BYTES - 4 + sum(map(len, body))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are taken")
    return [_HEAD.pack(length, form.kind, message.uid, message.epoch), *body]


def decode(data: memoryview) -> Message:
    """A message without its length field. Buffers in it are views of `data`. Raises BadMessage."""
    try:
        kind, uid, epoch = _BODY.unpack_from(data)
        form = _FORM_OF_KIND.get(kind)
        if form is None:
            raise BadMessage(f"unknown kind {kind}")
        return form.message(uid, epoch, *form.unpack(data[_BODY.size :]))
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise BadMessage(f"message of {len(data)} bytes: {error}") from error


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
