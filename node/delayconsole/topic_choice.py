"""Which topics a page is about: the one that was chosen, or all, where that is not too much to ask at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayclient.routing.route_table import TopicRoute

from delayconsole.page import BadInput, PageView


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """topic: "": all. topics: names of all that the visitor may see. all_allowed: all can be chosen together."""

    topic: str
    topics: tuple[str, ...]
    routes: Sequence[TopicRoute]
    all_allowed: bool


async def chosen_routes(view: PageView, most_queues: int) -> TopicChoice:
    """Raises BadInput, DelayError."""
    routes = sorted(await view.visitor.admin.topics(), key=lambda route: route.topic)
    names = tuple(route.topic for route in routes)
    few = sum(len(route.queues) for route in routes) <= most_queues
    topic = view.query.text("topic") or ("" if few or not names else names[0])
    if topic and topic not in names:
        raise BadInput(f"there is no topic {topic!r} that you may see")
    return TopicChoice(topic, names, [it for it in routes if topic in ("", it.topic)], few)
