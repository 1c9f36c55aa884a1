"""`delayctl top` as a person has it: on a terminal, a pseudo-terminal here, beside a real node."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delayclient import sync
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

SECONDS = 60.0
WIDE, NARROW = 200, 110
ROWS = 30
HOME, LEAVES, SHOWS_CURSOR = "\x1b[H", "\x1b[?1049l", "\x1b[?25h"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TOPIC = "herd"
COLUMNS = ("pending", "stored", "released", "late", "due_1m", "due_5m", "due_1h")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """So few may be released a second that a herd is late for a while."""
    topics = [TopicSpec(TOPIC, 1, max_release_per_second=20)]
    with LocalCluster(tmp_path_factory.mktemp("top"), nodes=1, topics=topics) as found:
        found.wait_ready()
        yield found


class Terminal:
    """One that `delayctl` runs on, and owns: keys come as its signals too."""

    def __init__(self, *arguments: str, columns: int = WIDE) -> None:
        self._ours, self._its = os.openpty()
        self.resize(columns)
        self.modes = termios.tcgetattr(self._its)
        unset = ("COLUMNS", "LINES", "DELAYCTL_ENDPOINT", "DELAYCTL_KUBE")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        self._process = subprocess.Popen(
            ["setsid", "--ctty", str(Path(sys.executable).with_name("delayctl")), *arguments],
            stdin=self._its, stdout=self._its, stderr=self._its, env={**environment, "TERM": "xterm-256color"},
        )  # fmt: skip
        self.said = ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._ours)
        os.close(self._its)

    def resize(self, columns: int) -> None:
        """The kernel tells its owner, by SIGWINCH."""
        termios.tcsetwinsize(self._ours, (ROWS, columns))

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def _read(self, seconds: float) -> None:
        if select.select([self._ours], [], [], seconds)[0]:
            self.said += os.read(self._ours, 65_536).decode("utf-8", "replace")

    @property
    def frames(self) -> list[str]:
        """What was drawn, a whole screen each, the newest last: one that is half read is none yet."""
        found = [CONTROL.sub("", one) for one in self.said.split(HOME)[1:]]
        return [one for one in found if one.count("\n") >= ROWS - 1]

    def wait(self, what: str, seen: Callable[[str], Any]) -> Any:
        """What `seen` makes of a frame that is drawn from now on."""
        end_s, begin = time.monotonic() + SECONDS, len(self.frames)
        while time.monotonic() < end_s:
            self._read(0.2)
            for frame in self.frames[begin:]:
                if found := seen(frame):
                    return found
        lines = [line.rstrip() for frame in self.frames[-20:] for line in frame.splitlines() if line.strip()]
        raise AssertionError(f"{what}: not seen in {SECONDS:g} s. Frames: {lines or self.said[-2_000:]}")

    def ended(self) -> int:
        """The exit status, once it has ended by itself."""
        end_s = time.monotonic() + SECONDS
        while self._process.poll() is None:
            self._read(0.1)
            assert time.monotonic() < end_s, "it did not end"
        while select.select([self._ours], [], [], 0)[0]:
            self._read(0)
        return self._process.returncode

    def assert_as_it_was(self) -> None:
        assert termios.tcgetattr(self._its) == self.modes, "echo and lines are as they were"
        assert self.said.rindex(LEAVES) > self.said.rindex(HOME), "the screen of before is there again"
        assert SHOWS_CURSOR in self.said[self.said.rindex(HOME) :]


@pytest.fixture
def terminal(cluster: LocalCluster) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def new(*arguments: str, **more: int) -> Terminal:
        made.append(Terminal("--endpoint", cluster.endpoints[0], "top", *arguments, **more))
        return made[-1]

    yield new
    for one in made:
        one.close()


def row(frame: str) -> dict[str, str]:
    """The topic's figures, empty where there are none; rates are there from the second look on."""
    line = next((line for line in frame.splitlines() if line.split()[:1] == [TOPIC]), "")
    words = re.sub(r"(?<=\d) (?=[a-z])", "", line).split()  # 1.3 s
    numbers = words[1 : 1 + len(COLUMNS)]
    return dict(zip(COLUMNS, numbers, strict=True)) if len(numbers) == len(COLUMNS) else {}


def over(column: str, least: int) -> Callable[[str], dict[str, str]]:
    def seen(frame: str) -> dict[str, str]:
        found = row(frame)
        return found if found and int(found[column].replace(",", "")) > least else {}

    return seen


def test_figures_move_while_messages_flow(cluster: LocalCluster, terminal: Callable[..., Terminal]) -> None:
    watched = terminal(TOPIC, "--interval", "500ms")
    watched.wait("the topic", lambda frame: TOPIC in frame)
    with sync.Producer(cluster.endpoints[0]) as producer:
        producer.send_batch(TOPIC, [b"later"] * 300, delay_ms=20 * 60_000)
        producer.send_batch(TOPIC, [b"now"] * 400, delay_ms=3_000)
        watched.wait("what was stored", over("stored", 0))
        watched.wait("what is released", over("released", 0))
        late = watched.wait(
            "a herd above the limit is late", lambda frame: row(frame).get("late", "0") != "0" and row(frame)
        )
        watched.wait("later still", lambda frame: row(frame).get("late", "0") not in ("0", late["late"]) and row(frame))
        found = watched.wait("the coming hour", over("due_1h", 299))
    watched.wait("the picture", lambda frame: "The next 60 minutes" in frame)
    assert re.search(r"\x1b\[[0-9;]*48;", watched.said), "the coming hour is coloured"
    assert int(found["pending"].replace(",", "")) >= 300
    watched.wait("the herd is over", lambda frame: row(frame).get("late") == "0" and row(frame)["pending"] == "300")
    watched.wait("nothing moves", lambda frame: (row(frame).get("stored"), row(frame).get("released")) == ("0", "0"))


def test_another_size_is_drawn_at_once(terminal: Callable[..., Terminal]) -> None:
    """Not at the next look, which is an hour away."""
    watched = terminal(TOPIC, "--interval", "1h")
    watched.wait("the topic", lambda frame: TOPIC in frame and "The next 60 minutes" in frame)
    watched.resize(NARROW)
    narrow = watched.wait("no room", lambda frame: TOPIC in frame and "The next 60 minutes" not in frame and frame)
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= NARROW
    watched.resize(WIDE)
    watched.wait("room again", lambda frame: "The next 60 minutes" in frame)


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 130)], ids=["q", "Ctrl-C"])
def test_the_terminal_is_left_as_it_was(terminal: Callable[..., Terminal], key: bytes, status: int) -> None:
    watched = terminal(TOPIC, "--interval", "1h")
    watched.wait("the topic", lambda frame: TOPIC in frame)
    watched.press(b"x")
    watched.press(key)
    assert watched.ended() == status
    watched.assert_as_it_was()
    assert "Traceback" not in watched.said


def test_a_node_that_goes_away_is_said_and_comes_back(cluster: LocalCluster, terminal: Callable[..., Terminal]) -> None:
    watched = terminal(TOPIC, "--interval", "500ms")
    watched.wait("the topic", row)
    cluster.kill("n0", signal.SIGSTOP)
    try:
        watched.wait("it is said, above the last look", lambda frame: "no look: " in frame and TOPIC in frame)
    finally:
        cluster.kill("n0", signal.SIGCONT)
    watched.wait("it is back", lambda frame: "no look" not in frame and row(frame))
    cluster.kill("n0")
    watched.wait("another process is there", lambda frame: "no look" not in frame and row(frame))
    watched.press(b"q")
    assert watched.ended() == 0
    watched.assert_as_it_was()


def test_a_node_that_never_was_is_said_and_left(terminal: Callable[..., Terminal]) -> None:
    watched = Terminal("--endpoint", "127.0.0.1:1", "top", "--interval", "500ms")
    try:
        watched.wait("it is said", lambda frame: "no look: " in frame)
        watched.press(b"q")
        assert watched.ended() == 0
        watched.assert_as_it_was()
    finally:
        watched.close()
