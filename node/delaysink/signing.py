"""Signatures as Standard Webhooks 1.0 has them, and the secrets for them, read again when their file changes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from pathlib import Path
from typing import Final

SECRET_PREFIX: Final = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
MAX_SECRETS: Final = 2
LOOK_S: Final = 5.0
MAX_FILE_BYTES: Final = 64 << 10


class BadSecret(ValueError):
    """A secret that is missing or malformed: says which file, and never what is in it."""


def parse_secrets(text: str, where: str) -> tuple[bytes, ...]:
    """One or two secrets with white space between. Raises BadSecret."""
    words = text.split()
    if not 1 <= len(words) <= MAX_SECRETS:
        raise BadSecret(f"{where} has {len(words)} secrets: it must have one, or two while one replaces the other")
    keys = []
    for number, word in enumerate(words, 1):
        if not word.startswith(SECRET_PREFIX):
            raise BadSecret(f"{where}: secret {number} does not begin with {SECRET_PREFIX}")
        try:
            key = base64.b64decode(word.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise BadSecret(f"{where}: what follows {SECRET_PREFIX} in secret {number} is not base64") from None
        if not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise BadSecret(
                f"{where}: secret {number} has {len(key)} bytes; it must have {LEAST_BYTES} to {MOST_BYTES}"
            )
        keys.append(key)
    return tuple(keys)


def signature(keys: tuple[bytes, ...], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header webhook-signature: by each key."""
    content = f"{message_id}.{timestamp_s}.".encode() + body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(it).decode()}" for it in digests)


class SecretFile:
    """A file of a mounted Secret. What can't be used never replaces what can."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = ""
        self._seen: object = None
        self._looked_s = 0.0

    def read(self) -> str:
        """As it is now, looked at every LOOK_S. Raises BadSecret: it can't be read, and never could."""
        now_s = time.monotonic()
        if self._text and now_s - self._looked_s < LOOK_S:
            return self._text
        self._looked_s = now_s
        try:
            found = self.path.stat()
            seen = found.st_mtime_ns, found.st_ino, found.st_size
            if seen != self._seen:
                if found.st_size > MAX_FILE_BYTES:
                    raise BadSecret(f"{self.path} has {found.st_size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
                text = self.path.read_text("utf-8")
                if text.strip():
                    self._text, self._seen = text, seen
        except (OSError, UnicodeDecodeError) as error:
            if not self._text:
                raise BadSecret(f"{self.path} can't be read: {error}") from None
        if not self._text:
            raise BadSecret(f"{self.path} is empty")
        return self._text


class SigningKeys:
    """Those of a file, parsed once for each of its texts."""

    def __init__(self, path: Path) -> None:
        self._file = SecretFile(path)
        self._text = ""
        self._keys: tuple[bytes, ...] = ()
        self.problem = ""
        """Why the file as it is now is not used; "": it is."""

    def keys(self) -> tuple[bytes, ...]:
        """Raises BadSecret: there are none, and never were."""
        text = self._file.read()
        if text != self._text:
            self._text = text
            try:
                self._keys, self.problem = parse_secrets(text, str(self._file.path)), ""
            except BadSecret as error:
                self.problem = str(error)
        if not self._keys:
            raise BadSecret(self.problem)
        return self._keys
