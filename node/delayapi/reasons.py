"""Why messages became dead letters: short texts, and how many of them travel together.

size u16[n] | the texts' UTF-8, one after the other; without any text both are empty
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_REASON_BYTES: Final = 1024


def check_reason(reason: str) -> None:
    """Raises ValueError when it is longer than MAX_REASON_BYTES."""
    if (size := len(reason.encode())) > MAX_REASON_BYTES:
        raise ValueError(f"reason: {size:,} bytes of UTF-8 are more than the limit, {MAX_REASON_BYTES:,}")


def shortened(text: str) -> str:
    """The text, or as much of its beginning as a reason may have."""
    return text.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


def join_reasons(reasons: Sequence[str]) -> tuple[NDArray[np.uint16], bytes]:
    """Their sizes, u16[n], and what joins them."""
    if not any(reasons):
        return np.empty(0, np.uint16), b""
    parts = [reason.encode() for reason in reasons]
    return np.array([*map(len, parts)], "<u2"), b"".join(parts)


def cut_reasons(size: NDArray[np.uint16], joined: bytes, count: int) -> list[str]:
    """The `count` reasons that join_reasons() has joined. Raises ValueError."""
    if not len(size) and not joined:
        return [""] * count
    ends = np.cumsum(size, dtype=np.int64).tolist()
    if len(ends) != count or ends[-1] != len(joined):
        raise ValueError(f"{len(ends)} reasons of {ends[-1:]} bytes for {count} dead letters and {len(joined)} bytes")
    return [joined[end - length : end].decode() for end, length in zip(ends, size.tolist(), strict=True)]
