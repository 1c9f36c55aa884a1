"""The example programs of the official clients: what their producers send, their consumers receive and acknowledge.

What a client knows and this cluster does not, its examples are refused: FIFO, transactions, priorities, lite topics.
DELAY_ROCKETMQ_TESTS=all builds Rust's client too; support/examples.py says where Python's and Node.js's examples are.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from delayclient import Tls
from delayclient.sync import SyncAdmin
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from benchmarks.peers.processes import Missing
from tests.doors.rocketmq.support import examples
from tests.doors.rocketmq.support.examples import Examples, said
from tests.doors.rocketmq.support.judges import wait
from tests.doors.rocketmq.support.nodes import EVERYTHING

TOPIC, SECONDS = "examples", 120.0


@dataclass(frozen=True, slots=True)
class Tried:
    """names: of topics, which become TOPIC. consumers: the group of each. producers: what each says once its message is
    stored, refused: or that it can't be. messages: that all of them send. once: a consumer that receives
    once, and is started again until nothing is left."""

    prepare: Callable[[Sequence[str], Mapping[str, str], Path], Examples]
    address: str
    names: Sequence[str]
    consumers: Mapping[str, str]
    producers: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)
    messages: int = 2
    once: str = ""
    secured: bool = False


TRIED = {
    "java": Tried(  # which has TLS and an access key
        examples.java, "foobar.com:8080",
        [f"your{kind}Topic" for kind in ("Normal", "Delay", "Fifo", "Priority", "Transaction", "")],
        {"PushConsumerExample": "yourConsumerGroup", "SimpleConsumerExample": "yourConsumerGroup"},
        dict.fromkeys(
            ("ProducerNormalMessageExample", "ProducerDelayMessageExample", "AsyncProducerExample"),
            "Send message successfully",
        ),
        dict.fromkeys(
            ("ProducerFifoMessageExample", "ProducerPriorityMessageExample", "ProducerTransactionMessageExample"),
            "accept message types",
        ),
        messages=3, secured=True,
    ),
    "python": Tried(
        examples.python, "foobar.com:8080",
        ('"topic"', '"delay-topic"', '"fifo-test-topic"', '"priority-topic"'),
        {"push_consumer_example": "consumer-group", "simple_consumer_example": "consumer-group"},
        dict.fromkeys(("normal_producer_example", "delay_producer_example", "async_producer_example"), "success"),
        dict.fromkeys(("fifo_producer_example", "priority_producer_example", "transaction_producer_example"), "raise"),
        messages=21,
    ),
    "node": Tried(
        examples.node, "127.0.0.1:8080", ("TopicTestForNormal", "time-topic", "TopicTestForFifo"),
        {"PushConsumerQuickStart": "GID-time", "SimpleConsumer": "nodejs-unittest-group"},
        {"ProducerNormalMessageExample": "SendReceipt", "ProducerDelayMessageExample": "sent successfully"},
        {"ProducerFifoMessageExample": "Error"}, once="SimpleConsumer",
    ),
    "rust": Tried(
        examples.rust, "localhost:8081", ("delay_test", "test_topic"), {"simple_consumer": "SimpleConsumerGroup"},
        {"producer": "success", "delay_producer": "success"},
        {"fifo_producer": "failed"}, once="simple_consumer",
    ),
}  # fmt: skip


@pytest.mark.timeout(1_200)  # Rust's client is compiled
@pytest.mark.parametrize("language", [*TRIED] if EVERYTHING else ["java"])
def test_examples_of_the_client_run_as_they_are_published(tmp_path: Path, language: str) -> None:
    tried = TRIED[language]
    (tmp_path / "made").mkdir()
    with LocalCluster(tmp_path / "cluster", nodes=1, topics=[TopicSpec(TOPIC, 2)], secure=tried.secured) as cluster:
        cluster.wait_ready()
        words = {tried.address: cluster.endpoints[0], **dict.fromkeys(tried.names, TOPIC)}
        words = {old: f'"{new}"' if old[0] == '"' else new for old, new in words.items()}
        access: dict[str, Any] = {}
        if cluster.keys is not None:
            words["yourAccessKey"] = cluster.keys.token_file.read_text().strip()
            access = {"tls": Tls(cluster.keys.ca), "token_file": cluster.keys.token_file}
        try:
            made = tried.prepare([*tried.consumers, *tried.producers, *tried.refused], words, tmp_path / "made")
        except Missing as error:
            pytest.skip(f"the examples in {language}: {error}")
        with ExitStack() as running, SyncAdmin(cluster.endpoints[0], **access) as admin:

            def start(name: str) -> subprocess.Popen[bytes]:
                return running.enter_context(made.running(name, tmp_path / name))

            for name in [*tried.producers, *tried.refused]:
                start(name)
            for name, word in {**tried.producers, **tried.refused}.items():
                told = partial(said, tmp_path / name)
                wait(lambda of=told, text=word: text in of(), word, SECONDS, told)
            consumers = {name: start(name) for name in tried.consumers}
            end = time.monotonic() + SECONDS
            while not all(has_done(admin, group, tried.messages) for group in tried.consumers.values()):
                assert time.monotonic() < end, (admin.groups(TOPIC), [said(tmp_path / name) for name in consumers])
                time.sleep(5)
                if tried.once:
                    consumers[tried.once].kill()
                    consumers[tried.once] = start(tried.once)


def has_done(admin: SyncAdmin, group: str, messages: int) -> bool:
    """Whether the group has acknowledged so many, and no other."""
    queues = [one for one in admin.groups(TOPIC) if one.group == group]
    return sum(one.end_offset for one in queues) == messages and not any(one.lag or one.dead for one in queues)
