"""The special parts of the registry in a SQLite file, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from delayregistry import open_registry
from delayregistry.port import RegistryError
from delayregistry.sqlite import SqliteRegistry


def test_a_missing_registry_and_a_strange_url_are_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no registry at"):
        open_registry(f"sqlite:{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(ValueError, match="expected sqlite:PATH"):
        open_registry("etcd:here")


def test_a_file_that_is_no_registry_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"something else entirely, and long enough" * 100)
    with pytest.raises(RegistryError, match="cannot open"):
        open_registry(f"sqlite:{tmp_path / 'registry.db'}")


def test_a_registry_of_a_newer_release_is_refused(registry: SqliteRegistry, path: Path) -> None:
    with registry._writes.transaction() as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(RegistryError, match="newer release"):
        open_registry(f"sqlite:{path}")


def test_a_registry_of_an_older_release_is_refused(registry: SqliteRegistry, path: Path) -> None:
    with registry._writes.transaction() as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(RegistryError, match="older release"):
        open_registry(f"sqlite:{path}")
