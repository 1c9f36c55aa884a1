"""The program of the load's pod: tests/faults/support/sdkload.py with its set checker, inside the cluster's network.

It begins, prints `{"began": true}`, goes on until the file FINISH exists, waits for the messages still to come, and
prints one JSON line with its findings. Times in it are ms since 1970 UTC by the pod's machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from delayapi.credentials import Tls

from tests.faults.support.sdkload import SdkLoad, Way, Work

FINISH = Path("/tmp/finish")
POLL_SECONDS = 0.2
PAUSE_MS = 300  # a shorter one is no pause


def pauses(times: Sequence[float], zero_ms: float) -> list[tuple[int, int]]:
    """(when it began, how long it was) of each pause, ms. times: monotonic s; zero_ms: the clock's ms at 0."""
    stamps = np.sort(np.asarray(times)) * 1000
    gaps = np.diff(stamps)
    long = np.flatnonzero(gaps >= PAUSE_MS)
    return [(int(stamps[at] + zero_ms), int(gaps[at])) for at in long]


def main() -> None:
    settings = json.loads(sys.argv[1])
    access = {}
    if tls := settings.pop("tls", None):
        access = {"tls": Tls(ca=tls["ca"], server_name=tls["server_name"]), "token_file": tls["token_file"]}
    way = Way(settings.pop("endpoints"), access)
    load = SdkLoad([way], Work(**settings))
    load.start()
    print(json.dumps({"began": True}), flush=True)
    while not FINISH.exists() and not load.faults:
        time.sleep(POLL_SECONDS)
    load.finish()
    zero_ms = (time.time() - time.monotonic()) * 1000
    late = np.concatenate(load.late_ms) if load.late_ms else np.zeros(1, np.int64)
    found = {
        "totals": asdict(load.ledger.totals()),
        "errors": dict(load.errors),
        "faults": load.faults,
        "late_ms": {"p50": int(np.percentile(late, 50)), "p99": int(np.percentile(late, 99)), "max": int(late.max())},
        "queues": sum(bool(times) for times in load.times.delivered),
        "acknowledged": [pauses(times, zero_ms) for times in load.times.acknowledged],
        "delivered": [pauses(times, zero_ms) for times in load.times.delivered],
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
