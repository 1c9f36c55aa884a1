"""The fake API server's watches."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

from aiohttp import web

from tests.kube.fakerequest import Call
from tests.kube.fakestore import Event, Refused, Store


class Watching:
    """All watches. Use it in the server's loop, except `open` and `lag_s`. bookmark_s: time between bookmarks."""

    def __init__(self, store: Store, bookmark_s: float) -> None:
        self.lag_s = 0.0  # how much later watches hear of a change
        self.open = 0
        self.delivered: Counter[str] = Counter()  # events but bookmarks, by plural
        self._store = store
        self._bookmark_s = bookmark_s
        self._news: asyncio.Event
        self._running: asyncio.Event
        self._tasks: dict[asyncio.Task[Any], asyncio.Transport] = {}
        self._silent: set[asyncio.Task[Any]] = set()

    def start(self, running: asyncio.Event) -> None:
        """running: cleared while the server is frozen."""
        self._news, self._running = asyncio.Event(), running

    def changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def silence(self) -> None:
        self._silent.update(self._tasks)

    def cut(self) -> None:
        for transport in self._tasks.values():
            transport.abort()

    async def serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream = _Stream(response, call)
        version = self._begin(call, stream)
        await response.prepare(request)
        task, transport = asyncio.current_task(), request.transport
        assert task is not None
        assert isinstance(transport, asyncio.Transport)
        self._tasks[task] = transport
        self.open += 1
        try:
            await self._follow(call, stream, version, task)
            await response.write_eof()
        except ConnectionError:
            pass  # the client has gone, or was cut off
        finally:
            self.open -= 1
            del self._tasks[task]
            self._silent.discard(task)
        return response

    def _begin(self, call: Call, stream: _Stream) -> int:
        """Begin at the asked version. Without one, or at 0, all present objects come first, as ADDED."""
        asked = call.query.get("resourceVersion", "")
        if asked not in ("", "0"):
            return int(asked)
        items, version = self._store.list(call.kind, call.namespace, call.chosen)
        stream.add("ADDED", *items)
        return version

    async def _follow(self, call: Call, stream: _Stream, version: int, task: asyncio.Task[Any]) -> None:
        wait_s = float(call.query.get("timeoutSeconds", "0") or 0) or 1800.0
        end_s = time.monotonic() + wait_s
        bookmarks = call.query.get("allowWatchBookmarks", "").lower() in ("true", "1")
        bookmark_s = time.monotonic() + self._bookmark_s
        while True:
            news = self._news
            try:
                events, now = self._store.events_after(version)
            except Refused as gone:
                stream.add("ERROR", {"kind": "Status", "code": gone.code, "reason": gone.reason, "message": str(gone)})
                events, now, end_s = [], version, 0.0
            if events and self.lag_s:
                await asyncio.sleep(self.lag_s)
            for event in events:
                stream.happened(event)
            version = now
            if bookmarks and time.monotonic() >= bookmark_s:
                bookmark_s = time.monotonic() + self._bookmark_s
                stream.bookmark(version)
            await self._running.wait()
            if task in self._silent:
                await asyncio.sleep(3600)
            self.delivered[call.kind.plural] += await stream.flush()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            wait_s = min(left_s, bookmark_s - time.monotonic()) if bookmarks else left_s
            try:
                await asyncio.wait_for(news.wait(), max(0.0, wait_s))
            except TimeoutError:
                continue


class _Stream:
    def __init__(self, response: web.StreamResponse, call: Call) -> None:
        self._response, self._call = response, call
        self._lines: list[bytes] = []
        self._events = 0

    def add(self, kind: str, *objects: Any) -> None:
        self._lines += [json.dumps({"type": kind, "object": obj}).encode() + b"\n" for obj in objects]
        self._events += len(objects) if kind != "BOOKMARK" else 0

    def happened(self, event: Event) -> None:
        if event.kind != self._call.kind:
            return
        if self._call.namespace not in (None, event.now["metadata"].get("namespace", "")):
            return
        was = event.before is not None and self._call.chosen(event.before)
        is_now = not event.deleted and self._call.chosen(event.now)
        if is_now:
            self.add("MODIFIED" if was else "ADDED", event.now)
        elif was:
            self.add("DELETED", event.now)

    def bookmark(self, version: int) -> None:
        kind = self._call.kind
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        self.add("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata})

    async def flush(self) -> int:
        """Returns the number of events sent."""
        lines, self._lines = self._lines, []
        events, self._events = self._events, 0
        if lines:
            await self._response.write(b"".join(lines))
        return events
