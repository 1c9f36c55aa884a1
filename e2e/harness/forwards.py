"""Ports of a cluster's Services, on this machine."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import Failed

FORWARD_SECONDS = 30.0


@contextmanager
def forwarded_port(cluster: ClusterUnderTest, target: str, port: int) -> Iterator[int]:
    """A port of 127.0.0.1 that is the target's, svc/NAME or pod/NAME, by `kubectl port-forward`. Raises Failed."""
    words = ("kubectl", "--context", cluster.kube.context, "--namespace", cluster.namespace)
    process = subprocess.Popen((*words, "port-forward", target, f":{port}"), stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(FORWARD_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        watchdog.cancel()
        found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+) ", said)
        if found is None:
            raise Failed(f"kubectl port-forward {target} said {said!r}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield int(found[1])
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(10)
