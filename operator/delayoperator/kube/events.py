"""Events on DelayClusters, DelayRebalances and DelayTopics, for `kubectl describe`: few, told once, counted up."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from delayapi.log_levels import LogLevel

from delayoperator.control_loop.loop import LoopClock
from delayoperator.kube.api import FIELD_MANAGER, Api, ApiError, Json
from delayoperator.kube.kinds import DELAY_CLUSTER, EVENT, ObjectKind

SAME_MS = 600_000  # the same words within this time are the same event, counted up
AGAIN_MS = 60_000  # and so often is the count written at most
BURST = 25  # events of a cluster at once, then one in REFILL_MS: as Kubernetes' own recorder
REFILL_MS = 10_000
MAX_MESSAGE_CHARS = 1_000
MAX_NAME_CHARS = 253


def event_name(about: str, suffix: str) -> str:
    """Of an event about the object of that name: as long as a name may be, at most."""
    return f"{about[: MAX_NAME_CHARS - 1 - len(suffix)].rstrip('-.')}.{suffix}"


@dataclass(slots=True)
class _RecordedEvent:
    name: str
    count: int
    recorded_ms: int
    written_ms: int


class EventRecorder:
    """For one cluster, from any of its threads. An event that can't be written is lost: it is also in the log."""

    def __init__(self, api: Api, clock: LoopClock, log: Callable[[dict[str, object]], None]) -> None:
        self._api, self._clock, self._log = api, clock, log
        self._lock = threading.Lock()
        self._recorded: dict[str, _RecordedEvent] = {}
        self._tokens, self._filled_ms = float(BURST), clock.monotonic_ms()

    def record(
        self, about: Json, reason: str, message: str, *, warning: bool = False, kind: ObjectKind = DELAY_CLUSTER
    ) -> None:
        """about: the object's metadata."""
        namespace, name = str(about["namespace"]), str(about["name"])
        what = kind.name.removeprefix("Delay").lower()
        event: dict[str, object] = {"event": "said", what: f"{namespace}/{name}", "reason": reason, "message": message}
        self._log({**event, "level": LogLevel.WARNING if warning else LogLevel.INFO})
        try:
            with self._lock:
                self._write(about, kind, reason, message[:MAX_MESSAGE_CHARS], "Warning" if warning else "Normal")
        except ApiError as error:
            self._log({"event": "event-not-written", what: f"{namespace}/{name}", "error": str(error)})

    def _write(self, about: Json, of: ObjectKind, reason: str, message: str, kind: str) -> None:
        now_ms = self._clock.monotonic_ms()
        self._recorded = {key: it for key, it in self._recorded.items() if now_ms - it.recorded_ms < SAME_MS}
        object_name = f"{about['namespace']}/{about['name']}"
        key = hashlib.sha256(f"{object_name}\n{of.name}\n{kind}\n{reason}\n{message}".encode()).hexdigest()
        recorded = self._recorded.get(key)
        stamp = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = str(about["namespace"])
        if recorded is not None:
            recorded.count, recorded.recorded_ms = recorded.count + 1, now_ms
            if now_ms - recorded.written_ms >= AGAIN_MS:
                recorded.written_ms = now_ms
                self._api.merge(EVENT, namespace, recorded.name, {"count": recorded.count, "lastTimestamp": stamp})
            return
        if not self._may_write(now_ms):
            return
        name = event_name(str(about["name"]), secrets.token_hex(8))
        self._recorded[key] = _RecordedEvent(name, 1, now_ms, now_ms)
        involved = {"apiVersion": of.api_version, "kind": of.name, "namespace": namespace}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {**involved, "name": about["name"], "uid": about.get("uid", "")},
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": "",
        }
        self._api.create(EVENT, namespace, body)

    def _may_write(self, now_ms: int) -> bool:
        self._tokens = min(BURST, self._tokens + (now_ms - self._filled_ms) / REFILL_MS)
        self._filled_ms = now_ms
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
