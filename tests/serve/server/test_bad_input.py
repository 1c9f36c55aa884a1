"""The table of docs/control-plane.md through the real server: code, reason, a text that says what, where and which
limit; and a refused call leaves the shard as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS

from tests.serve.support.client import METHODS, Client, Failure, Msg, Sent, Shard, crc, i64, now_ms, u32

INVALID, MISSING, PRECONDITION = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
)
MIB = 1 << 20
LONG = "q" * 20_000


@dataclass(frozen=True)
class Bad:
    """A call that must be refused. `text`: a pattern that its message must contain."""

    name: str
    make: Callable[[Shard], Any]
    code: grpc.StatusCode
    reason: str
    text: str


def enqueue(**changes: Any) -> Callable[[Shard], Any]:
    """Enqueue of three good messages but for these fields."""

    def make(shard: Shard) -> Any:
        made = shard.request(*(Msg(b"body", delay_ms=60_000, key="k", tag="t") for _ in range(3)))
        for name, value in changes.items():
            setattr(made, name, value)
        return shard.client.raw("Enqueue", made.SerializeToString())

    return make


def sizes(*of: int) -> Callable[[Shard], Any]:
    """Enqueue of records of these sizes."""

    def make(shard: Shard) -> Any:
        made = pb.EnqueueRequest(
            topic=shard.topic, queue=shard.queue, count=len(of), time=i64(*[60_000] * len(of)),
            relative=b"\1" * len(of), size=u32(*of), records=bytes(sum(of)),
        )  # fmt: skip
        return shard.client.raw("Enqueue", made.SerializeToString())

    return make


def call(method: str, **fields: Any) -> Callable[[Shard], Any]:
    return lambda shard: shard.call(method, **fields)


def handles(method: str, due: bytes, seq: bytes, uid: int | None = None, **fields: Any) -> Callable[[Shard], Any]:
    def make(shard: Shard) -> Any:
        own = shard.client.call("QueryRoute", topic=shard.topic).topics[0].queues[shard.queue].uid
        return shard.call(method, uid=own if uid is None else uid, due=due, seq=seq, **fields)

    return make


def mixed(*messages: Msg) -> Callable[[Shard], Any]:
    return lambda shard: shard.send(*messages)


def as_producer(producer: int, number: int) -> Callable[[Shard], Any]:
    return lambda shard: shard.send(Msg(), producer=producer, number=number)


GOOD = Msg(b"good", delay_ms=60_000)
BAD = [
    Bad("due beyond the horizon", lambda s: s.send(GOOD, Msg(at_ms=now_ms() + 41 * DAY_MS)), INVALID, "DELAY_TOO_LONG",
        r"message 1 is delayed by (41 days( \d+ ms)?|40 days 23 h 59 m 59 s \d+ ms), the limit is 40 days$"),
    Bad("delay beyond the horizon", mixed(GOOD, GOOD, Msg(delay_ms=40 * DAY_MS + 1)), INVALID, "DELAY_TOO_LONG",
        r"message 2 is delayed by 40 days 1 ms, the limit is 40 days$"),
    Bad("the largest due", mixed(GOOD, Msg(at_ms=2**63 - 1)), INVALID, "DELAY_TOO_LONG", r"message 1 .* 40 days"),
    Bad("the largest delay", mixed(Msg(delay_ms=2**63 - 1)), INVALID, "DELAY_TOO_LONG", r"message 0 .* 40 days"),
    Bad("negative due", enqueue(time=i64(60_000, -5, 60_000), relative=b""), INVALID, "BAD_COLUMNS",
        r"column time: message 1 .*-5"),
    Bad("negative delay", enqueue(time=i64(1, 1, -(2**63))), INVALID, "BAD_COLUMNS", r"column time: message 2 "),
    Bad("message over 4 MiB", sizes(1, 4 * MIB + 1), INVALID, "MESSAGE_TOO_LARGE",
        r"message 1 has 4,194,305 bytes, the limit is 4 MiB"),
    Bad("batch over 8 MiB", sizes(4 * MIB, 4 * MIB, 1), INVALID, "BATCH_TOO_LARGE", r"8,388,609 bytes.* 8 MiB"),
    Bad("batch over 65,536 messages", sizes(*[1] * 65_537), INVALID, "BATCH_TOO_LARGE", r"65,536 .* 65,537"),
    Bad("a batch of none", enqueue(count=0), INVALID, "BATCH_TOO_LARGE", r"1 to 65,536 .* 0"),
    Bad("a huge count", enqueue(count=2**32 - 1), INVALID, "BATCH_TOO_LARGE", r"65,536 .* 4,294,967,295"),
    Bad("count below the columns", enqueue(count=2), INVALID, "BAD_COLUMNS", r"column time has 24 bytes, .* 16"),
    Bad("count above the columns", enqueue(count=4), INVALID, "BAD_COLUMNS", r"column time has 24 bytes, .* 32"),
    Bad("half a row of time", enqueue(time=bytes(23)), INVALID, "BAD_COLUMNS", r"column time has 23 bytes"),
    Bad("no time", enqueue(time=b""), INVALID, "BAD_COLUMNS", r"column time has 0 bytes"),
    Bad("short relative", enqueue(relative=b"\1"), INVALID, "BAD_COLUMNS", r"column relative has 1 bytes, .* 3"),
    Bad("relative of 2", enqueue(relative=b"\1\0\2"), INVALID, "BAD_COLUMNS", r"column relative: message 2"),
    Bad("short sizes", enqueue(size=u32(4)), INVALID, "BAD_COLUMNS", r"column size has 4 bytes, .* 12"),
    Bad("an empty record", enqueue(size=u32(0, 10, 10)), INVALID, "BAD_COLUMNS", r"column size: message 0"),
    Bad("a negative size", enqueue(size=u32(1, 2**32 - 1, 1)), INVALID, "MESSAGE_TOO_LARGE", r"message 1 .* 4 MiB"),
    Bad("sizes above the records", enqueue(size=u32(100, 100, 100)), INVALID, "BAD_COLUMNS", r"adds up to 300 bytes"),
    Bad("records cut off", enqueue(records=b"12345"), INVALID, "BAD_COLUMNS", r"adds up to .* records has 5"),
    Bad("no records", enqueue(records=b""), INVALID, "BAD_COLUMNS", r"records has 0"),
    Bad("short key hashes", enqueue(key_hash=bytes(8)), INVALID, "BAD_COLUMNS", r"column key_hash has 8 bytes"),
    Bad("long tag hashes", enqueue(tag_hash=bytes(13)), INVALID, "BAD_COLUMNS", r"column tag_hash has 13 bytes"),
    Bad("a producer's number ahead", as_producer(7, 3), PRECONDITION, "UNKNOWN_PRODUCER", r"producer 7 .* number 0"),
    *(Bad(f"slots of {ms} ms", call("GetWheel", slot_ms=ms), INVALID, "BAD_REQUEST", r"slot_ms: .* a part of an hour")
      for ms in (-1, 45 * 60_000, 90 * 60_000)),
    Bad("fetch below the queue", call("Fetch", offset=-2), INVALID, "BAD_REQUEST", r"offset -2 .* \[0, \d+\]"),
    Bad("fetch beyond the queue", call("Fetch", offset=2**62), INVALID, "BAD_REQUEST", r"offset \d+ .* \[0, \d+\]"),
    Bad("fetch for a group unknown", call("Fetch", group="no", offset=-1), MISSING, "UNKNOWN_GROUP", r"'no'"),
    Bad("a group without a name", call("Receive", group=""), INVALID, "BAD_GROUP", r"1 to 255 bytes, this one 0"),
    Bad("a group's name of 256 bytes", call("Receive", group="\u00e9" * 128), INVALID, "BAD_GROUP", r"255 bytes.* 256"),
    Bad("a group's name with an escape", call("Receive", group="a\x1b[2J"), INVALID, "BAD_GROUP", r"'a\\x1b\[2J'"),
    Bad("a group's name with a bidi mark", call("Receive", group="a\u202e"), INVALID, "BAD_GROUP", r"'a\\u202e'"),
    Bad("65 tags", call("Receive", group="n", tags=[str(n) for n in range(65)]), INVALID, "BAD_GROUP", r"64 tags"),
    Bad("a long tag", call("Receive", group="n", tags=["t" * 256]), INVALID, "BAD_GROUP", r"tags of 255 bytes"),
    Bad("another filter", call("Receive", group="made", tags=["x"]), PRECONDITION, "GROUP_MISMATCH", r"\['x'\]"),
    Bad("13 hours invisible", call("Receive", group="made", invisible_ms=46_800_000), INVALID, "BAD_REQUEST",
        r"invisible_ms: 13 h is longer than the limit, 12 h"),
    Bad("ack of a group unknown", call("Ack", group="no", start=i64(0), end=i64(1)), MISSING, "UNKNOWN_GROUP", "'no'"),
    Bad("ack of what is not released", call("Ack", group="made", start=i64(0), end=i64(2)), INVALID, "BAD_REQUEST",
        r"range 0 is \[0, 2\), released are \[0, 1\)"),
    Bad("ack backwards", call("Ack", group="made", start=i64(1), end=i64(0)), INVALID, "BAD_REQUEST", r"range 0 "),
    Bad("ack below 0", call("Ack", group="made", start=i64(-1), end=i64(1)), INVALID, "BAD_REQUEST", r"\[-1, 1\)"),
    Bad("ack of overlapping ranges", call("Ack", group="made", start=i64(0, 0), end=i64(1, 1)), INVALID, "BAD_COLUMNS",
        r"overlap"),
    Bad("ack without ends", call("Ack", group="made", start=i64(0, 1), end=i64(1)), INVALID, "BAD_COLUMNS",
        r"start has 2 rows, column end 1"),
    Bad("half a row of ends", call("Ack", group="made", start=i64(0), end=bytes(9)), INVALID, "BAD_COLUMNS",
        r"column end has 9 bytes"),
    Bad("nack of a group unknown", call("Nack", group="no", offset=i64(0), attempt=u32(1)), MISSING, "UNKNOWN_GROUP",
        "'no'"),
    Bad("nack without attempts", call("Nack", group="made", offset=i64(0)), INVALID, "BAD_COLUMNS",
        r"column attempt has 0 rows, expected 1"),
    Bad("a backoff of 13 hours", call("Nack", group="made", offset=i64(0), attempt=u32(1), backoff_ms=46_800_000),
        INVALID, "BAD_REQUEST", r"backoff_ms: 13 h is not within 0 ms and the limit, 12 h"),
    Bad("a reason of 1,026 bytes", call("Nack", group="made", offset=i64(0), attempt=u32(1), reason="ä" * 513),
        INVALID, "BAD_REQUEST", r"reason: 1,026 bytes of UTF-8 are more than the limit, 1,024"),
    Bad("a negative backoff", call("Nack", group="made", offset=i64(0), attempt=u32(1), backoff_ms=-7),
        INVALID, "BAD_REQUEST", r"backoff_ms: -7 ms"),
    Bad("ack of ranges and of attempts", call("Ack", group="made", start=i64(0), end=i64(1), offset=i64(0),
        attempt=u32(1)), INVALID, "BAD_REQUEST", r"ranges .* or attempts .*, not both"),
    Bad("ack of offsets without attempts", call("Ack", group="made", offset=i64(0)), INVALID, "BAD_COLUMNS",
        r"column attempt has 0 rows, expected 1"),
    Bad("extend of a group unknown", call("Extend", group="no", offset=i64(0), attempt=u32(1)), MISSING,
        "UNKNOWN_GROUP", "'no'"),
    Bad("extend by 13 hours", call("Extend", group="made", offset=i64(0), attempt=u32(1), invisible_ms=46_800_000),
        INVALID, "BAD_REQUEST", r"invisible_ms: 13 h is longer than the limit, 12 h"),
    Bad("extend with half an attempt", call("Extend", group="made", offset=i64(0), attempt=bytes(3)), INVALID,
        "BAD_COLUMNS", r"column attempt has 3 bytes"),
    Bad("cancel by a foreign handle", handles("Cancel", i64(5), i64(0), uid=5), INVALID, "FOREIGN_HANDLE",
        r"of shard 5, this is [0-9a-f]+"),
    Bad("cancel of nothing", handles("Cancel", b"", b""), INVALID, "BATCH_TOO_LARGE", r"1 to 65,536"),
    Bad("cancel of 65,537", handles("Cancel", bytes(8 * 65_537), bytes(8 * 65_537)), INVALID, "BATCH_TOO_LARGE",
        r"65,536 .*65,537"),
    Bad("cancel without seqs", handles("Cancel", i64(1, 2), i64(1)), INVALID, "BAD_COLUMNS", r"column seq has 1 rows"),
    Bad("half a due", handles("Cancel", bytes(7), i64(1)), INVALID, "BAD_COLUMNS", r"column due has 7 bytes"),
    Bad("cancel by key of an empty range", call("Cancel", key="k", from_ms=9, to_ms=9), INVALID, "BAD_REQUEST",
        r"from_ms \(1970-01-01T00:00:00.009\+00:00\) is not before"),
    Bad("reschedule a foreign handle", handles("Reschedule", i64(5), i64(0), uid=5, time=i64(9)), INVALID,
        "FOREIGN_HANDLE", r"of shard 5"),
    Bad("reschedule without times", handles("Reschedule", i64(5), i64(0)), INVALID, "BAD_COLUMNS",
        r"column time has 0 rows, expected 1"),
    Bad("reschedule to before 1970", handles("Reschedule", i64(5), i64(0), time=i64(-1)), INVALID, "BAD_COLUMNS",
        r"time must not be negative"),
    Bad("reschedule by a relative of 3", handles("Reschedule", i64(5), i64(0), time=i64(1), relative=b"\3"), INVALID,
        "BAD_COLUMNS", r"relative must be 0 or 1"),
    Bad("describe a group unknown", call("DescribeGroup", group="no"), MISSING, "UNKNOWN_GROUP", r"'no'"),
    Bad("delete a group unknown", call("DeleteGroup", group="no"), MISSING, "UNKNOWN_GROUP", r"'no'"),
    Bad("dead letters of a group unknown", call("ListDeadLetters", group="no"), MISSING, "UNKNOWN_GROUP", r"'no'"),
    Bad("resolve how", call("ResolveDeadLetters", group="made"), INVALID, "BAD_REQUEST", r"REDRIVE or DROP"),
    Bad("resolve with half a row", call("ResolveDeadLetters", group="made", action=1, offset=bytes(3)), INVALID,
        "BAD_COLUMNS", r"column offset has 3 bytes"),
    # Texts come back in a trailer, which has a size of its own.
    Bad("a group's name of 20,000 bytes", call("DescribeGroup", group=LONG), MISSING, "UNKNOWN_GROUP", r"'qqqq"),
    Bad("a group's name of 20,000 two-byte dead letters", call("DescribeGroup", group="\u00fc" * 20_000), MISSING,
        "UNKNOWN_GROUP", r"'\u00fc\u00fc"),
]  # fmt: skip


@pytest.fixture(scope="module")
def used(take: Callable[[str], Shard]) -> Shard:
    """A shard with a released message, two pending ones and a group."""
    shard = take("t")
    shard.send(Msg(b"out"))
    shard.send(Msg(b"in", delay_ms=3_600_000), Msg(b"far", delay_ms=30 * DAY_MS))
    assert len(shard.receive("made", wait_ms=5_000, invisible_ms=3_600_000)) == 1
    return shard


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_is_refused_with_what_and_where_and_changes_nothing(bad: Bad, used: Shard) -> None:
    before = used.wheel()
    with pytest.raises(Failure) as caught:
        bad.make(used)
    refused = caught.value
    assert (refused.code, refused.reason, refused.domain) == (bad.code, bad.reason, "delaycluster.io")
    assert re.search(bad.text, refused.message), refused.message
    after = used.wheel()
    unchanged = ("pending", "pending_bytes", "released", "log_end")
    assert [getattr(after, name) for name in unchanged] == [getattr(before, name) for name in unchanged]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "QueryRoute"])
@pytest.mark.parametrize(
    ("topic", "queue", "reason", "text"),
    [
        ("nobody", 0, "UNKNOWN_TOPIC", r"'nobody'"),
        ("t", 96, "UNKNOWN_QUEUE", r"'t' has queues 0 to 95, asked for 96"),
        ("t", 2**32 - 1, "UNKNOWN_QUEUE", r"asked for 4294967295"),
        (LONG, 0, "UNKNOWN_TOPIC", r"'qqqq"),
    ],
    ids=["topic", "queue", "largest queue", "long topic"],
)
def test_unknown_topic_or_queue(method: str, topic: str, queue: int, reason: str, text: str, client: Client) -> None:
    with pytest.raises(Failure, match=text) as caught:
        client.call(method, topic=topic, queue=queue)
    assert (caught.value.code, caught.value.reason) == (MISSING, reason)


def test_route_of_an_unknown_topic(client: Client) -> None:
    with pytest.raises(Failure, match="'nobody'") as caught:
        client.call("QueryRoute", topic="nobody")
    assert (caught.value.code, caught.value.reason) == (MISSING, "UNKNOWN_TOPIC")


def test_the_topics_own_limit_holds_below_the_horizon(take: Callable[[str], Shard]) -> None:
    shard = take("short")
    for late in (Msg(delay_ms=3_600_001), Msg(at_ms=now_ms() + 3_700_000)):
        with pytest.raises(Failure) as caught:
            shard.send(Msg(delay_ms=3_599_000), late)
        assert (caught.value.reason, caught.value.metadata["max_delay_ms"]) == ("DELAY_TOO_LONG", "3600000")
    assert shard.stored() == (0, 0)
    shard.send(Msg(delay_ms=3_600_000))
    assert shard.stored() == (1, 0)


@pytest.mark.parametrize("bare", [Msg(), Msg(delay_ms=0), Msg(at_ms=0)])
def test_a_topic_of_type_delay_takes_only_what_has_a_delay_or_a_due(bare: Msg, take: Callable[[str], Shard]) -> None:
    shard = take("delayed")
    with pytest.raises(Failure) as caught:
        shard.send(Msg(delay_ms=60_000), bare)
    assert (caught.value.code, caught.value.reason) == (INVALID, "WRONG_TOPIC_TYPE")
    assert caught.value.message == "message 1 has neither delay nor due time, and topic 'delayed' is of type Delay"
    assert shard.stored() == (0, 0)


def test_a_topic_of_type_delay_takes_a_due_that_has_passed_for_it_may_be_a_late_retry(
    take: Callable[[str], Shard],
) -> None:
    shard = take("delayed")
    shard.send(Msg(delay_ms=1), Msg(at_ms=now_ms() - 5_000), Msg(at_ms=now_ms() + 60_000))
    assert len(shard.receive_all(2)) == 2
    assert len(shard.pending()) == 1


@pytest.mark.parametrize("late", [Msg(delay_ms=1), Msg(at_ms=now_ms() + 3_600_000)])
def test_a_topic_of_type_normal_takes_only_what_is_due_at_once(late: Msg, take: Callable[[str], Shard]) -> None:
    shard = take("ordinary")
    with pytest.raises(Failure) as caught:
        shard.send(Msg(), late)
    assert (caught.value.code, caught.value.reason) == (INVALID, "WRONG_TOPIC_TYPE")
    assert caught.value.message == "message 1 is delayed, and topic 'ordinary' is of type Normal"
    assert shard.stored() == (0, 0)


def test_a_topic_of_type_normal_takes_what_is_due_at_once(take: Callable[[str], Shard]) -> None:
    shard = take("ordinary")
    shard.send(Msg(), Msg(delay_ms=0), Msg(at_ms=now_ms() - 1_000))
    assert len(shard.receive_all(3)) == 3


def test_a_streams_batch_of_the_wrong_type_is_answered_and_the_stream_goes_on(take: Callable[[str], Shard]) -> None:
    shard = take("delayed")
    requests = [shard.request(message) for message in (Msg(delay_ms=60_000), Msg(), Msg(delay_ms=60_000))]
    answers = shard.client.stream(requests)
    assert [answer.error.reason for answer in answers] == ["", "WRONG_TOPIC_TYPE", ""]


def test_a_reschedule_beyond_the_horizon_moves_none_of_its_messages(shard: Shard) -> None:
    stored = shard.send(*[Msg(delay_ms=60_000)] * 3)
    with pytest.raises(Failure) as caught:
        shard.reschedule(stored, 1, 41 * DAY_MS, 1, relative=True)
    assert (caught.value.code, caught.value.reason) == (INVALID, "DELAY_TOO_LONG")
    assert "message 1" in caught.value.message
    assert shard.pending() == sorted(zip(stored.due, stored.seqs, strict=True))


def test_a_handle_that_names_no_message_is_told_so(shard: Shard) -> None:
    stored = shard.send(Msg(delay_ms=3_600_000))
    for forged in (
        replace(stored, seqs=[stored.seqs[0] + 1]),
        replace(stored, due=[stored.due[0] + 1]),
        replace(stored, seqs=[-1]),
        replace(stored, seqs=[2**63 - 1], due=[2**63 - 1]),
        replace(stored, seqs=[-(2**63)], due=[-(2**63)]),
        replace(stored, due=[2**63 - 1]),
    ):
        assert shard.cancel(forged) == [pb.NOT_FOUND]
        assert shard.reschedule(forged, now_ms()) == ([pb.NOT_FOUND], Sent(stored.uid, forged.seqs, [0]))
    assert shard.stored() == (1, 0)


def test_limits_are_reached_exactly(shard: Shard) -> None:
    sizes(4 * MIB, 4 * MIB)(shard)
    sizes(*[1] * 65_536)(shard)
    shard.send(Msg(delay_ms=40 * DAY_MS), Msg(at_ms=now_ms() + 40 * DAY_MS - 1000))
    assert shard.stored() == (2 + 65_536 + 2, 0)


def test_a_record_that_is_no_message_is_kept_as_it_is_and_harms_no_cancel_by_key(shard: Shard) -> None:
    due = now_ms() + 3_600_000
    garbage = b"\xff\xff\xff\xff"
    shard.client.call(
        "Enqueue", topic=shard.topic, queue=shard.queue, count=1, time=i64(due), size=u32(4),
        key_hash=u32(crc("k")), records=garbage,  # the node finds it by its hash, and reads it
    )  # fmt: skip
    shard.send(Msg(b"mine", at_ms=due, key="k"))
    answer = shard.call("Cancel", key="k", from_ms=due, to_ms=due + 1)
    assert list(answer.outcome) == [pb.CANCELLED]
    page = shard.call("ListPending", with_records=True)
    assert (page.count, page.records) == (1, garbage)
