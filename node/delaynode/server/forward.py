"""Calls for shards that another node serves: passed on as they are, once, marked, never retried."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import grpc
import numpy as np
from delayapi.certificates import Certificates
from delayapi.codec import decode_message_batch
from delayapi.connections import Connections
from delayapi.errors import DETAILS_KEY, error_info
from delayapi.proto.delay.v1 import delay_pb2

from delaynode.auth.identity import PRINCIPAL, Identity
from delaynode.node.routes import RemoteNode
from delaynode.node_certificates import PEER, NodeCertificates
from delaynode.server.rpc import Status, status_of
from delaynode.store.errors import Refused

FORWARDED = "x-delay-forwarded"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # Left alone, a channel to a node that was away for minutes waits up to two more before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A node that is gone without a word is noticed; one that is not called is left alone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
GIVE_BACK_SECONDS = 10.0
UNUSED_SECONDS = 600.0  # connections unused for so long are closed: nodes come and go


class ForwardedError(Exception):
    """The other node's error, to be given to the caller unchanged."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(str(error))
        self.error = error

    def status(self) -> Status:
        """What the caller is told."""
        details: bytes = dict(self.error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
        if not details and self.error.code() is grpc.StatusCode.UNAVAILABLE:
            # Without a reason it would say that this node is the one that cannot be reached.
            return status_of(Refused("NOT_SERVING", f"the master cannot be reached: {self.error.details()}"))
        return Status(self.error.code(), self.error.details() or "", details)

    def as_error(self) -> delay_pb2.Error:
        code, message, info = self.error.code().value[0], self.error.details() or "", error_info(self.error)
        if info is None:
            return delay_pb2.Error(code=code, reason="NOT_SERVING", message=message)
        return delay_pb2.Error(code=code, reason=info.reason, message=message, metadata=info.metadata)


@dataclass(slots=True)
class ForwardLink:
    """own: the certificates that it was made with; None: it has no TLS."""

    connections: Connections
    own: Certificates | None
    calls: int = 0
    used: float = 0.0  # time.monotonic() at the end of the last call


class Forwarder:
    """Keeps connections to each other node that is called. Those by TLS show this node's peer certificate, and are made
    anew when it, or the CA, was replaced."""

    def __init__(self, certificates: NodeCertificates) -> None:
        self._certificates = certificates
        self._links: dict[RemoteNode, ForwardLink] = {}
        self._replaced: list[ForwardLink] = []
        self._look_for_unused = False
        self._giving_back: set[asyncio.Task[None]] = set()

    async def call(self, node: RemoteNode, method: str, data: bytes, seconds: float | None, caller: Identity) -> bytes:
        """Raises ForwardedError, Refused."""
        metadata = [(FORWARDED, "1")]
        if node.by_tls:  # in plain text it would be anybody's word
            metadata.append((PRINCIPAL, quote(caller.principal, safe=":/#@")))
        link = self._link(node)
        link.calls += 1
        try:
            await self._close_unused()
            connection = link.connections.pick()
            connection.calls += 1
            try:
                send = connection.unary(f"/delay.v1.DelayService/{method}")
                answer: bytes = await send(data, metadata=metadata, timeout=seconds)
                return answer
            except grpc.aio.AioRpcError as error:
                raise ForwardedError(error) from error
            finally:
                connection.ended()
        finally:
            link.calls -= 1
            link.used = time.monotonic()

    def give_back(self, node: RemoteNode, request: delay_pb2.ReceiveRequest, body: bytes, caller: Identity) -> None:
        """What a Receive has got there, and its caller does not get: others have it, as the same attempt. Where that
        fails, its time ends by itself."""
        batch = decode_message_batch(body)
        if not batch.count:
            return
        attempt = bytes(batch.attempt) or np.ones(batch.count, "<u4").tobytes()
        extend = delay_pb2.ExtendRequest(
            topic=request.topic, queue=request.queue, group=request.group, offset=bytes(batch.offset), attempt=attempt
        )

        async def give_back() -> None:
            with suppress(ForwardedError, Refused):
                await self.call(node, "Extend", extend.SerializeToString(), GIVE_BACK_SECONDS, caller)

        task = asyncio.create_task(give_back())
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    def _link(self, node: RemoteNode) -> ForwardLink:
        own = self._own() if node.by_tls else None
        link = self._links.get(node)
        if link is None or link.own is not own:
            made = ForwardLink(_connections(node, own), own)
            if link is not None:
                self._replaced.append(link)
            link = self._links[node] = made
            self._look_for_unused = True
        return link

    def _own(self) -> Certificates:
        """Raises Refused."""
        own = self._certificates.current(PEER)
        if own is None:
            problem = self._certificates.problems().get(PEER, "it has none")
            raise Refused("NOT_SERVING", f"this node has no certificate to call others with: {problem}")
        return own

    async def _close_unused(self) -> None:
        """Only looked for when a link is new, or one was replaced: otherwise there are not more of them."""
        if not self._look_for_unused:
            return
        self._look_for_unused = False
        limit = time.monotonic() - UNUSED_SECONDS
        unused = [node for node, link in self._links.items() if not link.calls and link.used < limit]
        ended = [self._links.pop(node) for node in unused] + [link for link in self._replaced if not link.calls]
        self._replaced = [link for link in self._replaced if link.calls]
        self._look_for_unused = bool(self._replaced)
        for link in ended:
            await link.connections.close()

    async def close(self) -> None:
        for task in self._giving_back:
            task.cancel()
        for link in (*self._links.values(), *self._replaced):
            await link.connections.close()


def _connections(node: RemoteNode, own: Certificates | None) -> Connections:
    """Nodes are dialled by their IP addresses, which certificates do not name: that a node is one of this cluster is
    shown by a DNS name of this one's certificate, which all of them have."""
    if own is None:
        return Connections(node.endpoint, OPTIONS)
    if not own.host:
        raise Refused("NOT_SERVING", "this node's certificate has no DNS name, by which nodes know each other")
    credentials = grpc.ssl_channel_credentials(own.roots_pem or None, own.key_pem, own.chain_pem)
    named = (("grpc.ssl_target_name_override", own.host), ("grpc.default_authority", own.host))
    return Connections(node.endpoint, (*OPTIONS, *named), lambda: credentials)
