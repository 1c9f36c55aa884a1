"""spec.settings as arguments of `delaynode`. They come after those of the memory limit, and win."""

from __future__ import annotations

from delayoperator.resources.view import NodeSettings


def settings_args(settings: NodeSettings) -> list[str]:
    given = {
        "max-connections": settings.max_connections,
        "min-free-mib": _mib(settings.min_free_bytes),
        "log-segment-mib": _mib(settings.log_segment_bytes),
        "connection-age-seconds": settings.connection_age_s,
        "window-budget": settings.window_budget,
        "unread-mib": _mib(settings.unread_bytes),
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def _mib(size_bytes: int | None) -> int | None:
    """Rounded up."""
    return None if size_bytes is None else -(-size_bytes >> 20)
