"""Sinks as processes, real nodes, and a receiver that fails, hangs and lies by a seed.

DELAY_SINK_DELIVERIES=20000 makes the large sample, DELAY_SINK_SEED another one.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster
from standardwebhooks import Webhook

from tests.sinks.support import receiver as receivers
from tests.sinks.support.processes import SinkProcess
from tests.sinks.support.receiver import Answer, Receiver, Request, drip, status

COUNT = int(os.environ.get("DELAY_SINK_DELIVERIES", "150"))
PATIENCE_S = 120 + COUNT / 10
SEED = int(os.environ.get("DELAY_SINK_SEED", "21"))
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
SECOND = "whsec_" + base64.b64encode(b"t" * 32).decode()
TIMEOUT_MS = 3_000
CONCURRENCY = 8
RETRY_AFTER_S = 2
LATER = status(503, Retry_After=str(RETRY_AFTER_S))
LIES: list[Answer] = [
    status(500, b"why not"),
    status(404),
    status(302, Location="/elsewhere"),
    LATER,
    status(429),
    status(200, b"fine", X_Lie="1"),
    receivers.cut,
    receivers.garbage,
    receivers.half,
    drip(b"HTTP/1.1 500 No\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 65_536, 0),
]
FIRST_TEN = [b"%d" % at for at in range(10)]


class SeededLiar:
    """What is done about each attempt: by the seed, the message and the attempt's number. At most two lies a message.

    What it says with 2xx it takes: so delivered is what it has said, and each message must come to that. The first ten
    messages are told to come later, whatever the seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.attempts: dict[str, list[Request]] = defaultdict(list)
        self.told_later: set[tuple[str, int]] = set()  # message and attempt
        self.killed_ms = 0
        self.taken: set[str] = set()
        self.verified = 0
        self.done = asyncio.Event()

    def choose(self, request: Request) -> Answer:
        before = self.attempts[request.id]
        before.append(request)
        headers = {name.lower(): value for name, value in request.headers.items()}
        for secret in (SECRET, SECOND):  # now: what is old is refused
            Webhook(secret).verify(request.body, headers)
        self.verified += 1
        draw = random.Random(f"{self.seed} {request.id} {len(before)}")
        if len(before) == 1 and request.body in FIRST_TEN:
            answer = LATER
        elif len(before) <= 2 and draw.random() < 0.3:
            answer = receivers.hang if draw.random() < 0.05 else draw.choice(LIES)
        else:
            answer = status(204)
        if answer is LATER:
            self.told_later.add((request.id, int(request.headers["ce-delayattempt"])))
        if answer is LIES[5] or len(before) > 2 or answer not in (*LIES, receivers.hang):
            self.taken.add(request.id)
            if len(self.taken) == COUNT:
                self.done.set()
        return answer


def spec_of(topic: str, url: str, **more: Any) -> dict[str, Any]:
    http = {"url": url, "timeout": f"{TIMEOUT_MS}ms", "allow": ["127.0.0.1"], **more.pop("http", {})}
    return {"topic": topic, "http": http, **more}


@pytest.mark.timeout(300 + COUNT / 4)
def test_each_message_arrives_whatever_the_receiver_does(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    """Two processes share the group; one is killed in the middle, and another takes its place."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/key").write_text(f"{SECRET} {SECOND}")
    liar = SeededLiar(SEED)

    async def main() -> None:
        async with Receiver(liar.choose) as receiver, Producer(cluster.endpoints[0]) as producer:
            signing = {"signing": {"secret": {"name": "hook", "key": "key"}}}
            spec = spec_of(topic, receiver.url, maxConcurrency=CONCURRENCY, http=signing)
            sinks = [SinkProcess(tmp_path, cluster.endpoints[0], "s", spec) for _ in range(3)]
            sent = await producer.send_batch(topic, [b"%d" % at for at in range(COUNT)], delay_ms=1_000)
            async with sinks[0], sinks[1], sinks[2]:
                await receiver.wait_for(COUNT // 4, PATIENCE_S)
                await sinks[0].end(signal.SIGKILL)
                liar.killed_ms = time.time_ns() // 1_000_000
                await asyncio.wait_for(liar.done.wait(), PATIENCE_S)
                assert liar.taken == set(sent.handles), f"seed {SEED}"
                assert [await it.end() for it in sinks[1:]] == [0, 0]
            async with Admin(cluster.endpoints[0]) as admin:
                assert sum(it.dead for it in await admin.describe_group(topic, "s")) == 0

    asyncio.run(main())
    assert liar.verified == sum(len(it) for it in liar.attempts.values())
    assert len(liar.told_later) >= len(FIRST_TEN)
    gaps = sum(check_attempts(handle, attempts, liar) for handle, attempts in liar.attempts.items())
    assert gaps <= 3 * CONCURRENCY, "the killed process held no more than that"


def check_attempts(handle: str, attempts: list[Request], liar: SeededLiar) -> int:
    """Numbered without a gap, and none before its time: the group's backoff is 1 s, 2 s, ..., or Retry-After.

    Gives back 1 if a number is left out because the killed process had the message, else 0.
    """
    gaps, numbers = 0, []
    for request in attempts:
        event = from_http_event(HTTPMessage(dict(request.headers), request.body))
        assert event.get_id() == handle
        assert event.get_time() is not None
        assert request.began_ms >= int(event.get_time().timestamp() * 1000), "not before it is due"
        numbers.append(int(request.headers["ce-delayattempt"]))
    begins_ms = [request.began_ms for request in attempts]
    for before, before_ms, number, began_ms in zip([0, *numbers], [0, *begins_ms], numbers, begins_ms, strict=False):
        if number == before + 2 and before_ms < liar.killed_ms < began_ms:
            gaps = 1  # the attempt between these was the killed process's, on its way
        else:
            assert number == before + 1, f"seed {SEED}: {handle} has the attempts {numbers}"
    for earlier, later in pairwise(attempts):
        number = int(earlier.headers["ce-delayattempt"])
        waited_ms = later.began_ms - earlier.began_ms
        least_ms = 1_000 * 2 ** (number - 1)
        if (handle, number) in liar.told_later:
            least_ms = max(least_ms, RETRY_AFTER_S * 1_000)
        assert waited_ms >= least_ms, f"seed {SEED}: {handle} came again after {waited_ms} ms, not {least_ms}"
    return gaps


def test_dead_letters_say_status_and_answer(
    cluster: LocalCluster, topic: str, free_topics: Iterator[str], tmp_path: Path
) -> None:
    # A new group begins with the oldest message that is kept: the second sink has a topic of its own.
    second = next(free_topics)

    async def main() -> None:
        async with (
            Receiver(lambda _: status(422, b"no such order \xff" + b"x" * 5_000)) as receiver,
            Producer(cluster.endpoints[0]) as producer,
            Consumer(cluster.endpoints[0], "dead", "reader") as reader,
        ):
            spec = spec_of(topic, receiver.url, deadLetters={"topic": "dead", "maxAttempts": 2})
            sent = await producer.send(topic, b"body", key="k", tag="t", properties={"a": "b"})
            async with SinkProcess(tmp_path, cluster.endpoints[0], "dying", spec) as sink:
                letter = await reader.receive(60)
                assert letter is not None
                assert (letter.body, letter.key, letter.tag) == (b"body", "k", "t")
                properties = letter.properties
                assert properties.pop("dead-answer").startswith("no such order \ufffdxxx")
                assert properties == {
                    "a": "b", "dead-sink": "dying", "dead-message": sent.handle, "dead-attempts": "2",
                    "dead-status": "422", "dead-reason": "status 422",
                }  # fmt: skip
                assert len(receiver.requests) == 2
                report = await sink.until(dead=1)
                assert (report["failures"][-1]["status"], report["failed"]) == (422, 2)
                letter.ack()
                assert await sink.end() == 0
            # Without a topic for them they stay in the group.
            plain = spec_of(second, receiver.url, deadLetters={"maxAttempts": 1})
            await producer.send(second, b"second")
            async with SinkProcess(tmp_path, cluster.endpoints[0], "plain", plain) as sink:
                await sink.until(dead=1)
                (line,) = [it for it in sink.events() if it["event"] == "sink-dead-letter"]
                assert (line["status"], line["attempts"], line["level"]) == (422, 1, "warning")
                assert await sink.end() == 0
            async with Admin(cluster.endpoints[0]) as admin:
                dead = [it async for it in admin.dead_letters(second, "plain")]
                assert [it.body for it in dead] == [b"second"]
                reason = "status 422: no such order \ufffd" + "x" * 497
                assert dead[0].dead_reason == reason, "a cluster that is a minute old writes format 5"

    asyncio.run(main())


def test_410_pauses_the_sink_and_costs_no_attempt(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Receiver(lambda _: status(410, b"moved out")) as receiver,
            Producer(cluster.endpoints[0]) as producer,
        ):
            spec = spec_of(topic, receiver.url, maxConcurrency=1)
            await producer.send_batch(topic, [b"x"] * 20)
            async with SinkProcess(tmp_path, cluster.endpoints[0], "gone", spec) as sink:
                report = await sink.until(state="Gone")
                assert "410" in report["message"]
                assert "moved out" in report["message"]
                asked = len(receiver.requests)
                await asyncio.sleep(3)
                assert len(receiver.requests) == asked == 1
                assert 'delay_sink_state{delay_sink_state="Gone",sink="gone"} 1.0' in await sink.get("/metrics")
                assert await sink.end() == 0
            receiver.choose = lambda _: status(200)
            async with SinkProcess(tmp_path, cluster.endpoints[0], "gone", spec):
                first = receiver.requests[0].id
                while not (again := [it for it in receiver.requests[1:] if it.id == first]):
                    await receiver.wait_for(len(receiver.requests) + 1)
            assert again[0].headers["ce-delayattempt"] == "1"

    asyncio.run(main())


def test_an_open_circuit_spares_receiver_and_attempts(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    """A receiver that is down: one probe at a time, and what waits loses no attempt."""

    async def main() -> None:
        async with Receiver(lambda _: status(500)) as receiver, Producer(cluster.endpoints[0]) as producer:
            await producer.send_batch(topic, [b"x"] * 200)
            async with SinkProcess(tmp_path, cluster.endpoints[0], "s", spec_of(topic, receiver.url)) as sink:
                report = await sink.until(state="CircuitOpen")
                assert "deliveries in a row failed" in report["message"]
                await asyncio.sleep(4)
                assert len(receiver.requests) < 40
                receiver.choose = lambda _: status(200)
                await sink.until(180, state="Delivering", delivered=200)
                assert (await sink.report())["dead"] == 0

    asyncio.run(main())


def test_a_host_that_is_down_costs_its_messages_no_attempt_unasked(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """Where messages name their receivers: what its circuit holds back was not tried, and others are served."""
    count = 60

    async def main() -> None:
        async with (
            Receiver(lambda _: status(500)) as down,
            Receiver(lambda _: status(200)) as up,
            Producer(cluster.endpoints[0]) as producer,
        ):
            for receiver in (down, up):  # those for the one that is down come first
                whose = {"webhook-url": receiver.url}
                await asyncio.gather(*(producer.send(topic, b"x", properties=whose) for _ in range(count)))
            spec = {"topic": topic, "maxConcurrency": 4, "http": {"fromMessage": ["Url"], "allow": ["127.0.0.1"]}}
            async with SinkProcess(tmp_path, cluster.endpoints[0], "s", spec) as sink:
                await up.wait_for(count)
                await down.wait_for(13)  # ten failures, and probes
                down.choose = lambda _: status(200)
                report = await sink.until(240, delivered=2 * count)
                assert (report["dead"], report["failed"]) == (0, len(down.requests) - count)
            last = {it.id: int(it.headers["ce-delayattempt"]) for it in down.requests}
            assert sum(last.values()) == len(down.requests), "an attempt is a request"

    asyncio.run(main())


def test_sigterm_ends_what_is_under_way_first(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    held = asyncio.Event()

    async def slowly(request: Request, writer: asyncio.StreamWriter) -> None:
        held.set()
        await asyncio.sleep(1)
        await status(200)(request, writer)

    async def main() -> None:
        async with Receiver(lambda _: slowly) as receiver, Producer(cluster.endpoints[0]) as producer:
            await producer.send_batch(topic, [b"x"] * 100)
            spec = spec_of(topic, receiver.url, maxConcurrency=4, http={"timeout": "30s"})
            sink = SinkProcess(tmp_path, cluster.endpoints[0], "s", spec)
            async with sink:
                await asyncio.wait_for(held.wait(), 60)
                assert await sink.end() == 0
            stopped = sink.events()[-1]
            assert stopped["event"] == "sink-stopped"
            assert stopped["delivered"] == len({it.id for it in receiver.requests}) > 0
            async with Admin(cluster.endpoints[0]) as admin:
                groups = await admin.describe_group(topic, "s")
                assert sum(it.lag for it in groups) == 100 - stopped["delivered"]

    asyncio.run(main())


def test_a_refusal_by_the_cluster_is_said_and_tried_again(cluster: LocalCluster, tmp_path: Path) -> None:
    async def main() -> None:
        spec = spec_of("no-such-topic", "http://127.0.0.1:9/")
        async with SinkProcess(tmp_path, cluster.endpoints[0], "s", spec) as sink:
            report = await sink.until(state="ClusterRefuses")
            assert "no-such-topic" in report["message"]
            assert await sink.get("/healthz") == "ok\n"

    asyncio.run(main())
