"""What a workload used of the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.workloads import machine
from benchmarks.workloads.target import OwnNode


@dataclass(frozen=True, slots=True)
class Used:
    """Time and work so far; the node's are 0 when it is not ours."""

    seconds: float
    client_cpu_s: float
    node_cpu_s: float
    node_written_bytes: int

    @classmethod
    def by(cls, own: OwnNode | None) -> Used:
        node = (0.0, 0) if own is None else (machine.cpu_seconds(own.pid), machine.written_bytes(own.pid))
        return cls(time.perf_counter(), time.process_time(), *node)

    def __sub__(self, before: Used) -> Used:
        return Used(
            self.seconds - before.seconds,
            self.client_cpu_s - before.client_cpu_s,
            self.node_cpu_s - before.node_cpu_s,
            self.node_written_bytes - before.node_written_bytes,
        )
