"""Requests of one message that the compiled edge reads: what it takes as rows is what Python would store, what it
leaves comes as a call, and its answers are those that Python would give."""

from __future__ import annotations

import random
import select
from collections.abc import Iterator
from itertools import product
from typing import Any
from zlib import crc32

import grpc
import numpy as np
import pytest
from delayapi.handle import Handle
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.receipt import Receipt
from delaynode.server.doors import rows as rows_door
from delaynode.server.doors.core import Outgoing, Stored
from delaynode.server.doors.rocketmq import service as rocketmq_door
from delaynode.server.doors.rocketmq.messages import outgoing
from delaynode.server.doors.rocketmq.statuses import Wrong, status_of
from delaynode.store.errors import Refused
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

delayedge = pytest.importorskip("delayedge")

SEND_MESSAGE, SEND = "/apache.rocketmq.v2.MessagingService/SendMessage", "/delay.v1.MessageService/Send"
ACK = "/apache.rocketmq.v2.MessagingService/AckMessage"
CLIENT = (("x-mq-client-id", "c"),)
CASES = 600
NOW_MS = 1_800_000_000_000
UID = 77


class Reader:
    """An edge that reads, with nobody behind it: the test is told what it hands over, and answers."""

    def __init__(self) -> None:
        self.edge = delayedge.Edge(
            "127.0.0.1:0", rows={SEND_MESSAGE: "rocketmq", SEND: "rows", ACK: "rocketmq-ack"}, unary=[], streams=[],
            metadata=["x-mq-client-id"],
        )  # fmt: skip
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.edge.port}")
        self._sends = {name: self.channel.unary_unary(name) for name in (SEND_MESSAGE, SEND, ACK)}

    def send(self, method: str, request: bytes, metadata: Any = CLIENT) -> tuple[Any, Any]:
        """The call, and the group or event that came of it."""
        call = self._sends[method].future(request, timeout=30, metadata=metadata)
        return call, self.take()

    def take(self) -> Any:
        assert select.select([self.edge.fileno()], [], [], 30)[0], "nothing came"
        groups, events = self.edge.take()
        (one,) = [*groups, *events]
        return one

    def settle(self, call: Any, came: Any) -> None:
        """End a call whose answer is of no interest."""
        self.edge.refuse_row(token_of(came), 3, "no")
        assert call.exception().code() is grpc.StatusCode.INVALID_ARGUMENT

    def stored(self, came: Any, queue: int, seq: int, due: Any = None) -> None:
        token, count = np.frombuffer(came.token, "<u8"), np.frombuffer(came.count, "<u4")
        self.edge.answer_rows(token, count, UID, np.array([seq]), due, queue=queue)

    def close(self) -> None:
        self.channel.close()
        assert self.edge.figures()["panics"] == 0
        self.edge.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


def is_row(came: Any) -> bool:
    return isinstance(came, delayedge.Rows)


def token_of(came: Any) -> int:
    return int(np.frombuffer(came.token, "<u8")[0]) if is_row(came) else came.token


# ------------------------------------------------------------ what Python makes of a request
def by_rocketmq(request: bytes) -> Outgoing | None:
    """None: it is refused, or has not one message."""
    try:
        (message,) = mq.SendMessageRequest.FromString(request).messages
        return outgoing(message, NOW_MS)
    except (DecodeError, ValueError, Wrong):
        return None


def by_rows(request: bytes) -> Outgoing | None:
    try:
        parsed = rows.SendRequest.FromString(request)
        (message,) = parsed.messages
    except (DecodeError, ValueError):
        return None
    made = rows_door._outgoing(parsed.topic, 0, message, NOW_MS)
    return made if isinstance(made, Outgoing) else None


def by_ack(request: bytes) -> Receipt | None:
    """None: it is refused, or has not one entry."""
    try:
        asked = mq.AckMessageRequest.FromString(request)
        (entry,) = asked.entries
    except (DecodeError, ValueError):
        return None
    found = rocketmq_door._receipt(entry.receipt_handle, asked.topic, asked.group)
    return found if isinstance(found, Receipt) else None


def check_receipt(came: Any, wanted: Receipt | None) -> None:
    assert wanted is not None, "a row of what Python refuses"
    assert (came.topic, list(came.count)) == (CLIENT[0][1], [1, 0, 0, 0])
    assert int(np.frombuffer(came.size, "<u4")[0]) == len(came.records)
    assert Receipt.unpack(bytes(came.records)) == wanted


def check_row(came: Any, wanted: Outgoing | None) -> None:
    assert wanted is not None, "a row of what Python refuses"
    assert (came.topic, list(came.count)) == (wanted.topic, [1, 0, 0, 0])
    assert int(np.frombuffer(came.time, "<i8")[0]) == wanted.time_ms
    assert bool(came.relative) == wanted.relative
    assert int(np.frombuffer(came.key, "<u4")[0]) == crc32(wanted.key.encode())
    assert int(np.frombuffer(came.tag, "<u4")[0]) == crc32(wanted.tag.encode())
    assert int(np.frombuffer(came.size, "<u4")[0]) == len(came.records)
    record, expected = pb.Message.FromString(bytes(came.records)), pb.Message.FromString(wanted.record)
    if expected.born_ms == NOW_MS:  # it did not say: when it came
        assert record.born_ms > 0
        record.born_ms = NOW_MS
    assert record == expected


# ------------------------------------------------------------ requests
TEXTS = ("k", "order 7", "x" * 300, "\u00e9", "", " ", "a|b", "\x01", "rocketmq.keys")


def some(draw: random.Random, *values: Any, usual: float = 0.8) -> Any:
    """Most often the first."""
    return values[0] if draw.random() < usual else draw.choice(values)


def stamp(draw: random.Random) -> Timestamp:
    return Timestamp(seconds=some(draw, draw.randrange(2**31), -1, 253_402_300_799, 253_402_300_800, 2**40),
                     nanos=some(draw, draw.randrange(10**9), -1, 0, 10**9))  # fmt: skip


def send_message(draw: random.Random) -> bytes:
    """Mostly usual."""
    body = some(draw, b"body", b"", b"x" * 65_536, b"x" * 65_537)
    system = mq.SystemProperties(
        message_id=some(draw, "id-1", "", "\u00e9", "x" * 256, "x" * 257),
        message_type=some(draw, draw.choice((mq.NORMAL, mq.DELAY)), *range(8), usual=0.9),
        body_encoding=some(draw, mq.IDENTITY, *range(4), usual=0.9), born_host=some(draw, "host", "", "h" * 256),
        queue_id=draw.randrange(9),
    )  # fmt: skip
    if draw.random() < 0.9:
        system.born_timestamp.CopyFrom(stamp(draw))
    if draw.random() < 0.5:
        system.delivery_timestamp.CopyFrom(stamp(draw))
    if draw.random() < 0.4:
        system.tag = some(draw, "tag", *TEXTS)
    for _ in range(some(draw, draw.randrange(2), 2)):
        system.keys.append(some(draw, "key", *TEXTS))
    if draw.random() < 0.2:
        crc = f"{crc32(body):X}"
        checksum = some(draw, crc, crc.lower(), "00" + crc, "0", "", "zz", "+1")
        system.body_digest.CopyFrom(mq.Digest(type=draw.choice((0, 1, 1, 1, 2, 3)), checksum=checksum))
    for name, chance in (("trace_context", 0.2), ("message_group", 0.03), ("lite_topic", 0.03), ("store_host", 0.03)):
        if draw.random() < chance:
            setattr(system, name, draw.choice(TEXTS))
    if draw.random() < 0.03:
        system.priority = 1
    topic = mq.Resource(name=some(draw, "t0", "\u00e9", ""), resource_namespace=some(draw, "", "n", usual=0.95))
    message = mq.Message(topic=topic, system_properties=system, body=body)
    for _ in range(some(draw, draw.randrange(3), 127, 128, 129)):
        value = some(draw, "v", "\u00e9", "", "x" * 9_000, usual=0.95)
        message.user_properties[some(draw, f"p{draw.randrange(999)}", *TEXTS, usual=0.95)] = value
    return mq.SendMessageRequest(messages=[message] * some(draw, 1, 0, 2, usual=0.95)).SerializeToString()


def send_rows(draw: random.Random) -> bytes:
    message = rows.OutgoingMessage(
        key=some(draw, "", *TEXTS), tag=some(draw, "", *TEXTS), message_id=some(draw, "", "id", "x" * 256, "x" * 257)
    )
    when = draw.randrange(4)
    if when == 1:
        message.at.CopyFrom(stamp(draw))
    elif when:
        message.delay.seconds = some(draw, draw.randrange(10**6), -1, 864_000_000, 864_000_001)
        message.delay.nanos = some(draw, draw.randrange(10**9), -1, 0, 10**9)
    if draw.random() < 0.5:
        message.body_text = some(draw, "text", "", "\u00e9" * 9, "x" * 65_537)
    elif draw.random() < 0.9:
        message.body = some(draw, b"\xff", b"", b"x" * 65_536, b"x" * 65_537)
    for _ in range(some(draw, draw.randrange(3), 129, usual=0.95)):
        message.properties[some(draw, f"p{draw.randrange(999)}", *TEXTS)] = some(draw, "v", "\u00e9", "")
    topic = some(draw, "t0", "\u00e9", "", "x" * 300)
    return rows.SendRequest(topic=topic, messages=[message] * some(draw, 1, 0, 2, usual=0.95)).SerializeToString()


def ack_message(draw: random.Random) -> bytes:
    names = [text for text in TEXTS if len(text) <= 255]  # a receipt has no room for others
    topic, group = some(draw, "t0", *names), some(draw, "g", *names)
    number = draw.randrange(2**40)
    receipt = Receipt(topic, draw.randrange(9), number, group, number, draw.randrange(2**32), NOW_MS).encode()
    handle = some(draw, receipt, "", receipt[:-1], receipt + "=", receipt + "A", receipt.swapcase(), usual=0.9)
    entry = mq.AckMessageEntry(message_id=some(draw, "01AB", "", "\u00e9", "x" * 300), receipt_handle=handle)
    namespace = some(draw, "", "n", usual=0.95)
    return mq.AckMessageRequest(
        topic=mq.Resource(name=some(draw, topic, "t1", usual=0.9), resource_namespace=namespace),
        group=mq.Resource(name=some(draw, group, "h", usual=0.9)), entries=[entry] * some(draw, 1, 0, 2, usual=0.95),
    ).SerializeToString()  # fmt: skip


def spoiled(draw: random.Random, request: bytes) -> bytes:
    data = bytearray(request)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data.insert(at, draw.randrange(256))
        elif kind == 2:
            del data[at : at + 1 + draw.randrange(3)]
        else:
            data += data[at:][:2_000]
    return bytes(data)


@pytest.mark.parametrize(
    ("method", "make", "python", "check"),
    [
        (SEND_MESSAGE, send_message, by_rocketmq, check_row), (SEND, send_rows, by_rows, check_row),
        (ACK, ack_message, by_ack, check_receipt),
    ],
)  # fmt: skip
def test_a_row_is_what_python_would_make_of_it_and_the_rest_comes_as_it_was(
    reader: Reader, method: str, make: Any, python: Any, check: Any
) -> None:
    draw, taken = random.Random(7), [0, 0]
    for number in range(CASES):
        request = make(draw)
        if number % 3 == 2:
            request = spoiled(draw, request)
        call, came = reader.send(method, request)
        wanted = python(request)
        if is_row(came):
            check(came, wanted)
        else:
            assert (came.kind, came.method, came.body) == ("call", method, request)
        taken[is_row(came)] += 1
        reader.settle(call, came)
    assert min(taken) > CASES // 10, taken


def test_usual_requests_are_rows(reader: Reader) -> None:
    """What the official Java client sends, and the least that a client of ours does."""
    system = mq.SystemProperties(
        keys=["order-7"], tag="paid", message_id="01AB", body_encoding=mq.IDENTITY, message_type=mq.DELAY,
        born_timestamp=Timestamp(seconds=1_800_000_000), born_host="shop-1", queue_id=3,
        delivery_timestamp=Timestamp(seconds=1_900_000_000, nanos=1), trace_context="00-1-2-01",
    )  # fmt: skip
    message = mq.Message(topic=mq.Resource(name="t0"), system_properties=system, body=b"b", user_properties={"a": "1"})
    for method, request, python in (
        (SEND_MESSAGE, mq.SendMessageRequest(messages=[message]), by_rocketmq),
        (SEND, rows.SendRequest(topic="t0", messages=[rows.OutgoingMessage(body=b"b")]), by_rows),
        (SEND, rows.SendRequest(topic="t0", messages=[rows.OutgoingMessage()]), by_rows),
    ):
        call, came = reader.send(method, request.SerializeToString())
        assert is_row(came)
        check_row(came, python(request.SerializeToString()))
        reader.settle(call, came)


@pytest.mark.parametrize("method", [SEND_MESSAGE, ACK])
def test_a_call_without_a_client_id_is_no_row(reader: Reader, method: str) -> None:
    request = ack_request() if method == ACK else rocketmq_request(due_ms=None)
    for metadata in ((), (("x-mq-client-id", ""),)):
        call, came = reader.send(method, request.SerializeToString(), metadata)
        assert not is_row(came)
        reader.settle(call, came)


def test_receipts_of_different_clients_are_in_different_groups(reader: Reader) -> None:
    for name in ("c", "d"):
        call, came = reader.send(ACK, ack_request().SerializeToString(), (("x-mq-client-id", name),))
        assert (came.door, came.topic) == ("rocketmq-ack", name)
        reader.settle(call, came)


# ------------------------------------------------------------ answers
def ack_request(message_id: str = "01AB") -> mq.AckMessageRequest:
    receipt = Receipt("t0", 3, UID, "g", 5, 1, NOW_MS).encode()
    return mq.AckMessageRequest(
        topic=mq.Resource(name="t0"), group=mq.Resource(name="g"),
        entries=[mq.AckMessageEntry(message_id=message_id, receipt_handle=receipt)],
    )  # fmt: skip


def rocketmq_request(*, due_ms: int | None) -> mq.SendMessageRequest:
    system = mq.SystemProperties(message_id="id-1", born_timestamp=Timestamp(seconds=1))
    if due_ms is not None:
        system.delivery_timestamp.FromMilliseconds(due_ms)
    return mq.SendMessageRequest(
        messages=[mq.Message(topic=mq.Resource(name="topic-1"), system_properties=system, body=b"b")]
    )


@pytest.mark.parametrize(("due_ms", "seq"), [*product([None, 0, NOW_MS], [0, 1, 2**40])])
def test_a_stored_message_of_rocketmq_is_answered_as_python_would(reader: Reader, due_ms: int | None, seq: int) -> None:
    request = rocketmq_request(due_ms=due_ms)
    call, came = reader.send(SEND_MESSAGE, request.SerializeToString())
    reader.stored(came, 3, seq)
    entry = rocketmq_door._entry(request.messages[0], Stored(Handle("topic-1", 3, UID, due_ms or 0, seq)))
    answer = mq.SendMessageResponse.FromString(call.result())
    assert answer == mq.SendMessageResponse(status=entry.status, entries=[entry])


@pytest.mark.parametrize("message", [
    rows.OutgoingMessage(), rows.OutgoingMessage(at=Timestamp(seconds=5, nanos=1)), rows.OutgoingMessage(key="k"),
])  # fmt: skip
@pytest.mark.parametrize("delay", [False, True])
def test_a_stored_message_of_ours_is_answered_as_python_would(
    reader: Reader, message: rows.OutgoingMessage, delay: bool
) -> None:
    due = None
    if delay:
        message = rows.OutgoingMessage.FromString(message.SerializeToString())
        message.delay.seconds = 7
        due = np.array([NOW_MS + 7_001])
    request = rows.SendRequest(topic="topic-1", messages=[message]).SerializeToString()
    call, came = reader.send(SEND, request)
    reader.stored(came, 2, 9, due)
    due_ms = int(due[0]) if due is not None else 5_001 if message.HasField("at") else 0
    wanted = rows_door._send_result(Stored(Handle("topic-1", 2, UID, due_ms, 9)))
    assert rows.SendResponse.FromString(call.result()) == rows.SendResponse(results=[wanted])


def test_a_refusal_of_rocketmq_is_inside_the_answer(reader: Reader) -> None:
    call, came = reader.send(SEND_MESSAGE, rocketmq_request(due_ms=None).SerializeToString())
    status = status_of(Refused("QUOTA", "no more today"))
    reader.edge.answer_single(token_of(came), status.SerializeToString())
    entry = mq.SendResultEntry(status=status, message_id="id-1")
    assert mq.SendMessageResponse.FromString(call.result()) == mq.SendMessageResponse(status=status, entries=[entry])


@pytest.mark.parametrize("refused", [None, Refused("LEASE_OVER", "it is another's")])
@pytest.mark.parametrize("message_id", ["", "01AB"])
def test_an_acknowledgement_is_answered_as_python_would(
    reader: Reader, refused: Refused | None, message_id: str
) -> None:
    request = ack_request(message_id)
    call, came = reader.send(ACK, request.SerializeToString())
    status = rocketmq_door._settled(refused)
    reader.edge.answer_single(token_of(came), status.SerializeToString())
    entry = mq.AckMessageResultEntry(
        message_id=message_id, receipt_handle=request.entries[0].receipt_handle, status=status
    )
    assert mq.AckMessageResponse.FromString(call.result()) == mq.AckMessageResponse(status=status, entries=[entry])


@pytest.mark.parametrize("method", [SEND_MESSAGE, ACK])
def test_a_row_may_come_again_as_a_call_once(reader: Reader, method: str) -> None:
    request = (ack_request() if method == ACK else rocketmq_request(due_ms=NOW_MS)).SerializeToString()
    call, came = reader.send(method, request)
    reader.edge.as_calls(np.frombuffer(came.token, "<u8"))
    again = reader.take()
    assert (again.kind, again.method, again.body, again.token) == ("call", method, request, token_of(came))
    assert again.metadata == list(CLIENT)
    assert 0 < again.seconds_left < 31  # grpcio adds a little
    reader.edge.as_calls(np.frombuffer(came.token, "<u8"))  # it is one already
    reader.edge.answer_single(token_of(came), b"")  # nothing is read of it any more: it can't be answered like that
    assert reader.edge.take() == ([], [])
    assert not call.done()
    assert reader.edge.figures()["rows"] == 1
    reader.edge.answer_row(again.token, b"\x0a\x00")
    assert call.result() == b"\x0a\x00"
    assert reader.edge.figures()["rows"] == 0
