"""The document in force: the last good one, here and across restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delaynode.auth.document import SecurityDocument
from delaynode.store.log.files import DiskFiles
from delayregistry.model import Version
from delayregistry.security import AuthorizationMode, SecurityObject, SecuritySpec, write_document

REQUIRED, OFF = (SecuritySpec(mode) for mode in (AuthorizationMode.REQUIRED, AuthorizationMode.OFF))


class Process:
    """One process of a node, with its document."""

    def __init__(self, data: Path) -> None:
        self.files, self.events, self.applied = DiskFiles(), list[dict[str, Any]](), list[SecuritySpec]()
        self.document = SecurityDocument(
            str(data), lambda event, **fields: self.events.append({"event": event, **fields}), self.applied.append
        )
        self.document.load(self.files)

    def take(self, version: int, text: str | SecuritySpec) -> None:
        found = SecurityObject(Version(str(version)), text if isinstance(text, str) else write_document(text))
        if self.document.take(found):
            self.document.keep(self.files)


def test_the_last_good_document_is_in_force_across_restarts(tmp_path: Path) -> None:
    first = Process(tmp_path)
    assert first.applied == []
    first.take(1, REQUIRED)
    first.take(2, OFF)
    first.take(3, REQUIRED)
    assert first.applied == [REQUIRED, OFF, REQUIRED]
    assert Process(tmp_path).applied == [REQUIRED]


@pytest.mark.parametrize("bad", ["", "{", '{"authorization":"Open"}', '{"authorization":"Off","open":true}', "null"])
def test_a_bad_document_never_replaces_a_good_one_and_is_told_once(tmp_path: Path, bad: str) -> None:
    process = Process(tmp_path)
    process.take(1, REQUIRED)
    for _ in range(3):
        process.take(2, bad)
    assert process.applied == [REQUIRED]
    assert process.document.problem.startswith("version 2 can't be followed: ")
    assert [it["event"] for it in process.events] == ["security-applied", "security-refused"]
    assert Process(tmp_path).applied == [REQUIRED]
    process.take(3, REQUIRED)
    assert (process.document.problem, process.applied) == ("", [REQUIRED])


def test_a_document_that_is_gone_stays_in_force(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.take(1, REQUIRED)
    assert process.document.take(None) is False
    assert (process.applied, process.document.problem) == ([REQUIRED], "")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"{}", b"[]", b'{"document": 7}', b"\xff\xfe"])
def test_a_kept_document_that_is_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    Process(tmp_path).take(1, REQUIRED)
    (tmp_path / "security").write_bytes(content)
    process = Process(tmp_path)
    assert process.applied == []
    assert [it["event"] for it in process.events] == (["security-not-read"] if content else [])
    process.take(1, REQUIRED)
    assert process.applied == [REQUIRED]


def test_a_bit_that_flips_in_a_kept_document_is_found(tmp_path: Path) -> None:
    Process(tmp_path).take(1, REQUIRED)
    kept = (tmp_path / "security").read_text()
    (tmp_path / "security").write_text(kept.replace("Required", "Off"))
    assert Process(tmp_path).applied == []


def test_a_disk_that_fails_is_told_and_the_document_is_in_force(tmp_path: Path) -> None:
    process = Process(tmp_path)
    (tmp_path / "security").mkdir()
    process.take(1, REQUIRED)
    assert process.applied == [REQUIRED]
    assert process.events[-1]["event"] == "security-not-kept"
