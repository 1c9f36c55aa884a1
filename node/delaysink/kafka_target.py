"""Deliveries to a topic of Kafka: each message as a CloudEvent, acknowledged by all in-sync replicas.

The bytes go where the sink's own spec says, never where a message does: the fence has nothing to say here.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Final

from delaysink import events
from delaysink.events import OutgoingMessage, Undeliverable
from delaysink.outcome import Attempt, Verdict
from delaysink.secret_file import BadSecret, SecretFile
from delaysink.settings import BadSink, KafkaSettings

MAX_MESSAGE_BYTES: Final = 8 << 20
"""librdkafka's own limit; the broker's is what counts, and is told by its answer."""
_POLL_S: Final = 0.1
_SPARE_S: Final = 5.0
"""librdkafka ends a delivery by itself; this is for the case that it does not."""


class KafkaTarget:
    """A SinkTarget. Raises BadSink: confluent-kafka is not installed."""

    def __init__(self, settings: KafkaSettings, secrets: Path) -> None:
        try:
            import confluent_kafka
        except ModuleNotFoundError:
            raise BadSink("spec.kafka needs the package confluent-kafka: delaycluster[sinks]") from None
        self._kafka: Any = confluent_kafka
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1_000
        self._ca, self._password = (
            None if it is None else SecretFile(secrets / it.path) for it in (settings.ca, settings.password)
        )
        self._shown = ""  # the password that librdkafka has
        self._producer: Any = None
        self._ended = threading.Event()
        self._polling: threading.Thread | None = None

    @property
    def problem(self) -> str:
        if self._password is None or self._producer is None:
            return ""
        self._show_password()
        return self._password.problem

    def _show_password(self) -> None:
        """To brokers from now on, if it has changed."""
        assert self._password is not None
        password = self._password.read().strip()
        if password != self._shown:
            self._producer.set_sasl_credentials(self._settings.username, password)
            self._shown = password

    def check_secrets(self) -> None:
        for secret in (self._ca, self._password):
            if secret is not None:
                secret.read()

    async def open(self) -> None:
        if self._producer is not None:
            return
        configuration = self._configuration()
        said: list[str] = []
        try:
            producer = self._kafka.Producer({**configuration, "error_cb": lambda error: said.append(error.str())})
        except self._kafka.KafkaException as error:
            if self._ca is None:
                raise ConnectionError(f"spec.kafka: {error.args[0].str()}") from None
            raise BadSecret(f"{self._ca.path}: {error.args[0].str()}") from None
        settings, where = self._settings, f"Kafka at {', '.join(self._settings.servers)}"
        try:
            found = await asyncio.to_thread(producer.list_topics, settings.topic, self._timeout_s)
        except self._kafka.KafkaException as error:
            producer.poll(0)  # tells why
            why = said[-1] if said else error.args[0].str()
            raise ConnectionError(f"{where} within {self._timeout_s:g} s: {why}"[:500]) from None
        problem = found.topics[settings.topic].error
        if problem is not None:
            raise ConnectionError(f"{where}, topic {settings.topic}: {problem.str()}")
        self._producer, self._ended = producer, threading.Event()
        self._polling = threading.Thread(target=_poll, args=(producer, self._ended), name="kafka", daemon=True)
        self._polling.start()

    def receiver(self, message: OutgoingMessage) -> str:
        return ""

    async def deliver(self, message: OutgoingMessage) -> Attempt:
        try:
            kind = events.content_type(message, "application/octet-stream")
            found = events.attributes(message, self._settings.source, self._settings.type)
        except Undeliverable as error:
            return Attempt(Verdict.IMPOSSIBLE, str(error))
        # CloudEvents' binding for Kafka: names with ce_, values in plain UTF-8.
        texts = {f"ce_{name}": value for name, value in found.items()} | events.trace_context(message)
        headers = [(name, value.encode("utf-8", "replace")) for name, value in texts.items()]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(error: Any) -> None:
            if not answer.done():
                answer.set_result(error)

        def told(error: Any, _: Any) -> None:
            loop.call_soon_threadsafe(settle, error)

        try:
            self._producer.produce(
                self._settings.topic, message.body, key=message.key.encode() or None, on_delivery=told,
                headers=[*headers, ("content-type", kind.encode())],
            )  # fmt: skip
            problem = await asyncio.wait_for(answer, self._timeout_s + _SPARE_S)
        except BufferError:
            return Attempt(Verdict.OVERLOADED, "librdkafka's queue is full")
        except TimeoutError:
            return Attempt(Verdict.OVERLOADED, f"no answer within {self._timeout_s + _SPARE_S:g} s")
        except self._kafka.KafkaException as failure:
            problem = failure.args[0]
        return Attempt(Verdict.DELIVERED, "stored") if problem is None else self._failed(problem)

    async def close(self) -> None:
        """What is under way has ended."""
        self._ended.set()
        if self._polling is not None:
            await asyncio.to_thread(self._polling.join)
        self._polling = self._producer = None

    def _failed(self, error: Any) -> Attempt:
        codes, code, says = self._kafka.KafkaError, error.code(), f"{error.name()}: {error.str()}"[:500]
        if code in (codes.MSG_SIZE_TOO_LARGE, codes.INVALID_MSG_SIZE, codes.RECORD_LIST_TOO_LARGE):
            return Attempt(Verdict.IMPOSSIBLE, says)
        if code in (codes._MSG_TIMED_OUT, codes._TIMED_OUT, codes.THROTTLING_QUOTA_EXCEEDED):
            return Attempt(Verdict.OVERLOADED, says)
        return Attempt(Verdict.FAILED, says)

    def _configuration(self) -> dict[str, Any]:
        """librdkafka's. Raises BadSecret."""
        settings = self._settings
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join(settings.servers),
            "client.id": "delaysink",
            "acks": "all",
            "message.timeout.ms": settings.timeout_ms,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "linger.ms": 1,
            "logger": _Silent(),
        }
        if settings.tls:
            found["security.protocol"] = "SASL_SSL" if settings.mechanism else "SSL"
        elif settings.mechanism:
            found["security.protocol"] = "SASL_PLAINTEXT"
        if self._ca is not None:
            found["ssl.ca.pem"] = self._ca.read()
        if settings.mechanism:
            assert self._password is not None
            self._shown = self._password.read().strip()
            found |= {
                "sasl.mechanism": settings.mechanism.sasl_name, "sasl.username": settings.username,
                "sasl.password": self._shown,
            }  # fmt: skip
        return found


class _Silent:
    """In place of a logger: each delivery has its own error, and what open() met is the sink's state."""

    def log(self, *_: object) -> None:
        pass


def _poll(producer: Any, ended: threading.Event) -> None:
    """Calls back for what was delivered, in a thread of its own."""
    while not ended.is_set():
        producer.poll(_POLL_S)
