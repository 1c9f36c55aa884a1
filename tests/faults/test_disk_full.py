"""A disk that fills up under a real node: nearly full, full to the last byte, full and empty again and again.

A tmpfs stands for the disk: about 100 MiB of it are for messages, the rest is the node's reserve.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import MINUTE_MS
from delayclient import Producer
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.faults.support.small_disk import SmallDisk, small_disk
from tests.faults.support.trial import check_logs
from tests.serve.node.test_health import get, scrape
from tests.serve.support.client import Client, Failure, Got, Msg, Sent, Shard, poll, wait_served

DISK_MIB = 360
RESERVE_MIB = 256
ROOM_MIB = 60  # above the reserve
LARGE = 4_000_000
FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "n0", DISK_MIB) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, disk: SmallDisk) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 2)]) as running:
        wait_served(running)
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.endpoints[0]) as made:
        yield made


def restart(cluster: LocalCluster, signum: int) -> None:
    pid = cluster.kill("n0", signum)
    poll("the process is another one", lambda: cluster.pids.get("n0", pid) != pid, 30)
    wait_served(cluster)


def fill(shard: Shard) -> tuple[int, Failure]:
    """Large messages until one is refused: how many were taken, and the refusal."""
    taken = 0
    while True:
        try:
            shard.send(Msg(bytes(LARGE), delay_ms=60 * MINUTE_MS))
            taken += 1
        except Failure as refused:
            return taken, refused


def log_bytes(disk: SmallDisk) -> int:
    """Total bytes of the CommitLogs of all shards."""
    return sum(path.stat().st_size for path in disk.place.glob("**/log/*"))


def bodies(shard: Shard) -> list[Got]:
    """Everything that was released, from the queue's beginning."""
    found: list[Got] = []
    while got := shard.fetch(found[-1].offset + 1 if found else 0, max_messages=5_000):
        found += got
    return found


def test_a_disk_nearly_full_takes_no_messages_and_everything_else_goes_on(
    cluster: LocalCluster, client: Client, disk: SmallDisk
) -> None:
    shard = Shard(client, "t", 0)
    before = log_bytes(disk)
    disk.leave_free(RESERVE_MIB + ROOM_MIB)
    soon = shard.send(*[Msg(b"soon", delay_ms=3_000)] * 100)
    far = shard.send(*[Msg(b"far", delay_ms=30 * MINUTE_MS)] * 100)
    taken, refused = fill(shard)
    assert (refused.code, refused.reason) == FULL
    assert taken > 8
    # what was taken while the disk was not asked counts too; the reserve is for checkpoints and the like
    assert log_bytes(disk) - before <= ROOM_MIB << 20
    disk.leave_free(RESERVE_MIB - 1)
    poll("it says so", lambda: get(cluster, "/readyz") == (200, "ok\ndisk-nearly-full\n"))

    got = shard.receive_all(100, seconds=20)
    assert [(one.due_ms, one.seq) for one in got] == sorted(zip(soon.due, soon.seqs, strict=True))
    assert shard.nack(got[:50], 0).retried == 50
    assert shard.ack_all(got[50:]) == 50
    assert {one.attempt for one in shard.receive_all(50)} == {2}
    assert shard.cancel(Sent(far.uid, far.seqs[:50], far.due[:50])) == [pb.CANCELLED] * 50
    with pytest.raises(Failure, match="DISK_FULL"):  # a message may be moved any number of times
        shard.reschedule(Sent(far.uid, far.seqs[50:], far.due[50:]), *[1_000] * 50, relative=True)
    (answer,) = client.stream([shard.request(Msg())])
    assert (answer.error.reason, dict(answer.error.metadata)) == ("DISK_FULL", {"retry_after_ms": "1000"})
    restart(cluster, signal.SIGTERM)  # with a checkpoint
    restart(cluster, signal.SIGKILL)
    assert shard.stored() == (50 + taken, 100)
    assert shard.group().dead == 0
    with pytest.raises(Failure, match="DISK_FULL"):
        shard.send(Msg())

    disk.leave_free(RESERVE_MIB + 40)
    assert poll("messages are taken again, unasked", lambda: sends(shard), 5)
    metrics = scrape(cluster)
    assert metrics["delay_disk_free_bytes", ()] > metrics["delay_disk_reserve_bytes", ()] == RESERVE_MIB << 20
    assert get(cluster, "/readyz") == (200, "ok\n")
    check_logs(cluster)


def sends(shard: Shard) -> bool:
    answer = shard.client.attempt("Enqueue", shard.request(Msg()).SerializeToString())
    assert not isinstance(answer, Failure) or (answer.code, answer.reason) == FULL
    return not isinstance(answer, Failure)


def test_the_sdks_producer_waits_for_room_and_reports_no_error(
    cluster: LocalCluster, client: Client, disk: SmallDisk
) -> None:
    disk.leave_free(RESERVE_MIB - 10)
    for queue in (0, 1):
        poll("it is full", lambda: not sends(Shard(client, "t", queue)))  # noqa: B023

    async def produce() -> float:
        async with Producer(cluster.endpoints[0], timeout="60s") as producer:
            began = time.monotonic()
            sending = [asyncio.ensure_future(producer.send("t", b"%d" % n, delay="1ms")) for n in range(1_000)]
            await asyncio.sleep(2.5)
            assert not any(one.done() for one in sending)
            disk.leave_free(RESERVE_MIB + 50)
            await asyncio.gather(*sending)
            return time.monotonic() - began

    assert 2.5 < asyncio.run(produce()) < 20

    def released() -> list[bytes]:
        return [one.body for queue in (0, 1) for one in bodies(Shard(client, "t", queue)) if one.body != b"x"]

    found = poll("all are released", lambda: them if len(them := released()) >= 1_000 else None)
    assert sorted(found) == sorted(b"%d" % n for n in range(1_000))


def room_mib(cluster: LocalCluster) -> float:
    """The room that the node found by its last look at the disk."""
    metrics = scrape(cluster)
    return (metrics["delay_disk_free_bytes", ()] - metrics["delay_disk_reserve_bytes", ()]) / (1 << 20)


def test_b11_a_refused_batch_is_not_jumped_by_the_one_behind_it(
    cluster: LocalCluster, client: Client, disk: SmallDisk
) -> None:
    """7 does not fit and 8 would: 8 is out of order, and both are stored once, in order, when there is room."""
    shard = Shard(client, "t", 0)
    disk.leave_free(RESERVE_MIB + 30)

    def batch(number: int, size: int) -> pb.EnqueueRequest:
        return shard.request(Msg(bytes(size) + b"%d" % number, delay_ms=1), producer=5, number=number)

    first = list(client.stream([batch(number, 1) for number in range(7)]))
    assert [one.first_seq for one in first] == list(range(7))
    disk.leave_free(RESERVE_MIB + 2)
    poll("the node has seen it", lambda: room_mib(cluster) <= 2)
    seven, eight, nine = client.stream([batch(7, LARGE), batch(8, 1), batch(9, 1)])
    assert seven.error.reason == "DISK_FULL"
    for late in (eight, nine):
        assert (late.error.reason, dict(late.error.metadata)) == ("OUT_OF_ORDER", {"expected": "7"})
    disk.leave_free(RESERVE_MIB + 30)
    poll("the node has seen it", lambda: room_mib(cluster) > 20)
    again = list(client.stream([batch(7, LARGE), batch(8, 1), batch(7, LARGE), batch(9, 1)]))
    assert [(one.first_seq, one.duplicate) for one in again] == [(7, False), (8, False), (7, True), (9, False)]
    assert [one.body[-1:] for one in shard.receive_all(10)] == [b"%d" % number for number in range(10)]


def test_b11_a_disk_that_is_full_again_and_again_stores_each_message_once(
    cluster: LocalCluster, client: Client, disk: SmallDisk
) -> None:
    """Pipelined batches of the SDK through refusals in the middle of streams, and a kill."""
    messages, stop, refusals = 30_000, False, 0

    def toggle() -> None:
        nonlocal refusals
        probe = Shard(client, "t", 1)
        for round_ in range(1_000):
            if stop:
                break
            disk.leave_free(RESERVE_MIB - 10)
            time.sleep(0.4)
            try:
                probe.send(Msg(b"probe", delay_ms=1))
            except Failure as refused:
                refusals += refused.reason == "DISK_FULL"
            disk.leave_free(RESERVE_MIB + 40)
            time.sleep(0.35)
            if round_ == 3:
                cluster.kill("n0")
        disk.leave_free(RESERVE_MIB + 40)

    async def produce() -> None:
        async with Producer(cluster.endpoints[0], timeout="120s") as producer:
            sending = []
            for n in range(messages):
                sending.append(asyncio.ensure_future(producer.send("t", b"%d" % n, delay="1ms")))
                if n % 50 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.gather(*sending)

    with ThreadPoolExecutor(1) as pool:
        toggling = pool.submit(toggle)
        try:
            asyncio.run(produce())
        finally:
            stop = True
        toggling.result()
    cluster.wait_ready()
    poll("all are released", lambda: all(Shard(client, "t", queue).stored()[0] == 0 for queue in (0, 1)))
    found = [one.body for queue in (0, 1) for one in bodies(Shard(client, "t", queue))]
    found = [body for body in found if body != b"probe"]
    assert len(found) == len(set(found)) == messages
    assert refusals >= 3
    check_logs(cluster)


@pytest.mark.parametrize("then", ["the node is restarted", "it goes on by itself"])
def test_a_disk_full_to_the_last_byte_stops_the_shard_and_takes_back_nothing(
    then: str, cluster: LocalCluster, client: Client, disk: SmallDisk
) -> None:
    """Another program used up the reserve. All acknowledged messages are there once the disk has room again."""
    shard = Shard(client, "t", 0)
    soon = [shard.send(*[Msg(b"%d" % n, delay_ms=4_000)] * 10) for n in range(20)]
    far = shard.send(*[Msg(b"far", delay_ms=30 * MINUTE_MS)] * 100)
    shard.send(*[Msg(b"now", delay_ms=1)] * 10)
    now = shard.receive_all(10)
    assert shard.ack_all(now[:5]) == 5
    disk.leave_free(0)

    text = poll("the shard stops", lambda: (now := get(cluster, "/readyz")[1]) and "shard-stopped" in now and now, 30)
    assert set(text.split()) <= {"shards-not-served", "shard-stopped", "disk-nearly-full"}, "no names, no paths"
    assert get(cluster, "/readyz")[0] == 503
    (stopped,) = [one for one in client.call("DescribeNode").conditions if one.startswith("shard t-0 has stopped: ")]
    assert "No space left on device" in stopped
    assert scrape(cluster)["delay_shards_stopped", ()] >= 1
    calls = (
        lambda: shard.send(Msg()),
        lambda: shard.ack_all(now[5:]),
        lambda: shard.cancel(far),
        lambda: shard.receive(wait_ms=100),
    )
    for call in calls:
        with pytest.raises(Failure, match="No space left on device") as caught:
            call()
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.DATA_LOSS, "SHARD_DAMAGED")

    pid = cluster.pids["n0"]
    disk.leave_free(RESERVE_MIB + 20)
    if then == "the node is restarted":
        restart(cluster, signal.SIGKILL)
    else:
        poll("the shard is served", lambda: get(cluster, "/readyz")[0] == 200, 60)
        assert cluster.pids["n0"] == pid
    sent = [key for batch in soon for key in zip(batch.due, batch.seqs, strict=True)]
    got = shard.receive_all(205, seconds=30, max_bytes=1 << 20)
    assert [one.body for one in got[:5]] == [b"now"] * 5
    assert [(one.due_ms, one.seq) for one in got[5:]] == sorted(sent)
    assert shard.ack_all(got) == 205
    assert shard.cancel(far) == [pb.CANCELLED] * 100
    assert shard.send(Msg()).seqs
