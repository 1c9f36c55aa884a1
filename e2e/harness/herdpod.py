"""The program of a pod that sends herds, each due at one instant, and receives them.

Its argument is JSON: endpoint, topic, and herds, a list of [due, messages] with due in ms since 1970 UTC. It prints
`{"sent": true}`, then one JSON line with each herd's messages that came, that came twice or early, and how late.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np
from delayclient import Consumer, Producer

CHUNK = 2_000
PATIENCE_S = 120.0  # after the last herd's due


async def main() -> None:
    settings = json.loads(sys.argv[1])
    endpoint, topic, herds = settings["endpoint"], settings["topic"], settings["herds"]
    async with Producer(endpoint) as producer:
        for due, count in herds:
            for start in range(0, count, CHUNK):
                names = [f"{due}-{number}" for number in range(start, min(start + CHUNK, count))]
                await producer.send_batch(topic, [name.encode() for name in names], due_ms=due, keys=names)
    print(json.dumps({"sent": True}), flush=True)
    print(json.dumps({"herds": await received(endpoint, topic, herds)}), flush=True)


async def received(endpoint: str, topic: str, herds: list[list[int]]) -> list[dict[str, Any]]:
    came: dict[int, list[Any]] = {due: [] for due, _ in herds}
    seen: dict[int, set[bytes]] = {due: set() for due, _ in herds}
    end_s = max(came) / 1_000 + PATIENCE_S
    async with Consumer(endpoint, topic, "herd") as consumer:
        while time.time() < end_s and any(len(seen[due]) < count for due, count in herds):
            batch = await consumer.receive_batch(timeout_s=1.0)
            if batch is None:
                continue
            now_ms = int(time.time() * 1_000)
            bodies = batch.bodies()
            for due in came:
                of_herd = np.flatnonzero(batch.due_ms == due)
                came[due].append(np.full(len(of_herd), now_ms - due))
                seen[due].update(bodies[row] for row in of_herd)
            await batch.ack()
        await consumer.flush()
    found = []
    for due, count in herds:
        late = np.concatenate(came[due]) if came[due] else np.zeros(0, np.int64)
        p50, p99, most = (int(np.percentile(late, it)) if len(late) else -1 for it in (50, 99, 100))
        found.append({
            "messages": count, "missing": count - len(seen[due]), "again": len(late) - len(seen[due]),
            "early": int((late < 0).sum()), "late_ms": {"p50": p50, "p99": p99, "max": most},
        })  # fmt: skip
    return found


if __name__ == "__main__":
    asyncio.run(main())
