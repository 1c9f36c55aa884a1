"""The console of a cluster, reached as people reach it: by a port-forward to its Service, signed in or not."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import Failed
from tests.console.support.cluster_console import ClusterConsole

FORWARD_SECONDS = 30.0


@contextmanager
def forwarded(cluster: ClusterUnderTest, ca: Path) -> Iterator[ClusterConsole]:
    """ca: the browser trusts no other."""
    service = f"svc/{cluster.name}-console"
    words = ("kubectl", "--context", cluster.kube.context, "--namespace", cluster.namespace)
    process = subprocess.Popen((*words, "port-forward", service, ":443"), stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(FORWARD_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        watchdog.cancel()
        found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+) ", said)
        if found is None:
            raise Failed(f"kubectl port-forward {service} said {said!r}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield ClusterConsole(int(found[1]), ca, [])
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(10)
