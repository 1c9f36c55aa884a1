"""The server's transport as a port: what a call is to who serves it. The adapters are server/grpc_edge.py and
server/compiled_edge.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from delaynode.auth.identity import Identity
from delaynode.limits.budget import Answers

if TYPE_CHECKING:
    from delaynode.server.forward import ForwardedError
    from delaynode.server.handlers.rows import RowGroup
    from delaynode.store.errors import Refused
    from delaynode.store.shard import Appended

Body: TypeAlias = bytes
METADATA = ("x-mq-client-id", "x-mq-language")  # what doors ask calls for
LAST_BYTES = 128 << 10
MAX_CALLS = 20_000  # at once; with grpc.aio one that waits costs some 20 KiB


class Forwardable(Protocol):
    def forwarded(self) -> bool:
        """Whether another node has passed it on: it goes no further."""

    def identity(self) -> Identity:
        """Who calls; of a call that was passed on: who has called that node."""


class Call(Forwardable, Protocol):
    """One call. Owned by the event loop."""

    def peer(self) -> str:
        """Names the client's connection."""

    def listener(self) -> str:
        """The name of the listener that the client came by."""

    def time_remaining(self) -> float | None:
        """Seconds until the client gives up; None: it waits for ever."""

    def metadata(self, name: str) -> str | None:
        """The last value of one of the entries METADATA; None: it has none."""

    def on_done(self, done: Callable[[], None]) -> None:
        """done: told once the call is over."""


class Stream(Call, Protocol):
    """A call of many requests."""

    async def read(self) -> Body | None:
        """The next request, which may be long in coming; None, also when asked again: there are no more."""

    def on_next(self, told: Callable[[Body], None]) -> None:
        """told: the next request, if one comes before read() is called, which returns it all the same."""


@dataclass(frozen=True, slots=True)
class Last:
    """The last answers of a stream, which are sent together and with its end: little, at most LAST_BYTES."""

    bodies: Sequence[Body]


def bodies_of(yielded: Body | Last) -> Sequence[Body]:
    """What a stream has yielded, for a carrier that sends each by itself."""
    return yielded.bodies if isinstance(yielded, Last) else (yielded,)


Serve: TypeAlias = Callable[[Body, Call, Answers], Awaitable[Body]]
"""Serves a call of one request. Raises Refused or ForwardedError. Asks `Answers` for room before it has a large answer
in memory."""
ServeStream: TypeAlias = Callable[[Stream], AsyncGenerator[Body | Last, None]]
"""Yields answers, each of which is on its way to the client when it goes on. Raises the same."""


class ReadCalls(Protocol):
    """Calls that the compiled edge has read as rows of one message each. [first, end): which of them. Each is answered
    once."""

    def at(self, places: Sequence[int]) -> ReadCalls:
        """These of them."""

    def stored(self, first: int, end: int, queue: int, uid: int, appended: Appended) -> None:
        """Their messages are in that queue, one after the other, from appended.first_seq on."""

    def answered(self, first: int, end: int, status: bytes) -> None:
        """What became of them, but for messages that are stored. status: as the protocol has it, encoded."""

    def end(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        """They end without an answer."""

    def serve(self, first: int, end: int) -> None:
        """They are served as if they had not been read."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A method whose usual requests the compiled edge can read. door: its name for them. take: those that came
    together, of one caller: messages of one topic, their queue not chosen; or a client's receipts."""

    door: str
    take: Callable[[RowGroup, ReadCalls], None]


@dataclass(frozen=True, slots=True)
class Methods:
    """What a service serves, by method. batches: their requests count in the budget for what comes in until they are
    served. internal: small calls of the cluster's own processes, which wait behind no client's. readable: of unary and
    batches.
    """

    unary: Mapping[str, Serve] = field(default_factory=dict)
    batches: Mapping[str, Serve] = field(default_factory=dict)
    streams: Mapping[str, ServeStream] = field(default_factory=dict)
    internal: Mapping[str, Serve] = field(default_factory=dict)
    readable: Mapping[str, Readable] = field(default_factory=dict)
