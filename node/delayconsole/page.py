"""How a page and an action are added.

A page is a module of `delayconsole.pages` with a PAGE; `pages/__init__.py` lists them:

    async def show(view: PageView) -> Mapping[str, Any]:
        return {"topics": await view.visitor.admin.topics()}

    PAGE = ConsolePage("topics", "Topics", "/topics", "topics.html", show, actions=(DROP,))

`show` returns what its template gets, or an answer that is no page, such as a file. Templates extend `layout`, and fill
the blocks `main` and perhaps `scripts`; they also have `view`. What a visitor typed is read by `view.query`; what is
wrong with it is a BadInput, which becomes a page that says so, as do the cluster's errors.

An action is something that changes the cluster. A form posts to `page.action_path(action)`; `plan` looks at what was
chosen, changes nothing, and says what would happen to how many, and by which command. The visitor sees that, and
confirms it; then `run` does it, in a console that was started with --allow-changes. What has changed in between, as
told by the plan's count, is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from delayapi.durations import instant_ms

from delayconsole.visitor import Visitor

MAX_TEXT: Final = 4_096


class BadInput(ValueError):
    """Something in the address or the form cannot be meant; says what, and what is expected."""


class Inputs:
    """The texts of an address or a form, read with their bounds. Every method raises BadInput."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._texts = texts

    def text(self, name: str, default: str = "", max_chars: int = MAX_TEXT) -> str:
        """Without the blanks around it; `default` where it is missing or empty."""
        found = (self._texts.get(name) or ("",))[-1].strip()
        if len(found) > max_chars:
            raise BadInput(f"{name} has {len(found):,} characters, at most {max_chars:,}")
        return found or default

    def texts(self, name: str, max_count: int) -> list[str]:
        """All with this name."""
        found = [text for text in self._texts.get(name, ()) if text]
        if len(found) > max_count:
            raise BadInput(f"{len(found):,} of {name} at once; at most {max_count:,}")
        return found

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isascii() or not text.lstrip("-").isdecimal() or len(text) > 20 or not low <= int(text) <= high:
            raise BadInput(f"{name} is {text[:40]!r}; expected a number from {low:,} to {high:,}")
        return int(text)

    def instant(self, name: str) -> int | None:
        """ms since 1970 UTC; None where it is missing."""
        text = self.text(name, max_chars=100)
        try:
            found = instant_ms(text) if text else None
        except (ValueError, OverflowError) as error:
            raise BadInput(f"{name}: {error}") from None
        if found is not None and found < 0:
            raise BadInput(f"{name}: {text!r} is before 1970")
        return found

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        text = self.text(name, default)
        if text not in choices:
            raise BadInput(f"{name} is {text[:40]!r}; expected one of {', '.join(choices)}")
        return text

    def items(self) -> list[tuple[str, str]]:
        """All of them, for a form that carries them on."""
        return [(name, text) for name, texts in self._texts.items() for text in texts]


@dataclass(frozen=True, slots=True)
class PageView:
    """One request for a page or an action. form: of a POST. now_ms: the console's clock."""

    visitor: Visitor
    query: Inputs
    now_ms: int
    path: str
    allow_changes: bool = False
    form: Inputs = field(default_factory=lambda: Inputs({}))


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """What an action would do. question: 'Cancel 3 messages of orders?'. count: how many are concerned; 0: nothing to
    do. command: what does the same in a terminal. details: label and text. dangerous: it cannot be undone."""

    question: str
    count: int
    command: str
    details: Sequence[tuple[str, str]] = ()
    dangerous: bool = False
    given: Any = None
    """What `run` needs of it."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action did. summary: one sentence. rows: label and text. failed: not all was done."""

    summary: str
    rows: Sequence[tuple[str, str]] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ConsoleAction:
    """Something that changes the cluster. name: the last part of its path. title: its button's text. limit_s: it may
    take so long."""

    name: str
    title: str
    plan: Callable[[PageView], Awaitable[ActionPlan]]
    run: Callable[[PageView, ActionPlan], Awaitable[ActionResult]]
    limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page. listed: the navigation has it. more: pages below it, which are not listed, such as one message."""

    name: str
    title: str
    path: str
    template: str
    show: Callable[[PageView], Awaitable[Mapping[str, Any] | web.StreamResponse]]
    actions: tuple[ConsoleAction, ...] = ()
    more: tuple[ConsolePage, ...] = ()

    def action_path(self, action: ConsoleAction) -> str:
        return f"{self.path}/{action.name}"
