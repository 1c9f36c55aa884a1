"""Spark's Java as a user without a name, as OpenShift has them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from delayrebalance import user_name

UNKNOWN = 1_000_650_000


def system(place: Path) -> Path:
    (place / "lib" / "x86_64-linux-gnu").mkdir(parents=True)
    (place / "lib" / "x86_64-linux-gnu" / "libnss_wrapper.so").touch()
    return place


def named(monkeypatch: pytest.MonkeyPatch, place: Path, uid: int, before: dict[str, str]) -> dict[str, str]:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    environment = dict(before)
    user_name.name_user(environment, place)
    return environment


def test_a_user_without_a_name_gets_one_with_a_home_that_is_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(UNKNOWN)
    found = named(monkeypatch, system(tmp_path), UNKNOWN, {"LD_PRELOAD": "other.so"})
    assert found["LD_PRELOAD"] == f"{tmp_path}/lib/x86_64-linux-gnu/libnss_wrapper.so:other.so"
    name, _, uid, gid, _, home, _ = Path(found["NSS_WRAPPER_PASSWD"]).read_text().strip().split(":")
    assert (uid, gid) == (str(UNKNOWN), str(os.getgid()))
    assert os.access(home, os.W_OK)
    assert Path(found["NSS_WRAPPER_GROUP"]).read_text() == f"{name}:x:{gid}:\n"


def test_a_user_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert named(monkeypatch, system(tmp_path), 0, {}) == {}


def test_without_the_library_nothing_is_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert named(monkeypatch, tmp_path, UNKNOWN, {}) == {}
