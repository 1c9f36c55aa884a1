"""Spans with OpenTelemetry's own SDK, and their absence."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import tracing
from delayclient.consumer.consumer import Consumer
from delayclient.consumer.received import ReceivedMessage
from delayclient.errors import TooLarge
from delayclient.producer.producer import Producer
from delayclient.sync import SyncProducer
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id, get_tracer_provider

from tests.client.support.fakegroup import Groups
from tests.client.support.fakes import FakeCluster, FakeNode

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def sampler() -> Sampler:
    return ALWAYS_ON


@pytest.fixture
def exporter(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider of this test's own: a program can set one once only."""
    found = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(tracing, "_TRACER", provider.get_tracer("delayclient"))
    yield found
    provider.shutdown()


def records(cluster: FakeCluster) -> list[delay_pb2.Message]:
    return [delay_pb2.Message.FromString(stored.record) for shard in cluster.shards for stored in shard.stored]


def said(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> str:
    assert span.context is not None
    context = span.context
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def test_without_a_provider_messages_and_handlers_are_as_ever() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            await producer.send("t", b"x", properties={"a": "b"})
            await producer.send_batch("t", [b"x"])
            assert [dict(record.properties) for record in records(cluster)] == [{"a": "b"}, {}]
        assert not tracing.active()

    asyncio.run(main())


def test_sdk_works_where_opentelemetry_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import delayclient.producer.producer, delayclient.consumer.consumer\n"
        "from delayclient import tracing\n"
        "assert not tracing.active()\n"
        "with tracing.processing(None), tracing.sending('t', {'a': 'b'}) as properties: assert properties == {'a': 'b'}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_work_on_a_message_links_to_its_send_and_is_no_child_of_it(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        current = []

        async def handler(message: ReceivedMessage) -> None:
            current.append(trace.get_current_span().get_span_context())
            if message.key == "bad":
                raise ValueError("no such order")
            consumer.stop()

        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            for key in ("bad", "good"):
                result = await producer.send("t", b"hello", delay="30s", key=key, properties={"a": "b"})
            groups = Groups(node)
            groups.queues[0].release_stored(cluster.shards[0])
            async with Consumer(node.endpoint, "t", "g") as consumer:
                await consumer.run(handler, concurrency=1)
        *_, send, bad, good = exporter.get_finished_spans()
        assert len(exporter.get_finished_spans()) == 4
        assert (send.name, send.kind, send.parent) == ("send t", SpanKind.PRODUCER, None)
        assert said(send) == {
            "messaging.system": "delaycluster",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "t",
            "messaging.destination.partition.id": "0",
            "messaging.message.id": result.handle,
            "messaging.delaycluster.delivery_timestamp": result.due_ms,
        }
        assert dict(records(cluster)[1].properties) == {"a": "b", "traceparent": parent_of(send)}
        assert (good.name, good.kind, good.parent) == ("process t", SpanKind.CONSUMER, None)
        assert [link.context.span_id for link in good.links] == [send.context.span_id]
        assert good.context.trace_id != send.context.trace_id
        assert said(good)["messaging.consumer.group.name"] == "g"
        assert said(good)["messaging.delaycluster.attempt"] == 1
        assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
        assert said(bad)["error.type"] == "ValueError"
        assert current == [bad.context, good.context]

    asyncio.run(main())


def test_batch_has_one_span_however_many_messages(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            await producer.send_batch("t", [b"same"] * 20, properties={"a": "b"})
            await producer.send_batch("t", [b"x", b"yy"], keys=["k", "l"])
            groups = Groups(node)
            groups.queues[0].release_stored(cluster.shards[0])
            groups.queues[0].max_messages = 21
            async with Consumer(node.endpoint, "t", "g") as consumer:
                batch = await consumer.receive_batch(5)
                assert batch is not None
                message = await consumer.receive(5)
                assert message is not None
                assert message.key == "l"
        first, second, many, one = exporter.get_finished_spans()
        assert [said(span)["messaging.batch.message_count"] for span in (first, second, many, one)] == [
            20, 2, 21, 1,
        ]  # fmt: skip
        for record in records(cluster)[:20]:
            assert dict(record.properties) == {"a": "b", "traceparent": parent_of(first)}
        assert {record.properties["traceparent"] for record in records(cluster)[20:]} == {parent_of(second)}
        assert (many.name, many.kind, one.name) == ("receive t", SpanKind.CLIENT, "receive t")
        assert [link.context.span_id for link in many.links] == [first.context.span_id, second.context.span_id]
        assert [link.context.span_id for link in one.links] == [second.context.span_id]
        assert (many.start_time or 0) <= batch.received_ms * 1_000_000 <= (many.end_time or 0)

    asyncio.run(main())


def test_span_of_a_batch_has_so_many_links_and_no_more(exporter: InMemorySpanExporter) -> None:
    class Sent(list[SimpleNamespace]):
        topic, queue, received_ms = "t", 0, 0

    contexts = [f"00-{number + 1:032x}-{number + 1:016x}-01" for number in range(2 * tracing.MAX_LINKS)]
    tracing.received(Sent(SimpleNamespace(properties={"traceparent": one}) for one in contexts), "g")
    (span,) = exporter.get_finished_spans()
    assert [link.context.span_id for link in span.links] == [*range(1, tracing.MAX_LINKS + 1)]


def test_send_in_a_span_is_its_child_from_another_thread_too(exporter: InMemorySpanExporter) -> None:
    async def node() -> FakeNode:
        return await FakeNode(FakeCluster()).start()

    loop = asyncio.new_event_loop()
    running = loop.run_until_complete(node())
    try:
        with get_tracer_provider().get_tracer("app").start_as_current_span("order") as order:

            def send() -> None:
                with trace.use_span(order), SyncProducer(running.endpoint) as producer:
                    producer.send("t", b"x")

            loop.run_until_complete(asyncio.to_thread(send))
    finally:
        loop.run_until_complete(running.stop())
        loop.close()
    send_span, _ = exporter.get_finished_spans()
    assert send_span.parent == order.get_span_context()


def test_context_of_the_callers_own_is_kept(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            await producer.send("t", b"x", properties={"traceparent": PARENT})
            await producer.send_batch("t", [b"x"], properties={"traceparent": PARENT})
            assert [record.properties["traceparent"] for record in records(cluster)] == [PARENT, PARENT]

    asyncio.run(main())


@pytest.mark.parametrize("sampler", [ALWAYS_OFF])
def test_what_is_not_sampled_costs_no_byte(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            await producer.send("t", b"x")
            await producer.send_batch("t", [b"x"])
            assert [dict(record.properties) for record in records(cluster)] == [{}, {}]
        assert tracing.active()

    asyncio.run(main())


def test_failed_send_says_why(exporter: InMemorySpanExporter) -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Producer(node.endpoint) as producer:
            with pytest.raises(TooLarge):
                producer.send("t", bytes(5 << 20))
            with pytest.raises(TooLarge):
                await producer.send_batch("t", [bytes(5 << 20)])
            with pytest.raises(ValueError):
                await producer.send_batch("t", [b"x"], keys=[])
        assert [said(span)["error.type"] for span in exporter.get_finished_spans()] == [
            "MESSAGE_TOO_LARGE", "MESSAGE_TOO_LARGE", "ValueError",
        ]  # fmt: skip

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["", "00-1", "ff-" + PARENT[3:], PARENT.replace("4", "0"), "ä"])
def test_malformed_context_is_no_link_and_no_failure(exporter: InMemorySpanExporter, wrong: str) -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node:
            groups = Groups(node)
            message = delay_pb2.Message(body=b"x", properties={"traceparent": wrong, "tracestate": "\x00"})
            groups.queues[0].records += [message.SerializeToString(), b"\xff not a message"]
            async with Consumer(node.endpoint, "t", "g") as consumer:
                batch = await consumer.receive_batch(5)
                for received in batch:
                    with tracing.processing(received):
                        pass
        spans = exporter.get_finished_spans()
        assert [span.name for span in spans] == ["receive t", "process t", "process t"]
        assert all(not span.links or wrong.startswith("00-0bf") for span in spans)

    asyncio.run(main())
