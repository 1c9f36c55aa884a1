"""The security document that is in force here: the last good one that the registry had, across restarts.

<data>/security    JSON {"document": "..."}, sealed: as the registry had it. It holds no secrets.

A document that can't be followed is told, and the one before stays in force.
"""

from __future__ import annotations

from collections.abc import Callable

from delayregistry.codec import BadRecord
from delayregistry.security import SecurityObject, SecuritySpec, read_document

from delaynode.sealed_json import opened, sealed
from delaynode.store.log.files import Files


class SecurityDocument:
    """Owned by the event loop, but for load() and keep(), which block. applied: told of each that comes into force."""

    def __init__(self, data: str, log: Callable[..., None], applied: Callable[[SecuritySpec], None]) -> None:
        self._path = f"{data}/security"
        self._log, self._applied = log, applied
        self._text = ""  # in force
        self._seen = ""  # the version that was looked at last
        self.problem = ""  # why the registry's is not in force

    def load(self, files: Files) -> None:
        """Put in force what a process before this one has kept. Before the first take()."""
        try:
            size = files.size(self._path)
            if size:
                self._apply(str(opened(files.read(self._path, 0, size))["document"]))
        except (OSError, ValueError, KeyError) as error:
            self._log("security-not-read", reason=f"{self._path}: {error}")

    def take(self, found: SecurityObject | None) -> bool:
        """What the registry has; None: it has none, or none that can be read, and the last known stays. Returns whether
        another one is in force now, which keep() should keep."""
        if found is None or found.version == self._seen:
            return False
        self._seen = found.version
        if found.text == self._text:
            self.problem = ""
            return False
        try:
            self._apply(found.text)
        except BadRecord as error:
            self.problem = f"version {found.version} can't be followed: {str(error)[:500]}"
            self._log("security-refused", version=found.version, reason=str(error)[:500])
            return False
        self.problem = ""
        return True

    def _apply(self, text: str) -> None:
        spec = read_document(text)
        self._applied(spec)
        self._text = text
        self._log(
            "security-applied", authorization=spec.authorization.value, users=len(spec.users),
            issuers=len(spec.issuers), tokens=len(spec.tokens),
        )  # fmt: skip

    def keep(self, files: Files) -> None:
        """For the next process. In a thread."""
        try:
            files.replace(self._path, sealed({"document": self._text}).encode())
        except OSError as error:
            self._log("security-not-kept", reason=f"{self._path}: {error}")
