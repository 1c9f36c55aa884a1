"""A node's wall clock is set while it runs: a real process under libfaketime, its boot clock left alone.

Skipped where libfaketime is not installed (scripts/setup installs Debian's when it may).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.units import MINUTE_MS
from delaylocal import LocalCluster
from delaylocal.cluster import NODE_COMMAND
from delayregistry.model import TopicSpec

from tests.faults.support.trial import check_logs
from tests.serve.node.test_health import get, scrape
from tests.serve.support.client import Client, Failure, Msg, Shard, poll, wait_served

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
HOUR_S = 3_600

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed: apt-get install libfaketime")


@dataclass
class Stepped:
    """A node of one shard whose wall clock can be set."""

    cluster: LocalCluster
    file: Path
    shard: Shard

    def step(self, seconds: int) -> None:
        """The wall clock is `seconds` off from now on."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self.file)

    def gauge(self, name: str) -> float:
        return scrape(self.cluster)[name, ()]

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.cluster.data / "logs" / "n0.log").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def delivered(self, body: bytes, seconds: float = 20.0) -> float:
        """Receives one message, acknowledges it, and returns time.monotonic()."""
        deadline = time.monotonic() + seconds
        while not (found := self.shard.receive_all(1)):  # a call lasts less long than some wait
            assert time.monotonic() < deadline, f"{body!r} did not come within {seconds} s"
        (one,) = found
        arrived = time.monotonic()
        assert one.body == body
        assert self.shard.ack_all([one]) == 1
        return arrived

    def delayctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", "from delayctl.main import main; main()", *arguments]
        environment = {**os.environ, "DELAYCTL_ENDPOINT": self.cluster.endpoints[0]}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Stepped]:
    file = tmp_path / "step"
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",  # the file is read at every look at the clock
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    command = ("/usr/bin/env", *(f"{name}={value}" for name, value in environment.items()), *NODE_COMMAND)
    file.write_text("+0\n")
    with LocalCluster(tmp_path / "c", nodes=1, topics=[TopicSpec("t", 1)], node_command=command) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            yield Stepped(cluster, file, Shard(client, "t", 0))
        check_logs(cluster)


def test_a_step_of_an_hour_ahead_releases_nothing_early_until_it_is_accepted(node: Stepped) -> None:
    shard = node.shard
    shard.send(*[Msg(b"later", delay_ms=10 * MINUTE_MS)] * 3)
    asked = time.monotonic()
    shard.send(Msg(b"before", delay_ms=2_000))
    node.step(HOUR_S)
    poll("the step is noticed", lambda: node.gauge("delay_clock_disbelieved_seconds") > 3_599)
    assert 2.0 <= node.delivered(b"before") - asked < 10
    asked = time.monotonic()
    shard.send(Msg(b"after", delay_ms=1_000))
    assert 1.0 <= node.delivered(b"after") - asked < 10
    assert get(node.cluster, "/readyz") == (200, "ok\nclock-disbelieved\n")
    (event,) = node.events("clock-disbelieved")
    assert event["text"].startswith("clock: 3600.")

    node.cluster.kill("n0")  # another process believes it no more than this one did
    wait_served(node.cluster)
    assert node.gauge("delay_clock_disbelieved_seconds") > 3_599
    assert shard.stored()[0] == 3
    asked = time.monotonic()
    shard.send(Msg(b"restarted", delay_ms=1_000))
    assert 1.0 <= node.delivered(b"restarted") - asked < 10

    listed = node.delayctl("--json", "nodes", "list")
    assert 3_599_000 < json.loads(listed.stdout)["clock_disbelieved_ms"] < 3_602_000
    refused = node.delayctl("nodes", "accept-clock", "n0")
    assert (refused.returncode, shard.stored()[0]) == (2, 3)  # nobody was asked
    with pytest.raises(Failure, match="CLOCK_CHANGED"):
        shard.client.call("AcceptClock", node="n0", disbelieved_ms=1_000_000)
    accepted = node.delayctl("nodes", "accept-clock", "n0", "--yes")
    assert accepted.returncode == 0, accepted.stderr
    assert "3,600." in accepted.stderr
    assert "3,600." in accepted.stdout
    assert [one.body for one in shard.receive_all(3)] == [b"later"] * 3
    assert node.gauge("delay_clock_disbelieved_seconds") == 0
    assert get(node.cluster, "/readyz") == (200, "ok\n")
    assert node.delayctl("nodes", "accept-clock", "n0", "--yes").returncode == 1  # nothing to accept


def test_a_step_back_pauses_what_comes_and_then_it_goes_on(node: Stepped) -> None:
    shard = node.shard
    shard.send(Msg(b"now", delay_ms=1))
    node.delivered(b"now")  # the watermark is at the present
    began = time.monotonic()
    shard.send(Msg(b"paused", delay_ms=2_000))
    node.step(-20)
    poll("the step is noticed", lambda: node.gauge("delay_clock_behind_seconds") > 15)
    assert get(node.cluster, "/readyz") == (200, "ok\nclock-behind\n")
    with pytest.raises(Failure, match=r"this node's clock is [\d.]+ m?s behind what was released") as caught:
        shard.send(Msg(b"refused", delay_ms=1_000))
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "CLOCK_BEHIND")
    far = shard.send(Msg(b"far", delay_ms=10 * MINUTE_MS))  # beyond what was released: taken
    shard.send(Msg(b"past", at_ms=1))  # an ordinary message: delivered while the watermark waits
    node.delivered(b"past")
    assert shard.cancel(far) == [1]
    assert time.monotonic() - began < 20, "too slow a machine to see the pause"
    assert 22.0 <= node.delivered(b"paused", seconds=60) - began < 32
    assert node.gauge("delay_clock_behind_seconds") == 0
    asked = time.monotonic()
    shard.send(Msg(b"again", delay_ms=1_000))
    assert 1.0 <= node.delivered(b"again") - asked < 10
    assert node.events("clock-disbelieved") == []


def test_a_clock_set_back_by_an_hour_and_set_right_again_goes_on_once_it_is_accepted(node: Stepped) -> None:
    """The operator's way out of a pause: correct the clock, and accept that as the step ahead that it is."""
    shard = node.shard
    shard.send(Msg(b"now", delay_ms=1))
    node.delivered(b"now")
    shard.send(Msg(b"soon", delay_ms=3_000))
    node.step(-HOUR_S)
    with pytest.raises(Failure, match="CLOCK_BEHIND"):
        shard.send(Msg(b"refused", delay_ms=MINUTE_MS))
    node.step(0)
    poll("the step is noticed", lambda: node.gauge("delay_clock_disbelieved_seconds") > 3_599)
    assert shard.receive(wait_ms=4_000) == []
    assert node.delayctl("nodes", "accept-clock", "n0", "--yes").returncode == 0
    node.delivered(b"soon")
    asked = time.monotonic()
    shard.send(Msg(b"again", delay_ms=1_000))
    assert 1.0 <= node.delivered(b"again") - asked < 10
