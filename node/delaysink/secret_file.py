"""Files of mounted Secrets, NAME/KEY, read again when they change. What can't be used never replaces what can."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

LOOK_S: Final = 5.0
MAX_FILE_BYTES: Final = 64 << 10

T = TypeVar("T")


class BadSecret(ValueError):
    """A secret that is missing or malformed: says which file, and never what is in it."""


class SecretFile:
    """The text of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """Why the file as it is now is not used; "": it is."""
        self._text = ""
        self._seen: object = None
        self._looked_s = 0.0

    def read(self) -> str:
        """As it is now, looked at every LOOK_S. Raises BadSecret: it can't be read, and never could."""
        now_s = time.monotonic()
        if not self._text or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            try:
                self._look()
                self.problem = ""
            except BadSecret as error:
                self.problem = str(error)
        if not self._text:
            raise BadSecret(self.problem)
        return self._text

    def _look(self) -> None:
        """Raises BadSecret."""
        try:
            found = self.path.stat()
            seen = found.st_mtime_ns, found.st_ino, found.st_size
            if seen == self._seen:
                return
            if found.st_size > MAX_FILE_BYTES:
                raise BadSecret(f"{self.path} has {found.st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            name, key = self.path.parts[-2:]
            raise BadSecret(f"{self.path} is missing: make the key {key!r} of the Secret {name!r}") from None
        except OSError as error:
            raise BadSecret(f"{self.path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadSecret(f"{self.path} is not text in UTF-8") from None
        if not text.strip():
            raise BadSecret(f"{self.path} is empty")
        self._text, self._seen = text, seen


class ParsedSecret(Generic[T]):
    """What a file says, parsed once for each of its texts."""

    def __init__(self, path: Path, parse: Callable[[str, str], T]) -> None:
        """parse: of a text, and where it is from; raises BadSecret."""
        self._file, self._parse = SecretFile(path), parse
        self._text = ""
        self._value: T | None = None
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why the file as it is now is not used; "": it is."""
        return self._file.problem or self._problem

    def value(self) -> T:
        """Raises BadSecret: there is none, and never was."""
        text = self._file.read()
        if text != self._text:
            self._text = text
            try:
                self._value, self._problem = self._parse(text, str(self._file.path)), ""
            except BadSecret as error:
                self._problem = str(error)
        if self._value is None:
            raise BadSecret(self._problem)
        return self._value
