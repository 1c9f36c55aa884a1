"""Options of commands whose texts are read as durations, instants and spreads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from delayapi.durations import instant_ms, parse_duration_ms, parse_spread_ms


class Parsed(click.ParamType[Any]):
    """An option whose text is read by a function that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Final = Parsed("duration", parse_duration_ms)
INSTANT: Final = Parsed("time", instant_ms)
SPREAD: Final = Parsed("low..high", parse_spread_ms)
