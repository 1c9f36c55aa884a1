"""The node's own limits: what is in flight, and the disk. Both are refused with a time to come back at."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from delayclient.proto.delay.v1 import delay_pb2 as pb
from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster
from delayoperator.local.cluster import NODE_COMMAND

from tests.serve.client import Client, Failure, Msg, Shard

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def test_too_much_in_flight_is_refused_and_what_is_answered_is_stored(tmp_path: Path) -> None:
    node = (*NODE_COMMAND, "--in-flight-mib", "2")
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)], node_command=node) as cluster:
        cluster.wait_ready()
        clients = [Client(cluster.endpoints[0]) for _ in range(12)]
        shard = Shard(clients[0], "t", 0)
        data = shard.request(Msg(bytes(900_000), delay_ms=60_000)).SerializeToString()
        for client in clients:
            client.call("QueryRoute")  # connected
        cluster.kill("n0", signal.SIGSTOP)  # so that all of them arrive at once
        with ThreadPoolExecutor(12) as pool:
            calls = [pool.submit(client.attempt, "Enqueue", data) for client in clients]
            time.sleep(0.5)
            cluster.kill("n0", signal.SIGCONT)
            answers = [call.result() for call in calls]
        refused = [answer for answer in answers if isinstance(answer, Failure)]
        # a batch waits half a second for room, so a quick disk lets all of them in (test_flow_parts has the refusal)
        assert {(one.code, one.reason) for one in refused} <= {(EXHAUSTED, "BUSY")}
        assert all(0 < int(one.metadata["retry_after_ms"]) < 1_000 for one in refused)
        assert shard.stored() == (12 - len(refused), 0)
        # A stream is held up instead, and a batch larger than all that may be in flight goes alone.
        assert len([one for one in shard.client.stream([data] * 12) if one.count]) == 12
        shard.send(*[Msg(bytes(4_000_000), delay_ms=60_000)] * 2)
        assert shard.stored() == (12 - len(refused) + 12 + 2, 0)
        for client in clients:
            client.close()


def test_a_disk_that_is_nearly_full_takes_no_messages_and_everything_else_goes_on(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 1)]) as cluster:
        cluster.wait_ready()
        with Client(cluster.endpoints[0]) as client:
            stored = Shard(client, "t", 0).send(*[Msg(delay_ms=1)] * 2, Msg(delay_ms=500_000), Msg(delay_ms=600_000))
    node = (*NODE_COMMAND, "--min-free-mib", str(1 << 40))
    with LocalCluster(tmp_path, node_command=node) as cluster:
        cluster.wait_ready()
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
