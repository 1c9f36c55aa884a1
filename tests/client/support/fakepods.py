"""An API server that knows pods and port-forward only, and pods that are gRPC servers on this machine.

A pod's address is one of 198.18.0.0/15, where nothing listens: a client that reaches it has come through port-forward.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from aiohttp import WSMsgType, web
from delayctl.targets.kube import KubeError, Pod

from tests.client.support.fakes import FakeCluster, FakeNode
from tests.kube.fakeapi import FakeApiServer

NAMESPACE = "shop"
PORT = 7070


class PodNode(FakeNode):
    """A node that advertises its pod's address."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        super().__init__(cluster)
        self.address = address

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{PORT}"

    @property
    def port(self) -> int:
        return self._port


class FakeKubelet:
    """Stands between the API server's port-forward and the pods. pods: each pod's port on this machine, by name."""

    def __init__(self) -> None:
        self.pods: dict[str, int] = {}
        self.refuse = 0
        """An HTTP status to refuse with; 0: none."""
        self.delay_s = 0.0
        """Delay before a connection is opened."""
        self.opened: list[tuple[str, int]] = []
        """Pod and port of each connection so far."""
        self.authorized: set[str] = set()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()

    async def __aenter__(self) -> FakeKubelet:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.forward)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self.cut()
        await self._runner.cleanup()

    async def cut(self) -> None:
        """End all connections, as a restart of the API server does."""
        for socket in list(self._sockets):
            await socket.close()

    async def forward(self, request: web.Request) -> web.StreamResponse:
        self.authorized.add(request.headers.get("authorization", ""))
        path = re.fullmatch(r"/api/v1/namespaces/[a-z0-9-]+/pods/([a-z0-9-]+)/portforward", request.path)
        if self.refuse:
            return web.Response(status=self.refuse)
        if path is None or path[1] not in self.pods:
            return web.Response(status=404)
        pod, port = path[1], int(request.query["ports"])
        await asyncio.sleep(self.delay_s)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), max_msg_size=0)
        await socket.prepare(request)
        if socket.ws_protocol is None:
            return socket
        self.opened.append((pod, port))
        self._sockets.add(socket)
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.pods[pod])
        except OSError:
            await socket.send_bytes(b"\1error forwarding port: connection refused")
            await socket.close()
            return socket
        down = asyncio.create_task(_down(reader, socket))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    assert message.data[0] == 0
                    writer.write(message.data[1:])
                    await writer.drain()
        finally:
            self._sockets.discard(socket)
            down.cancel()
            writer.close()
        return socket


async def _down(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(65_536):
        await socket.send_bytes(b"\0" + data)
    await socket.close()


class ForwardingApiServer(FakeApiServer):
    """A fake API server with port-forward, which goes to the fake kubelet."""

    def __init__(self) -> None:
        super().__init__()
        self.kubelet = FakeKubelet()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/portforward"):
            return await self.kubelet.forward(request)
        return await super()._handle(request)


class FakeAccess:
    """Stands in for kube.KubeAccess. listed: the addresses of the pods that a list shows, by name."""

    namespace = NAMESPACE

    def __init__(self, url: str, listed: Mapping[str, str]) -> None:
        self._url = url
        self.listed = dict(listed)
        self.lists = 0
        self.down = False

    def pods(self) -> list[Pod]:
        self.lists += 1
        if self.down:
            raise KubeError("the API server gives no answer")
        return [Pod(name, address) for name, address in sorted(self.listed.items())]

    def url(self, path: str) -> str:
        return self._url + path

    def headers(self) -> dict[str, str]:
        return {"authorization": "Bearer token-of-today"}

    def tls(self) -> bool:
        return True

    def proxy(self) -> None:
        return None
