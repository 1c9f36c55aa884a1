"""Keeps a Mirror up to date: a list, then a watch from there on, in a thread of its own, for as long as it runs.

Where nothing may be listed, what there is is read object by object: a version to go on from comes with a list only, so
the watch is begun first, and whatever happens during the reading is told by it.

A watch that breaks is begun again from where it was; when that is too long ago (410 Gone), everything is listed anew.
So it is after an outage: the store may have been restored from a backup. A watch from a version that is not there yet
would tell of nothing, and one from a version that has been written again would tell only of what came after it.
A watch is asked to end after WATCH_S and then begun again, at the price of a request, so that one that says nothing
because its other end is gone is noticed: after WATCH_S + GRACE_S without a word. Where something happens all the time
(leases), each word shows that the other end is there, and the watch may go on for longer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from delayregistry.kube.client import ApiRejected, KubeClient, RequestUnanswered, WatchStream

WATCH_S = 10.0
GRACE_S = 3.0
LIST_READ_S = 10.0
PAGE = 500
BOOKMARK_S = 60.0  # between the API server's bookmarks, about
ABSENT_S = 60.0  # between looks for a kind of objects that may not be installed
PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)  # before the next try, by the number of failures in a row

Json = dict[str, Any]
Say = Callable[[Mapping[str, object]], None]
Fetch = Callable[[], list[Json]]
"""The objects. Raises RequestUnanswered, ApiRejected."""


class WatchSink(Protocol):
    """What a watch tells; see Mirror."""

    @property
    def resume_version(self) -> str: ...

    def apply_list(self, objects: list[Json], version: str | None, *, anew: bool = False) -> None: ...

    def apply_event(self, kind: str, obj: Json) -> None: ...


class Watch(Protocol):
    """Keeps a mirror up to date from start() to stop(). From any thread."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, timeout_s: float) -> None:
        """After stop(): returns when its thread has ended, or would take longer to."""

    def wait_synced(self, timeout_s: float) -> bool:
        """Whether the mirror has been filled once; waits for it."""

    def wait_running(self, timeout_s: float) -> bool:
        """Whether the watch runs; waits for it."""

    def out_s(self) -> float:
        """For how long the watch has been known not to run; 0: it runs."""

    @property
    def fault(self) -> str:
        """Why it does not run."""


class ObjectWatch:
    """path, query: of the collection. fetch: instead of a list. log: told when the watch is out and when it is back.
    lively_watch_s: a watch is asked to end after this time instead where the one before it told of something. optional:
    the kind may not be installed, or not be ours to see; that is asked again each ABSENT_S only. forbidden_s: before it
    asks again for what is forbidden, at least; a right may be given a moment late where a start waits for it."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        query: Mapping[str, str],
        mirror: WatchSink,
        log: Say,
        fetch: Fetch | None = None,
        watch_s: float = WATCH_S,
        grace_s: float = GRACE_S,
        lively_watch_s: float | None = None,
        *,
        optional: bool = False,
        forbidden_s: float = 0.0,
    ) -> None:
        self._client, self._path, self._query, self._mirror, self._log = client, path, query, mirror, log
        self._fetch = fetch
        self._watch_s, self._grace_s = watch_s, grace_s
        self._lively_watch_s = watch_s if lively_watch_s is None else lively_watch_s
        self._lively = False  # the last watch told of something
        self._optional, self._forbidden_s = optional, forbidden_s
        self.absent = False  # the API server knows no such kind
        self._restored = False  # what is held is not the truth any more; set by other threads
        self._anew = False  # the next list is
        self._word_s = float("-inf")  # when it was last heard
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sync_resolved = threading.Event()  # it is synced, or stopped and never will be
        self._synced = False
        self._running = threading.Event()
        self._filled = False  # the mirror has all that there was at what it heard last
        self._fault: str | None = None
        self._out_since_s = time.monotonic()
        self._failures = 0
        self._gone_s = float("-inf")
        self._stream: WatchStream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path.rsplit('/', 1)[-1]}", daemon=True)

    def start(self) -> None:
        self._out_since_s = time.monotonic()  # it may have been made long before
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to end, and ends all waiting for it."""
        self._stopped.set()
        self._sync_resolved.set()
        self._running.set()
        with self._lock:
            if self._stream is not None:
                self._stream.abort()

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, timeout_s))

    def wait_synced(self, timeout_s: float) -> bool:
        self._sync_resolved.wait(timeout_s)
        return self._synced

    def wait_running(self, timeout_s: float) -> bool:
        return self._running.wait(timeout_s)

    def out_s(self) -> float:
        return 0.0 if self._running.is_set() else time.monotonic() - self._out_since_s

    def silent_s(self) -> float:
        """For how long the API server has said nothing here; without bound before the first word."""
        return time.monotonic() - self._word_s

    def is_current(self) -> bool:
        """Whether all that the API server has told is here, and it has spoken as lately as it must."""
        filled = self._filled and not self._restored
        return filled and self._running.is_set() and self.silent_s() <= self._watch_s + self._grace_s

    @property
    def fault(self) -> str:
        return self._fault or "the first list has not come yet"

    def list_again(self) -> None:
        """Take a list for the truth, though the watch runs: the store was restored. From any thread."""
        with self._lock:
            self._restored = True
            stream = self._stream
        if stream is not None:
            stream.abort()

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._restored:
                    self._restored, self._anew, self._filled = False, True, False
                self._filled = self._filled and self._failures <= 1
                if self._filled:
                    self._watch(self._mirror.resume_version)
                elif self._fetch is not None:
                    self._watch(None, self._fetch)
                else:
                    objects, version = self._list_all()
                    self._fill(objects, version)
                    self._watch(version)
            except ApiRejected as error:
                gone = error.code == 410 and self._filled
                self._filled = self._filled and not gone
                if self._optional and error.code in (403, 404):
                    self._refused(str(error), absent=error.code == 404)
                elif not gone or not self._is_rare_gone():
                    self._failed(str(error), self._forbidden_s if error.code == 403 else 0.0)
            except RequestUnanswered as error:
                self._failed(str(error))
            except Exception as error:  # a watch that ended for good would be a node that hears of nothing
                self._filled = False
                self._failed(f"{type(error).__name__}: {error}")

    def _fill(self, objects: list[Json], version: str | None) -> None:
        went_back = version is not None and int(version) < int(self._mirror.resume_version)
        if went_back:
            self._log({"event": "registry-went-back", "path": self._path, "version": version})
        self._mirror.apply_list(objects, version, anew=went_back or self._anew or self._failures > 1)
        self._anew = False
        self.absent = False
        self._filled = self._synced = True
        self._sync_resolved.set()

    def _watch(self, version: str | None, fetch: Fetch | None = None) -> None:
        # So the nodes of a cluster do not all ask again at the same moment.
        watch_s = (self._lively_watch_s if self._lively else self._watch_s) * random.uniform(0.8, 1.0)
        query = {**self._query, "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(watch_s)))}
        if version is not None:
            query["resourceVersion"] = version
        stream = self._client.watch(self._path, query, self._watch_s + self._grace_s)
        self._lively = False
        with self._lock:
            self._stream = stream
            if self._stopped.is_set():
                stream.abort()
        try:
            if fetch is not None:
                self._fill(fetch(), None)
            self._succeeded()
            self._follow(stream)
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _follow(self, stream: WatchStream) -> None:
        for event in stream:
            self._word_s = time.monotonic()
            kind, obj = event.get("type"), event.get("object")
            if self._stopped.is_set():
                break
            if kind == "ERROR":
                said = obj if isinstance(obj, dict) else {}
                raise ApiRejected(int(said.get("code") or 0), str(said.get("reason", "")), str(said.get("message", "")))
            if isinstance(kind, str) and isinstance(obj, dict):
                self._mirror.apply_event(kind, obj)
                self._lively = self._lively or kind != "BOOKMARK"

    def _list_all(self) -> tuple[list[Json], str]:
        pages = list(self._pages())
        # The version of the first page: what later ones show beyond it, the watch tells again.
        version = str(pages[0]["metadata"]["resourceVersion"])
        return [obj for page in pages for obj in page.get("items") or ()], version

    def _pages(self) -> Iterator[Json]:
        query = {**self._query, "limit": str(PAGE)}
        while True:
            page = self._client.get(self._path, query, LIST_READ_S)
            yield page
            more = page["metadata"].get("continue")
            if not more:
                return
            query["continue"] = str(more)

    # ------------------------------------------------------------ how it goes
    def _is_rare_gone(self) -> bool:
        """A watch that goes on from too long ago is not a fault, unless that comes again and again."""
        before_s, self._gone_s = self._gone_s, time.monotonic()
        return self._gone_s - before_s > self._watch_s / 2

    def _succeeded(self) -> None:
        if self._fault is not None:
            self._log({"event": "watch-resumed", "path": self._path, "seconds": round(self.out_s(), 1)})
        self._fault, self._failures = None, 0
        self._word_s = time.monotonic()
        self._running.set()

    def _refused(self, why: str, *, absent: bool) -> None:
        was_there, self._filled = self._filled, False
        if was_there:  # a proxy may have said so, or the kind is installed anew
            return self._failed(why)
        self.absent = absent
        self._interrupted(why, said=not absent)
        self._stopped.wait(ABSENT_S)

    def _failed(self, why: str, pause_s: float = 0.0) -> None:
        if self._stopped.is_set():
            return
        self.absent = False
        self._interrupted(why)
        pause_s = max(pause_s, PAUSES_S[min(self._failures, len(PAUSES_S) - 1)])
        self._stopped.wait(pause_s * random.uniform(0.5, 1.0))
        self._failures += 1

    def _interrupted(self, why: str, *, said: bool = True) -> None:
        if self._fault is None:
            self._out_since_s = time.monotonic()
            if said:
                self._log({"event": "watch-interrupted", "path": self._path, "reason": why})
        self._fault = why
        self._running.clear()
