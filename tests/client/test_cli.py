"""`delayctl` against real nodes: what it prints and how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner, Result
from delayapi.handle import Handle
from delayapi.proto.delay.v1.delay_pb2 import EnqueueRequest, Message
from delayapi.slots import spread_slots
from delayctl.cluster.wheel import column_edges
from delayctl.main import main

NOBODY = "127.0.0.1:1"
CONSUMED = ["topic", "queue", "seq", "due_ms", "received_ms", "key", "tag", "attempt", "body", "handle"]


def delayctl(*arguments: str, endpoint: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--endpoint", endpoint], input=stdin, catch_exceptions=False)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_produced_messages_are_consumed_with_all_fields(endpoint: str, tmp_path: Path) -> None:
    handles = tmp_path / "handles"
    sent = delayctl(
        *("produce", "cli0", "--delay", "300ms", "--count", "20", "--size", "40", "--key", "k", "--tag", "t"),
        *("--handles", str(handles), "--json"),
        endpoint=endpoint,
    )
    assert sent.exit_code == 0
    (summary,) = lines(sent)
    assert list(summary) == ["sent", "acknowledged", "failed", "seconds", "per_second"]
    assert (summary["sent"], summary["acknowledged"], summary["failed"]) == (20, 20, 0)
    taken = delayctl("consume", "cli0", "--group", "g", "--count", "20", "--timeout", "20", "--json", endpoint=endpoint)
    assert taken.exit_code == 0
    messages = lines(taken)
    assert all(list(message) == CONSUMED for message in messages)
    assert {message["handle"] for message in messages} == set(handles.read_text().split())
    assert {len(message["body"]) for message in messages} == {40}
    assert {(m["topic"], m["key"], m["tag"], m["attempt"]) for m in messages} == {("cli0", "k", "t", 1)}
    assert all(message["received_ms"] >= message["due_ms"] for message in messages)
    again = delayctl("consume", "cli0", "--group", "g", "--count", "1", "--timeout", "0.3", endpoint=endpoint)
    assert again.exit_code == 1
    assert "0 of 1 messages" in again.stderr


def test_what_others_have_written_does_nothing_to_a_terminal(endpoint: str) -> None:
    wild = "[/]\x1b]0;x\x07\x9b2J"
    delayctl("produce", "cli0", "--delay", "1h", "--key", wild, "--tag", wild, "--body", wild, endpoint=endpoint)
    refused = delayctl("consume", "cli0", "--group", wild, "--count", "1", "--timeout", "0.3", endpoint=endpoint)
    assert refused.exit_code == 1
    assert r"'[/]\x1b]0;x\x07\x9b2J' (BAD_GROUP)" in refused.output
    shown = delayctl("pending", "cli0", "--bodies", endpoint=endpoint)
    assert shown.exit_code == 0, shown.output
    assert not any(one in shown.output for one in "\x1b\x07\x9b")
    assert r"[/]\x1b]0;x\x07\x9b2J" in shown.output


def test_what_is_no_message_is_shown_as_a_body_and_hides_no_other(endpoint: str) -> None:
    good = Message(key="k", body=b"good").SerializeToString()
    records = [b"\xff\xff wild", b"\x0a\x02\xff\xfe", good]
    for due_ms in (0, int(time.time() * 1000) + 3_600_000):
        request = EnqueueRequest(
            topic="cli10", count=3, time=due_ms.to_bytes(8, "little") * 3, records=b"".join(records),
            size=b"".join(len(one).to_bytes(4, "little") for one in records),
            key_hash=zlib.crc32(b"k").to_bytes(4, "little") * 3,
        )  # fmt: skip
        with grpc.insecure_channel(endpoint) as channel:
            channel.unary_unary("/delay.v1.DelayService/Enqueue")(request.SerializeToString(), timeout=20)
    for arguments in (
        ("pending", "cli10", "--bodies"),
        ("consume", "cli10", "--group", "g", "--count", "3", "--timeout", "20"),
    ):
        found = lines(delayctl(*arguments, "--json", endpoint=endpoint))
        assert len(found) == 3, arguments
        assert {one["body"] for one in found} >= {"good"}
    assert [one["body"] for one in lines(delayctl("pending", "cli10", "--key", "k", "--json", endpoint=endpoint))] == [
        "good"
    ]


def test_unacknowledged_messages_come_again(endpoint: str) -> None:
    assert delayctl("produce", "cli1", "--body", "once", endpoint=endpoint).exit_code == 0
    for attempt in (1, 2):
        taken = delayctl(
            *("consume", "cli1", "--group", "g", "--count", "1", "--timeout", "20", "--no-ack", "--json"),
            *("--invisible", "200ms"),
            endpoint=endpoint,
        )
        assert [(m["body"], m["attempt"]) for m in lines(taken)] == [("once", attempt)]


def test_many_messages_are_spread_and_seen_in_the_wheel(endpoint: str) -> None:
    sent = delayctl("--json", "produce", "cli2", "--count", "70000", "--spread", "1m..30m", endpoint=endpoint)
    assert lines(sent)[0]["acknowledged"] == 70_000
    wheels = lines(delayctl("wheel", "cli2", "--json", endpoint=endpoint))
    assert len(wheels) == 4
    assert sum(slot["messages"] for wheel in wheels for slot in wheel["slots"]) == 70_000
    now = time.time() * 1000
    for wheel in wheels:
        assert now < wheel["slots"][0]["start_ms"] + 60_000
        assert wheel["slots"][-1]["start_ms"] < now + 31 * 60_000
    shown = delayctl("wheel", "cli2", endpoint=endpoint)
    assert "70,000 messages pending in 4 shards" in shown.stdout
    pending = lines(delayctl("pending", "cli2", "--limit", "50", "--json", endpoint=endpoint))
    assert len(pending) == 50
    shards = lines(delayctl("shards", "cli2", "--json", endpoint=endpoint))
    assert sum(shard["pending"] for shard in shards) == 70_000
    assert "cli2-3" in delayctl("shards", endpoint=endpoint).stdout


def test_firings_to_come_are_seen_in_the_wheel(endpoint: str) -> None:
    def wheel() -> list[Any]:
        return lines(delayctl("wheel", "seen", "--json", endpoint=endpoint))

    put = ("schedules", "put", "seen", "minutely", "--cron", "* * * * *", "--max-firings", "30", "--body", "x")
    assert delayctl(*put, endpoint=endpoint).exit_code == 0
    first, second = wheel()
    assert sum(one["messages"] for one in first["firings"]) in (29, 30), "nothing is pending: a day from now"
    assert "firings" not in second, "schedules are state of queue 0"
    delayctl("produce", "seen", "--delay", "10m30s", "--body", "x", endpoint=endpoint)
    found = wheel()[0]["firings"]
    assert sum(one["messages"] for one in found) in (10, 11, 12), "up to the last message"
    assert {one["width_ms"] for one in found} == {1_000}
    shown = delayctl("wheel", "seen", endpoint=endpoint).stdout
    assert re.search(r"^seen schedules .* 1[0-2]$", shown, re.M), shown
    assert delayctl("schedules", "delete", "seen", "minutely", "--yes", endpoint=endpoint).exit_code == 0
    assert "schedules" not in delayctl("wheel", "seen", endpoint=endpoint).stdout


def test_input_lines_are_sent_as_they_say(endpoint: str, tmp_path: Path) -> None:
    due = int(time.time() * 1000) + 3_600_000
    source = tmp_path / "in.jsonl"
    source.write_text(
        f'{{"body": "a", "due": {due}, "key": "x", "tag": "red"}}\n\n'
        '{"body": "\\u00e9"}\n'
        '{"body": "c", "due": "2020-01-01T00:00:00Z"}\n'
    )
    sent = delayctl("produce", "cli3", "--input", str(source), "--tag", "other", "--json", endpoint=endpoint)
    assert lines(sent)[0]["acknowledged"] == 3
    taken = delayctl("consume", "cli3", "--group", "g", "--count", "2", "--timeout", "20", "--json", endpoint=endpoint)
    assert {(m["body"], m["tag"]) for m in lines(taken)} == {("\u00e9", "other"), ("c", "other")}
    (pending,) = lines(delayctl("pending", "cli3", "--bodies", "--json", endpoint=endpoint))
    assert (pending["body"], pending["key"], pending["tag"], pending["due_ms"]) == ("a", "x", "red", due)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "no JSON"),
        ("[]", "expected an object"),
        ('{"body": 3}', '"body" must be a string'),
        ('{"due": 3}', '"body" must be a string'),
        ('{"body": "x", "due": "soon"}', "is not a time"),
        ('{"body": "x", "due": true}', '"due" must be'),
        ('{"body": "x", "key": 1}', '"key" must be a string'),
        ('{"body": "x", "kye": "1"}', "unknown field 'kye'"),
        ('{"body": "\\ud800"}', "surrogates"),
    ],
)
def test_bad_line_is_named_by_its_number(endpoint: str, line: str, why: str) -> None:
    text = f'{{"body": "ok", "due": "2020-01-01"}}\n\n{line}\n{{"body": "never"}}\n'
    sent = delayctl("produce", "cli4", "--input", "-", "--json", endpoint=endpoint, stdin=text)
    assert sent.exit_code == 2
    assert "line 3: " in sent.stderr
    assert why in sent.stderr
    assert lines(sent)[0]["acknowledged"] == 1


def test_cancel_tells_the_truth_for_each(endpoint: str, tmp_path: Path) -> None:
    handles = tmp_path / "handles"
    delayctl("produce", "cli5", "--delay", "1h", "--count", "3", "--handles", str(handles), endpoint=endpoint)
    first, *_ = texts = handles.read_text().split()
    one = delayctl("cancel", first, endpoint=endpoint)
    assert (one.exit_code, one.stdout) == (0, f"CANCELLED {first}\n")
    rest = lines(delayctl("cancel", "--handles", str(handles), "--json", endpoint=endpoint))
    assert [row["handle"] for row in rest] == texts
    assert [row["outcome"] for row in rest] == ["ALREADY_CANCELLED", "CANCELLED", "CANCELLED"]
    known = Handle.decode(first)
    never = Handle(known.topic, known.queue, known.uid, known.due_ms, 1 << 40).encode()
    assert delayctl("cancel", never, endpoint=endpoint).stdout.startswith("NOT_FOUND")
    delayctl("produce", "cli5", "--delay", "1h", "--count", "2", "--key", "me", endpoint=endpoint)
    by_key = delayctl("cancel", "--key", "me", "--topic", "cli5", "--from", "2020-01-01", endpoint=endpoint)
    assert [line.split()[0] for line in by_key.stdout.splitlines()] == ["CANCELLED", "CANCELLED"]


def test_messages_are_given_a_new_time_and_found_by_key(endpoint: str, tmp_path: Path) -> None:
    handles, at = tmp_path / "handles", "2031-01-31T09:00:00Z"
    sent = ("produce", "cli5", "--delay", "1h", "--count", "2", "--key")
    delayctl(*sent, "other", endpoint=endpoint)
    delayctl(*sent, "dentist", "--handles", str(handles), endpoint=endpoint)
    old = handles.read_text().split()
    too_late = delayctl("reschedule", *old, "--at", at, endpoint=endpoint)
    assert (too_late.exit_code, "40 days" in too_late.stderr or "horizon" in too_late.stderr) == (1, True)
    moved = lines(delayctl("reschedule", "--handles", str(handles), "--delay", "2d", "--json", endpoint=endpoint))
    assert [(row["handle"], row["outcome"]) for row in moved] == [(text, "MOVED") for text in old]
    rows = lines(delayctl("pending", "cli5", "--key", "dentist", "--json", endpoint=endpoint))
    assert sorted(row["handle"] for row in rows) == sorted(row["new_handle"] for row in moved)
    assert {row["key"] for row in rows} == {"dentist"}
    assert delayctl("reschedule", old[0], "--delay", "0s", endpoint=endpoint).stdout == f"RESCHEDULED {old[0]}\n"


def test_groups_and_dead_letters(endpoint: str) -> None:
    delayctl("produce", "cli6", "--body", "x", "--count", "2", endpoint=endpoint)
    delayctl("consume", "cli6", "--group", "g", "--count", "2", "--timeout", "20", endpoint=endpoint)
    (group,) = lines(delayctl("groups", "list", "cli6", "--json", endpoint=endpoint))
    assert (group["group"], group["available"], group["dead"]) == ("g", 0, 0)
    assert (group["lag"], group["oldest_ms"]) == (0, None)
    queues = lines(delayctl("groups", "describe", "cli6", "--group", "g", "--json", endpoint=endpoint))
    assert sum(queue["floor"] for queue in queues) == 2
    assert delayctl("dlq", "list", "cli6", "--group", "g", endpoint=endpoint).stdout == ""
    assert lines(delayctl("dlq", "redrive", "cli6", "--group", "g", "--json", endpoint=endpoint))[0]["redriven"] == 0
    assert delayctl("dlq", "drop", "cli6", "--group", "typo", endpoint=endpoint).exit_code == 1


def test_a_group_is_deleted_on_all_queues_once_and_deleting_it_again_is_no_failure(endpoint: str) -> None:
    delete = ("groups", "delete", "cli9", "--group", "g")
    (nothing,) = lines(delayctl(*delete, "--json", endpoint=endpoint))
    assert (nothing["deleted"], nothing["queues"]) == (False, 0)
    delayctl("produce", "cli9", "--body", "x", "--count", "40", endpoint=endpoint)
    delayctl("consume", "cli9", "--group", "g", "--count", "1", "--timeout", "20", endpoint=endpoint)
    poll_lag(endpoint, 39)
    gone = delayctl(*delete, endpoint=endpoint)
    assert gone.exit_code == 0
    assert "on 4 queues; it was not done with 39 messages and had 0 dead letters" in gone.stdout
    again = delayctl(*delete, endpoint=endpoint)
    assert (again.exit_code, again.stdout) == (0, "no queue of cli9 has a group g: nothing to delete\n")
    assert lines(delayctl("groups", "list", "cli9", "--json", endpoint=endpoint)) == []
    assert delayctl("groups", "delete", "nope", "--group", "g", endpoint=endpoint).exit_code == 1


def poll_lag(endpoint: str, lag: int) -> None:
    """Until group g of cli9 has this lag on all four queues; the oldest is not older than the test."""
    for _ in range(200):
        found = lines(delayctl("groups", "list", "cli9", "--json", endpoint=endpoint))
        if [(group["queues"], group["lag"]) for group in found] == [(4, lag)]:
            assert 0 <= found[0]["oldest_ms"] < 300_000
            return
        time.sleep(0.05)
    raise AssertionError(f"the lag is never {lag}: {found}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t"),
        ("consume", "t", "--group", "g"),
        ("cancel", Handle("t", 0, 1, 2, 3).encode()),
        ("cancel", "--key", "k", "--topic", "t"),
        ("pending", "t"),
        ("wheel",),
        ("top",),
        ("shards",),
        ("groups", "list", "t"),
        ("dlq", "list", "t", "--group", "g"),
    ],
)
def test_unreachable_cluster_is_exit_code_3_and_one_line(arguments: tuple[str, ...]) -> None:
    result = delayctl(*arguments, endpoint=NOBODY)
    assert result.exit_code == 3
    assert result.stderr.startswith("delayctl: cannot reach the cluster: 127.0.0.1:1: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t", "--delay", "1s", "--at", "2030-01-01"),
        ("produce", "t", "--delay", "soon"),
        ("produce", "t", "--level", "19"),
        ("produce", "t", "--spread", "30m..1m"),
        ("produce", "t", "--input", "-", "--count", "3"),
        ("produce", "t", "--input", "/nonexistent"),
        ("produce", "t", "--handles", "/nonexistent/handles"),
        ("consume", "t"),
        ("cancel",),
        ("cancel", "not-a-handle"),
        ("cancel", "--key", "k"),
        ("cancel", "--key", "", "--topic", "t"),
        ("reschedule", Handle("t", 0, 1, 2, 3).encode()),
        ("reschedule", "--delay", "1s"),
        ("reschedule", "not-a-handle", "--delay", "1s"),
        ("pending", "t", "--key", ""),
        ("pending", "t", "--from", "yesterday"),
        ("dlq", "drop", "t", "--group", "g", "--offset", "3"),
        ("nothing",),
        ("produce", "t", "--endpoint", "nowhere"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, list(arguments), env={"DELAYCTL_ENDPOINT": NOBODY})
    assert result.exit_code == 2, result.output
    assert result.stderr


def test_refused_message_is_exit_code_1_with_its_reason(endpoint: str) -> None:
    result = delayctl("produce", "cli7", "--delay", "90d", "--json", endpoint=endpoint)
    assert result.exit_code == 1
    assert "DELAY_TOO_LONG" in result.stderr
    assert lines(result)[0]["failed"] == 1
    unknown = delayctl("produce", "nope", endpoint=endpoint)
    assert (unknown.exit_code, unknown.stderr) == (1, "delayctl: unknown topic 'nope' (UNKNOWN_TOPIC)\n")


def test_endpoint_comes_from_the_environment(endpoint: str) -> None:
    result = CliRunner().invoke(main, ["shards", "--json"], env={"DELAYCTL_ENDPOINT": endpoint})
    assert result.exit_code == 0
    assert "cli0-0" in result.stdout


def test_interrupted_consumer_ends_quickly_and_keeps_its_acks(endpoint: str) -> None:
    delayctl("produce", "cli8", "--body", "x", "--count", "5", endpoint=endpoint)
    command = [sys.executable, "-c", "from delayctl.main import main; main()", "consume", "cli8", "--group", "g"]
    process = subprocess.Popen(
        [*command, "--endpoint", endpoint, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(5):
        assert json.loads(process.stdout.readline())["body"] == "x"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    left = delayctl("consume", "cli8", "--group", "g", "--count", "1", "--timeout", "0.5", endpoint=endpoint)
    assert left.exit_code == 1


def test_help_does_not_load_the_rest() -> None:
    program = (
        "import sys; from delayctl.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'grpc', 'numpy', 'google.protobuf'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines()[-1] == "[]"


def test_slots_over_columns_keep_their_messages() -> None:
    start = np.array([0, 60_000, 3_600_000], np.int64)
    width = np.array([60_000, 60_000, 3_600_000], np.int64)
    messages = np.array([60, 120, 3600], np.int64)
    columns = spread_slots(start, width, messages, np.arange(0, 7_260_000, 30_000))
    assert columns[:5].tolist() == [30.0, 30.0, 60.0, 60.0, 0.0]
    assert columns.sum() == pytest.approx(messages.sum())
    assert columns[120] == pytest.approx(30.0)


@pytest.mark.parametrize(("from_ms", "to_ms"), [(0, 1), (5, 1_800_000), (1_700_000_000_123, 1_703_456_000_000)])
def test_columns_are_round_and_hold_the_time(from_ms: int, to_ms: int) -> None:
    edges = column_edges(from_ms, to_ms, 60, 1000)
    assert edges[0] <= from_ms
    assert edges[-1] >= to_ms
    assert len(edges) <= 63
    assert len(set(np.diff(edges).tolist())) == 1
