"""What a client needs at listeners with TLS and authentication: whom it trusts, and what it shows.

Certificates, keys and tokens are files that change while the client runs: the kubelet writes a pod's token anew before
it expires, cert-manager a certificate. They are read again then, and what cannot be used never replaces what can.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    import grpc

FilePath: TypeAlias = str | os.PathLike[str]
Metadata: TypeAlias = tuple[tuple[str, str], ...]
Options: TypeAlias = tuple[tuple[str, Any], ...]

LOOK_S: Final = 1.0
"""Between two looks at whether files have changed."""
MAX_TOKEN_BYTES: Final = 8 << 10
"""Of a token: gRPC takes that much metadata with a call."""

T = TypeVar("T")


class BadCredentials(ValueError):
    """Certificates or a token that cannot be used: says which file, and why."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the nodes. Paths of PEM files.

    ca: whom to trust with the nodes' certificates, two CAs while one takes over; empty: the public ones that gRPC
    knows. certificate, key: the client's own, for listeners that ask for it. server_name: what the certificate of each
    node must be for; empty: the host of the endpoint that the user gave, since routes name nodes by IP address.
    """

    ca: FilePath = ""
    certificate: FilePath = ""
    key: FilePath = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise BadCredentials("a certificate needs its key, and a key its certificate: give both or neither")

    def context(self) -> ssl.SSLContext:
        """With these files as they are now. Raises BadCredentials."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if self.ca:
            roots = _read(self.ca).decode("ascii", "replace")
            try:
                context.load_verify_locations(cadata=roots)
            except (ssl.SSLError, ValueError) as error:
                raise BadCredentials(f"{os.fspath(self.ca)} has no certificates in PEM: {_why(error)}") from None
        else:
            context.load_default_certs()
        if self.certificate:
            for path in (self.certificate, self.key):
                _read(path)
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except (ssl.SSLError, OSError) as error:
                raise BadCredentials(
                    f"{os.fspath(self.certificate)} and {os.fspath(self.key)} are not a certificate and its key, in "
                    f"PEM: {_why(error)}"
                ) from None
        return context

    def read(self) -> tuple[bytes | None, ...]:
        """The PEM of CA, key and certificate, each None without its file. Raises BadCredentials."""
        self.context()
        return tuple(_read(path) if path else None for path in (self.ca, self.key, self.certificate))


class _Watched(Generic[T]):
    """What `read` makes of files, made again once one of them has changed."""

    def __init__(self, paths: tuple[FilePath, ...], read: Callable[[], T], now: Callable[[], float]) -> None:
        """Raises what `read` does: BadCredentials."""
        self._paths, self._read, self._now = tuple(path for path in paths if path), read, now
        self._look_s = now() + LOOK_S
        self._stamp = self._stamped()
        self._value = read()
        self.problem = ""

    def current(self, *, at_once: bool = False) -> T:
        """at_once: as the files are now, however short ago they were looked at."""
        now_s = self._now()
        if at_once or now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._look()
        return self._value

    def _look(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp and not self.problem:
            return
        try:
            value = self._read()
        except BadCredentials as error:
            self.problem = str(error)
            return
        self.problem = ""
        if stamp == self._stamped():  # else they are being written: the next look
            self._stamp = stamp
            if value != self._value:
                self._value = value

    def _stamped(self) -> object:
        try:
            stats = [os.stat(path) for path in self._paths]
        except OSError as error:
            return str(error)
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]


class ClientCredentials:
    """Of one client: its TLS and its token, as their files are now. May be used by several threads."""

    def __init__(
        self,
        tls: Tls | None = None,
        token_file: FilePath = "",
        token: str = "",
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises BadCredentials: what a file has cannot be used, or a token would be sent without TLS."""
        if token and token_file:
            raise BadCredentials("token and token_file are two tokens: give one of them")
        if (token or token_file) and tls is None:
            raise BadCredentials("without TLS a token can be read on its way by others: give tls too")
        self.tls = tls
        self._files = None if tls is None else _Watched((tls.ca, tls.certificate, tls.key), tls.read, now)
        self._channel: tuple[object, grpc.ChannelCredentials] | None = None
        self._token: _Watched[Metadata] | None = None
        if token_file:
            shown = os.fspath(token_file)
            self._token = _Watched((token_file,), lambda: _bearer(_read(token_file), shown), now)
        self._fixed = _bearer(token.encode(), "the token") if token else None

    @property
    def renewable(self) -> bool:
        """The token or the certificate is of a file, which may have another one later."""
        return self._token is not None or (self.tls is not None and bool(self.tls.certificate))

    @property
    def problem(self) -> str:
        """What is wrong with files that have changed, whose former content is used; empty: nothing."""
        return "; ".join(watched.problem for watched in (self._files, self._token) if watched and watched.problem)

    def channel(self) -> grpc.ChannelCredentials | None:
        """For new channels; the same object until a file changes. None: no TLS."""
        if self._files is None:
            return None
        files = self._files.current()
        made = self._channel
        if made is None or made[0] is not files:
            import grpc

            made = self._channel = (files, grpc.ssl_channel_credentials(*files))
        return made[1]

    def metadata(self) -> Metadata | None:
        """Of each call. None: no token."""
        return self._fixed if self._token is None else self._token.current()

    def read_again(self) -> None:
        """Looks at the files now."""
        for watched in (self._files, self._token):
            if watched is not None:
                watched.current(at_once=True)

    def options(self, host: str, name: str) -> Options:
        """Of channels to a host whose certificate must be for `name`."""
        if self.tls is None or name == host:
            return ()
        return (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))


def _bearer(token: bytes, shown: str) -> Metadata:
    token = token.strip()
    if not token:
        raise BadCredentials(f"{shown} is empty")
    if len(token) > MAX_TOKEN_BYTES:
        raise BadCredentials(f"{shown} has {len(token):,} bytes; a token has at most {MAX_TOKEN_BYTES:,}")
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise BadCredentials(f"{shown} is no token: a token is one word of printable ASCII characters")
    return (("authorization", f"Bearer {token.decode('ascii')}"),)


def _read(path: FilePath) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadCredentials(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from None


def _why(error: Exception) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).lower().replace("_", " ")


def _no_password() -> str:
    raise BadCredentials("a client's key must have no password, since it is read again without anybody to ask")
