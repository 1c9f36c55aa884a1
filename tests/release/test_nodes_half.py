"""The nodes' image has the half of the package that is in node/: nodes, SDK, and delayctl as far as it goes there."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_THE_OPERATOR = """
import sys
for name in "delayoperator", "delaylocal", "delayrebalance", "kopf":
    sys.modules[name] = None
from delayctl.main import main
"""


def delayctl(*words: str) -> subprocess.CompletedProcess[str]:
    code = f"{WITHOUT_THE_OPERATOR}main({list(words)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_nodes_and_what_is_called_in_their_pods_need_nothing_of_the_operator() -> None:
    modules = "delaynode.main", "delayclient", "delayctl.messages.produce", "delayctl.messages.consume"
    code = f"{WITHOUT_THE_OPERATOR}import {', '.join(modules)}, delayctl.cluster.nodes, delayctl.cluster.shards"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("command", ["local", "rebalance"])
def test_a_command_that_needs_the_operators_half_says_so(command: str) -> None:
    ended = delayctl(command, "--help")
    assert ended.returncode == 2
    assert "not in the nodes' image" in ended.stderr
    assert "Traceback" not in ended.stderr
