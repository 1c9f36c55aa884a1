"""Messages in: batches, streams, idempotent producers; and out again in order, on time and whole."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS
from delaylocal import LocalCluster

from tests.serve.node.test_health import scrape
from tests.serve.support.client import CALL_SECONDS, Client, Failure, Msg, Shard, ints, now_ms, poll, sent, u32

MIB = 1 << 20


def test_a_batch_comes_out_whole_in_due_order_never_early(shard: Shard) -> None:
    begin = now_ms() + 2_000  # those that are past when they come would come out as they were stored
    delays = random.Random(1).choices(range(50, 1_500), k=300)
    messages = [Msg(b"%d" % n, at_ms=begin + delay, key=f"k{n}", tag=f"t{n % 3}") for n, delay in enumerate(delays)]
    stored = shard.send(*messages)
    assert stored.seqs == list(range(300))
    got = shard.receive_all(300)
    assert [one.offset for one in got] == list(range(300))
    assert [(one.due_ms, one.seq) for one in got] == sorted(zip(stored.due, stored.seqs, strict=True))
    for one in got:
        asked = messages[one.seq]
        assert (one.body, one.message.key, one.message.tag) == (asked.body, asked.key, asked.tag)
        assert one.due_ms == asked.at_ms
        assert one.received_ms >= one.due_ms


def test_messages_of_one_instant_come_out_in_the_order_they_were_stored(shard: Shard) -> None:
    at = now_ms() + 700
    for n in range(5):
        shard.send(*[Msg(b"%d" % (100 * n + m), at_ms=at) for m in range(100)])
    got = shard.receive_all(500)
    assert [int(one.body) for one in got] == list(range(500))
    assert min(one.received_ms for one in got) >= at


def test_a_past_due_is_an_ordinary_message_at_once(shard: Shard) -> None:
    shard.send(
        Msg(b"later", delay_ms=60_000), Msg(b"long ago", at_ms=0), Msg(b"ago", at_ms=now_ms() - 5_000), Msg(b"now")
    )
    got = shard.receive(wait_ms=5_000)
    assert [one.body for one in got] == [b"long ago", b"ago", b"now"]  # by the order they were stored in
    assert got[0].due_ms == 0
    assert shard.stored() == (1, 3)


def test_a_delay_counts_from_the_masters_clock(shard: Shard) -> None:
    begin = now_ms()
    stored = shard.send(Msg(delay_ms=0), Msg(delay_ms=5_000), Msg(at_ms=begin + 3_000))
    assert begin <= stored.due[0] <= now_ms()
    assert stored.due[1] == stored.due[0] + 5_000
    assert stored.due[2] == begin + 3_000
    assert [one.due_ms for one in shard.receive_all(3)] == sorted(stored.due)


def test_absolute_batches_are_answered_without_their_dues(shard: Shard) -> None:
    made = shard.request(Msg(at_ms=now_ms() + 60_000))
    made.relative = b""
    answer = pb.EnqueueResponse.FromString(shard.client.raw("Enqueue", made.SerializeToString()))
    assert (answer.count, answer.due, answer.duplicate) == (1, b"", False)


def test_delays_up_to_the_horizon_are_kept_with_their_exact_due(shard: Shard) -> None:
    delays = [60_000, 3_600_000, 23 * 3_600_000, DAY_MS + 1, 2 * DAY_MS + 7, 39 * DAY_MS, 40 * DAY_MS]
    stored = shard.send(*[Msg(delay_ms=delay) for delay in delays])
    assert [due - stored.due[0] + 60_000 for due in stored.due] == delays
    assert shard.pending() == list(zip(stored.due, stored.seqs, strict=True))
    wheel = shard.wheel()
    starts, widths = ints(wheel.slot_start), ints(wheel.slot_width)
    for due in stored.due:
        assert any(start <= due < start + width for start, width in zip(starts, widths, strict=True))


def test_large_and_odd_bodies_come_back_as_they_were(shard: Shard) -> None:
    bodies = [b"", b"\0", os.urandom(1), os.urandom(4 * MIB - 64), bytes(range(256)) * 40]
    shard.send(*map(Msg, bodies))
    got = shard.receive_all(5, max_bytes=8 * MIB)
    assert [one.body for one in got] == bodies


# ---------------------------------------------------------------- idempotent producers
def test_a_retry_gets_its_first_answer_again_and_is_stored_once(shard: Shard) -> None:
    batch = [Msg(b"a", delay_ms=60_000), Msg(b"b", delay_ms=70_000)]
    first = shard.send(*batch, producer=9, number=0)
    time.sleep(0.02)  # a due made anew would differ
    again = shard.send(*batch, producer=9, number=0)
    assert (again.seqs, again.due, first.duplicate, again.duplicate) == (first.seqs, first.due, False, True)
    assert shard.stored() == (2, 0)


def test_only_the_next_number_is_stored_and_sixteen_are_remembered(shard: Shard) -> None:
    firsts = [shard.send(Msg(delay_ms=60_000), producer=5, number=number) for number in range(20)]
    for number in range(4, 20):
        again = shard.send(Msg(delay_ms=60_000), producer=5, number=number)
        assert (again.duplicate, again.seqs, again.due) == (True, firsts[number].seqs, firsts[number].due)
    for number in (3, 21, 2**64 - 1):
        with pytest.raises(Failure) as caught:
            shard.send(Msg(delay_ms=60_000), producer=5, number=number)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_ORDER")
        assert caught.value.metadata == {"expected": "20"}
    assert shard.stored() == (20, 0)


def test_producers_do_not_know_of_each_other(shard: Shard) -> None:
    for producer in (1, 2, 2**64 - 1):
        assert not shard.send(Msg(delay_ms=60_000), producer=producer, number=0).duplicate
    assert shard.stored() == (3, 0)


def test_two_connections_that_send_the_same_batch_at_once_store_it_once(shard: Shard) -> None:
    answers = []

    def send(client: Client) -> None:
        answers.append(shard.at(client).send(*[Msg(delay_ms=60_000)] * 50, producer=3, number=0))

    clients = [Client(shard.client.endpoint) for _ in range(8)]
    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    assert sorted(answer.duplicate for answer in answers) == [False] + [True] * 7
    assert len({(tuple(answer.seqs), tuple(answer.due)) for answer in answers}) == 1
    assert shard.stored() == (50, 0)


# ---------------------------------------------------------------- streams
def test_a_stream_answers_each_request_in_order(shard: Shard) -> None:
    batches = [[Msg(b"%d" % (10 * n + m), delay_ms=60_000) for m in range(10)] for n in range(200)]
    answers = list(shard.client.stream(shard.request(*batch, producer=4, number=n) for n, batch in enumerate(batches)))
    assert [answer.first_seq for answer in answers] == list(range(0, 2_000, 10))
    assert not any(answer.HasField("error") or answer.duplicate for answer in answers)
    assert shard.stored() == (2_000, 0)


def test_a_refused_request_is_an_answer_in_its_place_and_the_stream_goes_on(shard: Shard) -> None:
    good = Msg(delay_ms=60_000)
    unknown = shard.request(good)
    unknown.topic = "nobody"
    wrong = shard.request(good, good)
    wrong.size = u32(1)
    answers = list(
        shard.client.stream(
            [
                shard.request(good, producer=6, number=0),
                shard.request(good, Msg(delay_ms=99 * DAY_MS), producer=6, number=1),
                b"\xff\xff",
                unknown,
                wrong,
                shard.request(good, producer=6, number=5),
                shard.request(good, producer=6, number=0),
                shard.request(good, producer=6, number=1),
            ]
        )
    )
    reasons = ["", "DELAY_TOO_LONG", "BAD_REQUEST", "UNKNOWN_TOPIC", "BAD_COLUMNS", "OUT_OF_ORDER", "", ""]
    assert [answer.error.reason for answer in answers] == reasons
    assert answers[5].error.metadata == {"expected": "1"}
    assert answers[5].error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "40 days" in answers[1].error.message
    assert (answers[6].duplicate, answers[6].first_seq, answers[7].first_seq) == (True, 0, 1)
    assert shard.stored() == (2, 0)


def test_a_stream_may_serve_many_shards(take_many: list[Shard]) -> None:
    requests = [shard.request(Msg(b"%d" % n, delay_ms=60_000)) for n in range(20) for shard in take_many]
    answers = list(take_many[0].client.stream(requests))
    assert [answer.first_seq for answer in answers] == [n for n in range(20) for _ in take_many]
    assert [shard.stored() for shard in take_many] == [(20, 0)] * len(take_many)


@pytest.fixture
def take_many(take: object) -> list[Shard]:
    return [take("t") for _ in range(3)]  # type: ignore[operator]


def test_streams_that_break_off_leave_no_room_taken(shard: Shard, cluster: LocalCluster) -> None:
    """The node bounds the bytes that wait for their commit: a stream that goes away must give its part back."""
    body = bytes(MIB)

    def endless(stop: threading.Event) -> Iterator[bytes]:
        made = shard.request(*[Msg(body, delay_ms=60_000)] * 4).SerializeToString()
        while not stop.is_set():
            yield made

    for _ in range(8):  # each leaves up to 16 requests of 4 MiB behind; the node allows 64 MiB
        stop = threading.Event()
        answers = shard.client.channel.stream_stream("/delay.v1.DelayService/EnqueueStream")(
            endless(stop), timeout=CALL_SECONDS
        )
        next(answers)
        answers.cancel()
        stop.set()
    held = ("delay_in_flight_bytes", (("direction", "in"),))
    poll("what they sent is stored or dropped", lambda: scrape(cluster)[held] == 0)
    stored = shard.send(*[Msg(body, delay_ms=60_000)] * 7)
    assert len(stored.seqs) == 7
    answers_2 = list(shard.client.stream([shard.request(Msg(body, delay_ms=60_000))] * 20))
    assert len(answers_2) == 20


def test_a_stream_that_reads_no_answers_is_held_up_and_loses_nothing(shard: Shard) -> None:
    batches = 400
    call = shard.client.channel.stream_stream("/delay.v1.DelayService/EnqueueStream")(
        iter([shard.request(Msg(b"%d" % n, delay_ms=60_000)).SerializeToString() for n in range(batches)])
    )
    poll("the node is at work on them", lambda: shard.stored()[0] > 0)
    time.sleep(0.5)  # in which more could come than it may have unanswered
    assert [pb.EnqueueResponse.FromString(answer).first_seq for answer in call] == list(range(batches))
    assert shard.stored() == (batches, 0)


def test_an_answer_says_what_is_stored(shard: Shard) -> None:
    made = shard.request(Msg(delay_ms=5_000), Msg(at_ms=now_ms() + 9_000))
    answer = pb.EnqueueResponse.FromString(shard.client.raw("Enqueue", made.SerializeToString()))
    stored = sent(answer, [Msg(), Msg()])
    route = shard.client.call("QueryRoute", topic=shard.topic).topics[0]
    assert stored.uid == route.queues[shard.queue].uid
    page = shard.call("ListPending", with_records=True)
    assert sorted(zip(stored.due, stored.seqs, strict=True)) == list(zip(ints(page.due), ints(page.seq), strict=True))
    assert page.uid == stored.uid
    assert (page.records, page.size) == (Msg().record() * 2, u32(*[len(Msg().record())] * 2))
