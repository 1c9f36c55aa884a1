"""W3: a steady flow of messages with due times random to the millisecond: how late does each come."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from delayclient.producer.producer import Producer
from delayclient.producer.results import SendResult

from benchmarks.workloads.ledger import DeliveryRecord, Verdict
from benchmarks.workloads.load import LoadGenerator, Progress, now_ms
from benchmarks.workloads.receive import delivered, receiving
from benchmarks.workloads.target import Target

DELAY_MS = (1_000, 2_000)
PACE_S = 0.01
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class W3Settings:
    """`rate` messages/s are sent, each due 1 .. 2 s later, and come out at the same rate."""

    messages: int
    body_bytes: int
    rate: int


async def run(settings: W3Settings, target: Target, done: Progress) -> Verdict:
    ledger = DeliveryRecord()
    load = LoadGenerator(settings.body_bytes, 1)
    body = bytes(load.bodies(1)[0])
    async with Producer(target.endpoint, **target.access) as producer, receiving(target, ledger, each=True) as receiver:
        futures: list[asyncio.Future[SendResult]] = []
        began_s = time.monotonic()
        while len(futures) < settings.messages:
            owed = min(settings.messages, int((time.monotonic() - began_s) * settings.rate) + 1) - len(futures)
            if owed > 0:
                now = int(now_ms())
                for delay_ms in load.spread_ms(owed, *DELAY_MS).tolist():
                    futures.append(producer.send(target.topic, body, at=now + delay_ms))
            await asyncio.sleep(PACE_S)
        for stored in await asyncio.gather(*futures):
            ledger.stored_one(stored.queue, stored.seq)
        await delivered(receiver, ledger, settings.messages, DELAY_MS[1] / 1000 + GRACE_S, done)
    return ledger.verdict()
