"""The node's state that survives a clean stop and a kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS, HOUR_MS
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.faults.support.failover import without_grpc_noise
from tests.serve.support.client import Client, Failure, Msg, Sent, Shard, i64, ints, now_ms, poll, rows, wait_served

FAR = (90_000, 5 * HOUR_MS, 26 * HOUR_MS, 3 * DAY_MS, 39 * DAY_MS)
Restart = Callable[[], None]


def restarted(cluster: LocalCluster, signum: int) -> None:
    """The node again, in a new process."""
    pid = cluster.kill("n0", signum)
    poll("the process is another one", lambda: cluster.pids.get("n0", pid) != pid, 30)
    wait_served(cluster)


@pytest.fixture(params=[signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def restart(own: LocalCluster, request: pytest.FixtureRequest) -> Restart:
    return lambda: restarted(own, request.param)


@pytest.fixture
def shard(own: LocalCluster) -> Iterator[Shard]:
    with Client(own.endpoints[0]) as client:
        yield Shard(client, "t", 0)


def test_messages_groups_cancels_and_producers_are_as_they_were(shard: Shard, restart: Restart) -> None:
    """One long story, as a start costs seconds: what each part did before is looked at after."""
    shard.send(*[Msg(b"%d" % n) for n in range(20)], producer=8, number=0)
    got = shard.receive(max_messages=10, wait_ms=5_000, invisible_ms=60_000)
    shard.ack((0, 4), (6, 8))
    shard.nack(got[4:5], backoff_ms=0)
    shard.receive("filtered", tags=["red"])
    far = shard.send(*[Msg(b"far %d" % n, delay_ms=delay, key="k") for n, delay in enumerate(FAR)])
    moved = shard.send(*[Msg(delay_ms=delay) for delay in FAR])
    outcomes, new = shard.reschedule(moved, *[due + 1_000 for due in moved.due])
    assert outcomes == [pb.MOVED] * len(FAR)
    gone = shard.send(*[Msg(delay_ms=delay) for delay in FAR])
    assert shard.cancel(gone) == [pb.CANCELLED] * len(FAR)
    soon = shard.send(Msg(b"soon", delay_ms=1_500))
    first = shard.send(Msg(b"last", delay_ms=HOUR_MS), producer=8, number=1)
    expected = sorted(
        [*zip(far.due, far.seqs, strict=True), *zip(new.due, new.seqs, strict=True), (first.due[0], first.seqs[0])]
    )

    restart()

    again = shard.send(Msg(b"last", delay_ms=HOUR_MS), producer=8, number=1)
    assert (again.duplicate, again.seqs, again.due) == (True, first.seqs, first.due)
    with pytest.raises(Failure, match="expected 2"):
        shard.send(Msg(), producer=8, number=3)
    state = shard.group()
    assert (state.floor, state.in_flight) == (4, 0)
    with pytest.raises(Failure, match="'red'"):
        shard.receive("filtered")
    back = shard.receive(max_messages=100)
    assert [(one.offset, one.attempt) for one in back][:4] == [(4, 2), (5, 1), (8, 1), (9, 1)]
    assert [one.offset for one in back][4:14] == list(range(10, 20))
    late = shard.receive_all(1) if len(back) == 14 else back[14:]
    assert [(one.body, one.seq, one.due_ms) for one in late] == [(b"soon", soon.seqs[0], soon.due[0])]
    assert late[0].received_ms >= late[0].due_ms
    assert shard.ack((4, 6), (8, 21)) == 15
    assert shard.group().floor == 21

    assert shard.pending() == expected
    assert shard.stored() == (len(expected), 21)
    assert shard.cancel(gone) == [pb.ALREADY_CANCELLED] * len(FAR)
    assert shard.cancel(moved) == [pb.RESCHEDULED] * len(FAR)
    assert shard.cancel(soon) == [pb.TOO_LATE]
    assert shard.reschedule(new, *[due + 5 for due in new.due])[0] == [pb.MOVED] * len(FAR)
    assert list(shard.call("Cancel", key="k", from_ms=0, to_ms=2**62).outcome) == [pb.CANCELLED] * len(FAR)
    assert shard.stored() == (len(FAR) + 1, 21)

    restart()

    assert shard.cancel(far) == [pb.ALREADY_CANCELLED] * len(FAR)
    assert shard.cancel(new) == [pb.RESCHEDULED] * len(FAR)
    assert shard.group().floor == 21
    assert shard.stored() == (len(FAR) + 1, 21)
    wheel = shard.wheel()
    assert sum(ints(wheel.messages)) == wheel.pending


def test_dead_letters_survive(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1, max_attempts=1)]) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            shard = Shard(client, "t", 0)
            shard.send(*[Msg(b"%d" % n) for n in range(4)])
            assert shard.nack(shard.receive_all(4), backoff_ms=0).dead == 4
            shard.call("ResolveDeadLetters", group="g", action=pb.ResolveDeadLettersRequest.DROP, offset=i64(0))
            shard.call("ResolveDeadLetters", group="g", action=pb.ResolveDeadLettersRequest.REDRIVE, offset=i64(2))
            restarted(cluster, signal.SIGKILL)
            letters = rows(shard.call("ListDeadLetters", group="g", after_offset=-1))
            assert [(one.offset, one.attempt, one.body) for one in letters] == [(1, 1, b"1"), (3, 1, b"3")]
            assert [(one.offset, one.attempt) for one in shard.receive()] == [(2, 1)]


def test_what_came_due_while_the_node_was_away_is_released_at_once(own: LocalCluster, shard: Shard) -> None:
    stored = shard.send(*[Msg(b"%d" % n, delay_ms=200 + n) for n in range(500)])
    own.kill("n0", signal.SIGSTOP)
    time.sleep(1.5)
    own.kill("n0", signal.SIGKILL)
    wait_served(own)
    got = shard.receive_all(500)
    assert [(one.due_ms, one.seq) for one in got] == sorted(zip(stored.due, stored.seqs, strict=True))
    assert shard.stored() == (0, 500)


def test_a_clean_stop_is_quick_answers_who_waits_and_the_next_start_applies_no_frame(own: LocalCluster) -> None:
    with Client(own.endpoints[0]) as client, Client(own.endpoints[0]) as waiter:
        shard = Shard(client, "t", 1)
        shard.send(*[Msg(bytes(200), delay_ms=HOUR_MS + n) for n in range(20_000)])
        waiting = shard.at(waiter).waiting(wait_ms=30_000)
        begin = time.monotonic()
        restarted(own, signal.SIGTERM)
        with pytest.raises(Exception, match=r"UNAVAILABLE|NOT_SERVING"):
            waiting(1)
        assert shard.stored() == (20_000, 0)
    events = [json.loads(line) for line in (own.data / "logs" / "n0.log").read_text().splitlines()]
    at = {event["event"]: event["time_ms"] for event in events}
    stopping = next(event["time_ms"] for event in events if event["event"] == "stopping")
    stopped = next(event["time_ms"] for event in events if event["event"] == "stopped")
    assert stopped - stopping < 5_000
    assert time.monotonic() - begin < 30
    opened = [event for event in events if event["event"] == "copy-opened" and event["shard"] == "t-1"]
    assert (opened[-1]["pending"], opened[-1]["dropped_bytes"]) == (20_000, 0)
    begun = [event for event in events if event["event"] == "term-started" and event["shard"] == "t-1"]
    assert begun[-1]["frames"] == 0
    assert "stop-failed" not in at


def test_a_stop_under_load_keeps_what_was_acknowledged(own: LocalCluster, shard: Shard) -> None:
    acknowledged = 0
    sending = (shard.request(*[Msg(b"x" * 100, delay_ms=HOUR_MS)] * 200).SerializeToString() for _ in range(100_000))
    answers = shard.client.channel.stream_stream("/delay.v1.DelayService/EnqueueStream")(sending, timeout=60)
    with contextlib.suppress(grpc.RpcError):  # the stream ends with the node
        for number, answer in enumerate(answers):
            acknowledged += pb.EnqueueResponse.FromString(answer).count
            if number == 100:
                own.kill("n0", signal.SIGTERM)
    wait_served(own)
    pending, _ = shard.stored()
    assert pending >= acknowledged > 20_000 - 200
    log = without_grpc_noise((own.data / "logs" / "n0.log").read_text())
    assert "stop-failed" not in log
    assert "Traceback" not in log
    begun = [event for line in log.splitlines() if (event := json.loads(line))["event"] == "term-started"]
    assert [event["frames"] for event in begun if event["shard"] == "t-0"] == [0, 0], "it stopped without a checkpoint"


def test_ten_years_ahead(tmp_path: Path) -> None:
    """A horizon of ten years, where it is configured: kept, cancelled, moved, found, also after a kill."""
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)], horizon_days=3_650) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            shard = Shard(client, "t", 0)
            assert client.call("QueryRoute", topic="t").topics[0].max_delay_ms == 3_650 * DAY_MS
            delays = [n * DAY_MS for n in range(3_650)] + [3_650 * DAY_MS - 1]
            begin = now_ms() + 60_000
            stored = shard.send(
                *[Msg(b"%d" % n, at_ms=begin + delay - 60_000 * (n > 0), key=f"{n}") for n, delay in enumerate(delays)]
            )
            with pytest.raises(Failure, match="the limit is 3650 days"):
                shard.send(Msg(delay_ms=3_650 * DAY_MS + 1))
            expected = list(zip(stored.due, stored.seqs, strict=True))
            assert shard.pending() == expected
            assert shard.cancel(Sent(stored.uid, stored.seqs[1::2], stored.due[1::2])) == [pb.CANCELLED] * 1_825
            restarted(cluster, signal.SIGKILL)
            assert shard.pending() == expected[::2]
            last = stored.due[3_648]
            assert list(shard.call("Cancel", key="3648", from_ms=last, to_ms=last + 1).outcome) == [pb.CANCELLED]
            outcomes, moved = shard.reschedule(
                Sent(stored.uid, [stored.seqs[3_646]], [stored.due[3_646]]), now_ms() + 300
            )
            assert outcomes == [pb.MOVED]
            (one,) = shard.receive(wait_ms=10_000)
            assert (one.body, one.due_ms) == (b"3646", moved.due[0])
            wheel = shard.wheel()
            assert sum(ints(wheel.messages)) == wheel.pending == 1_824
    assert os.path.getsize(next((tmp_path / "n0").rglob("checkpoint"))) < 8 << 20


def test_an_ack_counts_after_a_restart_though_the_filter_had_moved_the_floor_far(
    shard: Shard, own: LocalCluster
) -> None:
    for _ in range(2):
        shard.send(*[Msg(b"", tag="blue")] * 60_000)
    shard.send(Msg(b"mine", tag="red"))
    (one,) = shard.receive("reds", tags=["red"], wait_ms=5_000, invisible_ms=60_000)
    assert one.offset == 120_000
    restarted(own, signal.SIGKILL)
    assert shard.ack((one.offset, one.offset + 1), group="reds") == 1
    assert shard.receive("reds", tags=["red"]) == []
