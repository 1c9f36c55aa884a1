"""W2: the herd: many messages due at one instant, all delivered to this one process."""

from __future__ import annotations

from dataclasses import dataclass

from delayclient.producer.producer import Producer

from benchmarks.workloads.ledger import DeliveryRecord, Verdict
from benchmarks.workloads.load import FILL_BATCH, LoadGenerator, Progress, batches, in_flight, now_ms
from benchmarks.workloads.receive import delivered, receiving
from benchmarks.workloads.target import Target

MIN_LEAD_S = 3.0
STORED_PER_S = 100_000  # what we count on while the herd is gathered


class TooSlow(TimeoutError):
    """The workload did not get ready in time; says what to change."""


@dataclass(frozen=True, slots=True)
class W2Settings:
    """each: through the Consumer, a message at a time; else receive_batch(), columns."""

    messages: int
    body_bytes: int
    each: bool
    timeout_seconds: float


async def run(settings: W2Settings, target: Target, done: Progress) -> Verdict:
    ledger = DeliveryRecord()
    load = LoadGenerator(settings.body_bytes, FILL_BATCH)
    lead_ms = (MIN_LEAD_S + settings.messages / STORED_PER_S) * 1000
    async with (
        Producer(target.endpoint, **target.access) as producer,
        receiving(target, ledger, each=settings.each) as receiver,
    ):
        due_ms = int(now_ms() + lead_ms)

        async def send(n: int) -> None:
            ledger.stored(await producer.send_batch(target.topic, load.bodies(n), due_ms=due_ms))

        await in_flight(batches(settings.messages, FILL_BATCH), send, 2)
        if now_ms() > due_ms - 1000:
            raise TooSlow(
                f"storing {settings.messages} messages took all of the {lead_ms / 1000:.0f} s until their due"
            )
        timeout_s = (due_ms - now_ms()) / 1000 + settings.timeout_seconds
        await delivered(receiver, ledger, settings.messages, timeout_s, done)
    return ledger.verdict()
