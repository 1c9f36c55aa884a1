"""A demo worker: one consumer of the group in a process of its own, which writes down what it gets.

Each delivery is 32 bytes (demo.ledger.DELIVERY) appended to a file, before it is acknowledged. The worker ends when
its standard input does: so also when the demo is killed.
"""

import asyncio
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
from delayclient import Consumer, ReceivedBatch
from numpy.typing import NDArray

from demo.ledger import DELIVERY


def deliveries(batch: ReceivedBatch, received_ms: int) -> NDArray[np.void]:
    """One DELIVERY a message of the batch."""
    rows = np.zeros(len(batch), DELIVERY)
    rows["queue"] = batch.queue
    rows["seq"] = batch.seq
    rows["due_ms"] = batch.due_ms
    rows["received_ms"] = received_ms
    rows["key_hash"] = [zlib.crc32(message.key.encode()) for message in batch.decode()]
    return rows


async def work(endpoint: str, topic: str, group: str, path: Path) -> None:
    """Receives until standard input ends. Raises DelayError."""
    loop = asyncio.get_running_loop()
    async with Consumer(endpoint, topic, group) as consumer:
        threading.Thread(target=_stop_at_end_of_input, args=(loop, consumer), daemon=True).start()
        with path.open("ab", buffering=0) as file:
            while (batch := await consumer.receive_batch()) is not None:
                file.write(deliveries(batch, time.time_ns() // 1_000_000).tobytes())
                batch.ack()


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, consumer: Consumer) -> None:
    sys.stdin.buffer.read()
    loop.call_soon_threadsafe(consumer.stop)


if __name__ == "__main__":
    endpoint, topic, group, path = sys.argv[1:]
    asyncio.run(work(endpoint, topic, group, Path(path)))
