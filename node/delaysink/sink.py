"""One process of a sink: takes messages as a consumer of its group, delivers each, and settles it by what came of that.

    wait for the receiver's pace -> receive -> deliver -> ack | nack with a backoff | dead letter

Nothing is held while there is something to wait for: what failed goes back into the wheel, by a nack.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from delayapi.wirefields import WireError
from delayclient.consumer.consumer import Consumer
from delayclient.consumer.received import ReceivedMessage
from delayclient.errors import DelayError
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster

from delaysink.events import OutgoingMessage
from delaysink.figures import SinkFigures
from delaysink.outcome import Attempt, Verdict, backoff_ms
from delaysink.pace import Pace
from delaysink.secret_file import BadSecret
from delaysink.settings import SinkSettings
from delaysink.target import SinkTarget

MAX_RECEIVERS: Final = 1_024
"""Whose pace is known at a time, where messages name receivers."""
INVISIBLE_MS: Final = 15_000
"""Extended while a delivery goes on: so long after this process was killed, another one has its messages."""
SPARE_S: Final = 60.0
"""How long a message stays this process's beyond the time-out of its delivery."""
AGAIN_S: Final = 5.0
"""After the cluster has refused, or a secret could not be read."""
LONGEST_BEHIND_S: Final = 5.0
"""How long a message waits at a time for the outcome of its receiver's probe."""
IDLE_S: Final = 1.0
KEPT_FAILURES: Final = 10

Log = Callable[[Mapping[str, object]], None]


class Sink:
    """Belongs to one event loop."""

    def __init__(self, settings: SinkSettings, target: SinkTarget, timeout_ms: int, cluster: Cluster, log: Log) -> None:
        self.figures = SinkFigures(settings.name)
        self._settings, self._target, self._cluster, self._log = settings, target, cluster, log
        self._lease_ms = timeout_ms + int(SPARE_S * 1_000)
        self._max_attempts = settings.max_attempts
        self._pace = Pace(settings.max_concurrency)  # the sink's one receiver
        self._paces: OrderedDict[str, Pace] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._stopped = asyncio.Event()
        self._returned: list[ReceivedMessage] = []  # given back, which costs no attempt, when no more are taken
        self._producer: Producer | None = None
        self._failures: deque[dict[str, Any]] = deque(maxlen=KEPT_FAILURES)

    async def run(self) -> None:
        """Until stop(). Then it ends what is under way."""
        if self._settings.paused:
            self._say("Paused", "spec.paused")
            await self._stopped.wait()
            return
        try:
            while not self._stopped.is_set():
                try:
                    await self._target.open()
                    await self._consume()
                except (BadSecret, OSError) as error:
                    self._say("SecretUnusable" if isinstance(error, BadSecret) else "NotReachable", str(error))
                except DelayError as error:
                    self._say("ClusterRefuses", str(error))
                await self._sleep(math.inf if self.figures.state == "Gone" else AGAIN_S)
        finally:
            if self._producer is not None:
                await self._producer.close()
            await self._target.close()

    def stop(self) -> None:
        self._stopped.set()
        self._ended.set()

    def report(self) -> dict[str, Any]:
        """What this process says of itself; the names are public (docs/webhooks.md)."""
        paces = [self._pace, *self._paces.values()]
        return {
            "sink": self._settings.name,
            "topic": self._settings.topic,
            "group": self._settings.group,
            "state": self.figures.state,
            "message": self.figures.message,
            "sinceMs": self.figures.since_ms,
            **self.figures.counts(),
            "concurrency": self._pace.limit,
            "inFlight": len(self._running),
            "openCircuits": sum(it.is_open for it in paces),
            "failures": list(self._failures),
        }

    async def _consume(self) -> None:
        settings = self._settings
        topic = await self._cluster.route(settings.topic)
        self._max_attempts = min(settings.max_attempts, topic.max_attempts)
        consumer = Consumer(
            self._cluster, settings.topic, settings.group, tags=settings.tags,
            invisible=INVISIBLE_MS, prefetch=2 * settings.max_concurrency, max_lease=self._lease_ms,
        )  # fmt: skip
        self._say("Delivering", "")
        try:
            await self._take_from(consumer)
        finally:
            consumer.stop()
            while self._running:
                await asyncio.wait(self._running)
            await asyncio.sleep(0)  # the polls end, which would take at once what is given back
            for message in self._returned:
                message.give_back()
            self._returned.clear()
            await consumer.close()

    async def _take_from(self, consumer: Consumer) -> None:
        while not self._stopped.is_set() and self.figures.state != "Gone":
            self._tell_pace()
            self._ended.clear()
            if len(self._running) >= self._settings.max_concurrency:
                await self._ended.wait()
                continue
            wait_s = self._pace.wait_s(time.monotonic())
            if wait_s is None:
                await self._ended.wait()
            elif wait_s > 0:
                await self._sleep(wait_s)
            elif (message := await consumer.receive(IDLE_S)) is not None:
                self._begin(message)

    def _begin(self, message: ReceivedMessage) -> None:
        try:
            outgoing = outgoing_of(message)
        except WireError as error:
            fault = Attempt(Verdict.IMPOSSIBLE, f"its record can't be read: {error}")
            task = asyncio.create_task(self._give_up(message, None, fault))
        else:
            receiver = self._target.receiver(outgoing)
            # Its place is taken before the next one is asked for.
            way = self._wait_and_deliver(message, outgoing, receiver) if receiver else self._deliver(
                message, outgoing, self._pace, self._pace.start()
            )  # fmt: skip
            task = asyncio.create_task(way)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:  # a fault of ours: it comes again
            self._log({"event": "sink-failed", "sink": self._settings.name, "error": repr(error)})

    async def _wait_and_deliver(self, message: ReceivedMessage, outgoing: OutgoingMessage, receiver: str) -> None:
        """To a receiver that the message names, when it is that one's turn."""
        pace = self._pace_of(receiver)
        while (wait_s := pace.wait_s(time.monotonic())) is None:
            if pace.is_open:  # behind its probe, which may hang: the others' places are not kept from them meanwhile
                wait_s = min(pace.open_s, LONGEST_BEHIND_S)
                break
            self._ended.clear()
            await self._ended.wait()
        if self._stopped.is_set():
            self._returned.append(message)
        elif wait_s > 0:  # this receiver takes none now
            message.give_back(after=math.ceil(wait_s * 1_000))
        else:
            await self._deliver(message, outgoing, pace, pace.start())

    async def _deliver(self, message: ReceivedMessage, outgoing: OutgoingMessage, pace: Pace, started_in: int) -> None:
        started_s, attempt = time.monotonic(), Attempt(Verdict.FAILED, "it was broken off")
        try:
            attempt = await self._target.deliver(outgoing)
        finally:
            pace.ended(started_in, attempt.verdict, time.monotonic(), attempt.retry_after_ms)
        self.figures.count(attempt.verdict, time.monotonic() - started_s)
        await self._settle_by(message, outgoing, attempt)

    async def _settle_by(self, message: ReceivedMessage, outgoing: OutgoingMessage, attempt: Attempt) -> None:
        if attempt.verdict is Verdict.DELIVERED:
            message.ack()
            self.figures.late(time.time() - message.due_ms / 1_000)
            return
        self._note(outgoing, attempt)
        if attempt.verdict is Verdict.GONE:
            self._returned.append(message)
            if self.figures.state != "Gone":
                self._say("Gone", f"the receiver answered 410: it wants no more. {attempt.answer[:100]!r}")
        elif attempt.verdict is Verdict.IMPOSSIBLE or message.attempt >= self._max_attempts:
            await self._give_up(message, outgoing, attempt)
        else:
            message.nack(backoff_ms(message.attempt, attempt.retry_after_ms))

    async def _give_up(self, message: ReceivedMessage, outgoing: OutgoingMessage | None, attempt: Attempt) -> None:
        """Makes it a dead letter: in the topic for them with all that is known, or in the group."""
        answer = attempt.answer.decode("utf-8", "replace")
        self._log(
            {
                "event": "sink-dead-letter",
                "sink": self._settings.name,
                "message": message.handle,
                "attempts": message.attempt,
                "status": attempt.status,
                "why": attempt.says,
                "answer": answer,
            }
        )
        if self._settings.dead_letter_topic and outgoing is not None:
            more = {
                "dead-sink": self._settings.name,
                "dead-message": outgoing.id,
                "dead-attempts": str(outgoing.attempt),
                "dead-status": str(attempt.status),
                "dead-reason": attempt.says,
                "dead-answer": answer,
            }
            if self._producer is None:
                self._producer = Producer(self._cluster)
            try:
                await self._producer.send(
                    self._settings.dead_letter_topic, outgoing.body, key=outgoing.key, tag=outgoing.tag,
                    properties={**outgoing.properties, **more},
                )  # fmt: skip
            except (DelayError, ValueError) as error:
                self._log({"event": "sink-dead-letter-not-sent", "sink": self._settings.name, "error": str(error)})
                message.nack(dead=isinstance(error, ValueError), reason=attempt.reason)
                return
            message.ack()
        else:
            message.nack(dead=True, reason=attempt.reason)
        self.figures.dead()

    def _pace_of(self, receiver: str) -> Pace:
        if not receiver:
            return self._pace
        pace = self._paces.pop(receiver, None) or Pace(self._settings.max_concurrency)
        self._paces[receiver] = pace
        for name in list(self._paces)[: max(0, len(self._paces) - MAX_RECEIVERS)]:
            if not self._paces[name].in_flight:
                del self._paces[name]
        return pace

    def _tell_pace(self) -> None:
        if self._pace.is_open and self.figures.state == "Delivering":
            last = self._failures[-1]["why"] if self._failures else ""
            self._say(
                "CircuitOpen", f"{self._pace.failures} deliveries in a row failed; one is tried at a time. {last}"
            )
        elif not self._pace.is_open and self.figures.state in ("Delivering", "CircuitOpen"):
            self._say("Delivering", self._target.problem)

    def _note(self, outgoing: OutgoingMessage, attempt: Attempt) -> None:
        self._failures.append(
            {
                "atMs": int(time.time() * 1_000),
                "message": outgoing.id,
                "attempt": outgoing.attempt,
                "status": attempt.status,
                "why": attempt.says,
                "answer": attempt.answer.decode("utf-8", "replace"),
            }
        )

    def _say(self, state: str, message: str) -> None:
        if self.figures.say(state, message):
            self._log({"event": "sink-state", "sink": self._settings.name, "state": state, "message": message})

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), None if seconds == math.inf else seconds)


def outgoing_of(message: ReceivedMessage) -> OutgoingMessage:
    """Raises WireError."""
    record = message.record
    return OutgoingMessage(
        message.handle, message.due_ms, message.attempt, record.body, record.key, record.tag, dict(record.properties)
    )
