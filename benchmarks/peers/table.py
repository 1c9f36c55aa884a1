"""The table of all runs: medians over the rounds, and ratios to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.peers.loads import POSTGRES, Found, Load, Run

STORE = ("System", "Load", "requests/s", "p50 ms", "p99 ms", "server CPU us", "client CPU us", f"to {POSTGRES}")
LATE = (
    "System",
    "Rate",
    "sent/s",
    "late p50 ms",
    "p99 ms",
    "max ms",
    "server CPU us",
    "client CPU us",
    "early",
    "twice",
)

KEPT = 0.98
"""A system that takes less of the rate is not late under the same load as the others."""


def ratios(runs: Sequence[Run], system: str, load: Load) -> list[float]:
    """Requests/s of the system to PostgreSQL's under the same load, for each round that has both."""
    base = {run.round: run.found.per_second for run in runs if run.system == POSTGRES and run.load == load}
    return [
        run.found.per_second / base[run.round]
        for run in runs
        if run.system == system and run.load == load and base.get(run.round)
    ]


def lines(runs: Sequence[Run]) -> Iterator[str]:
    """A Markdown table: a load after the other, the systems in the order in which they came first."""
    late = any(run.load.rate for run in runs)
    yield _row(LATE if late else STORE)
    yield _row(["---", "---", *["---:"] * (len(LATE if late else STORE) - 2)])
    for load in dict.fromkeys(run.load for run in runs):
        for system in dict.fromkeys(run.system for run in runs if run.load == load):
            found = [run.found for run in runs if run.load == load and run.system == system]
            cells = _late(found, load.rate) if late else [*_store(found), _ratio(ratios(runs, system, load))]
            yield _row([system, load.label, *cells])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _store(found: Sequence[Found]) -> list[str]:
    return [
        f"{median(one.per_second for one in found):,.0f}",
        f"{median(one.p50_ms for one in found):,.2f}",
        f"{median(one.p99_ms for one in found):,.2f}",
        *_cpu(found),
    ]


def _late(found: Sequence[Found], rate: int) -> list[str]:
    sent = median(one.per_second for one in found)
    return [
        f"{sent:,.0f}{' (too slow)' if sent < KEPT * rate else ''}",
        f"{median(one.p50_ms for one in found):,.2f}",
        f"{median(one.p99_ms for one in found):,.2f}",
        f"{max(one.max_ms for one in found):,.1f}",
        *_cpu(found),
        f"{sum(one.early for one in found):,}",
        f"{sum(one.twice for one in found):,}",
    ]


def _cpu(found: Sequence[Found]) -> list[str]:
    return [
        f"{median(one.server_cpu_us for one in found):,.0f}",
        f"{median(one.client_cpu_us for one in found):,.0f}",
    ]


def _ratio(found: Sequence[float]) -> str:
    if not found:
        return ""
    spread = f" ({min(found):.2f} .. {max(found):.2f})" if len(found) > 1 else ""
    return f"{median(found):.2f}{spread}"
