"""A local cluster's control loop as a process of its own: a load in the test's process must not hold it up."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from delayapi.events import EventLog
from delaylocal.own_keys import own_access
from delayoperator.control_loop.loop import WRITERS, ControlLoop, new_uid
from delayoperator.control_loop.probe import GrpcProber
from delayregistry.sqlite import SqliteRegistry


def _listen(told: list[frozenset[str]]) -> None:
    for line in sys.stdin:
        told[0] = frozenset(line.split())


def main(data: Path) -> None:
    """Run rounds until SIGTERM. Each line of stdin names ended processes: the test's process supervises them."""
    stop, told = threading.Event(), [frozenset[str]()]
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    registry, events = SqliteRegistry(data / "registry.db"), EventLog(data / "logs" / "operator.log")
    loop = ControlLoop(
        registry, new_uid, events, prober=GrpcProber(own_access(data)), ended=lambda: told[0], writers=WRITERS
    )
    loop.run(stop)
    registry.close()
    events.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
