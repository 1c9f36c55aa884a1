"""Pending messages: cancelled, rescheduled, listed and counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS, HOUR_MS

from tests.serve.conftest import TOPICS
from tests.serve.support.client import Msg, Sent, Shard, crc, i64, ints, now_ms, u32

SPREAD = (5_000, 70_000, 5 * HOUR_MS, 26 * HOUR_MS, 3 * DAY_MS, 39 * DAY_MS)  # window, minute and hour slots
CANCELLED, TOO_LATE, ALREADY, RESCHEDULED, NOT_FOUND, MOVED = (
    pb.CANCELLED,
    pb.TOO_LATE,
    pb.ALREADY_CANCELLED,
    pb.RESCHEDULED,
    pb.NOT_FOUND,
    pb.MOVED,
)


def test_cancel_says_what_became_of_each(shard: Shard) -> None:
    live = shard.send(*[Msg(delay_ms=delay) for delay in SPREAD])
    gone = shard.send(Msg(b"gone"))
    assert len(shard.receive(wait_ms=5_000)) == 1
    assert shard.cancel(live) == [CANCELLED] * len(SPREAD)
    assert shard.cancel(live) == [ALREADY] * len(SPREAD)
    assert shard.cancel(gone) == [TOO_LATE]
    assert shard.stored() == (0, 1)
    assert shard.pending() == []


def test_a_message_named_twice_in_one_request_is_cancelled_once(shard: Shard) -> None:
    one = shard.send(Msg(delay_ms=60_000))
    twice = Sent(one.uid, one.seqs * 3, one.due * 3)
    assert shard.cancel(twice) == [CANCELLED, ALREADY, ALREADY]
    assert shard.stored() == (0, 0)


def test_what_is_cancelled_just_before_its_due_is_not_delivered(shard: Shard) -> None:
    stored = shard.send(*[Msg(b"%d" % n, delay_ms=300 + n) for n in range(400)])
    outcomes = [
        outcome
        for at in range(0, 400, 10)
        for outcome in shard.cancel(Sent(stored.uid, stored.seqs[at : at + 10 : 2], stored.due[at : at + 10 : 2]))
    ]
    assert set(outcomes) <= {CANCELLED, TOO_LATE}
    cancelled = {2 * n for n, outcome in enumerate(outcomes) if outcome == CANCELLED}
    got = shard.receive_all(400 - len(cancelled))
    assert sorted(int(one.body) for one in got) == sorted(set(range(400)) - cancelled)
    assert shard.receive(wait_ms=300) == []


def test_reschedule_gives_a_new_handle_and_the_old_one_answers_so(shard: Shard) -> None:
    old = shard.send(*[Msg(b"%d" % n, delay_ms=delay) for n, delay in enumerate(SPREAD)])
    later = [due + 100 for due in old.due]
    outcomes, new = shard.reschedule(old, *later)
    assert (outcomes, new.due) == ([MOVED] * len(SPREAD), later)
    assert shard.cancel(old) == [RESCHEDULED] * len(SPREAD)
    assert shard.reschedule(old, *later) == ([RESCHEDULED] * len(SPREAD), Sent(old.uid, old.seqs, [0] * len(SPREAD)))
    assert shard.pending() == list(zip(later, old.seqs, strict=True))
    assert shard.cancel(new) == [CANCELLED] * len(SPREAD)
    assert shard.reschedule(new, *later)[0] == [ALREADY] * len(SPREAD)
    assert shard.stored() == (0, 0)


def test_rescheduled_earlier_later_and_into_the_past(shard: Shard) -> None:
    stored = shard.send(
        Msg(b"far", delay_ms=30 * DAY_MS),
        Msg(b"near", delay_ms=2_500),
        Msg(b"past", delay_ms=HOUR_MS),
        Msg(b"tag", delay_ms=9),
    )
    outcomes, new = shard.reschedule(
        Sent(stored.uid, stored.seqs[:3], stored.due[:3]), now_ms() + 400, stored.due[1] + 700, 5
    )
    assert outcomes == [MOVED] * 3
    got = {one.body: one for one in shard.receive_all(4)}
    assert set(got) == {b"far", b"near", b"past", b"tag"}
    for body, due, seq in zip((b"far", b"near", b"past"), new.due, new.seqs, strict=True):
        assert (got[body].due_ms, got[body].seq) == (due, seq)
        assert got[body].received_ms >= due
    assert shard.reschedule(new, *[now_ms()] * 3)[0] == [TOO_LATE] * 3
    assert shard.stored() == (0, 4)


def test_a_relative_reschedule_counts_from_now(shard: Shard) -> None:
    stored = shard.send(Msg(delay_ms=HOUR_MS))
    begin = now_ms()
    outcomes, new = shard.reschedule(stored, 60_000, relative=True)
    assert outcomes == [MOVED]
    assert begin + 60_000 <= new.due[0] <= now_ms() + 60_000
    outcomes, back = shard.reschedule(new, stored.due[0])  # to a due that it has had before
    assert (outcomes, back.due) == ([MOVED], stored.due)
    assert shard.pending() == [(stored.due[0], stored.seqs[0])]
    assert shard.cancel(back) == [CANCELLED]


def test_cancel_by_key_takes_the_range_and_the_key_itself(shard: Shard) -> None:
    begin = now_ms() + 60_000
    messages = [Msg(b"%d" % n, at_ms=begin + n * HOUR_MS, key=("mine", "other", "")[n % 3]) for n in range(90)]
    stored = shard.send(*messages)
    # A key with the hash of another one: only the record can tell them apart.
    impostor = Msg(b"impostor", at_ms=begin + HOUR_MS, key="impostor").record()
    shard.client.call(
        "Enqueue", topic=shard.topic, queue=shard.queue, count=1, time=i64(begin + HOUR_MS), size=u32(len(impostor)),
        key_hash=u32(crc("mine")), records=impostor,
    )  # fmt: skip
    low, high = begin, begin + 60 * HOUR_MS
    answer = shard.call("Cancel", key="mine", from_ms=low, to_ms=high)
    wanted = [n for n, m in enumerate(messages) if m.key == "mine" and low <= (m.at_ms or 0) < high]
    assert list(answer.outcome) == [CANCELLED] * len(wanted)
    assert ints(answer.seq) == [stored.seqs[n] for n in wanted]
    assert ints(answer.due) == [stored.due[n] for n in wanted]
    again = shard.call("Cancel", key="mine", from_ms=low, to_ms=high)
    assert (again.outcome, again.seq) == (b"", b"")
    assert shard.stored() == (91 - len(wanted), 0)
    assert len(shard.call("Cancel", key="mine", from_ms=0, to_ms=2**63 - 1).outcome) == 30 - len(wanted)


def test_a_rescheduled_message_is_found_by_its_key_at_its_new_due(shard: Shard) -> None:
    stored = shard.send(Msg(at_ms=now_ms() + DAY_MS, key="k"))
    _, new = shard.reschedule(stored, now_ms() + 9 * DAY_MS)
    assert shard.call("Cancel", key="k", from_ms=0, to_ms=stored.due[0] + 1).outcome == b""
    assert list(shard.call("Cancel", key="k", from_ms=new.due[0], to_ms=new.due[0] + 1).outcome) == [CANCELLED]


def test_list_pending_pages_by_due_and_seq(shard: Shard) -> None:
    choose = random.Random(3)
    begin = now_ms() + 60_000
    dues = [begin + choose.choice((0, 1, 2, 40_000, HOUR_MS, 50 * HOUR_MS, 20 * DAY_MS)) for _ in range(500)]
    stored = shard.send(*[Msg(b"%d" % n, at_ms=due) for n, due in enumerate(dues)])
    ordered = sorted(zip(stored.due, stored.seqs, strict=True))
    for limit in (1, 7, 500, 0):
        few = {"to_ms": begin + 3} if limit == 1 else {}
        expected = [one for one in ordered if one[0] < begin + 3] if few else ordered
        assert shard.pending(limit=limit, **few) == expected
    low, high = begin + 1, begin + HOUR_MS + 1
    assert shard.pending(from_ms=low, to_ms=high, limit=9) == [one for one in ordered if low <= one[0] < high]
    page = shard.call("ListPending", limit=5, with_records=True)
    ends = np.cumsum(np.frombuffer(page.size, "<u4")).tolist()
    records = [page.records[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    assert [int(pb.Message.FromString(record).body) for record in records] == [seq for _, seq in ordered[:5]]
    assert page.more
    last = shard.call("ListPending", after_due=ordered[-1][0], after_seq=ordered[-1][1])
    assert (last.count, last.more) == (0, False)


def test_pending_messages_of_one_key_are_listed_by_it(shard: Shard) -> None:
    twins = ("plumless", "buckeroo")  # one CRC-32
    assert crc32(twins[0].encode()) == crc32(twins[1].encode())
    begin = now_ms() + HOUR_MS
    keys = [twins[n % 4 == 3] if n % 2 else f"other-{n}" for n in range(400)]
    stored = shard.send(*[Msg(b"%d" % n, at_ms=begin + n, key=key) for n, key in enumerate(keys)])
    of_first = [(due, seq) for due, seq, key in zip(stored.due, stored.seqs, keys, strict=True) if key == twins[0]]
    for limit in (1, 3, 0):
        assert shard.pending(key=twins[0], limit=limit) == of_first
    assert shard.pending(key=twins[0], from_ms=begin + 101, to_ms=begin + 200) == of_first[25:50]
    shard.call("Cancel", key=twins[1], to_ms=begin + HOUR_MS)
    assert shard.pending(key=twins[1]) == []
    assert shard.pending(key="nobody") == []


def test_a_page_of_pending_records_is_bounded_in_bytes(shard: Shard) -> None:
    for _ in range(10):
        shard.send(*[Msg(bytes((4 << 20) - 64), delay_ms=HOUR_MS)] * 2)
    page = shard.call("ListPending", with_records=True)
    assert page.more
    assert 0 < len(page.records) <= 8 << 20
    assert len(shard.pending(with_records=True)) == 20
    assert len(shard.pending()) == 20


def test_the_wheels_slots_add_up_to_what_is_pending(shard: Shard) -> None:
    choose = random.Random(5)
    begin = now_ms()
    delays = [choose.choice((choose.randrange(90_000, 3_600_000), choose.randrange(40 * DAY_MS))) for _ in range(2_000)]
    delays = [max(delay, 90_000) for delay in delays]
    stored = shard.send(*[Msg(bytes(100), at_ms=begin + delay) for delay in delays])
    assert shard.cancel(Sent(stored.uid, stored.seqs[::10], stored.due[::10])) == [CANCELLED] * 200
    wheel = shard.wheel()
    starts, widths = np.frombuffer(wheel.slot_start, "<i8"), np.frombuffer(wheel.slot_width, "<i8")
    counts, sizes = np.frombuffer(wheel.messages, "<i8"), np.frombuffer(wheel.bytes, "<i8")
    assert len(starts) == len(widths) == len(counts) == len(sizes)
    assert (np.diff(starts) > 0).all()
    assert set(widths.tolist()) <= {60_000, HOUR_MS}
    assert int(counts.sum()) == wheel.pending == 1_800
    assert abs(int(sizes.sum()) - wheel.pending_bytes) <= len(sizes)
    kept = np.array([due for n, due in enumerate(stored.due) if n % 10])
    for start, width, count in zip(starts.tolist(), widths.tolist(), counts.tolist(), strict=True):
        assert count == int(((kept >= start) & (kept < start + width)).sum())
    low, high = begin + DAY_MS, begin + 2 * DAY_MS
    (part,) = shard.call("GetWheel", from_ms=low, to_ms=high).shards
    inside = (starts + widths > low) & (starts < high)
    assert ints(part.messages) == counts[inside].tolist()
    for slot_ms in (30 * 60_000, 6 * HOUR_MS):
        (part,) = shard.call("GetWheel", slot_ms=slot_ms).shards
        starts, widths = np.array(ints(part.slot_start)), np.array(ints(part.slot_width))
        assert (starts[1:] >= starts[:-1] + widths[:-1]).all(), "no slot overlaps another"
        assert set(widths.tolist()) <= {slot_ms, HOUR_MS}
        assert (starts[widths == slot_ms] % slot_ms == 0).all()
        for start, width, count in zip(starts.tolist(), widths.tolist(), ints(part.messages), strict=True):
            assert count == int(((kept >= start) & (kept < start + width)).sum())
        assert sum(ints(part.messages)) == 1_800


def test_the_whole_nodes_wheel_has_every_shard(take: Callable[[str], Shard]) -> None:
    shard = take("t")
    shard.send(Msg(delay_ms=DAY_MS))
    before = now_ms()
    answer = shard.client.call("GetWheel")
    assert before - 5_000 < answer.now_ms < now_ms() + 5_000
    names = [(one.topic, one.queue) for one in answer.shards]
    assert len(set(names)) == len(names) == sum(topic.queues for topic in TOPICS)
    mine = answer.shards[names.index((shard.topic, shard.queue))]
    assert (mine.pending, mine.node, mine.epoch) == (1, "n0", 1)
