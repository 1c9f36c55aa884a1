"""The client's parsers: handles that people paste, and answers off the wire, against the generated classes."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from delayapi.codec import decode_enqueue_request, decode_enqueue_response, decode_message_batch
from delayapi.handle import BadHandle, Handle
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.wirefields import WireError
from delayclient.records import decode_record
from google.protobuf.message import DecodeError

from tests.serve.support.fuzz_wire import Wire

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_CLIENT_CASES", "40000"))  # of each kind
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

GOOD: dict[Any, Any] = {
    decode_enqueue_request: pb.EnqueueRequest(
        topic="t", queue=3, count=2, time=bytes(16), size=b"\1\0\0\0\2\0\0\0", records=b"abc", producer_id=7, number=9
    ),
    decode_enqueue_response: pb.EnqueueResponse(
        uid=5, first_seq=-1, count=2, due=bytes(16), duplicate=True, error=pb.Error(code=3, reason="BUSY", message="m")
    ),
    decode_message_batch: pb.MessageBatch(
        uid=5, count=1, offset=bytes(8), due=bytes(8), seq=bytes(8), size=b"\3\0\0\0", records=b"abc", end_offset=-1
    ),
}


@pytest.mark.parametrize("decode", GOOD, ids=lambda decode: decode.__name__)
def test_the_hand_made_decoders_accept_and_refuse_what_the_generated_classes_do(decode: Any) -> None:
    good = GOOD[decode]
    wire = Wire(random.Random(f"{SEED} {decode.__name__}"))
    data = good.SerializeToString()
    accepted = 0
    for _ in range(CASES):
        made = wire.spoiled(data) if wire.choose.random() < 0.8 else wire.message(good.DESCRIPTOR)
        try:
            expected: Any = type(good).FromString(made)
        except DecodeError:
            with pytest.raises(WireError):
                decode(made)
            continue
        try:
            view = decode(made)
        except WireError as error:
            raise AssertionError(f"{made!r} is a {type(good).__name__}, but: {error}") from error
        accepted += 1
        for field in good.DESCRIPTOR.fields:
            value = getattr(view, field.name)
            if field.name == "error":
                assert (value is not None) == expected.HasField("error"), made
                assert value is None or value == expected.error, made
            else:
                wanted = getattr(expected, field.name)
                assert (bytes(value) if isinstance(wanted, bytes) else value) == wanted, (field.name, made)
    assert CASES // 10 < accepted < CASES


def test_a_record_that_is_no_message_is_a_typed_error() -> None:
    wire = Wire(random.Random(SEED))
    good = pb.Message(key="k", tag="t", properties={"a": "b"}, body=b"body", born_ms=5).SerializeToString()
    for _ in range(CASES):
        made = wire.spoiled(good) if wire.choose.random() < 0.8 else wire.message(pb.Message.DESCRIPTOR)
        try:
            expected = pb.Message.FromString(made)
        except DecodeError:
            with pytest.raises(WireError):
                decode_record(made)
        else:
            assert decode_record(made) == expected


def test_a_handle_is_read_back_or_refused_and_never_taken_for_another() -> None:
    choose = random.Random(SEED)
    refused = same = 0
    for _ in range(CASES):
        topic = choose.choice(["t", "", "\u00e9" * 127, "a" * 255, "a-topic", "\U0001f600"])
        made = Handle(
            topic, choose.getrandbits(32), choose.getrandbits(64), choose.getrandbits(63), choose.getrandbits(63)
        )
        text = made.encode()
        assert Handle.decode(text) == made
        at = choose.randrange(len(text))
        match choose.randrange(7):
            case 0:
                wrong = text[:at] + choose.choice(LETTERS) + text[at + 1 :]
            case 1:
                wrong = text[:at]
            case 2:
                wrong = text + choose.choice(LETTERS) * choose.choice((1, 2, 3, 4, 1000))
            case 3:
                wrong = text[:at] + text[at + 1 :]
            case 4:
                wrong = text[:at] + choose.choice(["\0", " ", "\u00e9", "=", "+", "/", "\n", "\ud800"]) + text[at:]
            case 5:
                wrong = "".join(choose.choices(LETTERS, k=choose.choice((0, 1, 44, 50, 400))))
            case _:
                swap = choose.randrange(len(text))
                letters = list(text)
                letters[at], letters[swap] = letters[swap], letters[at]
                wrong = "".join(letters)
        try:
            again = Handle.decode(wrong)
        except BadHandle as error:
            refused += 0 < len(str(error)) < 300
        else:
            same += 1
            assert again == made, (text, wrong)
    assert refused + same == CASES
    assert refused > CASES // 2
