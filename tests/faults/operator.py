"""A local cluster's control loop as a process of its own: a load in the test's process must not hold it up."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from delaynode.registry.sqlite import SqliteRegistry
from delayoperator.local.cluster import WRITERS, new_uid
from delayoperator.local.events import Events
from delayoperator.loop import ControlLoop
from delayoperator.probe import GrpcProber


def main(data: Path) -> None:
    """Rounds until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    registry, events = SqliteRegistry(data / "registry.db"), Events(data / "logs" / "operator.log")
    ControlLoop(registry, new_uid, events, prober=GrpcProber(), writers=WRITERS).run(stop)
    registry.close()
    events.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
