"""Schedules by the SDK, async and sync, and by delayctl, against real nodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_times import upcoming
from delayclient import Schedule, errors, sync
from delayclient.admin.admin import Admin
from delayclient.consumer.consumer import Consumer

DELAYCTL = Path(sys.executable).with_name("delayctl")
NIGHTLY = Schedule(
    "sched0", "nightly", b"\xff\x00", cron=("30 2 * * *", "0 14 L * *"), zone="Europe/Berlin", literal=True,
    start="2027-01-01T00:00:00Z", end="2030-01-01T00:00:00Z", max_firings=9, jitter="5m", catch_up="all",
    catch_up_window="2h", overlap_group="reports", key="k", tag="t", properties={"a": "b"},
)  # fmt: skip


def delayctl(endpoint: str, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [DELAYCTL, "--endpoint", endpoint, "schedules", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def rows(endpoint: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in delayctl(endpoint, *arguments, "--json").splitlines()]


def test_a_schedule_is_as_it_was_put_and_the_same_again_changes_nothing(endpoint: str) -> None:
    async def main() -> None:
        async with Admin(endpoint) as admin:
            made, changed = await admin.schedules.put(NIGHTLY)
            assert (changed, made.version, made.fired, made.paused) == (True, 1, 0, False)
            again, changed = await admin.schedules.put(Schedule.decode(NIGHTLY.encode()))
            assert (changed, again.version) == (False, 1)
            found = await admin.schedules.get("sched0", "nightly")
            assert found.schedule == Schedule.decode(NIGHTLY.encode())
            expected = upcoming(NIGHTLY.encode(), int(time.time() * 1_000))
            assert found.upcoming_ms == tuple(one.due_ms for one in expected[:9])
            assert (found.next_nominal_ms, found.next_due_ms) == (expected[0].nominal_ms, expected[0].due_ms)
            with pytest.raises(errors.ScheduleChanged):
                await admin.schedules.put(NIGHTLY, expected_version=0)
            edited = Schedule("sched0", "nightly", "at noon", cron=("0 12 * * *",))
            view, changed = await admin.schedules.put(edited, expected_version=1)
            assert (changed, view.version, view.schedule.body) == (True, 2, "at noon")
            assert await admin.schedules.delete("sched0", "nightly")
            assert not await admin.schedules.delete("sched0", "nightly")
            with pytest.raises(errors.NotFound, match="nightly"):
                await admin.schedules.get("sched0", "nightly")

    asyncio.run(main())


def test_what_fires_is_a_message_with_the_schedules_id_time_and_number(endpoint: str) -> None:
    async def main() -> None:
        async with Admin(endpoint) as admin, Consumer(endpoint, "sched1", "g") as consumer:
            await admin.schedules.put(
                Schedule("sched1", "tick", "tock", every="1s", max_firings=2, properties={"a": "b"})
            )
            for number in (1, 2):
                message = await consumer.receive(20)
                assert message is not None
                assert (message.body, message.properties["a"]) == (b"tock", "b")
                assert message.properties["schedule-id"] == "tick"
                assert message.properties["schedule-number"] == str(number)
                nominal = datetime.fromisoformat(message.properties["schedule-time"])
                assert nominal.microsecond == 0
                assert nominal <= datetime.now(UTC) + timedelta(milliseconds=1)
                message.ack()
            view = await admin.schedules.get("sched1", "tick")
            assert (view.over, view.fired, view.upcoming_ms, view.next_due_ms) == (True, 2, (), None)
            assert [one.number for one in view.last] == [2, 1]
            assert view.last[0].nominal_ms - view.last[1].nominal_ms == 1_000

    asyncio.run(main())


def test_pause_trigger_and_backfill_by_the_blocking_face(endpoint: str) -> None:
    with sync.Admin(endpoint) as admin:
        for name in ("a1", "a2", "b1"):
            admin.schedules.put(Schedule("sched2", name, cron=("0 0 1 1 *",)))
        assert [one.schedule.id for one in admin.schedules.each("sched2", "a")] == ["a1", "a2"]
        paused = admin.schedules.pause("sched2", "a1", "new year is off")
        assert (paused.paused, paused.note, paused.next_due_ms) == (True, "new year is off", None)
        assert admin.schedules.put(Schedule("sched2", "a1", cron=("0 0 2 1 *",)))[0].paused  # a put resumes nothing
        fired = admin.schedules.trigger("sched2", "a1")
        assert (fired.number, fired.kind) == (1, "triggered")
        times = admin.schedules.backfill("sched2", "a1", "2020-01-01T00:00:00Z", "2024-01-01T00:00:00Z")
        assert [datetime.fromtimestamp(one.nominal_ms / 1_000, UTC).year for one in times] == [2020, 2021, 2022, 2023]
        assert [one.number for one in times] == [2, 3, 4, 5]
        admin.schedules.put(Schedule("sched2", "b1", every="1s", start="2020-01-01T00:00:00Z"), paused=True)
        with pytest.raises(errors.InvalidRequest, match="more than 1,000 times"):
            admin.schedules.backfill("sched2", "b1", "2020-01-01T00:00:00Z", "2024-01-01T00:00:00Z")
        resumed = admin.schedules.resume("sched2", "a1")
        assert not resumed.paused
        assert resumed.next_due_ms is not None


def test_a_bad_schedule_says_what_is_wrong(endpoint: str) -> None:
    with sync.Admin(endpoint) as admin:
        for schedule, says in (
            (Schedule("sched2", "bad", cron=("0 0 31 2 *",)), "no month that it names has that day"),
            (Schedule("sched2", "bad", cron=("0 0 * * *",), zone="Europe/Belrin"), "did you mean Europe/Berlin"),
            (Schedule("sched2", "bad", at=("2020-01-01T00:00:00Z",)), "would never fire"),
            (Schedule("sched2", "x" * 10_000, every="1m"), "has 10,000 bytes"),
        ):
            with pytest.raises(errors.InvalidRequest, match=says):
                admin.schedules.put(schedule)
        with pytest.raises(errors.NotFound):
            admin.schedules.put(Schedule("no-such-topic", "a", every="1m"))
        with pytest.raises(ValueError, match="not latest, none or all"):
            admin.schedules.put(Schedule("sched2", "bad", every="1m", catch_up="some"))


def test_schedules_by_delayctl(endpoint: str) -> None:
    (made,) = rows(
        endpoint, "put", "sched4", "report", "--cron", "0 9 13 * 5", "--zone", "Asia/Tokyo", "--body", "now",
        "--property", "a=b=c", "--skip-while", "g", "--jitter", "2m",
    )  # fmt: skip
    assert (made["version"], made["schedule"]["properties"]) == (1, {"a": "b=c"})
    assert (made["schedule"]["overlap_group"], made["schedule"]["jitter"]) == ("g", 120_000)
    (listed,) = rows(endpoint, "list", "sched4")
    assert listed == made
    assert "already at version 1" in delayctl(
        endpoint, "put", "sched4", "report", "--cron", "0 9 13 * 5", "--zone", "Asia/Tokyo", "--body", "now",
        "--property", "a=b=c", "--skip-while", "g", "--jitter", "2m",
    )  # fmt: skip
    assert rows(endpoint, "pause", "sched4", "report", "--note", "maintenance")[0]["paused"]
    assert "paused: maintenance" in delayctl(endpoint, "list", "sched4")
    assert not rows(endpoint, "resume", "sched4", "report")[0]["paused"]
    assert rows(endpoint, "trigger", "sched4", "report")[0]["number"] == 1
    back = rows(
        endpoint, "backfill", "sched4", "report", "--from", "2026-10-01T00:00:00Z", "--to", "2026-10-10T00:00:00Z"
    )
    assert [one["kind"] for one in back] == ["backfilled"] * 2  # two Fridays; either of the days is enough
    shown = delayctl(endpoint, "show", "sched4", "report")
    assert shown.count("  next  ") == 10
    assert "#1 for" in shown
    assert "2026f" in rows(endpoint, "show", "sched4", "report")[0]["zone_rules"]
    assert "deleted" in delayctl(endpoint, "delete", "sched4", "report", "--yes")
    assert "no schedule" in delayctl(endpoint, "delete", "sched4", "report", "--yes")
    assert "NAME=VALUE" in delayctl(endpoint, "put", "sched4", "x", "--every", "1m", "--property", "a", code=2)
    assert "phase: it is of every" in delayctl(endpoint, "put", "sched4", "x", "--phase", "1m", code=2)
    assert "needs one of cron, every and at" in delayctl(endpoint, "put", "sched4", "x", code=1)


def test_a_trigger_whose_answer_is_lost_fires_once(endpoint: str) -> None:
    """The first answer never comes: the SDK asks again, and finds what the first try has done."""

    async def main() -> None:
        async with Admin(endpoint) as admin:
            await admin.schedules.put(Schedule("sched3", "a", cron=("0 0 1 1 *",)))
            call, lost = admin.cluster.unary, []

            async def losing(at: str, method: str, data: bytes, seconds: float) -> Any:
                answer = await call(at, method, data, seconds)
                if method.endswith("TriggerSchedule") and not lost:
                    lost.append(pb.FireScheduleResponse.FromString(answer))
                    raise errors.Unavailable("the answer is lost")
                return answer

            admin.cluster.unary = losing  # type: ignore[method-assign]
            fired = await admin.schedules.trigger("sched3", "a")
            assert lost
            assert (fired.number, fired.kind) == (1, "triggered")
            assert (await admin.schedules.get("sched3", "a")).fired == 1

    asyncio.run(main())
