"""`make demo` in small, on real nodes: real flights in, every one accounted for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import demo.__main__ as command
from demo import run
from demo.flights import Flights, load_flights
from demo.ledger import Verdict

ROOT = Path(__file__).resolve().parents[2]


def demo(*options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON result of a run on the first 3,000 flights."""
    arguments = [sys.executable, "-m", "demo", "--limit", "3000", "--seconds", "8", "--json", *options]
    ended = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def flights(n: int, flown: int) -> Flights:
    return Flights(np.zeros(n, np.int64), np.arange(n) < flown, [""] * n, [b""] * n)


def test_every_flight_is_accounted_for() -> None:
    status, result = demo()
    not_flown = int((~load_flights(3000).flown).sum())
    assert status == 0, result
    assert result["produced"] == 3000
    assert result["cancelled"] == not_flown
    assert result["delivered"] == 3000 - not_flown == sum(result["by_worker"])
    assert result["missing"] == result["early"] == result["duplicates"] == result["cancelled_but_delivered"] == 0


def test_a_node_killed_in_the_rush_loses_nothing() -> None:
    status, result = demo("--kill")
    assert status == 0, result
    assert result["killed_node"] in {"n0", "n1", "n2"}
    assert result["missing"] == result["early"] == result["cancelled_but_delivered"] == 0


def test_a_failed_check_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Verdict(10, 2, 7, 1, 0, 0, 0, 0, 1.0, 2.0, 3.0, ("1 messages are missing",))

    async def lose_one(*_: object) -> run.Outcomes:
        return run.Outcomes(verdict, 0.1, 100, 0.1, 1000, [7, 0], None, 0)

    monkeypatch.setattr(run, "run", lose_one)
    ended = CliRunner().invoke(command.main, ["--limit", "10", "--nodes", "1", "--queues", "1", "--json"])
    assert ended.exit_code == 1
    assert "1 messages are missing" in ended.output


def test_the_lead_covers_production_half_as_fast_again_and_the_cancels() -> None:
    some = flights(n=100_000, flown=92_000)
    assert run.lead_ms(some, per_second=50_000) >= 1000 * (1.5 * 2 + 8_000 / run.CANCELS_PER_SECOND + 1)
    assert run.lead_ms(some, per_second=5_000) > run.lead_ms(some, per_second=50_000)
