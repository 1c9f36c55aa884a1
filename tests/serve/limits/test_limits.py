"""The node's own limits: what is in flight, and the disk. Both are refused with a time to come back at."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delaylocal.cluster import NODE_COMMAND
from delayregistry.model import TopicSpec

from tests.serve.support.client import Client, Failure, Msg, Shard, poll, wait_served

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


STALLING = """
import os, time
from delaynode.main import main
from delaynode.store.log.files import DiskFiles
sync = DiskFiles.sync
def stalling(self, path):
    while "/log/" in path and os.path.exists({sign!r}):
        time.sleep(0.01)
    sync(self, path)
DiskFiles.sync = stalling
main()
"""


@pytest.mark.parametrize(("own", "room", "limit"), [(True, 2, "in this node"), (False, 1, "for this connection")])
def test_what_is_too_much_in_flight_is_refused_and_what_is_answered_is_stored(
    tmp_path: Path, own: bool, room: int, limit: str, edge: str
) -> None:
    """The disk stalls while 12 batches come at once, each on its own connection or all on one."""
    sign = tmp_path / "stalled"
    node = (sys.executable, "-P", "-c", STALLING.format(sign=str(sign)), "--in-flight-mib", "2")
    with LocalCluster(tmp_path / "c", nodes=1, topics=[TopicSpec("t", 1)], node_command=node) as cluster:
        wait_served(cluster)
        clients = [Client(cluster.endpoints[0], own=own) for _ in range(12)]
        shard = Shard(clients[0], "t", 0)
        data = shard.request(Msg(bytes(900_000), delay_ms=60_000)).SerializeToString()
        with ThreadPoolExecutor(12) as pool:
            sign.touch()
            calls = [pool.submit(client.attempt, "Enqueue", data) for client in clients]
            try:
                poll("the others are refused", lambda: sum(call.done() for call in calls) >= 12 - room)
                time.sleep(1)  # in which nothing changes
                refused = [answer for call in calls if call.done() and isinstance(answer := call.result(), Failure)]
            finally:
                sign.unlink()
            answers = [call.result() for call in calls]
        assert [(one.code, one.reason) for one in refused] == [(EXHAUSTED, "BUSY")] * (12 - room)
        assert all(limit in str(one) for one in refused)
        assert all(0 < int(one.metadata["retry_after_ms"]) < 1_000 for one in refused)
        assert [answer for answer in answers if isinstance(answer, Failure)] == refused
        assert shard.stored() == (room, 0)
        # A stream is held up instead, and a batch larger than all that may be in flight goes alone.
        assert len([one for one in shard.client.stream([data] * 12) if one.count]) == 12
        shard.send(*[Msg(bytes(4_000_000), delay_ms=60_000)] * 2)
        assert shard.stored() == (room + 12 + 2, 0)
        for client in clients:
            client.close()


def test_a_disk_that_is_nearly_full_takes_no_messages_and_everything_else_goes_on(tmp_path: Path, edge: str) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)]) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            stored = Shard(client, "t", 0).send(*[Msg(delay_ms=1)] * 2, Msg(delay_ms=500_000), Msg(delay_ms=600_000))
    node = (*NODE_COMMAND, "--min-free-mib", str(1 << 40))
    with LocalCluster(tmp_path, node_command=node) as cluster:
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            shard = Shard(client, "t", 0)
            with pytest.raises(Failure, match="MiB free") as caught:
                shard.send(Msg())
            assert (caught.value.code, caught.value.reason) == (EXHAUSTED, "DISK_FULL")
            assert caught.value.metadata == {"retry_after_ms": "1000"}
            (answer,) = client.stream([shard.request(Msg())])
            assert (answer.error.reason, dict(answer.error.metadata)) == ("DISK_FULL", {"retry_after_ms": "1000"})
            got = shard.receive_all(2)
            assert shard.ack_all(got) == 2
            assert shard.cancel(stored)[2:] == [pb.CANCELLED] * 2
            assert shard.stored() == (0, 2)
