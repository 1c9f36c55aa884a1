"""Receiving in the background while a workload goes on: every message goes into the ledger as it comes, and is
acknowledged."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from delayapi.proto.delay.v1 import delay_pb2
from delayclient.consumer.consumer import Consumer
from delayclient.errors import NotFound
from delayclient.routing.routing import Cluster

from benchmarks.workloads.ledger import DeliveryRecord
from benchmarks.workloads.load import Progress, now_ms
from benchmarks.workloads.target import Target

POLL_S = 0.1
Receiver: TypeAlias = asyncio.Task[None]
"""Works until it is cancelled."""

QUIET_S = 0.5  # after the last message: time for a duplicate to show


@asynccontextmanager
async def receiving(target: Target, ledger: DeliveryRecord, *, each: bool = False) -> AsyncIterator[Receiver]:
    """A consumer of a new group at work, in columns or a message at a time."""
    group = f"bench-{secrets.token_hex(4)}"
    async with Cluster(target.endpoint, **target.access) as cluster:
        async with Consumer(cluster, target.topic, group, from_end=True) as consumer:
            work = asyncio.create_task(_each(consumer, ledger) if each else _columns(consumer, ledger))
            try:
                await _joined(cluster, target.topic, group)
                yield work
            finally:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
        if target.own is None:  # a group left behind would keep what is released from going
            await _delete(cluster, target.topic, group)


async def delivered(
    receiver: Receiver, ledger: DeliveryRecord, messages: int, timeout_s: float, done: Progress
) -> None:
    """Returns once the `messages` that are stored have come, whatever else comes of the topic, and a little more time
    has passed; or at the timeout. Raises what ended the receiver."""
    deadline_s = time.monotonic() + timeout_s
    told = 0
    while (told < messages or ledger.missing) and time.monotonic() < deadline_s:
        await _left_alone(receiver, POLL_S)
        done(ledger.delivered - told)
        told = ledger.delivered
    await _left_alone(receiver, QUIET_S)


async def _left_alone(receiver: Receiver, seconds: float) -> None:
    await asyncio.wait({receiver}, timeout=seconds)
    if receiver.done():
        receiver.result()


async def _columns(consumer: Consumer, ledger: DeliveryRecord) -> None:
    while (batch := await consumer.receive_batch()) is not None:
        ledger.received(batch.queue, batch.seq, batch.due_ms, now_ms())
        await batch.ack()


async def _each(consumer: Consumer, ledger: DeliveryRecord) -> None:
    take = ledger.one_by_one.append
    async for message in consumer:
        take((message.queue, message.seq, message.due_ms, now_ms(), len(message.body)))
        message.ack()


async def _joined(cluster: Cluster, topic: str, group: str) -> None:
    """Return once the group is there on every queue: it gets what is released from then on."""
    for queue in (await cluster.route(topic)).queues:
        request = delay_pb2.DescribeGroupRequest(topic=topic, queue=queue.queue, group=group)
        while True:
            try:
                await cluster.call(
                    "DescribeGroup", topic, queue.queue, request, delay_pb2.DescribeGroupResponse.FromString
                )
                break
            except NotFound:
                await asyncio.sleep(0.01)


async def _delete(cluster: Cluster, topic: str, group: str) -> None:
    for queue in (await cluster.route(topic)).queues:
        request = delay_pb2.DeleteGroupRequest(topic=topic, queue=queue.queue, group=group)
        await cluster.call("DeleteGroup", topic, queue.queue, request, delay_pb2.DeleteGroupResponse.FromString)
