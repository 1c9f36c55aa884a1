"""Enqueue requests in groups, as an edge hands them over, over a real ShardHost; what became of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
from delayapi.errors import DETAILS_KEY
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.auth.identity import ANONYMOUS, Identity
from delaynode.auth.rights import Rights
from delaynode.limits.budget import Answers, Budget
from delaynode.node.routes import RemoteMaster, RemoteNode
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.server.dispatch import Dispatch
from delaynode.server.edge import Call
from delaynode.server.forward import ForwardedError
from delaynode.server.handlers.enqueue import EnqueueCalls
from delaynode.server.handlers.rows import RowGroup
from delaynode.server.quotas import EnqueueQuotas
from delaynode.server.rpc import status_of
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.shard import Appended
from delayregistry.model import TopicType
from google.protobuf.message import Message

from tests.serve.support.hosts import Node

MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """reason: why it is refused. first_seq: of a message that is stored."""

    reason: str = ""
    first_seq: int = -1
    count: int = 0
    duplicate: bool = False


class Recorded:
    """The answers to a group's requests, all that came: there should be one for each."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self.outcomes: list[list[Outcome]] = [[] for _ in counts]

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        seq = appended.first_seq
        for number in range(first, end):
            count = appended.count if appended.duplicate else self._counts[number]
            self.outcomes[number].append(Outcome("", seq, count, appended.duplicate))
            seq += count

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        reason = error.reason if isinstance(error, Refused) else error.as_error().reason
        for number in range(first, end):
            self.outcomes[number].append(Outcome(reason))


def group(
    requests: Sequence[pb.EnqueueRequest],
    answers: Any,
    *,
    caller: Identity = ANONYMOUS,
    passed_on: bool = False,
    deadline_ms: Sequence[int] = (),
) -> RowGroup:
    """The requests, all for one queue, as one group."""
    relative = b""
    if any(one.relative for one in requests):
        relative = b"".join(one.relative or bytes(one.count) for one in requests)
    columns = ([b"".join(getattr(one, name) for one in requests)] for name in ("time", "size", "key_hash", "tag_hash"))
    (time,), (size,), (key,), (tag,) = columns
    runs = [BatchRun(one.producer_id, one.number, one.count) for one in requests]
    return RowGroup(
        requests[0].topic, requests[0].queue, caller, passed_on, time, relative, size, key, tag,
        b"".join(one.records for one in requests), runs,
        np.array(deadline_ms or [-1] * len(requests), np.int64), answers,
    )  # fmt: skip


class Room:
    """In the place of a host's Maintenance."""

    def __init__(self) -> None:
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    @full.setter
    def full(self, full: bool) -> None:
        (self._room.clear if full else self._room.set)()

    async def wait_room(self) -> None:
        await self._room.wait()


class Place:
    """A Dispatch with one shard: on the host `name` of `made`; another node (`remote`) may serve it just now."""

    def __init__(self, made: Node, name: str) -> None:
        self._host, self.maintenance = made.hosts[name], Room()
        self.remote = False
        self.disk_bytes = 1 << 60  # a larger batch is refused
        self.forwarding = 0
        self.budget = Budget("", 64 * MIB, 16 * MIB)
        routes = SimpleNamespace(topic_type=lambda _: TopicType.MIXED)
        metrics = self._host.resources.metrics
        turn = cast(Syncer, self._host.resources.syncer).turn
        self.node = SimpleNamespace(disk=self, routes=routes, clock=made.clock, metrics=metrics, turn=turn)
        self.rights = Rights(closed=False)
        self.quota_ms = 0
        self.quotas = EnqueueQuotas(self.rights, metrics, lambda: self.quota_ms)
        self.flow = SimpleNamespace(coming_in=self.budget, answers=lambda call: Answers(self.budget, call))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._host, name)

    def as_dispatch(self) -> Dispatch:
        return cast(Dispatch, self)

    @property
    def shard_host(self) -> ShardHost:
        return self._host

    def check(self, size: int) -> None:
        """The disk's."""
        if size > self.disk_bytes:
            raise Refused("DISK_FULL", f"{size} bytes")

    def find_host(self, method: str, request: Any, call: Any) -> Any:
        if not self.remote:
            return self
        if call.forwarded():
            raise Refused("NOT_MASTER", "another is")
        return RemoteMaster(RemoteNode("other", False), 1)

    @property
    def forwarder(self) -> Any:
        return SimpleNamespace(call=self._call_other)

    async def _call_other(self, node: Any, method: str, data: bytes, seconds: float, caller: Identity) -> bytes:
        """The node that is the master, whose shard is the same."""
        self.forwarding += 1
        other = copy(self)
        other.remote, other.maintenance = False, Room()
        try:
            await asyncio.sleep(0.001 * (len(data) % 3))
            return await enqueue(other, data, caller)
        except Refused as refused:
            status = status_of(refused)
            metadata = grpc.aio.Metadata((DETAILS_KEY, status.details))
            raise ForwardedError(
                grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.message)
            ) from None
        finally:
            self.forwarding -= 1


async def enqueue(place: Place, data: bytes, caller: Identity = ANONYMOUS) -> bytes:
    """A request by the other way: EnqueueCalls, one for each. Raises Refused."""
    said = {"peer": "", "forwarded": True, "time_remaining": None, "identity": caller}
    call = cast(Call, SimpleNamespace(**{name: lambda value=value: value for name, value in said.items()}))
    return await EnqueueCalls(place.as_dispatch()).enqueue(data, call, Answers(place.budget, call))


async def outcome_of(place: Place, request: Message, caller: Identity = ANONYMOUS) -> Outcome:
    """The same as an outcome."""
    try:
        answer = pb.EnqueueResponse.FromString(await enqueue(place, request.SerializeToString(), caller))
    except Refused as refused:
        return Outcome(refused.reason)
    return Outcome("", answer.first_seq, answer.count, answer.duplicate)
