"""The local rebalance: a plan in a file, carried out by the cluster's own process, whoever is killed meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from delayctl.main import main
from delaylocal.rebalance_file import RebalanceFile, RebalanceFileError, StoredRebalance
from delayoperator.crds import APPROVE
from delayoperator.plan import Liveness, ObservedNode
from delayrebalance import run
from delayrebalance.model import FoundMove, LoadFigures, RebalanceError, SearchSettings, Study
from delayregistry.sqlite import SqliteRegistry

from tests.local.rebalanceworld import A_MOVE, World, await_true, kept, plan_of

SHARDS = 4


# ------------------------------------------------------------------------------------------------ the file


@pytest.fixture
def file(tmp_path: Path) -> RebalanceFile:
    return RebalanceFile(tmp_path)


def test_what_was_written_is_read_again(file: RebalanceFile) -> None:
    assert (file.read(), file.stamp()) == (None, (0, 0))
    wanted = replace(kept(A_MOVE), annotations={APPROVE: "x"})
    file.edit(lambda now: wanted)
    assert file.read() == wanted
    stamp = file.stamp()
    file.edit(lambda now: now)
    assert file.stamp() == stamp, "what did not change is not written"
    file.edit(lambda now: replace(wanted, annotations={}))
    assert file.stamp() != stamp


def test_changes_from_many_sides_are_all_kept(file: RebalanceFile) -> None:
    file.edit(lambda now: kept(A_MOVE))

    def add(name: str) -> None:
        for number in range(20):
            file.edit(lambda now: now and replace(now, annotations={**now.annotations, f"{name}{number}": "1"}))  # noqa: B023

    threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = file.read()
    assert found is not None
    assert len(found.annotations) == 80


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"metadata": {}}', '{"metadata": 1, "spec": {}}'])
def test_a_file_that_is_no_rebalance_is_said_with_what_to_do(file: RebalanceFile, tmp_path: Path, text: str) -> None:
    (tmp_path / "rebalance.json").write_text(text)
    with pytest.raises(RebalanceFileError, match=r"rebalance\.json is no DelayRebalance .*: remove it"):
        file.read()


# ------------------------------------------------------------------------------------------------ the driver


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.registry.close()


def test_nothing_moves_before_the_plan_is_approved_by_its_name(world: World) -> None:
    world.file.edit(lambda now: kept(A_MOVE))
    rebalancer = world.rebalancer()
    rebalancer.round()
    assert (world.state(), world.target()) == ("ProposalReady", None)
    world.approve("another")
    rebalancer.round()
    assert (world.state(), world.target()) == ("ProposalReady", None)
    found = world.file.read()
    assert found is not None
    assert not found.annotations, "a verb is answered once"
    world.approve()
    rebalancer.round()
    assert (world.state(), world.target()) == ("Rebalancing", ("n1",))


class Killed(BaseException):
    pass


def test_a_driver_that_dies_between_status_and_edit_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file.edit(lambda now: kept(A_MOVE))
    world.approve()

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SqliteRegistry, "write_spec", die)
        with pytest.raises(Killed):
            world.rebalancer().round()
    assert (world.state(), world.target()) == ("Rebalancing", None), "the status comes first"
    again = world.rebalancer()
    again.round()
    assert world.target() == ("n1",)
    again.round()
    found = world.file.read()
    assert found is not None
    assert not found.annotations


def test_a_verb_that_came_meanwhile_is_not_taken_for_the_answered_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file.edit(lambda now: kept(A_MOVE))
    world.approve()
    edit = RebalanceFile.edit

    def meddled(
        self: RebalanceFile, change: Callable[[StoredRebalance | None], StoredRebalance | None]
    ) -> StoredRebalance | None:
        done = edit(self, change)
        patch.undo()  # once: after the status was kept
        edit(self, lambda now: now and replace(now, annotations={APPROVE: "newer"}))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(RebalanceFile, "edit", meddled)
        world.rebalancer().round()
    found = world.file.read()
    assert found is not None
    assert found.annotations == {APPROVE: "newer"}


def test_a_file_that_can_not_be_read_is_told_once_and_mended(world: World) -> None:
    path = world.directory / "rebalance.json"
    path.write_text("{")
    stop = threading.Event()
    thread = threading.Thread(target=world.rebalancer().run, args=(stop,))
    thread.start()
    try:
        await_true(lambda: bool(world.events))
        time.sleep(1.5)
        assert [event["event"] for event in world.events] == ["rebalance-held-up"]
        path.unlink()
        world.file.edit(lambda now: kept(A_MOVE))
        await_true(lambda: world.state() == "ProposalReady")
    finally:
        stop.set()
        thread.join()


# ------------------------------------------------------------------------------------------------ the commands


def delayctl(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def figures(peak: float, hot_slots: int = 0) -> LoadFigures:
    return LoadFigures(peak, "n0", 0, 50.0, peak * 100, hot_slots)


def study(*moves: FoundMove) -> Study:
    why = "so many moves" if moves else "no node is above 1.5 times the mean in any slot"
    empty = np.zeros((2, 1))
    return Study(why, figures(100, 1), figures(50), 50.0, moves, 0, 300_000, ("n0", "n1"), empty, empty)


FOUND = FoundMove("t-0", "n0", "n1", True, 1_000, 10, 1, replicas=("n0",), hot_slots_ms=())


class Command:
    """`delayctl rebalance` on a world whose process seems to run, and carries plans out; what a search finds is set."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.found = study(FOUND)
        self.asked: list[SearchSettings] = []
        monkeypatch.setattr(run, "study_cluster", self._look)
        self._lock = (world.directory / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=world.rebalancer().run, args=(self._stop,))
        self._thread.start()

    def __call__(self, *arguments: str) -> Result:
        return delayctl("rebalance", *arguments, "--data", str(self.world.directory))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._lock.close()

    def stop_cluster(self) -> None:
        self._lock.close()

    def _look(self, cluster: object, settings: SearchSettings) -> Study:
        self.asked.append(settings)
        return self.found


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    found = Command(world, monkeypatch)
    yield found
    found.close()


def test_a_plan_is_proposed_shown_approved_and_begun(command: Command) -> None:
    shown = command("--slot", "1m", "--threshold", "2")
    assert shown.exit_code == 0, shown.stderr
    (asked,) = command.asked
    assert (asked.slot_ms, asked.threshold, asked.horizon_ms) == (60_000, 2, 86_400_000)
    assert "100 now, 50 then, 1.00 times what no plan gets below (50)" in shown.stdout
    plan = json.loads(command("--status", "--json").stdout)["plan"]
    assert f"--approve {plan['hash']}" in shown.stdout
    assert command.world.target() is None
    begun = command("--approve", plan["hash"])
    assert (begun.exit_code, command.world.target()) == (0, ("n1",)), begun.stderr
    again = command()
    assert (again.exit_code, "a plan is being carried out" in again.stderr) == (1, True)


def test_a_dry_run_keeps_nothing(command: Command) -> None:
    shown = command("--dry-run", "--json")
    assert json.loads(shown.stdout)["plan"]["moves"][0]["shard"] == "t-0"
    assert command.world.file.read() is None


def test_with_nothing_to_do_one_line_says_why_and_what_was_proposed_stays(command: Command) -> None:
    assert command().exit_code == 0
    before = command.world.file.read()
    command.found = study()
    nothing = command()
    assert (nothing.exit_code, nothing.stdout) == (0, "no node is above 1.5 times the mean in any slot\n")
    assert json.loads(command("--json").stdout)["plan"] is None
    assert command.world.file.read() == before


def test_an_expired_plan_is_not_approved(command: Command) -> None:
    command.world.file.edit(lambda now: kept(plan_of([("t-0", "n0", "n1", ("n0",))], expires=timedelta(seconds=-1))))
    await_true(lambda: command.world.state() is not None)
    late = command("--approve")
    assert late.exit_code == 1
    assert "expired at" in late.stderr
    assert command.world.target() is None


def test_stopping_leaves_the_rest_of_the_plan_for_an_approval(command: Command) -> None:
    plan = plan_of([("t-0", "n0", "n1", ("n0",)), ("t-1", "n0", "n1", ("n0",))])
    command.world.file.edit(lambda now: kept(plan))
    await_true(lambda: command.world.state() == "ProposalReady")
    command.world.nodes["n1"] = ObservedNode(Liveness.DEAD)  # so that nothing can begin
    assert command("--approve").exit_code == 0
    stopped = command("--stop", "--wait")
    assert (stopped.exit_code, command.world.state()) == (0, "Stopped"), stopped.stderr
    command.world.nodes["n1"] = ObservedNode(Liveness.ALIVE, "i1")
    assert command("--approve").exit_code == 0
    await_true(lambda: command.world.target() == ("n1",))


def test_what_can_not_be_done_says_why_and_what_to_do(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("--approve", "--stop", "--status"):
        nothing = command(verb)
        assert (nothing.exit_code, "nothing was proposed yet: `delayctl rebalance" in nothing.stderr) == (1, True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "delayrebalance.run", None)
        without = command()
    assert (without.exit_code, "needs Spark" in without.stderr, "delaycluster[spark]" in without.stderr) == (
        1,
        True,
        True,
    )
    with monkeypatch.context() as patch:
        patch.setattr(run, "study_cluster", lambda *_: (_ for _ in ()).throw(RebalanceError("n1 does not answer")))
        silent = command()
    assert (silent.exit_code, silent.stderr) == (1, "delayctl: n1 does not answer\n")
    command.stop_cluster()
    ended = command()
    assert (ended.exit_code, "no cluster runs on" in ended.stderr) == (3, True)


def test_where_there_is_no_local_cluster_it_is_exit_code_3(tmp_path: Path) -> None:
    for arguments in (("rebalance",), ("rebalance", "--status"), ("wheel", "--nodes", "--proposed")):
        result = delayctl(*arguments, "--data", str(tmp_path / "nowhere"))
        assert (result.exit_code, "no local cluster in" in result.stderr) == (3, True)


# ------------------------------------------------------------------------------------------------ real nodes


Process = subprocess.Popen[str]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[], tuple[Process, str]]]:
    """Starts `delayctl local` on the directory; the process, and a node's address."""
    processes: list[Process] = []

    def start() -> tuple[Process, str]:
        code = "from delayctl.main import main; main()"
        options = ("local", "--data", str(tmp_path), "--nodes", "2", "--topic", f"t:{SHARDS}", "--port", "0", "--json")
        process = subprocess.Popen(
            [sys.executable, "-c", code, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())["endpoints"][0]

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)


def test_a_rebalance_goes_on_after_kill_9_of_the_process_that_carries_it_out(
    started: Callable[[], tuple[Process, str]], tmp_path: Path
) -> None:
    process, endpoint = started()
    sent = delayctl("produce", "t", "--count", "3000", "--spread", "2h..3h", "--endpoint", endpoint)
    assert sent.exit_code == 0, sent.stderr
    registry = SqliteRegistry(tmp_path / "registry.db")
    file = RebalanceFile(tmp_path)
    other = {"n0": "n1", "n1": "n0"}
    shards = {it.name: it.spec.replicas[0] for it in registry.list_shards()}
    plan = plan_of([(name, home, other[home], (home,)) for name, home in shards.items()])
    file.edit(lambda now: kept(plan, max_in_flight=1))
    at = ("--data", str(tmp_path))
    await_true(lambda: json.loads(delayctl("rebalance", "--status", "--json", *at).stdout)["state"] == "ProposalReady")

    approved = delayctl("rebalance", "--approve", *at)
    assert approved.exit_code == 0, approved.stderr

    def progress() -> Mapping[str, Any]:
        found = json.loads(delayctl("rebalance", "--status", "--json", *at).stdout)
        return {"state": found["state"], **(found["progress"] or {})}

    await_true(lambda: progress().get("movesDone", 0) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert progress()["state"] == "Rebalancing", "it was killed in the middle"

    _, endpoint = started()
    over = delayctl("rebalance", "--status", "--wait", "--timeout", "2m", "--json", *at)
    assert over.exit_code == 0, over.stderr
    assert json.loads(over.stdout)["state"] == "Ready"
    status = json.loads(over.stdout)
    # The planner gives up the move that is under way when its node is late to come back: that one is named, not lost.
    refused = {it["shard"]: it["reason"] for it in status["plan"]["moves"] if it["state"] == "Refused"}
    assert len(refused) <= 1
    assert all(refused.values())
    assert {it["state"] for it in status["plan"]["moves"] if it["shard"] not in refused} == {"Done"}
    assert {it.name: it.spec.replicas for it in registry.list_shards()} == {
        name: (home if name in refused else other[home],) for name, home in shards.items()
    }
    registry.close()
    wheels = [json.loads(it) for it in delayctl("wheel", "t", "--json", "--endpoint", endpoint).stdout.splitlines()]
    assert sum(it["pending"] for it in wheels) == 3_000
