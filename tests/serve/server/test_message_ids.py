"""Message ids over the wire: EnqueueRequest.message_id in a topic that deduplicates, and in others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delayapi.message_ids import hash_id
from delayapi.proto.delay.v1 import delay_pb2 as pb

from tests.serve.support.client import Failure, Msg, Shard, now_ms


def send(shard: Shard, ids: list[str], *messages: Msg, **fields: Any) -> pb.EnqueueResponse:
    made = shard.request(*messages)
    made.message_id = b"".join(map(hash_id, ids))
    for name, value in fields.items():
        setattr(made, name, value)
    return pb.EnqueueResponse.FromString(shard.client.raw("Enqueue", made.SerializeToString()))


def seqs(answer: pb.EnqueueResponse) -> list[int]:
    return np.frombuffer(answer.seq, "<i8").tolist()


def dues(answer: pb.EnqueueResponse) -> list[int]:
    return np.frombuffer(answer.due, "<i8").tolist()


def test_a_message_whose_id_is_stored_is_answered_as_the_first_was(take: Callable[[str], Shard]) -> None:
    shard = take("once")
    first = send(shard, ["a", "b"], Msg(b"1", delay_ms=60_000), Msg(b"2", delay_ms=70_000))
    assert (seqs(first), list(first.repeated), first.duplicate, first.count) == ([0, 1], [0, 0], False, 2)
    shard.send(Msg(b"without an id", delay_ms=60_000))
    again = send(shard, ["b", "c", "c", "a"], *[Msg(b"other", delay_ms=1)] * 4)
    assert (seqs(again), list(again.repeated)) == ([1, 3, 3, 0], [1, 0, 1, 1])
    assert (dues(again)[0], dues(again)[3], dues(again)[1]) == (*dues(first)[::-1], dues(again)[2])
    whole = send(shard, ["a", "b"], Msg(b"1", delay_ms=60_000), Msg(b"2", delay_ms=70_000))
    assert (seqs(whole), dues(whole), list(whole.repeated)) == ([0, 1], dues(first), [1, 1])
    assert whole.duplicate
    (released,) = shard.receive(wait_ms=5_000)
    assert (released.body, released.seq) == (b"other", 3)
    assert shard.wheel().pending == 3


def test_an_absolute_due_comes_back_and_the_handle_of_the_first_cancels(take: Callable[[str], Shard]) -> None:
    shard = take("once")
    due = now_ms() + 50_000
    first = send(shard, ["x"], Msg(at_ms=due))
    again = send(shard, ["x"], Msg(at_ms=due + 999))
    assert dues(again) == dues(first) == [due]
    cancelled = shard.call("Cancel", uid=again.uid, due=again.due, seq=again.seq)
    assert list(cancelled.outcome) == [pb.CANCELLED]
    assert list(send(shard, ["x"], Msg(at_ms=due)).repeated) == [1], "it is known, cancelled or not"


def test_the_number_of_a_request_with_ids_is_not_looked_at(take: Callable[[str], Shard]) -> None:
    shard = take("once")
    assert seqs(send(shard, ["n"], Msg(delay_ms=60_000), producer_id=9, number=77)) == [0]
    assert seqs(send(shard, ["n"], Msg(delay_ms=60_000), producer_id=9, number=3)) == [0]
    assert shard.send(Msg(delay_ms=60_000), producer=9, number=0).seqs == [1]


def test_a_topic_that_does_not_deduplicate_takes_ids_and_forgets_them(take: Callable[[str], Shard]) -> None:
    shard = take("t")
    first = send(shard, ["a"], Msg(delay_ms=60_000), producer_id=5, number=0)
    second = send(shard, ["a"], Msg(delay_ms=60_000), producer_id=5, number=1)
    retry = send(shard, ["a"], Msg(delay_ms=60_000), producer_id=5, number=1)
    assert [one.first_seq for one in (first, second, retry)] == [0, 1, 1]
    assert (retry.duplicate, retry.seq, retry.repeated) == (True, b"", b"")


@pytest.mark.parametrize("topic", ["once", "t"])
def test_half_an_id_is_refused(take: Callable[[str], Shard], topic: str) -> None:
    shard = take(topic)
    with pytest.raises(Failure, match=r"column message_id has 24 bytes, 2 messages need 32") as caught:
        send(shard, [], Msg(), Msg(), message_id=bytes(24))
    assert caught.value.reason == "BAD_COLUMNS"


def test_a_message_that_may_not_be_stored_is_named_by_its_place_in_the_request(take: Callable[[str], Shard]) -> None:
    shard = take("once")
    send(shard, ["a"], Msg(delay_ms=60_000))
    with pytest.raises(Failure, match=r"message 2 is delayed by"):
        send(shard, ["a", "b", "c"], Msg(delay_ms=10**12), Msg(), Msg(delay_ms=10**12))
    assert seqs(send(shard, ["b"], Msg(delay_ms=60_000))) == [1], "nothing of it was stored"


def test_a_stream_stores_each_once_too(take: Callable[[str], Shard]) -> None:
    shard = take("once")
    made = shard.request(Msg(delay_ms=60_000))
    made.message_id = hash_id("s")
    answers = list(shard.client.stream([made] * 3))
    assert [seqs(answer) for answer in answers] == [[0]] * 3
    assert [list(answer.repeated) for answer in answers] == [[0], [1], [1]]
