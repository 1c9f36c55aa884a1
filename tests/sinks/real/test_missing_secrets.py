"""A sink whose secret is not there yet: it says so, and delivers once the secret has come. Real processes and nodes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster

from tests.sinks.support.nats_keys import NatsOperator
from tests.sinks.support.processes import SinkProcess
from tests.sinks.support.receiver import Receiver, status

MARK = "once-upon-a-time"
NAMED = {"secret": {"name": "mine", "key": "the.key"}}
SIGNING = "whsec_" + base64.b64encode(MARK.encode() * 2).decode()
CA = trustme.CA().cert_pem.bytes().decode()
NATS = NatsOperator()
SECRETS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "signing": ({"http": {"signing": NAMED}}, MARK, "does not begin with whsec_", SIGNING),
    "authorization": ({"http": {"authorization": NAMED}}, f"{MARK}\x01", "no header may have", f"Bearer {MARK}"),
    "ca": ({"http": {"ca": NAMED}}, MARK, "no certificates in PEM", CA),
    "nats": ({"nats": {"servers": ["nats://127.0.0.1:9"], "credentials": NAMED}}, MARK, "JWT", NATS.credentials),
    "kafka-ca": ({"kafka": {"servers": ["127.0.0.1:9"], "tls": True, "ca": NAMED}}, MARK, "PEM", CA),
    "kafka-password": (
        {"kafka": {"servers": ["127.0.0.1:9"], "sasl": {"username": "u", "password": NAMED}}}, " ", "is empty", MARK,
    ),
}  # fmt: skip
"""Name -> target, what is malformed, what is said of it, what is good."""


def test_a_sink_mends_itself_when_its_secret_comes(
    cluster: LocalCluster, free_topics: Iterator[str], tmp_path: Path
) -> None:
    topics = {name: next(free_topics) for name in SECRETS}  # in one, a late group misses what the others are done with

    async def one(name: str, receiver: Receiver) -> None:
        target, malformed, says, good = SECRETS[name]
        (kind,) = target
        ours = {"url": receiver.url, "allow": ["127.0.0.1"]} if kind == "http" else {"timeout": "1s"}
        folder = tmp_path / name
        async with SinkProcess(
            folder, cluster.endpoints[0], name, {"topic": topics[name], kind: {**ours, **target[kind]}}
        ) as it:
            path = folder / "mine/the.key"
            await it.until(
                state="SecretUnusable", says=f"{path} is missing: make the key 'the.key' of the Secret 'mine'"
            )
            path.parent.mkdir()
            path.with_name("another").write_text(good)  # the Secret has come, without the key
            await it.until(state="SecretUnusable", says="is missing")
            path.write_text(malformed)
            await it.until(state="SecretUnusable", says=says)
            path.write_text(good)
            if kind == "http":
                await it.until(state="Delivering", delivered=1)
            else:  # nobody listens there: the secret is taken
                await it.until(state="NotReachable")
            shown = it.log_text() + await it.get("/status") + await it.get("/metrics")
            secret = [MARK, *(line for line in good.split() if len(line) > 20 and not line.startswith("-"))]
            assert [word for word in secret if word in shown] == []
            assert await it.end() == 0

    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver, Producer(cluster.endpoints[0]) as producer:
            for topic in topics.values():
                await producer.send(topic, b"{}")
            await asyncio.gather(*(one(name, receiver) for name in SECRETS))
            sent = [request.headers for request in receiver.requests]
            assert sorted(it.get("Authorization", "") for it in sent) == ["", "", f"Bearer {MARK}"]
            assert sum("webhook-signature" in it for it in sent) == 1

    asyncio.run(main())
