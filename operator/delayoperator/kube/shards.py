"""The control loop of one cluster in a thread of its own: no failover waits for an object that is slow to apply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from delayregistry.port import Registry

from delayoperator.cluster.ended_processes import EndedProcesses
from delayoperator.cluster.shard_summary import counted_of, some
from delayoperator.control_loop.loop import WRITERS, ControlLoop, Log, LoopClock, LoopPulse, new_uid
from delayoperator.control_loop.probe import GrpcProber, Prober
from delayoperator.plan import ObservedNode, OrphanReport
from delayoperator.plan.topology import NodeLocation

REFRESH_MS = 500  # between consistent lists of the leases
STUCK_S = 60.0  # each call of a round is bounded, and all of them together by far less
AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # after a fault of the loop's own


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """Counts of what the loop did since it was asked last: an event or two tell them, instead of one a shard."""

    created: int = 0
    terms: int = 0
    reasons: tuple[str, ...] = ()  # of the first terms

    def sentence(self) -> str:
        return f"{counted_of(self.terms, 'term')} began: {some(self.reasons)}"


class ShardsThread:
    """on_action: called after each action of the loop, from its threads. acts: whether it may write (ControlLoop).
    fault: why the loop does not run just now. The registry's opener calls look() with each of its changes."""

    def __init__(
        self,
        registry: Registry,
        log: Log,
        on_action: Callable[[], object],
        prober: Callable[[], Prober] = GrpcProber,
        clock: LoopClock | None = None,
        acts: Callable[[], bool] = lambda: True,
    ) -> None:
        self._registry, self._log, self._on_action, self._acts = registry, log, on_action, acts
        self._prober, self._clock = prober, clock or LoopClock()
        now_ms = self._clock.monotonic_ms()
        self._pulse = LoopPulse(now_ms, now_ms)
        self.failovers = 0
        self._endings = EndedProcesses()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._done = LoopCounts()
        self._loop: ControlLoop | None = None
        self._locations: Mapping[str, NodeLocation] = {}
        self.paused = False
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 15.0) -> None:
        """A loop that waits for the registry longer than this is left to end by itself: it writes nothing any more."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Something may be new: the next round begins at once."""
        self._wake.set()

    def last_look_s(self) -> float:
        """How long ago the leases were seen, at most a round ago when all is well."""
        return (self._clock.monotonic_ms() - self._pulse.looked_ms) / 1000

    def stuck(self) -> str | None:
        """Why it will fail over no shard any more. A loop that the API server gives no answer is not stuck."""
        if not self._thread.is_alive() and not self._stop.is_set():
            return "the thread of its failover loop has died"
        silent_s = (self._clock.monotonic_ms() - self._pulse.ended_round_ms) / 1000
        return f"a round of its failover loop has not ended for {silent_s:.0f} s" if silent_s > STUCK_S else None

    @property
    def nodes(self) -> Mapping[str, ObservedNode]:
        return {} if self._loop is None else self._loop.nodes

    @property
    def orphans(self) -> OrphanReport:
        return OrphanReport() if self._loop is None else self._loop.orphans

    @property
    def held_copies(self) -> Mapping[str, frozenset[int]]:
        return {} if self._loop is None else self._loop.held_copies

    @property
    def spare_copies(self) -> Mapping[str, int]:
        return {} if self._loop is None else self._loop.spare_copies

    def new_prober(self) -> Prober:
        """The caller's to close."""
        return self._prober()

    def ended(self, incarnations: list[str]) -> tuple[str, ...]:
        """These processes have ended for certain. Returns those that this is news of."""
        with self._lock:
            new = self._endings.add(incarnations)
        if new:
            self._wake.set()
        return new

    def locate(self, locations: Mapping[str, NodeLocation]) -> None:
        """By node id: where each pod runs."""
        if locations != self._locations:
            self._locations = locations
            self._wake.set()

    def drain_counts(self) -> LoopCounts:
        with self._lock:
            done, self._done = self._done, LoopCounts()
        return done

    def _run(self) -> None:
        faults = 0
        while not self._stop.is_set():
            self._loop = ControlLoop(
                self._registry,
                new_uid,
                self._log_event,
                clock=self._clock,
                prober=self._prober(),
                ended=self._endings.known,
                writers=WRITERS,
                paused=lambda: self.paused,
                acts=self._acts,
                locations=lambda: self._locations,
                pulse=self._pulse,
            )
            try:
                self._loop.run(self._stop, refresh_ms=REFRESH_MS, wake=self._wake, told=True)
                return
            except Exception as error:  # a fault of ours: said in the status, and the loop begins anew
                self.fault = f"{type(error).__name__}: {error}"
                self._log({"event": "control-loop-failed", "error": self.fault})
                self._on_action()
                self._stop.wait(AGAIN_S[min(faults, len(AGAIN_S) - 1)])
                faults += 1

    def _log_event(self, event: Mapping[str, object]) -> None:
        self._log(event)
        if event.get("outcome") != "done":
            return
        self.fault = None
        with self._lock:
            done = self._done
            created, terms = event.get("action") == "CreateShard", event.get("action") == "StartTerm"
            reasons = (*done.reasons, f"{event.get('shard')}: {event.get('reason')}")[:3] if terms else done.reasons
            self.failovers += event.get("failover") is True
            self._done = LoopCounts(done.created + created, done.terms + terms, reasons)
        self._on_action()
