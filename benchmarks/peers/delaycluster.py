"""DelayCluster: one node, and `Fsync`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from delayclient.errors import DelayError
from delayclient.sync import SyncAdmin
from delaylocal import LocalClusterError

from benchmarks.peers.processes import QUEUES, Failed, Server, System
from benchmarks.workloads.target import TOPIC, own_node


def prepare(_: Path) -> str:
    return f"delaycluster {version('delaycluster')}"


@contextmanager
def start(queues: int, data: Path, _: Path) -> Iterator[Server]:
    try:
        with own_node(queues, data) as target:
            assert target.own is not None, "it is ours"
            yield Server(target.own.pid, target.endpoint, lambda: _pending(target.endpoint), queues=queues)
    except LocalClusterError as error:
        raise Failed(str(error)) from error


def _pending(endpoint: str) -> int:
    try:
        with SyncAdmin(endpoint) as admin:
            return sum(wheel.pending for wheel in admin.wheel(TOPIC))
    except DelayError as error:
        raise Failed(str(error)) from error


def system(queues: int) -> System:
    """With a topic of so many queues."""
    return System("DelayCluster", "delay", prepare, partial(start, queues), streams=True)


SYSTEM = system(QUEUES)
