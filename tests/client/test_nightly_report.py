"""docs/examples/nightly-report, as it stands there, against real nodes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from delayclient.sync import Admin

REPORT = Path(__file__).parents[2] / "docs/examples/nightly-report/report.py"


def test_each_office_gets_its_report_and_its_next_night(endpoint: str) -> None:
    done = subprocess.run([sys.executable, REPORT, endpoint, "--now"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^report of (.+) for \d{4}-\d\d-\d\dT[\d:.]+Z$", done.stdout, re.MULTILINE)
    assert sorted(said) == ["Berlin", "New York", "Tokyo"]
    with Admin(endpoint) as admin:
        nights = {one.schedule.id: one.next_due_ms for one in admin.schedules.each("reports")}
    assert len(set(nights.values())) == 3
