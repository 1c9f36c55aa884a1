"""A stand-in for a HorizontalPodAutoscaler with one external metric, of what has a scale subresource.

Its formula, tolerance and window are those of k8s.io/kubernetes/pkg/controller/podautoscaler, for AverageValue 1.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from e2e.harness.kubectl import Failed

TOLERANCE = 0.1
POLL_SECONDS = 5.0  # of a real one 15


def wanted(metric: float, replicas: int) -> int:
    """What the formula makes of it."""
    if replicas and abs(metric / replicas - 1) <= TOLERANCE:
        return replicas
    return math.ceil(metric)


class Scaled(Protocol):
    """replicas: that are asked for."""

    @property
    def replicas(self) -> int: ...
    def scale(self, replicas: int) -> None: ...


@dataclass
class Autoscaler:
    """A thread. steps: (seconds since it began, replicas) of each change that it wrote. window_s: of scale-in, its
    stabilizationWindowSeconds."""

    target: Scaled
    metric: Callable[[], float | None]
    least: int
    most: int
    window_s: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    def _run(self) -> None:
        began, recommended = time.monotonic(), deque[tuple[float, int]]()
        while not self._stop.wait(POLL_SECONDS):
            try:
                metric = self.metric()
                if metric is None:
                    continue  # a metric that can't be had changes nothing
                present, now = self.target.replicas, time.monotonic() - began
                recommended.append((now, wanted(metric, present)))
                while now - recommended[0][0] > self.window_s:
                    recommended.popleft()
                replicas = min(max(self.least, *(it[1] for it in recommended)), self.most)
                if replicas != present:
                    self.target.scale(replicas)
                    self.steps.append((round(now, 1), replicas))
            except Failed as error:  # the API server may be away for a moment
                print(f"autoscaler: {error}")
