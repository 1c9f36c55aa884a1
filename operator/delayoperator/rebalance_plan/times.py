"""Times in a DelayRebalance: texts there, milliseconds since 1970 UTC here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayapi.durations import parse_duration_ms, parse_instant_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text_of(at_ms: int) -> str:
    """The time as Kubernetes writes it, with milliseconds."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str | None) -> int | None:
    """None for none, and for what is no time: an API server without our schema may have taken it."""
    if text is None:
        return None
    try:
        return parse_instant_ms(text)
    except ValueError:
        return None


def duration(text: str | None, default_ms: int) -> int:
    """Milliseconds; the default for none, and for what is no duration."""
    if text is None:
        return default_ms
    try:
        return parse_duration_ms(text)
    except ValueError:
        return default_ms
