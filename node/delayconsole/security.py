"""What keeps other sites, other users and forged requests out of a console. Pure: headers and texts in, verdicts out.

Host      must be one of ours, or a name of an attacker could point at 127.0.0.1 (DNS rebinding)
cookie    names a session; HttpOnly, SameSite=Strict
POST      needs an Origin that is ours, and the session's CSRF token
CSP       scripts and styles from here alone, nothing inline, no frames
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RequestRefused(Exception):
    """A request that is not let in. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class OwnOrigins:
    """The origins by which browsers may come, such as http://127.0.0.1:7180."""

    origins: frozenset[str]

    @classmethod
    def of(cls, origins: Iterable[str]) -> OwnOrigins:
        """Raises ValueError for a text that is not scheme://host[:port]."""
        found = set()
        for origin in (it.rstrip("/").lower() for it in origins):
            parts = urlsplit(origin)
            if parts.scheme not in DEFAULT_PORTS or not parts.netloc or f"{parts.scheme}://{parts.netloc}" != origin:
                raise ValueError(f"{origin!r} is not an origin such as https://console.example.com")
            found.add(origin.removesuffix(DEFAULT_PORTS[parts.scheme]))  # browsers leave it out, in Host and Origin
        return cls(frozenset(found))

    def check_host(self, host: str) -> None:
        """Raises RequestRefused for a Host header that names somebody else."""
        if host.lower() not in {urlsplit(origin).netloc for origin in self.origins}:
            known = ", ".join(sorted(self.origins))
            raise RequestRefused(421, f"this console is not at Host {host[:100]!r}; open {known}")

    def check_origin(self, origin: str | None, fetch_site: str | None) -> None:
        """Of a request that changes something. Raises RequestRefused."""
        if fetch_site not in (None, "same-origin"):
            raise RequestRefused(403, f"a change must come from the console's own pages, not {fetch_site[:20]}")
        if origin is None or origin.lower() not in self.origins:
            raise RequestRefused(
                403, f"a change must come from the console's own pages, not from {str(origin)[:100]!r}"
            )


@dataclass(frozen=True, slots=True)
class OwnHosts:
    """Likewise by https and a name, at whatever port: that of a Service, of an Ingress, of a port-forward."""

    hosts: frozenset[str]

    def check_host(self, host: str) -> None:
        """Raises RequestRefused for a Host header that names somebody else."""
        if _host_of(f"https://{host}") not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            raise RequestRefused(421, f"this console is not at Host {host[:100]!r}; it is at {known}")

    def check_origin(self, origin: str | None, fetch_site: str | None) -> None:
        """Of a request that changes something. Raises RequestRefused."""
        if fetch_site not in (None, "same-origin"):
            raise RequestRefused(403, f"a change must come from the console's own pages, not {fetch_site[:20]}")
        if origin is None or not origin.startswith("https://") or _host_of(origin) not in self.hosts:
            raise RequestRefused(
                403, f"a change must come from the console's own pages, not from {str(origin)[:100]!r}"
            )


def _host_of(origin: str) -> str:
    """Without the port, in small letters; "" where it has none, or more than scheme, host and port."""
    try:
        parts = urlsplit(origin.lower())
        port = parts.port
    except ValueError:
        return ""
    host = parts.hostname or ""
    whole = f"{parts.scheme}://{host}" if port is None else f"{parts.scheme}://{host}:{port}"
    return host if whole == origin.lower() else ""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session's secret; its cookie and its CSRF token are made of it."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def cookie(self) -> str:
        return self._derived(b"cookie")

    @property
    def csrf(self) -> str:
        return self._derived(b"csrf")

    def check_csrf(self, given: str | None) -> None:
        """Raises RequestRefused."""
        if given is None or not hmac.compare_digest(given.encode(), self.csrf.encode()):
            raise RequestRefused(403, "the form is of another session: open the page again")

    def _derived(self, purpose: bytes) -> str:
        return hmac.new(self.secret, purpose, hashlib.sha256).hexdigest()


def same(given: str | None, expected: str) -> bool:
    """Compares secrets in a time that does not depend on where they differ."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
