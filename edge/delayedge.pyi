"""A gRPC server transport in compiled code, small writes to files, and sums. All but the sums is called on one thread,
that of the event loop.

Columns are little-endian and packed. r: the requests of a group; n: the messages of them all. Tokens name calls and
requests; one that is over is ignored wherever it is given. `deadline_ms` is on the clock of `time.monotonic()`.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict, Unpack, final, type_check_only

from typing_extensions import Buffer as BufferLike

_EventKind = Literal[
    "call", "message", "half_closed", "gone", "writable", "sent", "drained", "identify", "failed", "left"
]

@type_check_only
class Limits(TypedDict, total=False):
    """Bounds; README.md has the defaults. 0 is never for `keepalive_ms` and `max_age_ms`."""

    max_connections: int
    max_streams: int
    max_calls: int
    max_message_bytes: int
    max_header_bytes: int
    rows_bytes: int
    rows_bytes_per_connection: int
    calls_bytes: int
    calls_bytes_per_connection: int
    small_bytes: int
    unread_bytes: int
    unread_bytes_per_connection: int
    write_bytes: int
    stream_window_bytes: int
    connection_window_bytes: int
    windows_bytes: int
    max_waiting: int
    room_ms: int
    max_unanswered: int
    max_unread_messages: int
    max_handshakes: int
    handshake_ms: int
    crowded_ms: int
    header_ms: int
    request_idle_ms: int
    slow_request_ms: int
    unread_ms: int
    keepalive_ms: int
    keepalive_timeout_ms: int
    max_age_ms: int
    age_grace_ms: int
    max_resets: int

@type_check_only
class Figures(TypedDict):
    """Counts are since the start; the others are as of now."""

    connections: int
    calls: int
    rows: int  # requests that Python has and has not answered
    rows_bytes: int  # of Enqueue requests, received or taken and not answered
    calls_bytes: int  # of all other requests
    unread_bytes: int  # of answers that are not sent
    waiting: int  # requests that wait for room
    connections_taken: int
    connections_refused: int
    connections_cut: int  # slow, silent, hostile, or did not read
    handshakes_failed: int  # of TLS
    requests_taken: int  # in groups
    calls_begun: int
    calls_refused: int  # by the edge itself
    answers_refused: int  # found no room
    resets: int  # by clients
    panics: int
    cpu_seconds: float

@final
class Buffer:
    """Bytes of the edge, read-only, for memoryview() and numpy.frombuffer(). In memory while a view is."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Rows:
    """Enqueue requests of one identity for one queue, whose columns fit. In order for each connection and stream; a
    later group may have more of the queue. At most 65,536 messages and 8 MiB of records, as one batch may have.

    A request with more than 64 KiB of records is a group by itself, and `records` is a Buffer then.
    """

    topic: str  # of door "rocketmq-ack" the client's x-mq-client-id, and the records are receipts
    queue: int
    door: str | None  # of the method, as in `rows`: messages of one request each, and no queue; None: of that queue
    identity: object | None  # of all callers, as given to identify(); None: the listener does not ask
    forwarded: bool  # the calls have the metadata x-delay-forwarded, and it counts
    nbytes: int  # of all columns over messages
    time: bytes  # i64[n] ms
    relative: bytes  # u8[n], or empty: all times are absolute
    size: bytes  # u32[n] bytes
    key: bytes  # u32[n]
    tag: bytes  # u32[n]
    records: bytes | Buffer
    count: bytes  # u32[r] messages of each request
    producer: bytes  # u64[r]
    number: bytes  # u64[r]
    token: bytes  # u64[r]
    deadline_ms: bytes  # i64[r], -1: none

@final
class Event:
    """What happened to a call.

    call: it has begun. With `body` if it is unary; None in it: the call has no message. With the method of a row: an
      Enqueue request whose columns do not fit; answer it with refuse_row().
    message: one of a stream, in `body`. Call more() once it is dealt with.
    half_closed: the client's last message was before this.
    gone: answers are for nobody. `reason`: "cancelled", "deadline", "connection", or "refused": it broke a limit or
      the protocol. Not told of rows, nor of a call that Python has ended.
    writable: a stream to which write() returned False may be written to.
    sent: an answer that was given with tell=True is held no longer, sent or not.
    drained: the last connection has ended since drain(); `token` is 0.
    identify: who is it that calls with this verified `certificate`, `names` in it, and this `authorization` and
      `principal` (the metadata x-delay-principal)? Answer with identify() or refuse_caller(): the calls wait.
    left: the connection of `peer`, of which that was asked, has ended.
    failed: a handshake of TLS has, for a `reason` that only a log can say. Told once a second at most; `token` is 0.
    """

    token: int
    kind: _EventKind
    method: str | None  # in a call, as all up to `forwarded`; "identify" and "left" have the next two, too
    peer: str | None  # "ipv4:10.0.0.7:51234"
    listener: str | None
    identity: object | None
    seconds_left: float | None
    forwarded: bool
    names: list[str]  # URIs as they are, then DNS names as "dns:NAME"
    certificate: bytes | None  # DER
    authorization: str | None
    principal: str | None
    metadata: list[tuple[str, str]]  # in a call: by name, what was asked for
    body: bytes | None
    reason: str

@final
class Edge:
    def __new__(
        cls,
        listen: str | int | None,
        *,
        rows: dict[str, Literal["unary", "stream", "rocketmq", "rows"]] | dict[str, str],
        unary: list[str],
        streams: list[str],
        metadata: list[str] = ...,
        threads: int = 1,
        busy: bytes = b"",
        expired: bytes = b"",
        **limits: Unpack[Limits],
    ) -> Edge:
        """Listen on "host:port", or on the socket of a descriptor, from now on, as the listener "plain"; None: listen()
        says where. Names of methods: "/package.Service/Method". rows: an Enqueue ("unary"), an EnqueueStream
        ("stream"), and the doors' requests about single messages: SendMessage ("rocketmq") and AckMessage
        ("rocketmq-ack") of apache.rocketmq.v2, Send ("rows") of delay.v1's MessageService. metadata: names of
        what is told of calls but Enqueue's. busy: a google.rpc.Status with nothing but details, for a call that ends
        with RESOURCE_EXHAUSTED for want of room: its client may try again soon. expired: the same for a stream that
        ends with UNAUTHENTICATED because its caller's identity has expired.

        Raises OSError: can't listen. ValueError, TypeError: a wrong argument or an unknown limit.
        """

    @property
    def port(self) -> int | None:
        """Of the first listener."""

    def listen(
        self,
        listen: str | int,
        name: str,
        *,
        tls: bool = False,
        identifies: bool = False,
        forwards: bool = False,
        max_age_ms: int | None = None,
    ) -> int:
        """Listen there too; returns the port. tls: handshakes fail until set_certificates(). identifies: Python is
        asked who calls ("identify"), and whether the metadata x-delay-forwarded counts. forwards: it counts of anybody.
        max_age_ms: instead of the limit.

        Raises OSError: can't listen. ValueError: there is a listener of that name.
        """

    def set_certificates(self, name: str, chain: bytes, key: bytes, client_roots: bytes | None = None) -> None:
        """PEM, for all handshakes of that listener from now on. client_roots: who may have issued clients'
        certificates, without which no client comes in. Raises ValueError, which says what is wrong with them."""

    def identify(
        self, token: int, identity: object, seconds_left: float | None = None, *, forwards: bool = False
    ) -> None:
        """Who calls. Asked again once it has expired; streams end then. Requests with one object may be one group."""

    def refuse_caller(self, token: int, code: int, message: str, details: bytes = b"") -> None:
        """The calls that have waited end with this status."""
    def fileno(self) -> int:
        """Readable while take() has something. Valid as long as this object."""

    def take(self, max_bytes: int = 16 << 20) -> tuple[list[Rows], list[Event]]:
        """What has come, up to about `max_bytes`; at least one thing if there is any."""

    def answer_rows(
        self,
        token: BufferLike,
        count: BufferLike,
        uid: int,
        first_seq: BufferLike,
        due: BufferLike | None = None,
        duplicate: BufferLike | None = None,
        *,
        queue: int = 0,
    ) -> None:
        """The requests are stored. For any requests, those of one group or not.

        token: u64[r]; count: u32[r]; first_seq: i64[r]; due: i64[n] ms, sent to requests with relative times;
        duplicate: u8[r]. queue: where messages are that came by a door. Arrays of these types; an empty one may be of
        any. Raises ValueError when they do not fit each other, BufferError for another type.
        """

    def answer_row(self, token: int, body: bytes) -> None:
        """One request that came as bytes is answered by its encoded answer."""

    def refuse_row(self, token: int, code: int, message: str, details: bytes = b"", error: bytes = b"") -> None:
        """One request is not stored. An Enqueue ends with the status, details: a google.rpc.Status; an EnqueueStream
        goes on after an answer with `error`, a delay.v1.Error."""

    def answer_single(self, token: int, status: bytes) -> None:
        """What became of one row of door "rocketmq", which is not stored, or "rocketmq-ack". status: an
        apache.rocketmq.v2.Status."""

    def as_calls(self, token: BufferLike) -> None:
        """Rows of a door come again, each as a "call" with its method's request, to be answered as one that came as
        bytes. token: u64[r]."""

    def respond(self, token: int, body: bytes, *, tell: bool = False) -> bool:
        """A unary call's answer, and its end. tell: the event "sent" comes, whatever becomes of the answer.

        False: there was no room for it, and the call ends with UNAVAILABLE (and "gone"); or it is gone.
        """

    def write(self, token: int, body: bytes) -> bool:
        """One more message of a stream. False: write no more before the event "writable", or "gone"."""

    def write_last(self, token: int, bodies: Sequence[bytes]) -> None:
        """The last messages of a stream, and its end, in one piece. Together they are few bytes: nobody waits for
        "writable". Where there is no room for them the call ends with UNAVAILABLE."""

    def more(self, token: int) -> None:
        """A message of a stream was dealt with: its room is free, and one more may come."""

    def end(self, token: int, code: int = 0, message: str = "", details: bytes = b"") -> None:
        """The end of a stream, after what was written; or of a unary call, with an error."""

    def pause_reading(self, on: bool, *, calls: bool = True) -> None:
        """Give no room to requests that come: their clients' windows close. calls=False: only to Enqueue requests."""

    def drain(self, seconds: float) -> None:
        """Returns at once. No new connections and calls; the connections that are left after `seconds` are cut."""

    def cut(self, peers: Iterable[str]) -> int:
        """End the connections of these peers; returns how many there were."""

    def close(self) -> None:
        """End all connections and threads; waits for up to 2 s."""

    def figures(self) -> Figures: ...

@final
class Writes:
    """Small writes to files, each with an fdatasync, by threads without the interpreter lock. Raises OSError when there
    can be no threads or descriptors."""

    def __init__(self, threads: int) -> None: ...
    def fileno(self) -> int:
        """Readable while there is something to take."""

    def submit(self, token: int, descriptor: int, data: bytes) -> None:
        """Write at the file's end and sync. The descriptor must stay open until the token was taken."""

    def take(self) -> list[tuple[int, int, int, float]]:
        """All that has ended: the token, the errno of write() and that of fdatasync() (0: none), and the seconds."""

    def close(self) -> None:
        """End the threads; waits until all that was submitted is written."""

def record_sum(record: BufferLike, offset: int) -> int:
    """Of a record at a log offset, before it is mixed with its size and seq: see node/delaynode/store/log/checks.py."""

def unit_sum(unit: bytes, factors: bytes) -> int:
    """The sum of k words u32[k], each times its factor u64[k], mod 2^64."""

def record_sums(records: BufferLike, begin: BufferLike, offset: BufferLike, size: BufferLike) -> bytearray:
    """record_sum() u64[n] of many: at bytes `begin` i64[n] of `records`, at log offsets i64[n], of sizes i64[n] bytes.

    Without the interpreter's lock meanwhile, so that nobody may change them. ValueError: one lies outside, or the
    columns differ in length.
    """

def unit_sums(units: BufferLike, factors: bytes) -> bytearray:
    """unit_sum() u64[n] of many, which lie one after the other. Without the interpreter's lock meanwhile."""
