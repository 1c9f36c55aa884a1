"""Asks nodes for their copies: ReplicaStatus over gRPC, all nodes at once, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from delayapi.node_client import NodeClient
from delayapi.proto.delay.v1 import delay_pb2
from delayregistry.model import NodeLease, ShardObject
from delayregistry.port import Registry

from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.plan import CopyView, ObservedRole

DEADLINE_S = 1.0
PATIENCE_S = 0.3  # those that are well answer within milliseconds; the others' answers are for a later round
TERMINAL_S = 5.0  # a person at a terminal waits for a node that is slow, or far
# A node that was just restarted must be reached at once, not when gRPC's backoff is over.
RECONNECT_AT_ONCE = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)

_ROLES = {delay_pb2.ReplicaState.Role.Value(role.name): role for role in ObservedRole}


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The copies that a process says it has, by the shards' uids.

    listed: a shard that is not named has no directory there. ineligible: why no master should be chosen
    there, or empty.
    """

    incarnation: str
    listed: bool = True
    ineligible: str = ""
    copies: Mapping[int, CopyView] = field(default_factory=dict)


class Prober(Protocol):
    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        """The answers of these nodes, by node id; a node without one is missing. Bounded by seconds."""

    def close(self) -> None:
        """Gives back what it holds open."""


class CopyProgress:
    """How far copies on their way are. It holds connections only while there are some."""

    def __init__(self, registry: Registry, new_prober: Callable[[], Prober]) -> None:
        self._registry, self._new_prober = registry, new_prober
        self._prober: Prober | None = None

    def fetched_bytes(self, moving: Mapping[str, str], shards: Mapping[str, ShardObject]) -> dict[str, int]:
        """Bytes that are there, by shard. moving: shard name to the node that gets a copy."""
        if not moving:
            self.close()
            return {}
        if self._prober is None:
            self._prober = self._new_prober()
        answers = self._prober.query([it for it in self._registry.list_leases() if it.node in moving.values()])
        found = {}
        for name, node in moving.items():
            shard, answer = shards.get(name), answers.get(node)
            copy = None if shard is None or answer is None else answer.copies.get(shard.spec.uid)
            if copy is not None:
                found[name] = copy.transfer_done
        return found

    def close(self) -> None:
        if self._prober is not None:
            self._prober.close()
            self._prober = None


class NullProber:
    """For a cluster whose shards have one replica each: no master is ever chosen by what it says."""

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        return {}

    def close(self) -> None:
        pass


class GrpcProber:
    """One channel and at most one outstanding call per node; gRPC's own threads do the waiting.

    A node that is frozen costs a round PATIENCE_S once in DEADLINE_S, not each round its whole deadline.
    """

    def __init__(self, access: OperatorAccess | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """access: to these nodes; by default without TLS."""
        self._access, self._monotonic_s = access or OperatorAccess(), monotonic_s
        self._clients: dict[str, tuple[object, NodeClient]] = {}  # by node, with the way to it
        self._calls: dict[str, tuple[object, Any]] = {}  # by node: the way to it, and the grpc.Future of its answer

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        now_s = self._monotonic_s()
        waited_for = []
        for lease in leases:
            way, call = self._calls.get(lease.node, (None, None))
            now = self._access.way(lease)
            if call is None or way != now or call.done():
                self._calls[lease.node] = now, self._called(lease, now)
                waited_for.append(lease.node)
        until_s = now_s + PATIENCE_S
        answers: dict[str, NodeAnswer] = {}
        for lease in leases:
            _, call = self._calls[lease.node]
            left_s = max(0.0, until_s - self._monotonic_s()) if lease.node in waited_for else 0.0
            try:
                answers[lease.node] = read_answer(call.result(timeout=left_s))
            except grpc.FutureTimeoutError:
                continue  # it may still answer
            except grpc.RpcError:
                pass  # as good as no answer; the reason is in the node's own log, if it lives
            del self._calls[lease.node]
        return answers

    def client(self, lease: NodeLease) -> NodeClient:
        """Another one, the caller's to close."""
        return self._access.client(lease)

    def close(self) -> None:
        for _, client in self._clients.values():
            client.close()
        self._clients.clear()
        self._calls.clear()

    def _called(self, lease: NodeLease, now: object) -> Any:
        way, client = self._clients.get(lease.node, (None, None))
        if client is None or way != now:
            if client is not None:
                client.close()
            client = self._access.client(lease, RECONNECT_AT_ONCE)
            self._clients[lease.node] = (now, client)
        return client.replica_status.future(delay_pb2.ReplicaStatusRequest(), timeout=DEADLINE_S)


class PatientProber:
    """For commands: waits for each node's answer up to TERMINAL_S, through a port-forward if need be."""

    def __init__(self, access: OperatorAccess) -> None:
        self._access = access
        self._clients: dict[str, NodeClient] = {}

    def query(self, leases: Sequence[NodeLease]) -> Mapping[str, NodeAnswer]:
        """The answers by node id; a node that gives none in time is missing."""
        request = delay_pb2.ReplicaStatusRequest()
        clients = {lease.node: self.client(lease) for lease in leases}
        calls = {node: client.replica_status.future(request, timeout=TERMINAL_S) for node, client in clients.items()}
        answers = {}
        for node, call in calls.items():
            with suppress(grpc.RpcError):
                answers[node] = read_answer(call.result())
        return answers

    def client(self, lease: NodeLease) -> NodeClient:
        """Stays the prober's to close."""
        if lease.endpoint not in self._clients:
            self._clients[lease.endpoint] = self._access.client(lease)
        return self._clients[lease.endpoint]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def read_answer(answer: delay_pb2.ReplicaStatusResponse) -> NodeAnswer:
    copies = {copy.uid: _copy(copy, answer.incarnation) for copy in answer.copies}
    return NodeAnswer(answer.incarnation, answer.listed, answer.unfit, copies)


def _copy(copy: delay_pb2.ReplicaState, incarnation: str) -> CopyView:
    return CopyView(
        replica_id=copy.entry,
        incarnation=incarnation,
        epoch=copy.epoch,
        log_epoch=copy.log_epoch,
        log_end=copy.log_end,
        committed_offset=copy.committed,
        damaged=copy.damaged or None,
        role=_ROLES.get(copy.role, ObservedRole.OPENING),  # a role of a later release: nothing is known of it
        serving_epoch=copy.serving_epoch,
        transfer_done=copy.transfer_done,
        transfer_total=copy.transfer_total,
        kept_epoch=copy.kept_epoch,
        kept_in_sync=tuple(copy.kept_in_sync),
        ended_epoch=copy.over_epoch,
        not_serving=copy.not_serving,
        topic=copy.topic,
        queue=copy.queue,
        pending=copy.pending,
        cluster=copy.cluster,
        disk_bytes=copy.disk_bytes,
        unsynced=copy.unsynced,
        newer_format=copy.newer_format,
    )
