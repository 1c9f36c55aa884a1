"""Reads what a browser posts: bounded in size by the application, and in time here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from delayconsole.security import RequestRefused

FORM_S: Final = 20.0
"""For a form to come: who sends one byte at a time keeps no memory and no connection for longer."""
SIGN_IN_BYTES: Final = 32 << 10
"""Of a form without a session: a token has 8 KiB at most."""


async def read_form(request: web.Request) -> Mapping[str, Any]:
    """Raises RequestRefused."""
    try:
        async with asyncio.timeout(FORM_S):
            return await request.post()
    except TimeoutError:
        raise RequestRefused(408, f"the form was not here after {FORM_S:g} s") from None
