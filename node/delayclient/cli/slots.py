"""Counts in slots of time: spread over columns, and drawn as cells of a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.text import Text

_COLOURS = (17, 18, 19, 26, 37, 42, 82, 154, 220, 208, 196)
"""Cold to hot, of the 256 terminal colours."""


def spread_slots(
    start_ms: NDArray[np.int64], width_ms: NDArray[np.int64], messages: NDArray[np.int64], edges_ms: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Messages in each column [edge, next edge), f64[columns]; a slot over several counts evenly in each."""
    # The cumulative count is a line through the slots' ends; a column is the difference at its edges.
    at = np.concatenate(([0], np.ravel(np.column_stack((start_ms, start_ms + width_ms)))))
    total = np.cumsum(messages, dtype=np.float64)
    before = total - messages
    count = np.concatenate(([0.0], np.ravel(np.column_stack((before, total)))))
    at_edges: NDArray[np.float64] = np.interp(edges_ms, at, count)
    return np.diff(at_edges)


def cells(row: NDArray[np.float64], hottest: float) -> Text:
    """A character a count, from cold to `hottest`."""
    from rich.text import Text

    text = Text()
    for count in row.tolist():
        # A root, so that what is there at all can be seen beside a herd.
        heat = (count / hottest) ** 0.5 if hottest and count > 0 else 0.0
        colour = f"on color({_COLOURS[round(heat * (len(_COLOURS) - 1))]})" if count > 0 else ""
        shade = " .:-=+*#%@"[min(9, 1 + int(heat * 8))] if count > 0 else " "
        text.append(shade, style=colour)
    return text
