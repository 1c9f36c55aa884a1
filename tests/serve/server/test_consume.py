"""Messages out: Fetch, share groups, retries, dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb

from tests.serve.support.client import Client, Failure, Got, Msg, Shard, i64, now_ms, poll, rows, u32

MIB = 1 << 20


def bodies(got: list[Got]) -> list[bytes]:
    return [one.body for one in got]


def numbered(count: int, **how: object) -> list[Msg]:
    return [Msg(b"%d" % n, **how) for n in range(count)]  # type: ignore[arg-type]


# ---------------------------------------------------------------- Fetch
def test_fetch_reads_from_any_offset_and_says_where_to_go_on(shard: Shard) -> None:
    shard.send(*numbered(10))
    assert bodies(shard.fetch(0)) == [b"%d" % n for n in range(10)]
    page = shard.call("Fetch", offset=3, max_messages=4)
    assert [(one.offset, one.body) for one in rows(page)] == [(n, b"%d" % n) for n in range(3, 7)]
    assert (page.next_offset, page.end_offset) == (7, 10)
    end = shard.call("Fetch", offset=10)
    assert (end.count, end.next_offset, end.end_offset) == (0, 10, 10)


def test_fetch_keeps_to_max_bytes_but_gives_at_least_one(shard: Shard) -> None:
    shard.send(*[Msg(bytes(1000))] * 5)
    size = len(Msg(bytes(1000)).record())
    assert len(shard.fetch(0, max_bytes=2 * size)) == 2
    assert len(shard.fetch(0, max_bytes=1)) == 1


def test_fetch_waits_for_a_release(shard: Shard) -> None:
    stored = shard.send(Msg(delay_ms=600))
    got = shard.fetch(0, wait_ms=10_000)
    assert len(got) == 1
    assert stored.due[0] <= got[0].received_ms < stored.due[0] + 2_000


def test_fetch_gives_up_waiting(shard: Shard) -> None:
    begin = time.monotonic()
    assert shard.fetch(0, wait_ms=300) == []
    assert 0.25 < time.monotonic() - begin < 3


def test_fetch_changes_nothing_for_a_group_and_can_start_at_its_floor(shard: Shard) -> None:
    shard.send(*numbered(5))
    shard.ack_all(shard.receive(max_messages=2, wait_ms=5_000))
    assert bodies(shard.fetch(-1, group="g")) == [b"2", b"3", b"4"]
    assert bodies(shard.receive()) == [b"2", b"3", b"4"]


# ---------------------------------------------------------------- Receive, Ack
def test_a_long_poll_is_answered_at_the_release(shard: Shard) -> None:
    stored = shard.send(Msg(delay_ms=700))
    (one,) = shard.receive(wait_ms=20_000)
    assert stored.due[0] <= one.received_ms < stored.due[0] + 2_000


def test_a_long_poll_without_news_ends_empty_in_time(shard: Shard) -> None:
    begin = time.monotonic()
    assert shard.receive(wait_ms=400) == []
    assert 0.35 < time.monotonic() - begin < 3


def test_a_message_goes_to_one_consumer_of_a_group_and_to_every_group(shard: Shard) -> None:
    shard.send(*numbered(400))
    clients = [Client(shard.client.endpoint) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda client: [shard.at(client).receive(max_messages=20) for _ in range(8)], clients))
    got = [one for part in parts for batch in part for one in batch]
    assert sorted(one.offset for one in got) == list(range(400))
    assert all(one.attempt == 1 for one in got)
    assert len(shard.receive("other", max_messages=500)) == 400
    for client in clients:
        client.close()


def test_waiting_consumers_share_what_comes(shard: Shard) -> None:
    clients = [Client(shard.client.endpoint) for _ in range(6)]
    shard.receive()  # makes the group
    waiting = [shard.at(c).waiting(max_messages=1, wait_ms=10_000) for c in clients]
    shard.send(*numbered(6, delay_ms=200))
    got = [one for answer in waiting for one in answer()]
    assert sorted(bodies(got)) == [b"%d" % n for n in range(6)]
    for client in clients:
        client.close()


def test_max_bytes_bounds_a_hand_out_and_the_rest_stays_free(shard: Shard) -> None:
    shard.send(*[Msg(bytes(1000))] * 5)
    size = len(Msg(bytes(1000)).record())
    assert [one.offset for one in shard.receive(max_bytes=2 * size + 5)] == [0, 1]
    assert [one.offset for one in shard.receive(max_bytes=1)] == [2]
    assert [(one.offset, one.attempt) for one in shard.receive()] == [(3, 1), (4, 1)]


def test_a_tag_filter_is_the_groups_own(shard: Shard) -> None:
    shard.send(*[Msg(b"%d" % n, tag=("red", "blue", "")[n % 3]) for n in range(30)])
    assert bodies(shard.receive("r", tags=["red"])) == [b"%d" % n for n in range(0, 30, 3)]
    assert len(shard.receive("both", tags=["blue", "red", "red"])) == 20
    assert len(shard.receive("all")) == 30
    assert shard.receive("none", tags=["green"]) == []
    assert shard.group("both").tags == ["blue", "red"]
    assert len(shard.receive("both", tags=["red", "blue"])) == 0  # the order of tags says nothing
    with pytest.raises(Failure) as caught:
        shard.receive("r")
    assert caught.value.reason == "GROUP_MISMATCH"


def test_a_filtered_long_poll_skips_what_it_does_not_take(shard: Shard) -> None:
    shard.receive("r", tags=["red"])
    shard.send(*[Msg(tag="blue", delay_ms=100 + n) for n in range(100)], Msg(b"mine", tag="red", delay_ms=600))
    assert bodies(shard.receive("r", tags=["red"], wait_ms=10_000)) == [b"mine"]


def test_a_new_group_may_start_at_the_end(shard: Shard) -> None:
    shard.send(*numbered(5))
    assert shard.receive("late", from_end=True) == []
    shard.send(Msg(b"new"))
    assert bodies(shard.receive("late", wait_ms=5_000)) == [b"new"]


def test_ack_takes_ranges_out_and_counts_what_it_took(shard: Shard) -> None:
    shard.send(*numbered(20))
    shard.receive(max_messages=10)
    assert shard.ack((0, 3), (5, 6)) == 4
    assert shard.ack((0, 4)) == 1
    assert shard.ack((0, 4)) == 0
    assert shard.ack() == 0
    assert shard.group().floor == 4
    assert shard.ack((15, 20), (8, 10)) == 7  # also what nobody has been handed yet
    state = shard.group()
    assert (state.floor, state.end_offset, state.in_flight, state.available) == (4, 20, 4 - 1, 5)
    assert [one.offset for one in shard.receive()] == [10, 11, 12, 13, 14]
    assert shard.ack((0, 20)) == 3 + 5
    assert shard.group().floor == 20


def test_invisible_time_over_it_comes_again_with_the_next_attempt(shard: Shard) -> None:
    shard.send(*numbered(3))
    first = shard.receive(max_messages=2, invisible_ms=4_000)
    begin = time.monotonic()
    assert [one.offset for one in shard.receive(wait_ms=200)] == [2]
    again = shard.receive(wait_ms=12_000)
    assert time.monotonic() - begin < 7
    assert [(one.offset, one.attempt) for one in again] == [(one.offset, 2) for one in first]
    assert shard.group().in_flight == 3


def test_an_ack_after_the_invisible_time_still_counts(shard: Shard) -> None:
    shard.send(*numbered(2))
    late = shard.receive(invisible_ms=200)
    poll("both are visible again", lambda: shard.group().available == 2)
    assert shard.ack_all(late) == 2
    assert shard.receive() == []


# ---------------------------------------------------------------- ReceiveStream
def asking(shard: Shard, **fields: Any) -> pb.ReceiveRequest:
    return pb.ReceiveRequest(topic=shard.topic, queue=shard.queue, group="g", **fields)


def test_a_receive_stream_answers_each_request_in_order(shard: Shard) -> None:
    shard.send(*numbered(10))
    asked = [asking(shard, max_messages=most, wait_ms=2_000) for most in (3, 1, 4, 9)]
    asked.append(asking(shard, wait_ms=1))
    answers = [bodies(rows(batch)) for batch in shard.client.receive_stream(asked)]
    assert [len(batch) for batch in answers] == [3, 1, 4, 2, 0]
    assert [body for batch in answers for body in batch] == [b"%d" % n for n in range(10)]


def test_a_receive_stream_may_go_from_queue_to_queue_and_waits_like_a_call(take: Callable[[str], Shard]) -> None:
    one, other = take("t"), take("t")
    one.send(Msg(b"now"))
    due = other.send(Msg(b"soon", delay_ms=500)).due[0]
    first, second = one.client.receive_stream([asking(one, wait_ms=5_000), asking(other, wait_ms=9_000)])
    assert bodies(rows(first)) == [b"now"]
    (soon,) = rows(second)
    assert due <= soon.received_ms < due + 3_000


def test_an_error_ends_a_receive_stream_with_its_reason(shard: Shard) -> None:
    shard.send(*numbered(2))
    for wrong, reason in (
        (asking(shard, tags=["x"]), "GROUP_MISMATCH"),
        (b"\xff", "BAD_REQUEST"),
        (pb.ReceiveRequest(topic="nobody"), "UNKNOWN_TOPIC"),
    ):
        answers = shard.client.receive_stream([asking(shard, max_messages=1), wrong, asking(shard)])
        next(answers)
        with pytest.raises(Failure) as caught:
            next(answers)
        assert caught.value.reason == reason


def test_a_receive_stream_that_breaks_off_hands_nothing_more_out(shard: Shard) -> None:
    shard.send(*numbered(2))
    with Client(shard.client.endpoint) as gone:
        own = shard.at(gone)
        answers = gone.receive_stream([asking(own, max_messages=1), *[asking(own, wait_ms=30_000)] * 3])
        assert bodies(rows(next(answers))) == [b"0"]
        assert bodies(rows(next(answers))) == [b"1"]
        answers.close()  # while the next one waits
        own.round_trip()
    shard.send(Msg(b"2"))
    assert [(one.offset, one.attempt) for one in shard.receive(wait_ms=5_000)] == [(2, 1)]


def test_an_empty_request_ends_a_receive_stream_and_its_wait(shard: Shard) -> None:
    shard.send(*numbered(1))
    wants_more, wants_no_more = threading.Event(), threading.Event()

    def requests() -> Iterator[pb.ReceiveRequest | bytes]:
        yield asking(shard, wait_ms=30_000)
        wants_more.wait(10)
        yield asking(shard, wait_ms=30_000)
        wants_no_more.wait(10)
        yield b""
        yield asking(shard, wait_ms=30_000)

    answers = shard.client.receive_stream(requests())
    assert bodies(rows(next(answers))) == [b"0"]
    wants_more.set()
    shard.round_trip()
    began = time.monotonic()
    wants_no_more.set()
    assert list(answers) == []
    assert time.monotonic() - began < 20
    shard.send(Msg(b"1"))
    assert [(one.offset, one.attempt) for one in shard.receive(wait_ms=5_000)] == [(1, 1)]


# ---------------------------------------------------------------- Nack
def test_nack_makes_it_visible_after_its_backoff(shard: Shard) -> None:
    shard.send(*numbered(2))
    got = shard.receive()
    begin = time.monotonic()
    counts = shard.nack(got[:1], backoff_ms=500)
    assert (counts.retried, counts.dead, counts.ignored) == (1, 0, 0)
    assert shard.group().waiting_retry == 1
    again = shard.receive(wait_ms=10_000)
    assert 0.45 < time.monotonic() - begin < 3
    assert [(one.offset, one.attempt) for one in again] == [(0, 2)]


def test_nack_without_backoff_is_at_once_and_wakes_who_waits(shard: Shard) -> None:
    shard.send(*numbered(1))
    got = shard.receive()
    with Client(shard.client.endpoint) as other:
        waiting = shard.at(other).waiting(wait_ms=10_000)
        begin = time.monotonic()
        shard.nack(got, backoff_ms=0)
        assert [(one.offset, one.attempt) for one in waiting()] == [(0, 2)]
        assert time.monotonic() - begin < 3


def test_the_default_backoff_grows(shard: Shard) -> None:
    shard.send(*numbered(1))
    (one,) = shard.receive(wait_ms=10_000)
    for backoff_s in (1, 2):
        asked_s = time.monotonic()
        shard.nack([one], backoff_ms=-1)  # begins when the node has it, which is before its answer is here
        answered_s = time.monotonic()
        (one,) = shard.receive(wait_ms=10_000)
        assert asked_s + backoff_s - 0.01 < time.monotonic() < answered_s + backoff_s + 2


def test_nack_of_another_attempt_is_ignored(shard: Shard) -> None:
    shard.send(*numbered(3))
    got = shard.receive(max_messages=2)
    assert shard.nack(got, backoff_ms=0).retried == 2
    assert shard.nack(got, backoff_ms=0).ignored == 2
    shard.ack((1, 2))
    other = shard.call("Nack", group="g", offset=i64(0, 1, 2, 2, 99, -1, 2**62), attempt=u32(9, 2, 5, 5, 1, 1, 1))
    assert (other.retried, other.ignored) == (0, 7)
    assert [(one.offset, one.attempt) for one in shard.receive(wait_ms=2_000)] == [(0, 2), (2, 1)]


# ---------------------------------------------------------------- attempts, one by one
def settled(answer: Any) -> list[bool]:
    return [one == pb.SETTLED for one in answer.settlement]


def of_attempts(got: list[Got], *attempts: int) -> list[Got]:
    """The same, as if they had been these attempts."""
    return [replace(one, attempt=attempt) for one, attempt in zip(got, attempts, strict=True)]


def test_an_attempt_is_acknowledged_only_while_it_is_not_over(shard: Shard) -> None:
    shard.send(*numbered(4))
    got = shard.receive()
    shard.nack(got[1:2], backoff_ms=0)
    shard.ack((2, 3))
    answer = shard.settle("Ack", [*got, got[0]])
    assert settled(answer) == [True, False, False, True, True]
    assert answer.acknowledged == 2
    assert settled(shard.settle("Ack", got)) == [False] * 4
    (again,) = shard.receive(wait_ms=5_000)
    assert (again.offset, again.attempt) == (1, 2)
    assert settled(shard.settle("Ack", [again])) == [True]
    assert shard.group().floor == 4


def test_an_extended_attempt_outlives_its_first_time_and_one_that_is_over_is_not_extended(shard: Shard) -> None:
    shard.send(*numbered(2))
    got = shard.receive(invisible_ms=3_000)
    before = now_ms()
    answer = shard.settle("Extend", got[:1], invisible_ms=60_000)
    assert settled(answer) == [True]
    assert before + 60_000 <= answer.until_ms <= now_ms() + 60_000
    again = shard.receive_all(1, seconds=10)
    assert [(one.offset, one.attempt) for one in again] == [(1, 2)]
    assert settled(shard.settle("Extend", got, invisible_ms=60_000)) == [True, False]
    assert shard.group().in_flight == 2
    assert shard.receive(wait_ms=500) == []


def test_an_attempt_ends_when_its_extended_time_is_over(shard: Shard) -> None:
    shard.send(*numbered(1))
    got = shard.receive(invisible_ms=60_000)
    begin = time.monotonic()
    shard.settle("Extend", got, invisible_ms=500)  # shorter than what was left
    (again,) = shard.receive(wait_ms=10_000)
    assert 0.45 < time.monotonic() - begin < 3
    assert (again.offset, again.attempt) == (0, 2)


def test_what_is_given_back_is_the_same_attempt_for_who_waits(shard: Shard) -> None:
    shard.send(*numbered(1))
    got = shard.receive()
    with Client(shard.client.endpoint) as other:
        waiting = shard.at(other).waiting(wait_ms=10_000)
        begin = time.monotonic()
        assert settled(shard.settle("Extend", got, invisible_ms=0)) == [True]
        assert [(one.offset, one.attempt) for one in waiting()] == [(0, 1)]
        assert time.monotonic() - begin < 3


def test_a_message_that_is_to_die_is_a_dead_letter_at_its_first_attempt(shard: Shard) -> None:
    shard.send(*numbered(3))
    got = shard.receive()
    shard.ack((2, 3))
    answer = shard.settle("Nack", got, dead=True)
    assert (answer.retried, answer.dead, answer.ignored) == (0, 2, 1)
    assert settled(answer) == [True, True, False]
    assert [(one.offset, one.attempt, one.body) for one in letters(shard)] == [(0, 1, b"0"), (1, 1, b"1")]
    assert resolve(shard, REDRIVE, 1) == 1
    (again,) = shard.receive(wait_ms=5_000)
    assert settled(shard.settle("Extend", [again], invisible_ms=60_000)) == [True]
    assert settled(shard.settle("Ack", of_attempts([again], 2))) == [False]
    assert settled(shard.settle("Ack", [again])) == [True]


def test_attempts_that_nobody_can_have_are_over(shard: Shard) -> None:
    shard.send(*numbered(1))
    shard.receive()
    offset, attempt = i64(0, 0, 99, -1, 2**62), u32(0, 9, 1, 1, 1)
    for method, fields in (("Ack", {}), ("Nack", {}), ("Extend", {"invisible_ms": 5}), ("Extend", {})):
        answer = shard.call(method, group="g", offset=offset, attempt=attempt, **fields)
        assert settled(answer) == [False] * 5
    assert shard.group().in_flight == 1


# ---------------------------------------------------------------- dead letters
def bury(shard: Shard, count: int) -> None:
    """Uses up the three attempts that topic `few` gives `count` messages."""
    for attempt in (1, 2, 3):
        got = shard.receive_all(count)
        assert {one.attempt for one in got} == {attempt}
        counts = shard.nack(got, backoff_ms=0)
        assert (counts.retried, counts.dead) == ((count, 0) if attempt < 3 else (0, count))


def letters(shard: Shard, **fields: object) -> list[Got]:
    return rows(shard.call("ListDeadLetters", group="g", **{"after_offset": -1, **fields}))


def resolve(shard: Shard, action: int, *offsets: int) -> int:
    return int(shard.call("ResolveDeadLetters", group="g", action=action, offset=i64(*offsets)).resolved)


REDRIVE, DROP = pb.ResolveDeadLettersRequest.REDRIVE, pb.ResolveDeadLettersRequest.DROP


def test_attempts_used_up_it_is_a_dead_letter_to_be_listed_redriven_or_dropped(take: Callable[[str], Shard]) -> None:
    shard = take("few")
    shard.send(*numbered(5))
    bury(shard, 5)
    assert shard.receive() == []
    assert (shard.group().dead, shard.group().floor) == (5, 5)
    assert [(one.offset, one.attempt, one.body) for one in letters(shard)] == [(n, 3, b"%d" % n) for n in range(5)]
    assert [one.offset for one in letters(shard, after_offset=1, limit=2)] == [2, 3]
    assert resolve(shard, DROP, 0, 77, -3) == 1
    assert resolve(shard, REDRIVE, 3, 1) == 2
    assert [(one.offset, one.attempt) for one in shard.receive(wait_ms=5_000)] == [(1, 1), (3, 1)]
    assert shard.ack((1, 2)) == 1
    assert resolve(shard, REDRIVE) == 2  # all that are left: 2 and 4
    assert sorted(one.offset for one in shard.receive(wait_ms=5_000)) == [2, 4]
    assert shard.ack((0, 5)) == 3
    assert (shard.group().dead, shard.group().available, shard.group().in_flight) == (0, 0, 0)
    assert resolve(shard, DROP) == 0


def test_the_invisible_time_uses_attempts_up_too(take: Callable[[str], Shard]) -> None:
    shard = take("few")
    shard.send(*numbered(1))
    for attempt in (1, 2, 3):
        (one,) = shard.receive(wait_ms=10_000, invisible_ms=50)
        assert one.attempt == attempt
    poll("it is a dead letter", lambda: shard.group().dead == 1)
    assert bodies(letters(shard)) == [b"0"]


def test_a_redriven_letter_can_die_again(take: Callable[[str], Shard]) -> None:
    shard = take("few")
    shard.send(*numbered(2))
    bury(shard, 2)
    assert resolve(shard, REDRIVE, 1) == 1
    bury(shard, 1)
    assert [one.offset for one in letters(shard)] == [0, 1]


def test_a_page_of_dead_letters_is_bounded_in_bytes(take: Callable[[str], Shard]) -> None:
    shard = take("few")
    for _ in range(12):
        shard.send(*[Msg(bytes(4 * MIB - 64))] * 2)
    for _ in range(3):
        got = [one for _ in range(24) for one in shard.receive(max_messages=1, wait_ms=1_000)]
        shard.nack(got, backoff_ms=0)
    assert shard.group().dead == 24
    found: list[int] = []
    while page := letters(shard, after_offset=found[-1] if found else -1):
        assert sum(len(one.body) for one in page) <= 8 * MIB
        found += [one.offset for one in page]
    assert found == list(range(24))


# ---------------------------------------------------------------- groups
def test_describe_lists_all_groups_and_delete_forgets_one(shard: Shard) -> None:
    shard.send(*numbered(3))
    for name in ("b", "a", "\u0107"):
        shard.receive(name)
    assert [group.group for group in shard.call("DescribeGroup").groups] == ["a", "b", "\u0107"]
    shard.call("DeleteGroup", group="b")
    assert [group.group for group in shard.call("DescribeGroup").groups] == ["a", "\u0107"]
    assert len(shard.receive("b", tags=["x"])) == 0  # new: with another filter, from the beginning
    with pytest.raises(Failure) as caught:
        shard.call("DeleteGroup", group="nobody")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_consumer_that_waits_is_told_when_its_group_is_deleted(shard: Shard) -> None:
    shard.receive("g")
    with Client(shard.client.endpoint) as other:
        waiting = shard.at(other).waiting(wait_ms=3_000)
        shard.call("DeleteGroup", group="g")
        shard.send(Msg())
        with pytest.raises(Failure) as caught:
            waiting()
    assert caught.value.reason == "UNKNOWN_GROUP"


def test_a_thousand_groups_and_no_more(shard: Shard) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: shard.receive(f"group-{n}"), range(1_000)))
    with pytest.raises(Failure, match="1000 groups") as caught:
        shard.receive("one-more")
    assert caught.value.reason == "BAD_GROUP"
    assert shard.receive("group-7") == []


def test_no_more_than_max_unacked_are_out_and_an_ack_makes_room_for_who_waits(shard: Shard) -> None:
    at = now_ms()
    for _ in range(2):
        shard.send(*[Msg(b"", at_ms=at)] * 55_000)
    got = shard.receive_all(100_000, max_bytes=8 * MIB)
    assert len(got) == 100_000
    assert shard.receive(wait_ms=100) == []
    with pytest.raises(Failure, match="100,000"):
        shard.ack((100_000, 100_001))
    with Client(shard.client.endpoint) as other:
        waiting = shard.at(other).waiting(max_messages=10, wait_ms=10_000)
        assert shard.ack((0, 7)) == 7
        begin = time.monotonic()
        assert [one.offset for one in waiting()] == list(range(100_000, 100_007))
        assert time.monotonic() - begin < 3
    assert shard.ack((0, 100_007)) == 100_000


def test_a_call_that_the_client_ends_hands_nothing_out(shard: Shard) -> None:
    shard.receive("g")
    asked = pb.ReceiveRequest(topic=shard.topic, queue=shard.queue, group="g", wait_ms=30_000).SerializeToString()
    with Client(shard.client.endpoint) as gone, pytest.raises(Failure) as caught:
        gone.raw("Receive", asked, seconds=0.3)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    shard.round_trip()
    shard.send(Msg())
    assert [(one.offset, one.attempt) for one in shard.receive(wait_ms=5_000)] == [(0, 1)]


def test_consumers_that_come_and_go_get_all_once_acknowledged(shard: Shard) -> None:
    """Receivers that vanish in the middle of a call: at least once, none twice once it is acknowledged."""
    total, done, lock = 300, set[int](), threading.Lock()
    shard.receive("g")

    def consume(patience_s: float) -> None:
        while len(done) < total:
            with Client(shard.client.endpoint) as client:
                own = shard.at(client)
                asked = pb.ReceiveRequest(
                    topic=shard.topic, queue=shard.queue, group="g", max_messages=5, wait_ms=500, invisible_ms=4_000
                ).SerializeToString()
                try:
                    got = rows(pb.MessageBatch.FromString(client.raw("Receive", asked, seconds=patience_s)))
                except Failure:
                    continue
                own.ack_all(got)
                with lock:
                    assert done.isdisjoint(one.offset for one in got)
                    done.update(one.offset for one in got)

    for n in range(6):
        shard.send(*numbered(50, delay_ms=200 * n))
    threads = [threading.Thread(target=consume, args=(s,)) for s in (5.0, 0.01, 0.004)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == total
