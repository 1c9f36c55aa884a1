"""Time zones, of the PyPI package tzdata alone: each node knows which version of the rules it goes by.

Instants are milliseconds since 1970 UTC. What a clock on the wall shows is a datetime without a zone, in whole seconds.
"""

from __future__ import annotations

import difflib
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

import tzdata

from delayapi.units import DAY_MS

RULES: Final[str] = tzdata.IANA_VERSION
"""The version of the zones' rules, such as 2026f."""

SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)
_MAX_NAME: Final = 64


class UnknownZone(ValueError):
    """A name that no zone has."""


class Zone:
    """What clocks on walls show in one zone, and when."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone

    def wall(self, at_ms: int) -> datetime:
        """What the clock shows; a part of a second is cut off."""
        return _datetime(at_ms + self.offset_ms(at_ms)).replace(microsecond=0)

    def offset_ms(self, at_ms: int) -> int:
        """How far the clock is ahead of UTC."""
        offset = _datetime(at_ms).replace(tzinfo=self._zone)
        found = self._zone.fromutc(offset).utcoffset()
        return 0 if found is None else found // timedelta(milliseconds=1)

    def first(self, wall: datetime) -> int | None:
        """When the clock shows that for the first time; None: it is put forward over that time."""
        at_ms = self._instant(wall, 0)
        return at_ms if self.wall(at_ms) == wall else None

    def second(self, wall: datetime) -> int:
        """When it shows that for the second time, where it is put back; else first()."""
        return self._instant(wall, 1)

    def gap_end(self, wall: datetime) -> int:
        """When the clock is put forward over that time."""
        return self._change(self._instant(wall, 1), self._instant(wall, 0))

    def put_back(self, after_ms: int) -> int | None:
        """When the clock is put back within a day from then on; None: it is not."""
        if self.offset_ms(after_ms + DAY_MS) >= self.offset_ms(after_ms):
            return None
        return self._change(after_ms, after_ms + DAY_MS)

    def _instant(self, wall: datetime, fold: int) -> int:
        offset = wall.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta()
        return (wall - offset - _EPOCH) // timedelta(milliseconds=1)

    def _change(self, before_ms: int, until_ms: int) -> int:
        """The second at which the offset changes, after before_ms and not after until_ms."""
        before, low, high = self.offset_ms(before_ms), before_ms // 1_000, -(-until_ms // 1_000)
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_ms(middle * 1_000) == before:
                low = middle
            else:
                high = middle
        return high * 1_000


@lru_cache(1_024)
def zone(name: str) -> Zone:
    """The zone of an IANA name; of an empty one UTC. Raises UnknownZone."""
    name = name or "UTC"
    if name not in _names():
        near = difflib.get_close_matches(name[:_MAX_NAME], _names(), 3, 0.7)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        shown = repr(name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "...")
        raise UnknownZone(f"{shown} is not a zone of the IANA database {RULES}, such as Europe/Berlin{hint}")
    with resources.files(tzdata).joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return Zone(ZoneInfo.from_file(file, name))


@lru_cache(1)
def _names() -> frozenset[str]:
    return frozenset(resources.files(tzdata).joinpath("zones").read_text().split())


def _datetime(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)
