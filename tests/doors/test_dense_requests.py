"""Requests, records and answers with a million small parts: refused, or bounded, before they hold the event loop."""

from __future__ import annotations

import json
import os
import time

import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delaynode.server import dispatch
from delaynode.server.dispatch import parse
from delaynode.server.doors import records
from delaynode.server.doors.http_json import MAX_JSON_FIELDS, MAX_JSON_VALUES, from_json, to_json
from delaynode.store.errors import Refused
from google.protobuf.message import Message

PARTS = 400_000
BUSY_S = 20.0  # of the processor; what is refused takes a tenth of a second, and took minutes


def in_json(*parts: str, begin: str, end: str) -> bytes:
    return (begin + ",".join(parts) + end).encode()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (rows.SendRequest, in_json(*("{}",) * PARTS, begin='{"messages":[', end="]}")),
        (rows.AckMessagesRequest, in_json(*('""',) * PARTS, begin='{"receipts":[', end="]}")),
        (rows.SendRequest, in_json(*map('"{}":""'.format, range(PARTS)), begin='{"topic":{', end="}}")),
        (rows.SendRequest, in_json(*("[]",) * PARTS, begin='{"messages":[{"bodyJson":[', end="]}]}")),
        (rows.SendRequest, in_json(*(r'"\\",""',) * PARTS, begin='{"messages":[{"bodyJson":[', end="]}]}")),
        (rows.SendRequest, in_json(*("{}",) * (MAX_JSON_FIELDS + 1), begin='{"messages":[', end="]}")),
    ],
)
def test_json_of_many_values_is_refused_before_it_is_read(kind: type[Message], text: bytes) -> None:
    began = time.process_time()
    with pytest.raises(Refused, match=r"the limit|beside") as refused:
        from_json(kind, text)
    assert refused.value.reason == "BATCH_TOO_LARGE"
    assert time.process_time() - began < BUSY_S


def test_a_name_that_is_there_twice_among_many_is_found_soon() -> None:
    names = [f"{at:x}" for at in range(MAX_JSON_VALUES - 10)]
    began = time.process_time()
    with pytest.raises(Refused, match="'twice' is there twice"):
        from_json(rows.SendRequest, in_json(*map('"{}":1'.format, [*names, "twice", "twice"]), begin="{", end="}"))
    assert time.process_time() - began < BUSY_S


def test_a_body_of_many_commas_is_one_value_and_a_large_one_is_taken() -> None:
    commas = 'a,"[{\\' * 1_000_000
    number = [at % 10 for at in range(MAX_JSON_VALUES - 100)]
    sent = {"topic": "t", "messages": [{"bodyText": commas}, {"bodyJson": number}]}
    found = from_json(rows.SendRequest, json.dumps(sent).encode())
    assert isinstance(found, rows.SendRequest)
    assert found.messages[0].body_text == commas
    assert json.loads(found.messages[1].body_text) == number


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (rows.SendRequest, b"\x12\x00"),
        (rows.SendRequest, b"\x92\x80\x00\x00"),  # the same, by a tag of more bytes than it needs
        (rows.SendRequest, b"\x7b\x12\x00\x7c"),  # in a group that nobody knows
        (rows.AckMessagesRequest, b"\x0a\x00"),
        (mq.SendMessageRequest, b"\x0a\x00"),
        (mq.AckMessageRequest, b"\x1a\x00"),
    ],
)
def test_a_request_of_many_fields_is_refused_before_it_is_decoded(kind: type[Message], part: bytes) -> None:
    with pytest.raises(Refused, match="fields and entries"):
        parse(kind, part * PARTS)


def test_fields_within_messages_count_and_bytes_that_look_like_them_do_not() -> None:
    one = rows.OutgoingMessage(properties={str(at): "" for at in range(dispatch.MAX_FIELDS // 2)})
    with pytest.raises(Refused, match="fields and entries"):
        parse(rows.SendRequest, rows.SendRequest(messages=[one, one]).SerializeToString())
    large = rows.SendRequest(topic="t", messages=[rows.OutgoingMessage(body=b"\x12\x00\x1a\x00" * (1 << 20))] * 2)
    assert parse(rows.SendRequest, large.SerializeToString()) == large
    random = rows.SendRequest(topic="t", messages=[rows.OutgoingMessage(body=os.urandom(11_000))] * 1_000)
    assert parse(rows.SendRequest, random.SerializeToString()) == random


def record(properties: int, body: bytes = b"") -> bytes:
    return pb.Message(properties={f"{at:06}": "" for at in range(properties)}, body=body).SerializeToString()


def test_a_record_of_too_many_properties_is_handed_out_as_a_body() -> None:
    most, more = record(records.MAX_FIELDS - 1, b"\x1a" * 100_000), record(records.MAX_FIELDS + 1)
    assert len(records.decoded(most).properties) == records.MAX_FIELDS - 1
    assert records.decoded(more) == pb.Message(body=more)


def test_an_answer_decodes_so_many_properties_and_one_record_at_least() -> None:
    assert records.decodable([record(3)] * 1_000) == 1_000
    assert records.decodable([record(0, os.urandom(4 << 20))] * 3) == 3
    assert records.decodable([record(1_000)] * 1_000) == records.MAX_ANSWER_FIELDS // 1_000
    assert records.decodable([record(records.MAX_FIELDS + 5)] * 5) == 2
    assert records.decodable([]) == 0


@pytest.mark.parametrize("text", ["1e999", "[-1e999]", "NaN", r'"\ud800"', r'{"\udfff":1}', "1" + "0" * 5_000, "{"])
def test_a_body_that_not_every_reader_takes_for_json_is_a_text(text: str) -> None:
    answer = rows.ReceiveMessagesResponse(deliveries=[rows.Delivery(body_text=one) for one in (text, "[1]")])
    found = json.loads(to_json(answer, as_json_values=True), parse_constant=pytest.fail)
    assert found == {"deliveries": [{"bodyText": text}, {"bodyJson": [1]}]}


def test_a_body_of_any_depth_or_size_is_handed_out() -> None:
    """One that can just be read, and not be written within an answer, would keep a whole group from its messages."""
    for depth in range(900, 1_010):
        text = "[" * depth + "]" * depth
        (one,) = json.loads(to_json(rows.ReceiveMessagesResponse(deliveries=[rows.Delivery(body_text=text)]), True))[
            "deliveries"
        ]
        assert one.keys() in ({"bodyText"}, {"bodyJson"}), depth
    dense = "[" + ",".join("1" * (MAX_JSON_VALUES + 5)) + "]"
    answer = json.loads(to_json(rows.ReceiveMessagesResponse(deliveries=[rows.Delivery(body_text=dense)]), True))
    assert answer == {"deliveries": [{"bodyText": dense}]}
