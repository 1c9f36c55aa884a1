"""Counts in slots of time, drawn as cells of a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.text import Text

_COLOURS = (17, 18, 19, 26, 37, 42, 82, 154, 220, 208, 196)
"""Cold to hot, of the 256 terminal colours."""


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
