"""docs/http.md typed from its top to its end against the cluster that it starts, as a reader does: changed are the
port, where the cluster keeps its data, the day of a date, and what is pasted from the answers."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delaylocal import ports

from tests.doors.rows.test_curl_pages import SHOWN_AT, blocks
from tests.doors.support.asking import METHODS

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl command; Debian has it in curl")

PAGE = "http.md"
STARTS = ".venv/bin/delayctl local "
DATE = "2026-12-24T18:00:00+01:00"
CHANGING = {"receipt", "handle", "due", "sent", "leaseEnds"}
ELSEWHERE = {"GetSchedule", "ResumeSchedule", "BackfillSchedule", "DeleteSchedule"}  # schedules.md shows them
RESULTS: dict[str, dict[str, Any]] = {"Ack": {"settled": True}, "Nack": {"settled": True}, "Extend": {"settled": True},
           "Cancel": {"outcome": "CANCELLED"}, "Reschedule": {"outcome": "RESCHEDULED"}}  # fmt: skip


def commands() -> list[tuple[str, Any]]:
    """(what to type, the answer that the page shows below it, or None)."""
    found: list[tuple[str, Any]] = []
    for language, text in blocks(PAGE):
        if language == "sh":
            parts = re.split(r"^(?=curl |ASKED=)", text, flags=re.MULTILINE)
            found += [(one, None) for one in parts if "$AT/" in one or one.startswith(STARTS)]
        elif language == "json" and "code" not in (shown := json.loads(text)):
            found[-1] = found[-1][0], shown
    return found


@pytest.fixture
def at(tmp_path: Path) -> Iterator[str]:
    """Where the page's cluster serves HTTP."""
    ((command, _),) = [one for one in commands() if one[0].startswith(STARTS)]
    port = ports.choose(0, 1).http[0]
    here = f"{Path(sys.executable).parent}/delayctl"
    command = command.strip().replace(".venv/bin/delayctl", here) + f" --nodes 1 --data {tmp_path / 'data'}"
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", *command.split(), "--port", str(port - 100)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert b'"ready"' in process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Reader:
    """pasted: what stands in an answer, for what the page shows in its place."""

    def __init__(self, at: str) -> None:
        self._lines = f"AT={SHOWN_AT.replace('http://127.0.0.1:7170', at)}\n"
        self._date = (datetime.now(UTC) + timedelta(days=10)).isoformat(timespec="seconds")
        self.pasted: dict[str, str] = {}

    def type(self, command: str) -> bytes:
        command = command.replace(DATE, self._date)
        for shown, real in self.pasted.items():
            command = command.replace(f'"{shown}"', f'"{real}"')
        assert '..."]' not in command, f"the page has shown nothing to paste: {command}"
        done = subprocess.run(["sh", "-c", self._lines + command], capture_output=True, timeout=60, check=True)
        return done.stdout


def envelopes(data: bytes) -> list[tuple[int, Any]]:
    found, at = [], 0
    while at < len(data):
        flags, size = struct.unpack_from(">BI", data, at)
        found.append((flags, json.loads(data[at + 5 : at + 5 + size])))
        at += 5 + size
    return found


def same(shown: Any, answer: Any) -> None:
    """But for what is another one's in each answer."""
    (name, ones), (_, others) = *shown.items(), *answer.items()
    assert shown.keys() == answer.keys()
    assert len(ones) == len(others), (shown, answer)
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys(), (name, one, other)
        assert {key: one[key] for key in one.keys() - CHANGING} == {key: other[key] for key in one.keys() - CHANGING}


def test_the_page_is_true_from_its_top_to_its_end(at: str) -> None:
    reader, named = Reader(at), list[str]()
    for command, shown in commands():
        if command.startswith(STARTS):
            continue
        (method,) = re.findall(r"\$AT/(\w+) ", command)
        named.append(method)
        said = reader.type(command)
        if method == "ReceiveStream":
            *answers, (flags, end) = envelopes(said)
            assert (flags, end["error"]["code"]) == (2, "deadline_exceeded")
            bodies = [one.get("bodyJson") for _, answer in answers for one in answer["deliveries"]]
            assert bodies == [{"order": 18}], "what is due, of what the page has sent"
            continue
        answer = json.loads(said)
        assert "code" not in answer, (command, answer)
        if shown is not None:
            same(shown, answer)
        if method == "Send":
            handles = zip(shown["results"], answer["results"], strict=True)
            reader.pasted |= {one["handle"]: other["handle"] for one, other in handles}
        if method == "Receive":
            reader.pasted["AQZvcmRlcnM..."] = answer["deliveries"][0]["receipt"]
        if method in RESULTS:
            ((name, value),) = RESULTS[method].items()
            assert [one.get(name) for one in answer["results"]] == [value], (command, answer)
        if method == "ListPending":
            assert [one["key"] for one in answer["messages"]] == ["order-17"]
    assert set(named) == METHODS.keys() - ELSEWHERE, "the page shows every call, but those that schedules.md has"
