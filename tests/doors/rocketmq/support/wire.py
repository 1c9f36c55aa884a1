"""A client of RocketMQ's protocol by grpcio alone: what a test says is what goes over the wire."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaynode.server.doors.rocketmq.messages import duration, timestamp

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CALL_SECONDS = 20.0
_NUMBERS = itertools.count(1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def message(topic: str, body: bytes = b"body", *, at_ms: int | None = None, tag: str = "", **system: Any) -> mq.Message:
    """A message as a producer sends it."""
    made = mq.Message(topic=mq.Resource(name=topic), body=body)
    made.system_properties.message_id = system.pop("message_id", f"01{next(_NUMBERS):032X}")
    made.system_properties.message_type = mq.NORMAL if at_ms is None else mq.DELAY
    made.system_properties.body_encoding = mq.IDENTITY
    if at_ms is not None:
        made.system_properties.delivery_timestamp.CopyFrom(timestamp(at_ms))
    if tag:
        made.system_properties.tag = tag
    for name, value in system.items():
        if isinstance(value, list):
            getattr(made.system_properties, name).extend(value)
        else:
            setattr(made.system_properties, name, value)
    return made


class Telemetry:
    """A stream of a client's settings, until it is closed."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]]) -> None:
        self._commands: queue.Queue[mq.TelemetryCommand | None] = queue.Queue()
        method = channel.stream_stream(
            SERVICE + "Telemetry", mq.TelemetryCommand.SerializeToString, mq.TelemetryCommand.FromString
        )
        self.call = method(iter(self._commands.get, None), metadata=metadata)

    def tell(self, settings: mq.Settings) -> mq.TelemetryCommand:
        self._commands.put(mq.TelemetryCommand(settings=settings))
        answer: mq.TelemetryCommand = next(self.call)
        return answer

    def close(self) -> None:
        self._commands.put(None)


class Rocket:
    """One client, of a connection and a client id of its own."""

    def __init__(self, endpoint: str, *, client_id: str | None = None, language: str = "JAVA", **more: str) -> None:
        self.endpoint = endpoint
        self.client_id = f"c{next(_NUMBERS)}" if client_id is None else client_id
        self.metadata = [("x-mq-language", language), *more.items()]
        if self.client_id:
            self.metadata.append(("x-mq-client-id", self.client_id))
        self.channel = grpc.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)])
        self._streams: list[Telemetry] = []

    def __enter__(self) -> Rocket:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self.channel.close()

    def call(self, name: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        answer = getattr(mq, f"{name}Response")
        method = self.channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer.FromString)
        return method(request, timeout=seconds, metadata=self.metadata)

    def telemetry(self) -> Telemetry:
        self._streams.append(Telemetry(self.channel, self.metadata))
        return self._streams[-1]

    def start(self, kind: Any, topic: str = "t", group: str = "") -> mq.TelemetryCommand:
        """Open Telemetry as a client of that kind does."""
        settings = mq.Settings(client_type=kind)
        if kind == mq.PRODUCER:
            settings.publishing.topics.add(name=topic)
        else:
            settings.subscription.group.name = group
            settings.subscription.subscriptions.add(topic=mq.Resource(name=topic))
        return self.telemetry().tell(settings)

    def route(self, topic: str) -> mq.QueryRouteResponse:
        answer: mq.QueryRouteResponse = self.call("QueryRoute", mq.QueryRouteRequest(topic=mq.Resource(name=topic)))
        return answer

    def send(self, *messages: mq.Message) -> mq.SendMessageResponse:
        answer: mq.SendMessageResponse = self.call("SendMessage", mq.SendMessageRequest(messages=messages))
        return answer

    def responses(
        self, topic: str, group: str, *, tags: str = "*", wait_ms: int = 5_000, lease_ms: int | None = 30_000,
        most: int = 32, filter_type: Any = mq.TAG, seconds: float = CALL_SECONDS,
    ) -> Iterator[mq.ReceiveMessageResponse]:  # fmt: skip
        """lease_ms None: it is renewed."""
        request = mq.ReceiveMessageRequest(
            group=mq.Resource(name=group), message_queue=mq.MessageQueue(topic=mq.Resource(name=topic)),
            filter_expression=mq.FilterExpression(type=filter_type, expression=tags), batch_size=most,
            auto_renew=lease_ms is None, long_polling_timeout=duration(wait_ms),
        )  # fmt: skip
        if lease_ms is not None:
            request.invisible_duration.CopyFrom(duration(lease_ms))
        method = self.channel.unary_stream(
            SERVICE + "ReceiveMessage", type(request).SerializeToString, mq.ReceiveMessageResponse.FromString
        )
        answers: Iterator[mq.ReceiveMessageResponse] = method(request, timeout=seconds, metadata=self.metadata)
        return answers

    def receive(self, topic: str, group: str, **asked: Any) -> list[mq.Message]:
        """The messages of one call that was answered well."""
        answers = list(self.responses(topic, group, **asked))
        assert answers[0].status.code in (mq.OK, mq.MESSAGE_NOT_FOUND), answers[0]
        return [one.message for one in answers if one.HasField("message")]

    def refused(self, topic: str, group: str, **asked: Any) -> Any:
        """The code of a call that was refused, which has nothing else in its answer."""
        (answer,) = self.responses(topic, group, **asked)
        return answer.status.code

    def ack(self, topic: str, group: str, *messages: mq.Message) -> mq.AckMessageResponse:
        entries = [
            mq.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in messages
        ]
        request = mq.AckMessageRequest(topic=mq.Resource(name=topic), group=mq.Resource(name=group), entries=entries)
        answer: mq.AckMessageResponse = self.call("AckMessage", request)
        return answer

    def change(self, topic: str, group: str, one: mq.Message, lease_ms: int) -> mq.ChangeInvisibleDurationResponse:
        request = mq.ChangeInvisibleDurationRequest(
            topic=mq.Resource(name=topic), group=mq.Resource(name=group), invisible_duration=duration(lease_ms),
            receipt_handle=one.system_properties.receipt_handle, message_id=one.system_properties.message_id,
        )  # fmt: skip
        answer: mq.ChangeInvisibleDurationResponse = self.call("ChangeInvisibleDuration", request)
        return answer

    def recall(self, topic: str, handle: str) -> mq.RecallMessageResponse:
        request = mq.RecallMessageRequest(topic=mq.Resource(name=topic), recall_handle=handle)
        answer: mq.RecallMessageResponse = self.call("RecallMessage", request)
        return answer
