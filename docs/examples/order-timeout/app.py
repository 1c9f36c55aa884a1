"""An order that is not paid in 30 minutes is cancelled. Two processes, and no timer in either of them.

    app.py shop      takes orders: each sends one message to itself, due when the time to pay is over. A payment cancels
                     that message. What the cancel answers is the truth: no other system has to be asked.
    app.py timeouts  receives what was never cancelled, when it is due, and cancels those orders.

Settings (environment): DELAY_ENDPOINT, a node or the cluster's Service; TOPIC; PAYMENT_TIMEOUT, such as 30m;
PAID_SHARE of the orders are paid; ORDER_EVERY_S, seconds between two orders; ORDERS to take in all, 0: no end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable

from delayapi.durations import parse_duration_ms
from delayclient import Admin, Consumer, DelayError, Producer
from delayclient.admin.views import Outcome

ENDPOINT = os.environ.get("DELAY_ENDPOINT", "127.0.0.1:7070")
TOPIC = os.environ.get("TOPIC", "order-timeouts")
PAYMENT_TIMEOUT = os.environ.get("PAYMENT_TIMEOUT", "30m")
PAID_SHARE = float(os.environ.get("PAID_SHARE", "0.9"))
ORDER_EVERY_S = float(os.environ.get("ORDER_EVERY_S", "1"))
ORDERS = int(os.environ.get("ORDERS", "0"))


def say(event: str, order: str, **more: object) -> None:
    print(json.dumps({"event": event, "order": order, **more}), flush=True)


async def take(order: str, producer: Producer, admin: Admin) -> None:
    """One order, from being placed to being paid, or not."""
    try:
        sent = await producer.send(TOPIC, json.dumps({"order": order}), delay=PAYMENT_TIMEOUT, key=order)
        # A real shop writes the handle into the order's row: it is a short text, and it works from any process.
        say("placed", order, handle=sent.handle)
        if random.random() < PAID_SHARE:
            await asyncio.sleep(random.uniform(0.0, parse_duration_ms(PAYMENT_TIMEOUT) / 1000))
            await pay(order, sent.handle, admin)
    except DelayError as error:  # after half a minute of trying again: the customer is told, the shop goes on
        say("failed", order, because=str(error))


async def pay(order: str, handle: str, admin: Admin) -> None:
    """The customer has paid: either the timeout is called off for ever, or it was first."""
    (outcome,) = await admin.cancel([handle])
    if outcome in (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED):
        say("paid", order)
    else:  # TOO_LATE: the order is cancelled already, or about to be
        say("refunded", order, because=outcome.name)


async def shop() -> None:
    async with Producer(ENDPOINT) as producer, Admin(ENDPOINT) as admin, asyncio.TaskGroup() as orders:
        for number in itertools.count(1):
            orders.create_task(take(f"order-{uuid.uuid4().hex[:12]}", producer, admin))
            if number == ORDERS:
                break
            await asyncio.sleep(ORDER_EVERY_S)


async def timeouts() -> None:
    """Delivery is at least once, so this may see an order twice: cancelling it a second time has to change nothing."""
    async with Consumer(ENDPOINT, TOPIC, "cancel-unpaid") as consumer:
        async for message in consumer:
            order = json.loads(message.body)["order"]
            say("cancelled", order, late_ms=message.received_ms - message.due_ms, attempt=message.attempt)
            message.ack()


async def main(part: Callable[[], Awaitable[None]]) -> None:
    """Runs until it is done or told to end; what was sent and acknowledged is then on its way."""
    task = asyncio.ensure_future(part())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    parts = {"shop": shop, "timeouts": timeouts}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        sys.exit(f"usage: app.py {'|'.join(parts)}")
    try:
        asyncio.run(main(parts[sys.argv[1]]))
    except DelayError as error:  # no cluster for half a minute: Kubernetes starts this again
        sys.exit(f"app.py: {error}")
