"""Sessions end: by their token, unused, by a sign-out, and where there are too many."""

from __future__ import annotations

import asyncio
from typing import Any

from delayconsole.security import SessionKey
from delayconsole.sessions import IDLE_S, LIFETIME_S, MAX_SESSIONS, Sessions
from delayconsole.visitor import Visitor


class World:
    """closed: the names of those whose connections were ended."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.closed: list[str] = []
        self.sessions = Sessions(lambda: self.now_s)

    def begin(self, name: str, lifetime_s: float = LIFETIME_S) -> str:
        async def close() -> None:
            self.closed.append(name)

        admin: Any = None
        return self.sessions.begin(Visitor(SessionKey(), admin, name), close, lifetime_s)

    def name(self, cookie: str | None) -> str | None:
        found = self.sessions.find(cookie)
        return None if found is None else found.name


def test_a_session_is_its_cookies_alone() -> None:
    async def main() -> None:
        world = World()
        ann, bob = world.begin("ann"), world.begin("bob")
        assert (world.name(ann), world.name(bob)) == ("ann", "bob")
        for forged in (None, "", ann[:-1], ann + "0", ann.upper(), "0" * 64):
            assert world.name(forged) is None

    asyncio.run(main())


def test_it_ends_with_its_token_however_much_it_is_used() -> None:
    async def main() -> None:
        world = World()
        cookie = world.begin("ann", lifetime_s=90.0)
        for _ in range(89):
            world.now_s += 1
            assert world.name(cookie) == "ann"
        world.now_s += 1
        assert world.name(cookie) is None
        await world.sessions.close()
        assert world.closed == ["ann"]

    asyncio.run(main())


def test_it_ends_unused_and_is_never_longer_than_a_working_day() -> None:
    async def main() -> None:
        world = World()
        idle, used = world.begin("idle", 1e9), world.begin("used", 1e9)
        for _ in range(8):
            world.now_s += IDLE_S - 1
            world.name(used)
        assert world.name(idle) is None
        assert world.name(used) == "used"
        world.now_s += IDLE_S - 1
        assert world.name(used) is None, f"{LIFETIME_S} s are over"

    asyncio.run(main())


def test_a_sign_out_ends_it_at_once() -> None:
    async def main() -> None:
        world = World()
        cookie = world.begin("ann")
        world.sessions.end(cookie)
        world.sessions.end(cookie)
        assert world.name(cookie) is None
        await world.sessions.close()
        assert world.closed == ["ann"]

    asyncio.run(main())


def test_of_too_many_the_one_goes_that_was_used_longest_ago() -> None:
    async def main() -> None:
        world = World()
        cookies = [world.begin(str(number)) for number in range(MAX_SESSIONS)]
        world.name(cookies[0])
        world.begin("one more")
        assert len(world.sessions) == MAX_SESSIONS
        assert world.name(cookies[0]) == "0"
        assert world.name(cookies[1]) is None
        await world.sessions.close()
        assert len(world.closed) == MAX_SESSIONS + 1

    asyncio.run(main())
