"""Which clusters there are, a worker each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from delayoperator.control_loop.loop import Log
from delayoperator.kube.api import Json
from delayoperator.kube.worker import Worker


class Clusters:
    """new_worker: (namespace, name) -> a worker that was not started. From any thread."""

    def __init__(self, new_worker: Callable[[str, str], Worker], log: Log) -> None:
        self._new_worker, self._log = new_worker, log
        self._lock = threading.Lock()
        self._workers: dict[tuple[str, str], Worker] = {}

    def seen(self, namespace: str, name: str, version: str) -> None:
        """There is such a DelayCluster, of this version: perhaps one that we have written ourselves."""
        if self._begin(namespace, name, version):
            self._log({"event": "cluster-found", "cluster": f"{namespace}/{name}"})

    def awaited(self, namespace: str, name: str) -> None:
        """DelayTopics that were deleted wait for such a DelayCluster. It may be gone, or not seen yet: its worker asks
        the API server which."""
        if self._begin(namespace, name, ""):
            self._log({"event": "cluster-awaited", "cluster": f"{namespace}/{name}"})

    def gone(self, namespace: str, name: str) -> None:
        """It was deleted. Should there be another of this name by now, its worker finds that out."""
        with self._lock:
            worker = self._workers.get((namespace, name))
        if worker is not None:
            self._log({"event": "cluster-gone", "cluster": f"{namespace}/{name}"})
            worker.wake()

    def touched(self, namespace: str, name: str) -> None:
        """Something that belongs to it has changed. One that we do not know is not ours to look after."""
        with self._lock:
            worker = self._workers.get((namespace, name))
        if worker is not None:
            worker.wake()

    def pod(self, namespace: str, name: str, body: Json) -> None:
        with self._lock:
            worker = self._workers.get((namespace, name))
        if worker is not None:
            worker.pod(body)

    def look_again(self) -> None:
        """A tenure of this process as leader began or ended: it concerns all of them."""
        for worker in self.workers():
            worker.wake()

    def workers(self) -> list[Worker]:
        with self._lock:
            return [worker for worker in self._workers.values() if worker.alive]

    def stuck(self) -> list[str]:
        """Why this process should be started again, a sentence for each cluster that nobody looks after."""
        with self._lock:
            workers = list(self._workers.values())
        return [f"{it.namespace}/{it.name}: {why}" for it in workers if (why := it.stuck()) is not None]

    def _begin(self, namespace: str, name: str, version: str) -> bool:
        """Wakes its worker, or starts one: then True."""
        with self._lock:
            worker = self._workers.get((namespace, name))
            if worker is not None and worker.wake(version):
                return False
            worker = self._workers[namespace, name] = self._new_worker(namespace, name)
            worker.start()
            return True

    def stop(self, timeout_s: float = 20.0) -> None:
        workers = self.workers()
        for worker in workers:
            worker.stop()
        until_s = time.monotonic() + timeout_s
        for worker in workers:
            worker.join(max(0.0, until_s - time.monotonic()))
