"""Port-forward: a local listener for each node pod, whose connections go to the pod through the API server.

    client -> 127.0.0.1:PORT -> WebSocket (v4.channel.k8s.io) -> API server -> kubelet -> pod

One WebSocket per connection: binary messages whose first byte is the channel, 0 for data and 1 for errors; the first
message of each channel names the port and is skipped. This is what the kubernetes package's `portforward` speaks too.
It is not used because it has a thread for each connection, waits for a silent API server without a limit, and keeps
without bound what the other side does not take; `kubectl port-forward` would be one more program to have, a process
for each pod that ends when the pod does, and its listeners with it.

Nodes advertise their pods' IPs. dial() gives the local address for such an endpoint; a listener belongs to the pod's
*name*, so that it leads to the pod that takes a replaced one's place, under whatever address.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from delayctl.targets.kube import KubeAccess, KubeError, Pod

PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_PIECE_BYTES: Final = 64 << 10
_OPEN_S: Final = 10.0
_AGAIN_S: Final = 0.5
"""After a failure connections are refused for so long: whoever waits is to look elsewhere, not to wait for us."""


@dataclass(slots=True)
class _Listener:
    """pod: the name of the pod that it leads to; empty while that is not known."""

    local: str
    host: str
    port: int
    pod: str = ""
    not_before_s: float = 0.0  # on the loop's clock


class Forwards:
    """Owns a thread with an event loop; dial() and close() may be called from any other."""

    def __init__(self, access: KubeAccess, pods: Sequence[Pod]) -> None:
        self.trouble = ""
        """Why the last connection that failed did."""
        self._access = access
        self._pods = {pod.name: pod.address for pod in pods}
        self._fresh = True  # nothing speaks against _pods
        self._reading: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._listeners: dict[str, _Listener] = {}  # by endpoint
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="port-forward", daemon=True)
        self._thread.start()

    def __enter__(self) -> Forwards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dial(self, endpoint: str) -> str:
        """The local address that leads to an endpoint of a pod. Never waits."""
        with self._lock:
            listener = self._listeners.get(endpoint)
            if listener is None:
                listener = self._listeners[endpoint] = self._leading_to(endpoint)
            return listener.local

    def close(self) -> None:
        """Ends all connections and the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    # ---------------------------------------------------------------------------------------- listeners

    def _leading_to(self, endpoint: str) -> _Listener:
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        pod = self._named(host)
        for listener in self._listeners.values():
            if pod and listener.pod == pod and listener.port == int(port):
                listener.host = host
                return listener
        # Bound here and now, so that the address is known; what connects before the loop accepts waits in the backlog.
        sock = socket.create_server(("127.0.0.1", 0), backlog=128)
        listener = _Listener(f"127.0.0.1:{sock.getsockname()[1]}", host, int(port), pod)
        asyncio.run_coroutine_threadsafe(self._serve(listener, sock), self._loop)
        return listener

    def _named(self, host: str) -> str:
        return next((name for name, address in self._pods.items() if address == host), "")

    async def _serve(self, listener: _Listener, sock: socket.socket) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._carry(listener, reader, writer)
            except asyncio.CancelledError:
                pass  # close(): the connection ends with it
            finally:
                self._connections.discard(task)
                writer.close()

        self._servers.append(await asyncio.start_server(connected, sock=sock))

    # -------------------------------------------------------------------------------------- connections

    async def _carry(self, listener: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._loop.time() < listener.not_before_s:
            return
        try:
            pod = await self._pod_of(listener)
            socket_ = await self._open(pod, listener.port)
        except (KubeError, aiohttp.ClientError, OSError) as error:
            self._failed(listener, _why(error, listener, self._access.namespace))
            return
        try:
            up = asyncio.create_task(_send(reader, socket_))
            down = asyncio.create_task(self._receive(listener, socket_, writer))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        finally:
            await socket_.close()

    async def _open(self, pod: str, port: int) -> aiohttp.ClientWebSocketResponse:
        access = self._access
        path = f"/api/v1/namespaces/{access.namespace}/pods/{pod}/portforward"
        headers = await asyncio.to_thread(access.headers)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=access.tls()))
        async with asyncio.timeout(_OPEN_S):
            return await self._session.ws_connect(
                access.url(path), params={"ports": str(port)}, protocols=(PROTOCOL,), headers=headers,
                proxy=access.proxy(), max_msg_size=0, timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )  # fmt: skip

    async def _receive(
        self, listener: _Listener, socket_: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
    ) -> None:
        begun: set[int] = set()
        async for message in socket_:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
            elif channel == _DATA:
                writer.write(data)
                await writer.drain()
            else:
                self._failed(listener, data.decode(errors="replace"))
                return

    def _failed(self, listener: _Listener, why: str) -> None:
        self.trouble = f"pod {listener.pod or listener.host}: {why}"
        listener.not_before_s = self._loop.time() + _AGAIN_S
        self._fresh = False  # the pod may have been replaced

    # --------------------------------------------------------------------------------------------- pods

    async def _pod_of(self, listener: _Listener) -> str:
        """The name of the pod that a listener leads to. Raises KubeError."""
        if not self._fresh or not self._named(listener.host):
            await self._read()
        listener.pod = self._named(listener.host) or listener.pod
        if not listener.pod or listener.pod not in self._pods:
            raise KubeError("there is no such pod now")
        return listener.pod

    async def _read(self) -> None:
        """Lists the pods anew, once for all who want to know."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._list())
        await asyncio.shield(self._reading)

    async def _list(self) -> None:
        pods = await asyncio.to_thread(self._access.pods)
        with self._lock:
            self._pods = {pod.name: pod.address for pod in pods}
        self._fresh = True

    # ------------------------------------------------------------------------------------------- thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


async def _send(reader: asyncio.StreamReader, socket_: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_PIECE_BYTES):
        await socket_.send_bytes(b"\0" + data)  # waits while the other side takes nothing


def _why(error: Exception, listener: _Listener, namespace: str) -> str:
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status in (401, 403):
        return f"refused ({error.status}): pods/portforward in namespace {namespace!r} needs the verbs get and create"
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"port-forward to {listener.port}: the API server answers {error.status} {error.message}"
    if isinstance(error, TimeoutError):
        return f"port-forward to {listener.port}: no answer within {_OPEN_S:g} s"
    return str(error) or type(error).__name__
