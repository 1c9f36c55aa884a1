"""Spans of OpenTelemetry for sends, receives and the work on messages: docs/tracing.md.

A sent message carries the W3C context of its send's span in the properties `traceparent` and `tracestate`; the spans of
those who receive it link to that. They are not its children: a message may wait for months, and a trace that waits for
its end so long is kept by no backend. Nothing is done unless the package opentelemetry-api is installed, the program
has set a tracer provider, and the span is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from delayapi.wirefields import WireError

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    _INSTALLED = False
else:
    _INSTALLED = True
    _W3C: Final = TraceContextTextMapPropagator()
    _TRACER: Final = trace.get_tracer("delayclient")

CONTEXT: Final = ("traceparent", "tracestate")
"""The properties that carry it."""
MAX_LINKS: Final = 128
"""Of a batch's span: as many of its messages are looked at. SDKs keep no more links either."""
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()

Properties = Mapping[str, str] | None


class Message(Protocol):
    """What the span of the work on a message says of it; a ReceivedMessage is one."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> int: ...
    @property
    def handle(self) -> str: ...
    @property
    def due_ms(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


class Batch(Protocol):
    """A ReceivedBatch."""

    topic: str
    queue: int
    received_ms: int

    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Message: ...


def active() -> bool:
    """Spans may be recorded. It costs half a microsecond: a loop asks now and then, not for each message."""
    return _INSTALLED and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def switch_off() -> None:
    """For a process whose program makes the spans: an agent inherits the environment that sets a provider."""
    global _INSTALLED
    _INSTALLED = False


class SendSpan:
    """The recorded span of a send."""

    __slots__ = ("_span", "properties")

    def __init__(self, span: Any, properties: Properties) -> None:
        self._span = span
        self.properties = properties
        """The messages': with this span's context, unless they had one of their own."""

    def stored(self, queue: int, handle: str, due_ms: int) -> None:
        """Ends it: one message is stored."""
        self._span.set_attributes(
            {
                "messaging.destination.partition.id": str(queue),
                "messaging.message.id": handle,
                "messaging.delaycluster.delivery_timestamp": due_ms,
            }
        )
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """Ends it."""
        _fail(self._span, error)
        self._span.end()

    def __enter__(self) -> Properties:
        return self.properties

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._span.end()
        else:
            self.failed(error)


def start_send(topic: str, properties: Properties, count: int | None = None) -> SendSpan | None:
    """The span of a send of one message, or of `count` at once; None: it is not recorded. Only while active()."""
    attributes = _attributes("send", topic)
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    span = _TRACER.start_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    if not span.is_recording():
        return None
    if properties and CONTEXT[0] in properties:
        return SendSpan(span, properties)
    carrier = dict(properties or ())
    _W3C.inject(carrier, trace.set_span_in_context(span))
    return SendSpan(span, carrier)


def sending(topic: str, properties: Properties, count: int | None = None) -> AbstractContextManager[Properties]:
    """A send's span around it, if it is recorded. Gives the properties to send."""
    span = start_send(topic, properties, count) if active() else None
    return nullcontext(properties) if span is None else span


def received(batch: Batch, group: str) -> None:
    """One span for a batch that the program takes, from its arrival on. Only while active()."""
    attributes = _attributes("receive", batch.topic) | {
        "messaging.consumer.group.name": group,
        "messaging.destination.partition.id": str(batch.queue),
        "messaging.batch.message_count": len(batch),
    }
    span = _TRACER.start_span(
        f"receive {batch.topic}",
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        start_time=min(batch.received_ms * 1_000_000, time.time_ns()),
    )
    if span.is_recording():
        sent = (_sent_by(batch[row]) for row in range(min(len(batch), MAX_LINKS)))
        for context in {context.span_id: context for context in sent if context is not None}.values():
            span.add_link(context)
    span.end()


def processing(message: Message, group: str = "") -> AbstractContextManager[None]:
    """A span around the work on one message: it is the current one meanwhile, and links to that of the send.

    Consumer.run() and delay_worker have it around each handler and task; others use it as they iterate.
    """
    return _processing(message, group) if active() else _NOTHING


@contextmanager
def _processing(message: Message, group: str) -> Iterator[None]:
    attributes = _attributes("process", message.topic) | {
        "messaging.destination.partition.id": str(message.queue),
        "messaging.message.id": message.handle,
        "messaging.delaycluster.delivery_timestamp": message.due_ms,
        "messaging.delaycluster.lateness_ms": int(time.time() * 1000) - message.due_ms,
        "messaging.delaycluster.attempt": message.attempt,
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    context = _sent_by(message)
    links = [] if context is None else [trace.Link(context)]
    kind = trace.SpanKind.CONSUMER
    with _TRACER.start_as_current_span(
        f"process {message.topic}", kind=kind, attributes=attributes, links=links, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as error:
            _fail(span, error)
            raise


def _sent_by(message: Message) -> Any:
    """The context of the span that sent it, or None: without one, or one that can't be read."""
    try:
        properties = message.properties
    except WireError:
        return None
    if CONTEXT[0] not in properties:
        return None
    context = trace.get_current_span(_W3C.extract(properties)).get_span_context()
    return context if context.is_valid else None


def _attributes(operation: str, topic: str) -> dict[str, Any]:
    """Names of OpenTelemetry's semantic conventions for messaging; `messaging.delaycluster.*` are ours."""
    return {
        "messaging.system": "delaycluster",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _fail(span: Any, error: BaseException) -> None:
    kind = getattr(error, "reason", "") or getattr(error, "code", "") or type(error).__qualname__
    span.set_attribute("error.type", str(kind))
    span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
