"""URLs, methods and headers, checked before anything is connected to. Pure."""

from __future__ import annotations

import re
from typing import Final

from yarl import URL

MAX_URL: Final = 2_048
MAX_VALUE: Final = 4_096
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")
OWN_HEADERS: Final = (
    "host content-length transfer-encoding connection keep-alive te trailer upgrade expect cookie content-encoding "
    "accept-encoding http2-settings forwarded via content-type"
)
"""Those that say how a request is sent: of the sink alone."""
OWN_PREFIXES: Final = ("webhook-", "ce-", "proxy-", "sec-", "x-forwarded-")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
_BAD: Final = re.compile(r"[^!-~]|[\\<>\"{}|^`]")


class BadUrl(ValueError):
    """A URL that is not called; says why."""


def checked_url(text: str) -> URL:
    """Raises BadUrl."""
    if len(text) > MAX_URL:
        raise BadUrl(f"the URL has {len(text):,} characters; the limit is {MAX_URL:,}")
    shown = repr(text[:200])
    if not text.isascii():
        # Another library may read it as another host: the caller writes xn-- and %XX.
        raise BadUrl(f"{shown} has characters beyond ASCII: write the host as punycode (xn--) and the rest as %XX")
    if found := _BAD.search(text):
        raise BadUrl(f"{shown} has the character {found[0]!r}, which no URL has")
    try:
        url = URL(text)
        host, port = url.host, url.port
    except (ValueError, TypeError) as error:
        raise BadUrl(f"{shown} is not a URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise BadUrl(f"{shown} begins with neither https:// nor http://")
    if not host or not port:
        raise BadUrl(f"{shown} has no host, or the port 0")
    if "@" in text.partition("://")[2].partition("/")[0].partition("?")[0]:
        raise BadUrl("the URL has a user name or a password: give them in `authorization`")
    if "%" in host:
        raise BadUrl(f"{shown} has a zone or an escape in its host")
    if url.fragment:
        raise BadUrl(f"{shown} has a fragment, which is never sent")
    return url


def method_problem(method: str) -> str:
    """Why this method is not used; "": it may be."""
    return "" if method in METHODS else f"{method[:40]!r} is none of {', '.join(METHODS)}"


def header_problem(name: str, value: str) -> str:
    """Why this header is not sent; "": it may be."""
    if not _TOKEN.fullmatch(name):
        return f"{name[:80]!r} is no header's name"
    lowered = name.lower()
    if lowered in OWN_HEADERS.split() or lowered.startswith(OWN_PREFIXES):
        return f"the header {name} is the sink's own"
    if len(value) > MAX_VALUE:
        return f"the header {name} has {len(value):,} characters; the limit is {MAX_VALUE:,}"
    return "" if _VALUE.fullmatch(value) else f"the header {name} has a character that no header may have"
