"""What people count times and sizes by."""

from typing import Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


def format_bytes(size: int) -> str:
    """A size for people, exact: '4 MiB', '1.5 GiB', else '4,194,305 bytes'."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size * 2 % unit == 0:
            return f"{size / unit:g} {name}"
    return f"{size:,} bytes"
