"""A Kubernetes API server for tests: real HTTP, in a thread of the test's process.

    with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        server.store.create(find("configmaps"), "default", {"metadata": {"name": "a"}})
        server.fault(method="PATCH", path="/delayshards/", drop="after")    # done, but never answered
        server.freeze(); ...; server.thaw()                                 # as SIGSTOP and SIGCONT
        assert server.writes() == 0

What it does: create, get, list, replace, JSON merge patch, server-side apply, delete with owner references and
finalizers, the status and scale subresources, pods' eviction, label and field selectors, conditional writes, pages,
watches with bookmarks and 410, discovery, bearer tokens; a strategic merge patch is taken as a merge patch. Events of
a DELETED object carry its new version; an update that changes nothing keeps the version. It has no schemas, defaults,
CEL, admission, RBAC, or controllers other than the garbage collector. See fakefaults.py for what can go wrong.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.kube import fakekinds
from tests.kube.fakefaults import REASONS, Fault, Faults
from tests.kube.fakekinds import Kind
from tests.kube.fakerequest import Call, parse
from tests.kube.fakeserve import perform
from tests.kube.fakestore import Refused, Store
from tests.kube.fakewatch import Watching

WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that came. method: GET, LIST, WATCH, POST, PUT, PATCH or DELETE. status: 0 when it was not answered."""

    at_s: float  # time.monotonic()
    method: str
    path: str
    query: Mapping[str, str]
    manager: str
    agent: str
    status: int
    objects: int = 0  # items of a list


class FakeApiServer:
    """See the module. bookmark_s: time between bookmarks (a real server: 60).

    tokens: the bearer tokens that are taken; None: no token is asked for. May be set while it runs.
    watching.lag_s: how much later watches hear of a change. May be set while it runs.
    """

    def __init__(self, bookmark_s: float = 1.0) -> None:
        self.store = Store(self._changed)
        self.faults = Faults()
        self.tokens: set[str] | None = None
        self.watching = Watching(self.store, bookmark_s)
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._running: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="fake-api", daemon=True)
        self._up = threading.Event()
        self._stop: asyncio.Event
        self._held: set[asyncio.Transport] = set()
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    # ------------------------------------------------------------ life
    def start(self) -> None:
        self._thread.start()
        self._up.wait()

    def close(self) -> None:
        self._call(self._running.set)
        self._call(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write_kubeconfig(self, path: Path, namespace: str = "default", token: str = "") -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}],
            "current-context": "fake",
        }
        path.write_text(json.dumps(config))
        return path

    # ------------------------------------------------------------ objects, from tests
    def get(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Raises Refused 404."""
        return self.store.get(fakekinds.find(plural), namespace, name)

    def list(self, plural: str, namespace: str | None = None) -> list[dict[str, Any]]:
        return self.store.list(fakekinds.find(plural), namespace)[0]

    # ------------------------------------------------------------ faults
    def fault(self, **what: Any) -> Fault:
        """Add a fault; its fields are Fault's."""
        return self.faults.add(Fault(**what))

    def freeze(self) -> None:
        """Stop answering, with connections open, as a process under SIGSTOP. Requests meanwhile are done late."""
        self._call(self._running.clear)

    def thaw(self) -> None:
        self._call(self._running.set)

    def silence_watches(self) -> None:
        """Let the watches that are open now stay open and silent for ever. New watches work."""
        self._call(self.watching.silence)

    def break_watches(self) -> None:
        """Cut the connections of the open watches."""
        self._call(self.watching.cut)

    def expire_watches(self) -> None:
        """Drop the history: open watches get 410 Gone, and so does a client that asks for an earlier version."""
        self.store.compact()

    # ------------------------------------------------------------ requests so far
    def requests(self, method: str = "", path: str = "", since_s: float = 0.0) -> Sequence[Request]:
        """Requests answered (or cut) since a time.monotonic(). path: a part of it. A watch counts at its begin."""
        with self._lock:
            found = list(self._requests)
        return [it for it in found if it.at_s >= since_s and method in ("", it.method) and path in it.path]

    def written(self, since_s: float = 0.0, but: Iterable[str] = ()) -> Sequence[Request]:
        """The writes that came, refused ones too. but: parts of paths that do not count, e.g. "/leases/"."""
        skipped = tuple(but)
        came = [it for it in self.requests(since_s=since_s) if it.method in WRITES]
        return [it for it in came if not any(part in it.path for part in skipped)]

    def writes(self, since_s: float = 0.0, but: Iterable[str] = ()) -> int:
        return len(self.written(since_s, but))

    def delivered(self, plural: str) -> int:
        """Objects of this kind that lists and watches have sent so far."""
        listed = sum(it.objects for it in self.requests("LIST") if it.path.endswith(f"/{plural}"))
        return listed + self.watching.delivered[plural]

    @property
    def open_watches(self) -> int:
        return self.watching.open

    # ------------------------------------------------------------ the server's thread
    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._running, self._stop = asyncio.Event(), asyncio.Event()
        self._running.set()
        self.watching.start(self._running)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A request whose client has gone meanwhile is done all the same: a late write is the worst case.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=False)
        await runner.setup()
        await web.SockSite(runner, self._socket, backlog=512).start()
        self._up.set()
        await self._stop.wait()
        self.watching.cut()
        for transport in self._held:
            transport.abort()
        await runner.cleanup()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _call(self, call: Any, *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def _changed(self) -> None:
        self._call(self.watching.changed)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        at_s = time.monotonic()
        await request.read()  # a server that thaws still finds what the kernel took, its client gone or not
        await self._running.wait()
        method, manager = request.method, request.query.get("fieldManager", "")
        status = objects = 0
        try:
            call = await parse(request)
            method = call.method if call is not None else method
            fault = self.faults.for_request(method, request.path, manager) or Fault()
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.drop == "before":
                raise _Cut
            if fault.code:
                words = fault.message or f"{fault.code} on demand"
                raise Refused(fault.code, REASONS.get(fault.code, "Unknown"), words, cause=fault.cause)
            self._check_token(request)
            if call is not None and call.method == "WATCH":
                self._note(at_s, method, request, manager, 200)
                return await self.watching.serve(request, call)
            code, answer = self._answered(request, call)
            await self._running.wait()
            if fault.drop or fault.hold:
                raise _Cut if fault.drop else _Held
            status, objects = code, len(answer.get("items", ())) if method == "LIST" else 0
            return web.json_response(answer, status=code)
        except Refused as error:
            status = error.code
            headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
            return web.json_response(_status(error), status=error.code, headers=headers)
        except (_Cut, _Held) as error:
            transport = request.transport
            assert isinstance(transport, asyncio.Transport)
            if isinstance(error, _Cut):
                transport.abort()
            else:
                self._held.add(transport)
                await self._stop.wait()
            raise asyncio.CancelledError from None
        finally:
            if method != "WATCH" or status:
                self._note(at_s, method, request, manager, status, objects)

    def _answered(self, request: web.Request, call: Call | None) -> tuple[int, Any]:
        if call is not None:
            return perform(self.store, call)
        try:
            match request.path.strip("/").split("/"):
                case ["version"]:
                    return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0-fake"}
                case ["healthz" | "readyz" | "livez"]:
                    return 200, "ok"
                case ["api"]:
                    return 200, fakekinds.core_versions()
                case ["api", version]:
                    return 200, fakekinds.resources("", version)
                case ["apis"]:
                    return 200, fakekinds.groups()
                case ["apis", group]:
                    return 200, fakekinds.group(group)
                case ["apis", group, version]:
                    return 200, fakekinds.resources(group, version)
        except KeyError:
            pass
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _check_token(self, request: web.Request) -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if self.tokens is not None and (scheme.lower() != "bearer" or given not in self.tokens):
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _note(
        self, at_s: float, method: str, request: web.Request, manager: str, status: int, objects: int = 0
    ) -> None:
        query, agent = dict(request.query), request.headers.get("User-Agent", "")
        with self._lock:
            self._requests.append(Request(at_s, method, request.path, query, manager, agent, status, objects))


class _Cut(Exception):
    """The server must cut the connection."""


class _Held(Exception):
    """The server must never answer."""


def _status(error: Refused) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": {
            **({"name": error.name} if error.name else {}),
            **({"causes": [{"reason": error.cause}]} if error.cause else {}),
        },
        "code": error.code,
    }


__all__ = ["FakeApiServer", "Fault", "Kind", "Refused", "Request"]
