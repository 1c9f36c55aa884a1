"""A sink to Kafka, with the real broker, which Maven fetches: `DELAY_KAFKA_TESTS=yes`; it needs Java and Maven."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from delayclient.admin.admin import Admin
from delayclient.producer.producer import Producer
from delaylocal import LocalCluster

from benchmarks.peers.processes import build
from tests.sinks.support.processes import SinkProcess

pytestmark = pytest.mark.skipif(not os.environ.get("DELAY_KAFKA_TESTS"), reason="$DELAY_KAFKA_TESTS asks for Kafka")
POM = Path(__file__).parents[1] / "support" / "kafka" / "pom.xml"
MAX_MESSAGE_BYTES = 10_000
CLUSTER_ID = "ZGVsYXlzaW5rLXRlc3RzMA"
PASSWORD = "once-upon-a-time"
TOPIC = "shop.due"


@dataclass(frozen=True, slots=True)
class Kafka:
    """One broker, which is its own controller. plain, sasl: its listeners' ports."""

    folder: Path
    class_path: str
    plain: int
    sasl: int
    controller: int

    def format(self) -> None:
        self.folder.mkdir(parents=True)
        self._settings.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{self.controller}\ncontroller.listener.names=CONTROLLER\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.plain},SASL_PLAINTEXT://127.0.0.1:{self.sasl},"
            f"CONTROLLER://127.0.0.1:{self.controller}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config="
            "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
            f"log.dirs={self.folder}/data\nauto.create.topics.enable=false\nmessage.max.bytes={MAX_MESSAGE_BYTES}\n"
            "offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
        )
        scram = f"SCRAM-SHA-512=[name=delay,password={PASSWORD}]"
        words = ["format", "-t", CLUSTER_ID, "-c", str(self._settings), "--add-scram", scram]
        subprocess.run(self._java("kafka.tools.StorageTool", *words), check=True, capture_output=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until it is killed."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(self._java("kafka.Kafka", str(self._settings)), stdout=log, stderr=log)
        try:
            self._await_ready()
            yield
        finally:
            process.kill()
            process.wait()

    def _await_ready(self, timeout_s: float = 120) -> None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.plain}", "log_level": 0})
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                admin.list_topics(timeout=2)
            except KafkaException:
                assert time.monotonic() < end_s, (self.folder / "log").read_text()[-3_000:]
            else:
                return

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.plain}"})
        for made in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():
            made.result(30)

    def read(self, count: int, group: str, timeout_s: float = 60) -> list[Any]:
        """All records of the topic, once there are so many, and what comes in two seconds after."""
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{self.plain}", "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        found: list[Any] = []
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            record = consumer.poll(0.2)
            if record is not None and record.error() is None:
                found.append(record)
            if len(found) >= count:
                end_s = min(end_s, time.monotonic() + 2)
        consumer.close()
        return found

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, program: str, *words: str) -> list[str]:
        return ["java", "-Xmx384m", "-cp", self.class_path, program, *words]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("maven") / "kafka.classpath"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    maven = shutil.which("mvn")
    assert maven, "Maven is missing"
    build([maven, "--batch-mode", "--quiet", "--file", POM, *goal], "Maven can't fetch Kafka")
    return found.read_text().strip()


@pytest.fixture
def kafka(tmp_path: Path, class_path: str) -> Kafka:
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [it.getsockname()[1] for it in free]
    made = Kafka(tmp_path / "kafka", class_path, *ports)
    made.format()
    return made


def test_each_message_is_stored_though_kafka_is_killed_meanwhile(
    cluster: LocalCluster, topic: str, tmp_path: Path, kafka: Kafka
) -> None:
    """Tried by SASL; nobody listens at first, then the broker is killed in the middle."""
    count = 300
    (tmp_path / "kafka-secret").mkdir()
    secret = tmp_path / "kafka-secret" / "password"
    secret.write_text("not it")
    sasl = {"username": "delay", "password": {"secret": {"name": "kafka-secret", "key": "password"}}}
    spec = {
        "topic": topic,
        "kafka": {"servers": [f"127.0.0.1:{kafka.sasl}"], "topic": TOPIC, "sasl": sasl, "timeout": "5s"},
    }

    async def main() -> None:
        async with Producer(cluster.endpoints[0]) as producer:
            first = await producer.send_batch(topic, [b"%d" % at for at in range(count)], keys=["k"] * count)
            async with SinkProcess(tmp_path, cluster.endpoints[0], "k", spec) as sink:
                await sink.until(state="NotReachable")
                with kafka.running():
                    async with asyncio.timeout(120):  # by the wrong password
                        while True:
                            if "Authentication failed" in (await sink.report())["message"]:
                                break
                            await asyncio.sleep(0.2)
                    secret.write_text(PASSWORD)
                    kafka.make_topic()
                    report = await sink.until(120, state="Delivering")
                    await asyncio.to_thread(kafka.read, 50, "first")
                second = await producer.send_batch(topic, [b"more"] * 100)
                await asyncio.sleep(2)
                with kafka.running():
                    report = await sink.until(240, delivered=count + 100)
                    assert report["dead"] == 0
                    found = await asyncio.to_thread(kafka.read, count + 100, "second")
            headers = [dict(record.headers()) for record in found]
            ids = [it["ce_id"].decode() for it in headers]
            assert {*ids} == {*first.handles, *second.handles}
            one = found[ids.index(first.handles[7])]
            assert (one.key(), one.value()) == (b"k", b"7")
            assert headers[ids.index(first.handles[7])]["ce_specversion"] == b"1.0"
            assert len(ids) - len({*ids}) <= 32, "only what was under way at the kill may be there twice"

    asyncio.run(main())


def test_what_kafka_never_takes_is_a_dead_letter_and_a_topic_that_is_not_there_is_said(
    cluster: LocalCluster, topic: str, tmp_path: Path, kafka: Kafka
) -> None:
    spec = {"topic": topic, "kafka": {"servers": [f"127.0.0.1:{kafka.plain}"], "topic": TOPIC, "timeout": "5s"}}

    async def main() -> None:
        async with Producer(cluster.endpoints[0]) as producer:
            with kafka.running():
                await producer.send(topic, b"x" * (MAX_MESSAGE_BYTES + 1))
                async with SinkProcess(tmp_path, cluster.endpoints[0], "k", spec) as sink:
                    report = await sink.until(state="NotReachable")
                    assert f"topic {TOPIC}: " in report["message"]
                    kafka.make_topic()
                    report = await sink.until(dead=1)
                    assert report["failures"][-1]["why"].startswith("MSG_SIZE_TOO_LARGE: ")
                    await producer.send(topic, b"small")
                    await sink.until(delivered=1)
                    assert await sink.end() == 0
            async with Admin(cluster.endpoints[0]) as admin:
                assert sum(it.dead for it in await admin.describe_group(topic, "k")) == 1

    asyncio.run(main())
