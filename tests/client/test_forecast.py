"""What comes, by the SDK: Admin.forecast, async and sync."""

from __future__ import annotations

import asyncio
import time

import pytest
from delayclient import errors, sync
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer


def test_a_forecast_has_arrivals_and_what_a_group_has_to_do(endpoint: str) -> None:
    topic = "coming"

    async def main() -> None:
        async with Producer(endpoint) as producer, Admin(endpoint) as admin:
            for number in range(20):
                await producer.send(topic, b"%d" % number, delay="2h" if number % 2 else "25m")
            await producer.send(topic, b"now", delay=0)
            (found,) = await admin.forecast(topic, "late", bucket="30m", buckets=5)
            assert (found.topic, found.bucket_ms, len(found.arrivals)) == (topic, 1_800_000, 5)
            assert abs(found.now_ms - time.time() * 1000) < 60_000
            assert found.arrivals.tolist() == [10, 10, 10, 20, 20]
            deadline = time.monotonic() + 30
            while (await admin.forecast(topic, "late"))[0].groups["late"].unseen != 1:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            async with Consumer(endpoint, topic, "late") as consumer:
                message = await anext(aiter(consumer))
                (found,) = await admin.forecast(topic, "late")
                assert (found.groups["late"].lag, found.groups["late"].in_flight) == (1, 1)
                await message.ack()
            assert topic in {one.topic for one in await admin.forecast()}
            with pytest.raises(errors.InvalidRequest, match="limit is 1,440"):
                await admin.forecast(topic, buckets=2_000)
            with pytest.raises(errors.NotFound):
                await admin.forecast("nothing")

    asyncio.run(main())
    with sync.Admin(endpoint) as admin:
        (found,) = admin.forecast(topic, buckets=150)
        assert (found.pending, found.arrivals[-1]) == (20, 20)
