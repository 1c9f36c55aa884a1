"""Deliveries that many calls settle in one turn of the event loop, as one call to their shard.

Official clients acknowledge each message by a call of its own. For the shard a call of one row costs as much as one of
thirty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc
import numpy as np
from delayapi.errors import CODES
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import Receipt

from delaynode.limits.budget import Answers
from delaynode.server.dispatch import Dispatch
from delaynode.server.doors.calls import InnerCall, LaterCall
from delaynode.server.edge import Body
from delaynode.store.errors import Refused

MAX_ROWS: Final = 1_000  # of a call
KINDS: Final[dict[str, tuple[Any, Any]]] = {
    "Ack": (pb.AckRequest, pb.AckResponse),
    "Nack": (pb.NackRequest, pb.NackResponse),
    "Extend": (pb.ExtendRequest, pb.ExtendResponse),
}
Where: TypeAlias = tuple[str, int, int, str]
"""Topic, queue, the shard's uid, group."""
Ask: TypeAlias = Callable[[str, bytes, Any, InnerCall, Answers], Awaitable[Body]]


class Turn:
    """Rows of one caller for one shard and group, whose calls end within the same second. settled: what became of
    them, in order."""

    def __init__(self, call: InnerCall) -> None:
        self.call = LaterCall(call.identity(), call.listener(), call.peer())  # it may be over before they are sent
        self.until, self.rows = call.until, list[Receipt]()
        self.settled: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Together:
    """One for a node. Owned by the event loop."""

    def __init__(self, dispatch: Dispatch, ask: Ask) -> None:
        self._dispatch, self._ask = dispatch, ask
        self._turns: dict[tuple[Any, ...], Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def settle(
        self, method: str, of: Where, fields: Mapping[str, Any], rows: Sequence[Receipt], call: InnerCall,
        answers: Answers,
    ) -> bytes:  # fmt: skip
        """A Settlement for each row. fields: more of the request. Raises Refused."""
        key = (method, of, *fields.values(), call.identity(), call.listener(), int(call.until))
        turn = self._turns.get(key)
        if turn is None or len(turn.rows) + len(rows) > MAX_ROWS:
            turn = self._turns[key] = Turn(call)
            asyncio.get_running_loop().call_soon(self._send, key, turn, method, of, fields)
        first = len(turn.rows)
        turn.rows += rows
        turn.until = min(turn.until, call.until)
        try:
            settled = await asyncio.shield(turn.settled)
        except Refused as error:
            if len(turn.rows) == len(rows) or CODES.get(error.reason) is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
        else:
            return settled[first : first + len(rows)]
        # One of the rows can't be settled, and so none was: each caller's by itself.
        return await self._settled(method, of, fields, rows, call, answers)

    def _send(self, key: tuple[Any, ...], turn: Turn, *what: Any) -> None:
        if self._turns.get(key) is turn:
            del self._turns[key]
        task = asyncio.create_task(self._sent(turn, *what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sent(self, turn: Turn, method: str, of: Where, fields: Mapping[str, Any]) -> None:
        answers = self._dispatch.flow.answers(turn.call)
        try:
            inner = InnerCall(turn.call, turn.until)
            turn.settled.set_result(await self._settled(method, of, fields, turn.rows, inner, answers))
        except Refused as error:
            turn.settled.set_exception(error)
        except Exception as error:
            turn.settled.set_exception(Refused("INTERNAL", f"{type(error).__name__}: {error}"))
            raise
        finally:
            turn.settled.cancel()  # unless it is done: the node is stopping
            answers.dropped()

    async def _settled(
        self, method: str, of: Where, fields: Mapping[str, Any], rows: Sequence[Receipt], call: InnerCall,
        answers: Answers,
    ) -> bytes:  # fmt: skip
        """Raises Refused."""
        topic, queue, _, group = of
        kind, answered = KINDS[method]
        request = kind(
            topic=topic, queue=queue, group=group, attempt=np.array([one.attempt for one in rows], "<u4").tobytes(),
            offset=np.array([one.offset for one in rows], "<i8").tobytes(), **fields,
        )  # fmt: skip
        body = await self._ask(method, request.SerializeToString(), request, call, answers)
        return bytes(answered.FromString(body).settlement)
