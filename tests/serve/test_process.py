"""The process: what it needs to start, and that it ends when it is told to, at any moment."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delaylocal.ports import choose
from delaynode.store import formats
from delayregistry.model import TopicSpec
from delayregistry.sqlite import SqliteRegistry

from tests.serve.support.client import SERVICE, Client, Msg, Shard, i64, poll, request, u32, wait_served


def start(*options: str) -> subprocess.CompletedProcess[str]:
    """A node that is expected to give up."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "delaynode.main", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def options(cluster: LocalCluster, **changes: str) -> list[str]:
    """The command line options of a second node of the cluster, on ports of its own."""
    ports = choose(0, 1)
    named = {
        "node_id": "n9",
        "data": str(cluster.data / "n9"),
        "registry": f"sqlite:{cluster.data / 'registry.db'}",
        "listen": f"127.0.0.1:{ports.grpc[0]}",
        "http": f"127.0.0.1:{ports.http[0]}",
        "peer": f"127.0.0.1:{ports.peer[0]}",
        **changes,
    }
    return [part for name, value in named.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"registry": "sqlite:/nowhere/registry.db"}, "no registry at /nowhere/registry.db"),
        ({"registry": "etcd:here"}, "expected sqlite:PATH"),
        ({"data": "/proc/nothing/here"}, "/proc/nothing"),
    ],
    ids=["no registry", "another registry", "no data directory"],
)
def test_a_node_that_cannot_start_says_why_in_a_line(changes: dict[str, str], text: str, cluster: LocalCluster) -> None:
    ended = start(*options(cluster, **changes))
    assert ended.returncode == 1
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_node_of_an_older_release_says_that_the_upgrade_is_final(cluster: LocalCluster, tmp_path: Path) -> None:
    final = SqliteRegistry(tmp_path / "registry.db", create=True)
    final.put_cluster(replace(cluster.desired, nodes_version=formats.NEWEST + 1), None)
    final.close()
    ended = start(*options(cluster, registry=f"sqlite:{tmp_path / 'registry.db'}"))
    assert ended.returncode == 1
    assert f"write format {formats.NEWEST + 1} (status.nodesVersion)" in ended.stderr
    assert f"this release reads up to {formats.NEWEST}: the upgrade is final" in ended.stderr


@pytest.mark.parametrize("option", ["listen", "http"])
def test_a_node_whose_port_is_taken_says_which(option: str, cluster: LocalCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = start(*options(cluster, **{option: address}))
    assert ended.returncode == 1
    assert address.rpartition(":")[2] in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_process_on_the_same_data_is_refused_and_the_first_goes_on(own: LocalCluster) -> None:
    with Client(own.endpoints[0]) as client:
        Shard(client, "t", 0).send(Msg(delay_ms=60_000))
        ended = start(*options(own, node_id="n0", data=str(own.data / "n0")))
        assert ended.returncode == 1
        assert f"{own.data / 'n0'} is used by another process" in ended.stderr
        assert Shard(client, "t", 0).send(Msg(delay_ms=60_000)).seqs == [1]
        assert own.unready() == []


def test_a_stop_at_any_moment_of_a_start_ends_the_process(tmp_path: Path) -> None:
    ends: list[Mapping[str, object]] = []

    def note(event: Mapping[str, object]) -> None:
        if event["event"] == "node-died":
            ends.append(event)

    choose_moment = random.Random(1)
    with LocalCluster(tmp_path, nodes=1, topics=[TopicSpec("t", 24)], on_event=note) as cluster:
        log = tmp_path / "logs" / "n0.log"
        for number in range(1, 4):
            poll(f"start {number}", lambda: log.exists() and log.read_text().count('"started"') == number, 30)  # noqa: B023
            time.sleep(choose_moment.random() * 0.2)
            begin = time.monotonic()
            cluster.kill("n0", signal.SIGTERM)
            poll(f"end {number}", lambda: len(ends) == number)  # noqa: B023
            assert time.monotonic() - begin < 6
        wait_served(cluster)
        with Client(cluster.endpoints[0]) as client:
            for queue in range(24):
                assert Shard(client, "t", queue).send(Msg(delay_ms=60_000)).seqs == [0]
    assert [end.get("exit_code") for end in ends] == [0] * 3
    text = log.read_text()
    for sign in ("Traceback", "stop-failed", "never retrieved", "never awaited", "was destroyed"):
        assert sign not in text, text[max(0, text.index(sign) - 500) :][:2_000]


def test_a_node_with_streams_open_ends_without_a_trace_of_them(edge: str, own: LocalCluster) -> None:
    """The server's end cancels them, and they come to theirs before the process does."""
    told = threading.Event()

    def requests() -> Iterator[bytes]:
        record = pb.Message(body=b"x").SerializeToString()
        yield pb.EnqueueRequest(
            topic="t", count=1, time=i64(60_000), relative=b"\1", size=u32(len(record)), records=record
        ).SerializeToString()
        told.wait(30)

    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(own.endpoints[0])) for _ in range(20)]
        stack.callback(told.set)
        streams = [channel.stream_stream(SERVICE + "EnqueueStream")(requests()) for channel in channels]
        assert [pb.EnqueueResponse.FromString(next(stream)).count for stream in streams] == [1] * 20
        before = own.kill("n0", signal.SIGTERM)
        poll("the node has stopped", lambda: own.pids.get("n0", before) != before, 30)
    text = (own.data / "logs" / "n0.log").read_text()
    assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:2_000]


def test_a_node_that_ends_leaves_no_call_without_an_end(edge: str, tmp_path: Path) -> None:
    """Streams that wait, and requests that another node does not answer."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(tmp_path, nodes=2, topics=[TopicSpec("t", 2)]))
        wait_served(cluster)
        client = stack.enter_context(Client(cluster.endpoints[0], own=True))
        queues = client.call("QueryRoute", topic="t").topics[0].queues
        mine, others = (next(one.queue for one in queues if one.node == node) for node in ("n0", "n1"))
        told = threading.Event()
        stack.callback(told.set)

        def requests(queue: int) -> Iterator[bytes]:
            yield request("t", queue, [Msg(delay_ms=60_000)], producer=queue + 1).SerializeToString()
            told.wait(30)

        streams = [client.channel.stream_stream(SERVICE + "EnqueueStream")(requests(mine)) for _ in range(3)]
        assert [pb.EnqueueResponse.FromString(next(one)).count for one in streams] == [1] * 3
        watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        next(watch)
        cluster.kill("n1", signal.SIGSTOP)
        stack.callback(cluster.kill, "n1", signal.SIGCONT)
        waiting = [client.channel.stream_stream(SERVICE + "EnqueueStream")(requests(others)) for _ in range(3)]
        asked = request("t", others, [Msg(delay_ms=60_000)] * 9).SerializeToString()
        calls = [client.channel.unary_unary(SERVICE + "Enqueue").future(asked) for _ in range(20)]
        time.sleep(0.5)
        assert not any(one.done() for one in (*calls, *waiting, *streams))
        begin, before = time.monotonic(), cluster.kill("n0", signal.SIGTERM)
        poll("the node has stopped", lambda: cluster.pids.get("n0", before) != before, 30)
        assert time.monotonic() - begin < 15
        codes = [one.code() for one in (*calls, *waiting, *streams)]
        assert all(code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) for code in codes), codes
        text = (cluster.data / "logs" / "n0.log").read_text()  # before the end of the process that takes its place
    for sign in ("Traceback", "internal-error", "never retrieved", "was destroyed"):
        assert sign not in text, text[max(0, text.index(sign) - 500) :][:2_000]
