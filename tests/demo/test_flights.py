"""The demo's data: real flights turned into departure reminders."""

import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from demo import flights

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
FLOWN = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
NOT_FLOWN = "2013,12,3,NA,1935,NA,NA,2240,NA,AA,791,NA,LGA,DFW,NA,1389,19,35,2013-12-04T00:00:00Z"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, FLOWN, NOT_FLOWN]) + "\n")
    return path


def test_a_flight_becomes_a_key_a_body_and_a_minute(table: Path) -> None:
    loaded = flights.load_flights(path=table)
    assert loaded.keys == ["2013-01-01 UA 1545", "2013-12-03 AA 791"]
    assert loaded.minute.tolist() == [5 * 60 + 15, 19 * 60 + 35]
    assert loaded.flown.tolist() == [True, False]
    assert json.loads(loaded.bodies[0])["dest"] == "IAH"


def test_a_missing_value_is_null_in_the_body(table: Path) -> None:
    assert json.loads(flights.load_flights(path=table).bodies[1])["tailnum"] is None


def test_the_body_says_nothing_that_is_known_only_after_departure(table: Path) -> None:
    body = json.loads(flights.load_flights(path=table).bodies[0])
    assert not {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"} & set(body)


def test_limit_takes_the_first_rows(table: Path) -> None:
    assert len(flights.load_flights(limit=1, path=table)) == 1


def test_every_day_is_folded_onto_one_window() -> None:
    minute = np.array([0, 720, 720, 1439])
    assert flights.due_times(minute, 1_000_000, 30_000).tolist() == [1_000_000, 1_015_000, 1_015_000, 1_029_979]


@pytest.fixture(scope="module")
def real() -> flights.Flights:
    return flights.load_flights()


def test_the_real_table_agrees_with_a_plain_reading_of_it(real: flights.Flights) -> None:
    with zipfile.ZipFile(flights.table_path()) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("flights.csv").decode())))
    assert len(real) == len(rows) == 336_776
    assert int((~real.flown).sum()) == sum(row["dep_time"] == "NA" for row in rows) == 8_255
    assert [row["sched_dep_time"] for row in rows] == [str(m // 60 * 100 + m % 60) for m in real.minute.tolist()]


def test_six_in_the_morning_is_the_hot_slot(real: flights.Flights) -> None:
    minute, count = np.unique(real.minute, return_counts=True)
    assert minute[count.argmax()] == 6 * 60
    assert count.max() > 7_000


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(flights.FlightsMissing, match="make setup"):
        flights.table_path()
