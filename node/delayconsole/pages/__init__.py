"""One module a page: its PAGE says where it is, what it shows and what can be done there."""

from __future__ import annotations

from typing import Final

from delayconsole.page import ConsolePage
from delayconsole.pages import wheel

PAGES: Final[tuple[ConsolePage, ...]] = (wheel.PAGE,)
"""In the order of the navigation."""
