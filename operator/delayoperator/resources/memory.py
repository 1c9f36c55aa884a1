"""The node's memory settings from its container's limit.

Parts of the limit, so that none of them has to be set by hand. The rest is the process itself (80 to 150 MiB), the
shards' small wheels and groups, and the kernel's page cache, which gives way.

    due window       4,000 messages a MiB     28 B each: an eighth
    in flight        1/16                     batches that wait for their commit
    unread           1/4                      answers that clients have not read yet; Python's and gRPC's copy
    cut above        3/4                      resident: then connections go that hold much and do not end it

With 1 GiB these are the node's own defaults; without a limit those hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from delayoperator.resources.normal import BadQuantity, whole_bytes

WINDOW_A_MIB = 4_000  # messages
MIN_MESSAGES, MAX_MESSAGES = 250_000, 16_000_000  # messages in the due window
SMALLEST_LIMIT_MIB = 384
"""Below it the parts come to more than there is."""


def memory_args(resources: Mapping[str, Mapping[str, str | int | float]]) -> list[str]:
    """Arguments of `delaynode`; none without a limit, or with one that is no quantity (the API server refuses it)."""
    limit = resources.get("limits", {}).get("memory")
    if limit is None:
        return []
    try:
        mib = whole_bytes(limit) >> 20
    except BadQuantity:
        return []
    return [
        f"--memory-mib={max(64, mib * 3 // 4)}",
        f"--window-budget={_within(mib * WINDOW_A_MIB, MIN_MESSAGES, MAX_MESSAGES)}",
        f"--in-flight-mib={_within(mib // 16, 8, 256)}",
        f"--unread-mib={_within(mib // 4, 16, 1_024)}",
    ]


def _within(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
