"""Which datagrams count as heartbeats: with keys only those that the node itself has made, each once, and soon.

sealed heartbeat, little-endian
    magic u32 | flags u8 | 3 zero bytes | key id 8 bytes | stamp i64 ms | echo i64 ms
    | the heartbeat or the reply as protocol.py has it | HMAC-SHA256, 32 bytes

The HMAC covers all before it, and what both ends know: cluster, and name and process of the sender and of the receiver.
Two nodes agree on a key by each TLS link that one of them makes (transport/links.py). It is for that one's heartbeats
and for the replies to them, and lives in the memory of the two processes alone.

stamp     the sender's CLOCK_BOOTTIME
echo      of a heartbeat: the stamp that the asker heard last from whom it asks. That one grants nothing for an echo
          older than `fresh_ms` and says so (AGAIN): a datagram that was held back binds nobody
sequence  the heartbeat's id, which rises. Each id counts once; a reply names the id that it answers, and an asker
          takes one reply to each heartbeat that it has sent (replica_lease.py)
"""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from delaynode.replication.protocol import (
    BadMessage,
    Heartbeat,
    HeartbeatReply,
    decode_heartbeat,
    encode_heartbeat,
)

MAGIC: Final = 0x53594C44  # "DLYS"
AGAIN: Final = 1  # flag of a reply: the heartbeat's echo was not fresh
MAC_BYTES: Final = 32
KEY_BYTES, KEY_ID_BYTES = 32, 8
WINDOW: Final = 1_024  # ids below the highest that may still come, out of order
KEYS_A_PROCESS: Final = 2  # the newest, and the one before it for what is on its way
MAX_PROCESSES: Final = 1_000  # of other nodes, whose keys are kept
_HEAD = struct.Struct("<IB3x8sqq")
_NEVER: Final = -(1 << 62)


class Unauthenticated(Exception):
    """A datagram that does not count; says why."""


class NoKey(Exception):
    """Nothing may be sent to the node: no key is agreed with it yet."""


class HeartbeatKey(NamedTuple):
    id: bytes
    secret: bytes

    @staticmethod
    def new(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> HeartbeatKey:
        return HeartbeatKey(random_bytes(KEY_ID_BYTES), random_bytes(KEY_BYTES))

    def encode(self) -> str:
        return (self.id + self.secret).hex()

    @staticmethod
    def decode(text: str) -> HeartbeatKey:
        """Raises ValueError."""
        data = bytes.fromhex(text)
        if len(data) != KEY_ID_BYTES + KEY_BYTES:
            raise ValueError(f"a heartbeat key of {len(data)} bytes")
        return HeartbeatKey(data[:KEY_ID_BYTES], data[KEY_ID_BYTES:])

    def __repr__(self) -> str:
        return f"HeartbeatKey({self.id.hex()})"


class HeartbeatPair(NamedTuple):
    """Whose heartbeats a key is for: the asker's process and that of the node that it asks."""

    cluster: str
    asker: str
    asker_process: str
    asked: str
    asked_process: str


@dataclass(slots=True)
class _Session:
    """A key in use. heard_ms: of the asker: the latest stamp of the other end. highest, seen: of the asked one: the
    highest id that came, and a bit for each of the WINDOW ids below it."""

    key: HeartbeatKey
    pair: HeartbeatPair
    asks: bool
    heard_ms: int = _NEVER
    highest: int = 0
    seen: int = 0

    def mac(self, data: bytes, *, of_asker: bool) -> bytes:
        pair = self.pair
        sender, receiver = (pair.asker, pair.asker_process), (pair.asked, pair.asked_process)
        ends = (*sender, *receiver) if of_asker else (*receiver, *sender)
        texts = [text.encode() for text in (pair.cluster, *ends)]
        context = b"".join(len(text).to_bytes(2, "little") + text for text in texts)
        return hmac.digest(self.key.secret, bytes([of_asker]) + context + data, "sha256")

    def first_time(self, number: int) -> bool:
        """Whether no heartbeat of this id was taken before; it counts as taken from now on."""
        ahead = number - self.highest
        if ahead > 0:
            self.seen = ((self.seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self.highest = number
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


@dataclass(frozen=True, slots=True)
class Opened:
    """A datagram that counts. fresh: leases may be granted for it. again: ask once more, at once."""

    message: Heartbeat | HeartbeatReply
    fresh: bool = True
    again: bool = False
    session: _Session | None = None  # None: it came without a seal


class HeartbeatGuard:
    """Of one process. Safe to use from several threads; never waits for anything.

    must_seal(node): whether heartbeats to that node, and its replies, count only with a seal. required: whether other
    nodes' heartbeats do.
    """

    def __init__(
        self,
        node: str,
        process: str,
        boot_ms: Callable[[], int],
        fresh_ms: int,
        must_seal: Callable[[str], bool] = lambda node: False,
        *,
        required: bool = False,
    ) -> None:
        self._node, self._process = node, process
        self._boot_ms, self._fresh_ms = boot_ms, fresh_ms
        self._must_seal, self._required = must_seal, required
        self._lock = threading.Lock()
        self._kept: dict[tuple[bool, str, str], list[_Session]] = {}  # (asks, other node, its process): newest last
        self._by_id: dict[bytes, _Session] = {}
        self._asking: dict[str, _Session] = {}  # by node: what heartbeats to it are sealed by
        self.on_key: Callable[[], None] = lambda: None  # there is a new one to ask by: don't wait for the interval

    # ------------------------------------------------------------ keys
    def ask_by(self, cluster: str, node: str, process: str, key: HeartbeatKey) -> None:
        """The node has taken the key: heartbeats to it are sealed by it from now on."""
        self._keep(
            node, process, _Session(key, HeartbeatPair(cluster, self._node, self._process, node, process), asks=True)
        )
        self.on_key()

    def answer_by(self, cluster: str, node: str, process: str, key: HeartbeatKey) -> None:
        """The node will send heartbeats that are sealed by the key."""
        self._keep(
            node, process, _Session(key, HeartbeatPair(cluster, node, process, self._node, self._process), asks=False)
        )

    def answer_no_more(self, node: str, process: str) -> None:
        """That process's heartbeats count no more, until it has sent another key."""
        with self._lock:
            for old in self._kept.pop((False, node, process), ()):
                del self._by_id[old.key.id]

    def _keep(self, node: str, process: str, session: _Session) -> None:
        with self._lock:
            if session.key.id in self._by_id:
                return  # of another pair: this one is not heard, and takes another key at its next link
            place = (session.asks, node, process)
            kept = [*self._kept.pop(place, ()), session]
            self._kept[place] = kept[-KEYS_A_PROCESS:]
            gone = kept[:-KEYS_A_PROCESS]
            if len(self._kept) > MAX_PROCESSES:
                gone += self._kept.pop(next(iter(self._kept)))  # whose link was made the longest ago
            self._by_id[session.key.id] = session
            if session.asks:
                self._asking[node] = session
            for old in gone:
                asked = old.pair.asked
                del self._by_id[old.key.id]
                if self._asking.get(asked) is old:
                    del self._asking[asked]

    # ------------------------------------------------------------ out
    def seal(self, node: str, heartbeat: Heartbeat) -> bytes:
        """The datagram for that node. Raises NoKey."""
        if not self._must_seal(node):  # also where a process of before has agreed on a key: this one knows none
            return encode_heartbeat(heartbeat)
        with self._lock:
            if (asking := self._asking.get(node)) is not None:
                return self._sealed(asking, heartbeat, asking.heard_ms, 0)
        raise NoKey("no key is agreed with it yet: that takes a TLS link")

    def seal_reply(self, to: Opened, reply: HeartbeatReply) -> bytes:
        """The datagram for whoever has sent that heartbeat."""
        if to.session is None:
            return encode_heartbeat(reply)
        with self._lock:
            return self._sealed(to.session, reply, 0, 0 if to.fresh else AGAIN)

    def _sealed(self, session: _Session, message: Heartbeat | HeartbeatReply, echo_ms: int, flags: int) -> bytes:
        head = _HEAD.pack(MAGIC, flags, session.key.id, self._boot_ms(), echo_ms)
        data = head + encode_heartbeat(message)
        return data + session.mac(data, of_asker=session.asks)

    # ------------------------------------------------------------ in
    def open(self, data: bytes) -> Opened:
        """What the datagram says, where it counts. Raises BadMessage and Unauthenticated."""
        if data[:4] == MAGIC.to_bytes(4, "little"):
            with self._lock:
                return self._open_sealed(data)
        message = decode_heartbeat(data)
        if self._needs_seal(message):
            raise Unauthenticated(f"a heartbeat of {message.node} without a seal: only sealed ones count")
        return Opened(message)

    def _open_sealed(self, data: bytes) -> Opened:
        if len(data) < _HEAD.size + MAC_BYTES:
            raise BadMessage(f"a sealed heartbeat of {len(data)} bytes")
        said, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
        _, flags, key_id, stamp_ms, echo_ms = _HEAD.unpack_from(said)
        session = self._by_id.get(key_id)
        if session is None:
            raise Unauthenticated(f"a heartbeat sealed by key {key_id.hex()}, which is not known here")
        if not self._authentic(session, said, mac):
            raise Unauthenticated(f"a heartbeat whose seal is not that of key {key_id.hex()}")
        message = decode_heartbeat(said[_HEAD.size :])
        pair = session.pair
        if session.asks:
            if not isinstance(message, HeartbeatReply) or message.node != pair.asked:
                raise Unauthenticated(f"a reply of {pair.asked} was due, not what {message.node} says")
            session.heard_ms = max(session.heard_ms, stamp_ms)
            return Opened(message, again=bool(flags & AGAIN), session=session)
        asker = (pair.asker, pair.asker_process)
        if not isinstance(message, Heartbeat) or (message.node, f"{message.incarnation:016x}") != asker:
            raise Unauthenticated(f"a heartbeat of {pair.asker}, process {pair.asker_process}, was due")
        if not self._first_time(session, message):
            raise Unauthenticated(f"heartbeat {message.heartbeat_id} of {pair.asker} came before, or far too late")
        return Opened(message, fresh=self._is_fresh(echo_ms), session=session)

    def _needs_seal(self, message: Heartbeat | HeartbeatReply) -> bool:
        return self._must_seal(message.node) if isinstance(message, HeartbeatReply) else self._required

    def _authentic(self, session: _Session, said: bytes, mac: bytes) -> bool:
        return hmac.compare_digest(mac, session.mac(said, of_asker=not session.asks))

    def _first_time(self, session: _Session, message: Heartbeat) -> bool:
        return session.first_time(message.heartbeat_id)

    def _is_fresh(self, echo_ms: int) -> bool:
        return 0 <= self._boot_ms() - echo_ms <= self._fresh_ms
