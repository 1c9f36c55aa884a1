"""Loads, and what one run of one load on one system found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POSTGRES = "PostgreSQL"
"""The system that the others are compared with."""

LATE_CALLERS, LATE_CONNECTIONS = 64, 8


@dataclass(frozen=True, slots=True)
class Load:
    """`callers` share `connections`. window: requests that each keeps unanswered on a stream of its own; 0: it makes
    calls. rate: messages a second, consumed when due; 0: as many as are answered, none of them due."""

    callers: int
    connections: int
    window: int = 0
    rate: int = 0

    @property
    def label(self) -> str:
        if self.rate:
            return f"{self.rate:,}/s"
        if self.window:
            return f"{self.callers} streams, window {self.window}"
        if self.callers == self.connections:
            return f"{self.callers} connection{'s' if self.callers > 1 else ''}"
        return f"{self.callers} callers on {self.connections}"


@dataclass(frozen=True, slots=True)
class Found:
    """p50, p99, max: ms from a request to its answer; with a rate: from due to delivery. cpu: us of processor time a
    request, of the server's processes and of the client."""

    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cpu_us: float
    client_cpu_us: float
    early: int = 0
    missing: int = 0
    twice: int = 0

    @classmethod
    def of(cls, told: Mapping[str, float], server_cpu_s: float) -> Found:
        """From the client's last line."""
        requests = max(1, told["requests"])
        return cls(
            per_second=told["requests"] / told["seconds"],
            p50_ms=told["p50_ms"],
            p99_ms=told["p99_ms"],
            max_ms=told["max_ms"],
            server_cpu_us=server_cpu_s / requests * 1e6,
            client_cpu_us=told["client_cpu_s"] / requests * 1e6,
            early=int(told.get("early", 0)),
            missing=int(told.get("missing", 0)),
            twice=int(told.get("twice", 0)),
        )


@dataclass(frozen=True, slots=True)
class Run:
    round: int
    system: str
    load: Load
    found: Found


def chosen(conns: list[int], callers: int, shared: int, streams: int, window: int, late_rate: int | None) -> list[Load]:
    """The loads of a run. callers, streams 0: without that load. late_rate: that alone."""
    if late_rate is not None:
        return [Load(LATE_CALLERS, LATE_CONNECTIONS, rate=late_rate)]
    loads = [Load(count, count) for count in conns]
    if callers:
        loads.append(Load(callers, min(shared, callers)))
    if streams:
        loads.append(Load(streams, streams, window))
    return loads


def wrong(acknowledged: int, stored: int, found: Found) -> str | None:
    """What a system did that it must not do: a sentence, or `None`."""
    if acknowledged != stored:
        return f"{acknowledged:,} messages should be there, and {stored:,} are"
    if found.missing or found.early:
        return f"{found.missing:,} messages were not delivered, {found.early:,} came early"
    return None
