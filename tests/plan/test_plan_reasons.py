"""Every reason that a condition can have is in docs/operations.md, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from delayoperator import plan

SOURCES = Path(plan.__file__).parent
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_the_reasons_in_the_code_are_those_on_the_page() -> None:
    code = "\n".join(path.read_text() for path in SOURCES.glob("*.py"))
    written = r'(?:Refuse|Held|Risk)\(\s*"([A-Za-z]+)"|ConditionType\.[A-Z]+, "([A-Za-z]+)"'
    named = r'^[A-Z_]+ = "([A-Za-z]+)"  # reason of a'
    found = re.findall(f"{written}|{named}", code, re.MULTILINE)
    in_code = {reason for reasons in found for reason in reasons if reason}
    section = DOCUMENT.read_text().partition("## Shards and their copies")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("|") and "`" in line]
    on_page = {reason for row in rows for reason in re.findall(r"`([A-Za-z]+)`", row)}
    assert len(in_code) > 10
    assert on_page == in_code
