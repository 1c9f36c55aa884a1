"""Who looks at the console, and how they came in.

The console has no rights of its own: every question and change goes to the cluster with the visitor's identity. How a
visitor signs in is behind `SignIn`: on one's own machine by the link that `delayctl console` prints (local_sign_in).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from delayclient.admin.admin import Admin

from delayconsole.cluster_objects import ClusterObjects
from delayconsole.security import SessionKey


@dataclass(frozen=True, slots=True)
class Visitor:
    """One signed-in person. admin: speaks to the cluster with their identity. program: the first words of their
    commands, `delayctl` and how it reaches this cluster. name: shown in the corner."""

    session: SessionKey
    admin: Admin
    name: str
    program: tuple[str, ...] = ("delayctl",)
    objects: ClusterObjects | None = None
    """What the visitor may see and change beside messages; None: they have shown nothing that is good for it."""
    may_leave: bool = False
    """There is a sign-out."""

    def command(self, *words: str) -> str:
        """What does the same in a terminal."""
        return shlex.join([*self.program, *words])

    def objects_command(self, *words: str) -> str:
        """Likewise, of one that reads or changes the registry or the rebalance."""
        return self.command(*words, *(() if self.objects is None else self.objects.options))


class SignIn(Protocol):
    """How visitors come in."""

    def routes(self) -> Iterable[web.RouteDef]:
        """What is served without a session."""

    async def visitor(self, request: web.Request) -> Visitor | None:
        """The visitor of a request's session; None: it has none that is valid."""

    def invitation(self) -> Mapping[str, Any]:
        """What sign_in.html gets: `sentences` for those who have no session; in a cluster, the ways to sign in."""
