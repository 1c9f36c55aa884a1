"""One module a page: its PAGE says where it is, what it shows and what can be done there."""

from __future__ import annotations

from typing import Final

from delayconsole.page import ConsolePage
from delayconsole.pages import audit, dead_letters, groups, nodes, pending, rebalance, schedules, shards, sinks, wheel

PAGES: Final[tuple[ConsolePage, ...]] = (
    wheel.PAGE,
    pending.PAGE,
    groups.PAGE,
    dead_letters.PAGE,
    schedules.PAGE,
    sinks.PAGE,
    nodes.PAGE,
    shards.PAGE,
    rebalance.PAGE,
    audit.PAGE,
)
"""In the order of the navigation."""
