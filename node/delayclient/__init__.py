"""DelayCluster's client: Producer, Consumer, Reader and Admin, async, with a sync face in `delayclient.sync`.

    async with Producer("127.0.0.1:7070") as producer:
        sent = await producer.send("orders", b"pay now", delay="30m", key="42")
        many = await producer.send_batch("orders", bodies, delay_ms=delays)

    async with Consumer("127.0.0.1:7070", "orders", "billing") as consumer:
        async for message in consumer:
            ...
            await message.ack()

    async with Admin("127.0.0.1:7070") as admin:
        outcomes = await admin.cancel([sent.handle])

Names are loaded on first use, so that `delayctl --help` does not pay for gRPC and NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayapi.credentials import Tls as Tls
    from delayapi.handle import BadHandle as BadHandle
    from delayapi.handle import Handle as Handle

    from delayclient.admin.admin import Admin as Admin
    from delayclient.admin.schedules import Schedule as Schedule
    from delayclient.consumer.consumer import Consumer as Consumer
    from delayclient.consumer.reader import Reader as Reader
    from delayclient.consumer.received import ReceivedBatch as ReceivedBatch
    from delayclient.consumer.received import ReceivedMessage as ReceivedMessage
    from delayclient.errors import DelayError as DelayError
    from delayclient.producer.producer import Producer as Producer
    from delayclient.producer.results import BatchResult as BatchResult
    from delayclient.producer.results import SendResult as SendResult
    from delayclient.routing.routing import Cluster as Cluster

_HOME = {
    "Admin": "admin.admin",
    "BadHandle": "delayapi.handle",
    "BatchResult": "producer.results",
    "Cluster": "routing.routing",
    "Consumer": "consumer.consumer",
    "DelayError": "errors",
    "Handle": "delayapi.handle",
    "Producer": "producer.producer",
    "Reader": "consumer.reader",
    "ReceivedBatch": "consumer.received",
    "ReceivedMessage": "consumer.received",
    "Schedule": "admin.schedules",
    "SendResult": "producer.results",
    "Tls": "delayapi.credentials",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        home = _HOME[name]
        return getattr(import_module(home if home.startswith("delayapi.") else f"delayclient.{home}"), name)
    raise AttributeError(f"module 'delayclient' has no attribute {name!r}")
