"""What the pages show with curl, run as it is written: but for the address, receipts and handles."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.chart.places import ROOT
from tests.doors.support.asking import Asking, Node

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl command; Debian has it in curl")

Ask = Callable[..., Asking]
SHOWN_AT = "http://127.0.0.1:7170/delay.v1.MessageService"
RECEIPT, HANDLE = re.compile(r'("receipts": \[")[^"]+'), re.compile(r'("handles": \[")[^"]+')
ORDER = {"key": "order-17", "bodyJson": {"order": 17, "check": "payment"}}


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[tuple[str, Any]]:
    """(what to type, the answer that the page shows below it, or None)."""
    found: list[tuple[str, Any]] = []
    for language, text in blocks(page):
        if language == "sh":
            parts = re.split(r"^(?=curl )", text, flags=re.MULTILINE)
            found += [(one, None) for one in parts if one.startswith("curl -s ")]
        elif language == "json" and "code" not in (shown := json.loads(text)):
            found[-1] = found[-1][0], shown
    return found


class Page:
    """Types commands at a node whose topic orders has what they are about."""

    def __init__(self, client: Asking, node: Node) -> None:
        self._client, self._at = client, f"http://{node.http}/delay.v1.MessageService"

    def type(self, command: str) -> Any:
        """The answer."""
        if RECEIPT.search(command):
            self._client.json("Send", {"topic": "orders", "messages": [ORDER]})
            command = RECEIPT.sub(rf"\g<1>{self.receipt()}", command)
        if HANDLE.search(command):
            command = HANDLE.sub(rf"\g<1>{self.handle()}", command)
        if "/Receive " in command:
            self.receipt()  # of what the page has sent for now
            self._client.json("Send", {"topic": "orders", "messages": [{**ORDER, "delay": "0.1s"}]})
        command = f"AT={self._at}\n{command.replace(SHOWN_AT, self._at)}"
        return json.loads(subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=True).stdout)

    def receipt(self) -> str:
        """Of a message that is due."""
        found = self._client.json("Receive", {"topic": "orders", "group": "billing", "wait": "20s"})
        return str(found["deliveries"][0]["receipt"])

    def handle(self) -> str:
        sent = self._client.json("Send", {"topic": "orders", "messages": [{**ORDER, "delay": "1800s"}]})
        return str(sent["results"][0]["handle"])


def test_every_command_of_schedules_is_answered_as_it_says(ask: Ask, nodes: list[Node]) -> None:
    typing, typed = Page(ask(0, "json"), nodes[1]), commands("schedules.md")
    for command, shown in typed:
        answer = typing.type(command)
        assert "code" not in answer, (command, answer)
        if shown is not None:
            assert shape(answer) == shape(shown), command
        settled = [one.get("settled") for one in answer.get("results", ()) if RECEIPT.search(command)]
        assert all(settled), (command, answer)
        outcomes = [one["outcome"] for one in answer.get("results", ()) if HANDLE.search(command)]
        assert outcomes in ([], ["CANCELLED"], ["RESCHEDULED"]), (command, answer)
    assert typed


def shape(answer: dict[str, Any]) -> dict[str, Any]:
    """Which fields are there, and what they have that is no handle, receipt or time."""
    if "results" in answer:
        return {"results": [set(one) for one in answer["results"]]}
    (delivery,) = answer["deliveries"]
    return {name: delivery[name] if name in ORDER or name == "attempt" else ... for name in delivery}
