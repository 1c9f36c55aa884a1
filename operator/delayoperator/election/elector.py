"""Holds the Lease of the election while it can, in a thread of its own, or waits for it.

    election = LeaderElection(client, "delaycluster-system/delaycluster", identity, on_change, on_rollback, log)
    election.start(); election.tenure(); election.release()

The Lease has `spec.holderIdentity`, `renewTime` and so on, as client-go's: `kubectl get lease` shows who leads. A
standby watches the object, so that it hears at once of a leader that gives it up.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from delayregistry.kube.client import ApiRejected, KubeClient, RequestUnanswered, WatchStream

from delayoperator.election.lease import (
    ElectionLease,
    ElectionTimes,
    LeaseSight,
    LeaseStep,
    Tenure,
    next_step,
)
from delayoperator.kube.api import FIELD_MANAGER
from delayoperator.kube.kinds import LEASE

Json = dict[str, Any]
Log = Callable[[Mapping[str, object]], None]
BY = {"fieldManager": FIELD_MANAGER}
AGAIN_S = 0.25  # after a request or a watch that failed


def boot_ms() -> int:
    """CLOCK_BOOTTIME: steady, and counts suspended time too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def process_identity() -> str:
    """Of this process, never of one after it: the pod's name and some random digits."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


def read_lease(body: Json) -> ElectionLease:
    """Whatever somebody has written into it: what can't be read is as if it were not there."""
    spec = body.get("spec") or {}
    changes, seconds = spec.get("leaseTransitions"), spec.get("leaseDurationSeconds")
    return ElectionLease(
        str(body["metadata"]["resourceVersion"]),
        str(spec.get("holderIdentity") or ""),
        changes if isinstance(changes, int) else 0,
        seconds * 1000 if isinstance(seconds, int) else 0,
    )


class LeaderElection:
    """client: with no fence of its own, since it is what the fence asks; stays the caller's to close.

    place: the Lease, as NAMESPACE/NAME. on_change: called from the thread after a tenure began or ended. on_rollback:
    likewise once the API server has an older state than before.
    """

    def __init__(
        self,
        client: KubeClient,
        place: str,
        identity: str,
        on_change: Callable[[], object],
        on_rollback: Callable[[], object],
        log: Log,
        times: ElectionTimes | None = None,
        monotonic_ms: Callable[[], int] = boot_ms,
    ) -> None:
        self.identity = identity
        self._client, self._on_change, self._on_rollback, self._log = client, on_change, on_rollback, log
        self._namespace, _, self._name = place.partition("/")
        self._times = times or ElectionTimes()
        self._now_ms = monotonic_ms
        self._sight, self._tenure = LeaseSight(), Tenure(self._times)
        self._lease: ElectionLease | None = None  # as it was seen last
        self._newest = 0  # the version that the API server had last
        self._told: str | None = None  # what the log was told last
        self.fault: str | None = None  # why nothing is known of the Lease
        self._stop = threading.Event()
        self._stream: WatchStream | None = None
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tenure(self) -> int | None:
        """The number of this tenure, from any thread; None: this process does not lead and must write nothing."""
        return self._tenure.current(self._now_ms())

    def release(self) -> None:
        """Stops acting, and then gives the Lease up, if it is ours: a standby need not wait for its end."""
        self._stop.set()
        self._tenure.lost()
        stream = self._stream
        if stream is not None:
            stream.abort()
        if self._thread.is_alive():
            self._thread.join(3 * self._request_s)
        self._tenure.lost()
        lease = self._lease
        if lease is None or lease.holder != self.identity:
            return
        try:
            self._write(lease, {"holderIdentity": "", "renewTime": _now()})
        except (RequestUnanswered, ApiRejected) as error:  # the standby waits for its end, then
            self._log({"event": "lead-not-given-up", "error": str(error)})
            return
        self._log({"event": "lead-given-up", "identity": self.identity})

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        acted = False
        while not self._stop.is_set():
            try:
                pause_s = self._turn()
            except Exception as error:  # no answer, or a fault of ours: it must not end the thread
                self._failed(error)
                pause_s = AGAIN_S
            acts = self.tenure() is not None
            if acted and not acts:
                self._log({"event": "operator-lost-the-lead", "identity": self.identity})
                self._on_change()
            acted = acts
            self._stop.wait(pause_s)

    def _turn(self) -> float:
        """One look or one renewal. How long to wait before the next, in seconds."""
        lease = self._lease
        if lease is None or lease.holder != self.identity:
            lease = self._read()
        unchanged_ms = 0 if lease is None else self._sight.unchanged_ms(lease.version, self._now_ms())
        step = next_step(self.identity, lease, unchanged_ms, self._times)
        if lease is not None and step is LeaseStep.WAIT:
            self._tenure.lost()
            self.fault = None
            self._say_waiting(lease.holder)
            silent_s = max(1.5 * self._times.renew_ms, self._times.lease_ms - unchanged_ms) / 1000
            return 0.0 if self._follow(lease, silent_s) else AGAIN_S
        sent_ms = self._now_ms()
        self._hold(lease, step)
        self.fault = None
        if not self._stop.is_set() and self._tenure.renewed(sent_ms, self._now_ms()):
            self._told = None
            self._log({"event": "operator-leads", "identity": self.identity, "reason": step.value})
            self._on_change()
        return max(0.0, (sent_ms + self._times.renew_ms - self._now_ms()) / 1000)

    def _read(self) -> ElectionLease | None:
        try:
            body = self._client.get(LEASE.path(self._namespace, self._name), read_s=self._request_s)
        except ApiRejected as error:
            if error.missing != self._name:
                raise
            self._lease = None
        else:
            self._lease = self._checked(read_lease(body))
        return self._lease

    def _checked(self, lease: ElectionLease) -> ElectionLease:
        """As the API server has it now. Versions only grow, unless etcd was restored from an older state."""
        version, newest = int(lease.version), self._newest
        self._newest = version
        if version < newest:
            self._log({"event": "registry-went-back", "version": version, "newest": newest})
            self._on_rollback()
        return lease

    def _hold(self, lease: ElectionLease | None, step: LeaseStep) -> None:
        """Writes that it is ours. Raises RequestUnanswered, ApiRejected: then it may be anybody's, and is read anew."""
        spec: Json = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.lease_seconds,
            "renewTime": _now(),
        }
        if step.takes:
            changes = 0 if lease is None else lease.changes + 1
            spec |= {"acquireTime": spec["renewTime"], "leaseTransitions": changes}
        self._lease = None  # until the answer is there
        if lease is None:
            meta = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta, "spec": spec}
            answer = self._client.post(LEASE.path(self._namespace), body, BY, self._request_s)
            self._lease = self._checked(read_lease(answer))
        else:
            self._lease = self._checked(self._write(lease, spec))

    def _write(self, lease: ElectionLease, spec: Json) -> ElectionLease:
        patch = {"metadata": {"resourceVersion": lease.version}, "spec": spec}
        path = LEASE.path(self._namespace, self._name)
        return read_lease(self._client.merge(path, patch, BY, self._request_s))

    def _follow(self, lease: ElectionLease, silent_s: float) -> bool:
        """Looks on until there is something to do, or nothing is heard for so long. What it is, is decided from a read.
        False: the watch is over, and nothing is known."""
        query = {"fieldSelector": f"metadata.name={self._name}", "resourceVersion": lease.version}
        seen, stream = lease, None
        try:
            self._stream = stream = self._client.watch(LEASE.path(self._namespace), query, silent_s)
            for event in stream if not self._stop.is_set() else ():
                if event.get("type") in ("ADDED", "MODIFIED"):
                    seen = read_lease(event["object"])
                    self._newest = max(self._newest, int(seen.version))
                elif event.get("type") != "BOOKMARK":
                    return event.get("type") == "DELETED"
                unchanged_ms = self._sight.unchanged_ms(seen.version, self._now_ms())
                if next_step(self.identity, seen, unchanged_ms, self._times) is not LeaseStep.WAIT:
                    return True
                self._say_waiting(seen.holder)
        except (RequestUnanswered, ApiRejected):
            pass  # silent, broken, or refused: then the Lease is read again and again
        finally:
            self._stream = None
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.close()
        return False

    @property
    def _request_s(self) -> float:
        return self._times.renew_ms / 1000

    def _say_waiting(self, holder: str) -> None:
        if holder != self._told:
            self._told = holder
            self._log({"event": "operator-stands-by", "identity": self.identity, "leader": holder})

    def _failed(self, error: Exception) -> None:
        self._lease = None
        self.fault = f"Lease {self._name} of namespace {self._namespace}: {type(error).__name__}: {error}"
        if isinstance(error, ApiRejected) and error.code == 403:
            self.fault += f"; the Role {self._name}-leader of this release's chart has the rights to it"
        if self.fault != self._told:  # told once, not with each try
            self._told = self.fault
            self._log({"event": "lead-unknown", "error": self.fault})


def _now() -> str:
    """For people: nobody decides by it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
