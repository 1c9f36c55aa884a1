"""The rebalance page in a browser: a plan of Spark's is proposed, approved and carried out; one is stopped halfway."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delayapi.durations import instant_ms
from delayapi.units import HOUR_MS
from delayclient.sync import Producer
from delaylocal import LocalCluster
from delaylocal.rebalance_file import RebalanceFile, StoredRebalance
from delayoperator.crds.rebalance import MoveState, PlanModel, PlannedMove
from delayoperator.rebalance_plan import digest
from delayrebalance.session import java_missing
from delayregistry.model import ClusterSpec, ShardSpec, TopicSpec
from delayregistry.sqlite import SqliteRegistry

from tests.console.support.browser import ConsoleBrowser, chromium, needs_browser, until
from tests.console.support.console_process import DELAYCTL, running_console
from tests.local.rebalanceworld import kept, plan_of

pytestmark = needs_browser()
QUEUES, HOT, COLD = 8, 400, 10
THROTTLE = 65_536
MOVE_BYTES = 3 * THROTTLE
"""So a move begins each three seconds at most: a person has time to stop them."""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes with half of the shards each; those of n0 have nearly all that is due, in three hours."""
    data = tmp_path_factory.mktemp("uneven")
    registry = SqliteRegistry(data / "registry.db", create=True)
    registry.put_cluster(ClusterSpec("local", 2, (TopicSpec("t", QUEUES),)), None)
    for queue in range(QUEUES):
        registry.create_shard(ShardSpec(queue + 1, "t", queue, (f"n{queue * 2 // QUEUES}",)))
    registry.close()
    with LocalCluster(data) as made:
        made.wait_ready()
        key_of: dict[int, str] = {}
        for number in range(1_000):
            key_of.setdefault(zlib.crc32(str(number).encode()) % QUEUES, str(number))
        keys = [key_of[queue] for queue in range(QUEUES) for _ in range(HOT if queue < QUEUES // 2 else COLD)]
        due_ms = int(time.time() * 1000) + 3 * HOUR_MS + np.arange(len(keys), dtype=np.int64) % 600_000
        with Producer(made.endpoints[0]) as producer:
            producer.send_batch("t", [b"x"] * len(keys), due_ms=due_ms, keys=keys)
        yield made


@pytest.fixture(scope="module")
def seen(uneven: LocalCluster, pictures: Path) -> Iterator[ConsoleBrowser]:
    options = ("--allow-changes", "--data", str(uneven.data))
    with running_console(uneven.endpoints[0], *options) as link, chromium() as browser:
        made = ConsoleBrowser(browser, link, pictures)
        yield made
        made.close()


def homes(cluster: LocalCluster) -> dict[str, str]:
    return {shard.name: shard.spec.replicas[0] for shard in cluster.registry.list_shards()}


def state(seen: ConsoleBrowser) -> str:
    return seen.open("/rebalance").inner_text(".lead strong")


def button(seen: ConsoleBrowser, title: str) -> None:
    seen.page.click(f"main button:text-is('{title}')")


def loads(seen: ConsoleBrowser, picture: int) -> dict[str, int]:
    """By node, what falls due on it in the coming day: now (0), or as the plan would leave it (1)."""
    rows = [
        it.inner_text().split("\t") for it in seen.page.locator(".panels table").nth(picture).locator("tbody tr").all()
    ]
    return {row[0]: int(row[1].replace(",", "")) for row in rows}


def moves(cluster: LocalCluster) -> list[PlannedMove]:
    stored = RebalanceFile(cluster.data).read()
    assert stored is not None
    assert stored.rebalance.status is not None
    assert stored.rebalance.status.plan is not None
    return stored.rebalance.status.plan.moves or []


@pytest.mark.skipif(bool(java_missing()) and not os.environ.get("CI"), reason=java_missing() or "Java is there")
@pytest.mark.timeout(600)  # Spark starts in seconds, or in minutes where many others want the processor
def test_a_plan_is_proposed_by_spark_approved_and_the_shards_have_moved(
    seen: ConsoleBrowser, uneven: LocalCluster
) -> None:
    page, before = seen.open("/rebalance"), homes(uneven)
    assert "Nothing is proposed." in seen.text()
    hot = {"n0": QUEUES // 2 * HOT, "n1": QUEUES // 2 * COLD}
    assert loads(seen, 0) == hot
    button(seen, "Propose a plan")
    page.set_default_timeout(500_000)
    done = seen.confirm("propose the moves that spread it?", f"rebalance --data {uneven.data}")
    assert "A plan is made, or on its way" in done
    until(lambda: state(seen) == "ProposalReady", "the plan is found good")
    seen.check("rebalance-proposed")
    planned = {it.inner_text().split("\t")[0]: it.inner_text().split("\t")[2] for it in
               page.locator("#moves-title + .scroll tbody tr").all()}  # fmt: skip
    assert len(planned) > 0
    assert set(planned.values()) == {"n1"}, "away from the hot node"
    assert loads(seen, 0) == hot
    then = loads(seen, 1)
    assert max(then.values()) < hot["n0"]
    assert homes(uneven) == before, "nothing moves before it is approved"
    button(seen, "Approve")
    seen.check("approve-question")
    assert "carries it out" in seen.confirm(f"{len(planned)} moves?", "rebalance --approve")
    until(lambda: state(seen) == "Ready", "it is carried out")
    assert homes(uneven) == {**before, **planned}
    until(lambda: state(seen) == "Ready" and loads(seen, 0) == then, "its loads are as the plan said")
    seen.check("rebalance-done")


def proposed(seen: ConsoleBrowser, cluster: LocalCluster) -> PlanModel:
    """A plan by which each shard goes to the other node, one each three seconds."""
    other = {"n0": "n1", "n1": "n0"}
    plan = plan_of([(shard, node, other[node], (node,)) for shard, node in homes(cluster).items()])
    slow = [it.model_copy(update={"bytes": MOVE_BYTES}) for it in plan.moves or ()]
    plan = plan.model_copy(update={"moves": slow, "hash": None})
    plan = plan.model_copy(update={"hash": digest(plan)})
    spec = {"maxInFlight": 1, "throttleBytesPerSecond": THROTTLE}

    def next_one(before: StoredRebalance | None) -> StoredRebalance:
        generation = 1 if before is None else before.generation + 1
        return replace(kept(plan, **spec), generation=generation)

    RebalanceFile(cluster.data).edit(next_one)
    until(lambda: state(seen) == "ProposalReady" and str(plan.hash) in seen.text(), "the plan is found good")
    return plan


def begun(cluster: LocalCluster) -> dict[str, str | None]:
    """When each move has begun that has."""
    return {it.shard: it.started_at for it in moves(cluster) if it.started_at is not None}


def test_a_plan_is_stopped_halfway_and_the_rest_is_carried_out_when_approved_again(
    seen: ConsoleBrowser, uneven: LocalCluster
) -> None:
    """Once by the page, once by the command that it shows."""
    before, plan = homes(uneven), proposed(seen, uneven)
    button(seen, "Approve")
    seen.confirm(f"Carry out plan {plan.hash}: {QUEUES} moves?")
    until(lambda: len(begun(uneven)) > 0, "moves begin")
    seen.open("/rebalance")
    assert "moves done" in seen.text()
    seen.check("rebalance-moving")
    button(seen, "Stop")
    seen.check("stop-question")
    stop = seen.command()
    assert "--stop" in stop
    assert "No more moves begin" in seen.confirm("Start no more moves of the plan?", "--stop")
    stopped_with = until_stopped(seen, uneven)
    seen.check("rebalance-stopped")

    button(seen, "Approve")
    approve = seen.command()
    seen.confirm(f"Carry out plan {plan.hash}")
    until(lambda: len(begun(uneven)) > stopped_with, "the rest goes on")
    ended = by_command(stop)
    assert ended.returncode == 0, ended.stderr
    until_stopped(seen, uneven)

    ended = by_command(approve + " --wait")
    assert ended.returncode == 0, ended.stderr
    assert homes(uneven) == {shard: "n1" if node == "n0" else "n0" for shard, node in before.items()}
    refused = by_command(stop)
    assert (refused.returncode, "there is nothing to stop" in refused.stderr) == (1, True)


def by_command(shown: str) -> subprocess.CompletedProcess[str]:
    program, *words = shlex.split(shown)
    assert program == "delayctl"
    return subprocess.run([DELAYCTL, *words], capture_output=True, text=True, timeout=120)


def until_stopped(seen: ConsoleBrowser, cluster: LocalCluster) -> int:
    """How many moves have begun: no more by the time when the next one's turn would have come."""
    until(lambda: state(seen) == "Stopped", "it is stopped")
    assert "now:" not in seen.text(), "nothing is under way"
    stopped = begun(cluster)
    assert 0 < len(stopped) < QUEUES
    assert all(it.state is MoveState.DONE for it in moves(cluster) if it.shard in stopped), (
        "those under way are finished"
    )
    last_ms = max(instant_ms(at) for at in stopped.values() if at is not None)
    next_ms = last_ms + 1_000 * MOVE_BYTES // THROTTLE + 1_000
    until(lambda: time.time_ns() // 1_000_000 > next_ms, "the next one's turn passes")
    assert begun(cluster) == stopped
    left = {it.shard: it.from_ for it in moves(cluster) if it.shard not in stopped}
    assert {shard: homes(cluster)[shard] for shard in left} == left
    return len(stopped)
