"""What OpenTelemetry costs producers and consumers: W1 and W3 by turns without it, with 1 % of traces, with all.

    python -m benchmarks.tracing [--turns 3]

Each run is a process of its own with a node of its own. Spans go through OpenTelemetry's BatchSpanProcessor to an
exporter that drops them: what sending them costs besides is the exporter's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import click

BODY_BYTES, BATCH, QUEUES, STEADY = 256, 65_536, 8, 5_000
SHARES = {"without": None, "no provider": None, "1 % sampled": 0.01, "all sampled": 1.0}


def set_up(mode: str) -> None:
    """As a program does before it imports anything of the SDK."""
    if mode == "without":
        sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # what an import of a missing package finds
        return
    share = SHARES[mode]
    if share is None:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Dropped(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    trace.set_tracer_provider(provider)


async def measure() -> dict[str, float]:
    from benchmarks.workloads import w1, w3  # not before set_up()
    from benchmarks.workloads.target import own_node

    found = {}
    with own_node(QUEUES) as target:
        before_s = time.process_time()
        verdict = await w3.run(w3.W3Settings(STEADY, BODY_BYTES, 1_000), target, lambda _: None)
        found["W3, client us a message"] = (time.process_time() - before_s) / STEADY * 1e6
        found["W3, late p50 ms"], found["W3, late p99 ms"] = verdict.lateness_ms.p50, verdict.lateness_ms.p99
        for name, messages, batch in (("batches", 1_000_000, BATCH), ("one by one", 100_000, 0)):
            settings = w1.W1Settings(messages, BODY_BYTES, batch, w1.at_once(BATCH))
            result = await w1.run(settings, target, lambda _: None)
            found[f"W1 in {name}, messages/s"] = result.messages_per_second
            found[f"W1 in {name}, client us a message"] = result.client_cpu_us_per_message
    return found


@click.command(help=__doc__)
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True)
@click.option("--only", type=click.Choice(list(SHARES)), help="One run of this kind; its figures as JSON.")
def main(turns: int, only: str | None) -> None:
    if only is not None:
        set_up(only)
        click.echo(json.dumps(asyncio.run(measure())))
        return
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(turns):
        for mode in SHARES:
            command = [sys.executable, "-m", "benchmarks.tracing", "--only", mode]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for name, value in json.loads(answer).items():
                taken[name][mode].append(value)
    click.echo("| | " + " | ".join(SHARES) + " |\n|---|" + "---:|" * len(SHARES))
    for name, by_mode in taken.items():
        values = (median(by_mode[mode]) for mode in SHARES)
        click.echo(f"| {name} | " + " | ".join(f"{it:,.0f}" if it >= 1_000 else f"{it:.2f}" for it in values) + " |")


if __name__ == "__main__":
    main()
