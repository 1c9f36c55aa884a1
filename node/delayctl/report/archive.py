"""The archive: a tar.gz with an index of what is in it and of what could not be had."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from delayctl.report.scrub import scrub_log, scrub_object, scrub_text

FOLDER: Final = "delaycluster-report"
_README: Final = """\
A report of {cluster}, made {made} by `delayctl report`.

index.json lists the files, and what could not be had and why. It has no bodies, keys or properties of messages, and no
Secrets; of environment variables, headers, ConfigMaps and foreign annotations it has the names alone, of URLs neither
user nor query. Names of topics, groups, nodes and users, addresses, and what logs say are in it: look before you send
it to somebody.
"""


class Archive:
    """Each file is written as it comes, scrubbed. known: secrets at hand, which are left out wherever they stand."""

    def __init__(self, path: Path, cluster: str, known: Collection[str] = ()) -> None:
        """Raises OSError: it can't be written, or exists."""
        self.files: list[dict[str, Any]] = []
        self.missing: list[dict[str, str]] = []
        self._cluster = cluster
        self._known: list[str] = []
        self.know(known)
        self._made = datetime.now(UTC)
        # Its owner's alone, and never over another one.
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._tar = tarfile.TarFile.gzopen(str(path), "w", fileobj=self._file)

    def know(self, secrets: Collection[str]) -> None:
        """More of them, for what is added from now on."""
        known = {*self._known, *(one for one in secrets if len(one) > 3)}
        self._known = sorted(known, key=len, reverse=True)

    def add_json(self, name: str, what: str, value: Any) -> None:
        text = json.dumps(scrub_object(value, self._known), indent=1, ensure_ascii=False, default=str)
        self._add(name, what, text + "\n")

    def add_log(self, name: str, what: str, text: str) -> None:
        self._add(name, what, scrub_log(text, self._known))

    def add_text(self, name: str, what: str, text: str) -> None:
        self._add(name, what, scrub_text(text, self._known))

    def lacks(self, what: str, why: object) -> None:
        self.missing.append({"what": what, "why": scrub_text(str(why), self._known)[:2_000]})

    def close(self) -> None:
        index = {
            "cluster": self._cluster,
            "made": self._made.isoformat(timespec="seconds"),
            "files": self.files,
            "missing": self.missing,
        }
        made = index["made"]
        self._write("index.json", json.dumps(index, indent=1, ensure_ascii=False) + "\n")
        self._write("README.txt", _README.format(cluster=self._cluster, made=made))
        self._tar.close()
        self._file.close()

    def _add(self, name: str, what: str, text: str) -> None:
        self.files.append({"file": name, "what": what, "bytes": self._write(name, text)})

    def _write(self, name: str, text: str) -> int:
        data = text.encode("utf-8", "replace")
        entry = tarfile.TarInfo(f"{FOLDER}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), int(self._made.timestamp()), 0o600
        self._tar.addfile(entry, io.BytesIO(data))
        return len(data)
