"""Schedules through kills of their master: each of their instants has exactly one message, and none comes early."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delaynode.store import formats
from delayregistry.model import TopicSpec
from google.protobuf.timestamp_pb2 import Timestamp

from tests.faults.support.failover import FaultCluster
from tests.faults.support.trial import ROUNDS, SEED
from tests.serve.support.client import Client, Failure, Shard, poll

KILLS = max(3, ROUNDS // 2)  # ten by DELAY_FAULT_ROUNDS=20
INTERVALS = {"second": 1, "three": 3}  # s
CRON = "*/2 * * * * *"


def asked(cluster: FaultCluster, method: str, **fields: Any) -> Any:
    """The answer of whoever leads, asked again until there is one: each call here may be made twice."""
    found: list[Any] = []

    def answered() -> bool:
        for endpoint in cluster.endpoints:
            try:
                with Client(endpoint) as client:
                    found.append(Shard(client, "t", 0).call(method, **fields))
                return True
            except Failure as failure:
                if failure.reason not in ("", "NOT_SERVING", "NOT_MASTER", "NOT_ENOUGH_REPLICAS"):
                    raise
        return False

    poll(f"{method} is answered", answered, 60)
    return found[-1]


def serving_epoch(cluster: FaultCluster) -> int:
    (shard,) = cluster.shards()
    return shard.status.serving_epoch if shard.status is not None else 0


def schedules() -> list[pb.Schedule]:
    made = [pb.Schedule(id=name) for name in INTERVALS]
    for one in made:
        one.every.interval.FromSeconds(INTERVALS[one.id])
    return [*made, pb.Schedule(id="cron", cron=[CRON], zone="Europe/Berlin")]


def fired_messages(cluster: FaultCluster) -> list[tuple[str, int, int, int]]:
    """Of all that was released: schedule, nominal time, due and when it was stored, ms."""
    found: list[tuple[str, int, int, int]] = []
    end = asked(cluster, "GetWheel").shards[0].released
    while len(found) < end:
        offset, stamp = len(found), Timestamp()
        batch: list[Any] = []

        def fetched(offset: int = offset, batch: list[Any] = batch) -> bool:
            for endpoint in cluster.endpoints:
                try:
                    with Client(endpoint) as client:
                        batch += Shard(client, "t", 0).fetch(offset)
                    return bool(batch)
                except Failure:
                    continue
            return False

        poll("released messages are read", fetched, 60)
        for got in batch:
            stamp.FromJsonString(got.message.properties["schedule-time"])
            name = got.message.properties["schedule-id"]
            found.append((name, stamp.ToMilliseconds(), got.due_ms, got.message.born_ms))
    return found


def test_a_schedule_whose_master_is_killed_again_and_again_has_one_message_an_instant(tmp_path: Path) -> None:
    choose = random.Random(SEED)
    with FaultCluster(tmp_path, topics=[TopicSpec("t", 1)], nodes_version=formats.NEWEST) as cluster:
        cluster.wait_ready()
        for one in schedules():
            asked(cluster, "PutSchedule", schedule=one)
        for _ in range(KILLS):
            (master,), epoch = cluster.masters(), serving_epoch(cluster)
            time.sleep(choose.random())
            cluster.kill(master)
            poll("a next term", lambda epoch=epoch: serving_epoch(cluster) > epoch, 60)
            fired = asked(cluster, "GetSchedule", id="second").fired
            poll("it fires", lambda fired=fired: asked(cluster, "GetSchedule", id="second").fired > fired, 60)
        for one in schedules():
            state = asked(cluster, "PauseSchedule", id=one.id)
            assert (state.missed, state.skipped) == (0, 0)
        found = fired_messages(cluster)
    print(
        f"\n{len(found)} firings through {KILLS} kills, the latest {max(born - due for *_, due, born in found)} ms late"
    )
    for name, seconds in {**INTERVALS, "cron": 2}.items():
        times = [time for one, time, _, _ in found if one == name]
        assert times == [*range(times[0], times[-1] + 1, 1_000 * seconds)], name
        assert not times[0] % (1_000 * seconds)
    assert all(due <= born for *_, due, born in found), "early"
