"""Celery tasks that wait: `python -m benchmarks.celery --tasks 100000 --ahead 3600 delaycluster://HOST:PORT redis://HOST`.

For each broker, which runs already and is empty: a worker, tasks sent with one eta, what the worker's processes hold in
memory before the eta, and how late the tasks run. DelayCluster needs the topic `celery`; Redis the package `redis`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import delayclient.celery  # noqa: F401
import numpy as np
from celery import Celery

from benchmarks.peers.processes import descendants

app = Celery("bench", broker=os.environ.get("BROKER"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="note")
def note(due_s: float) -> None:
    with open(os.environ["LATE"], "ab") as log:
        log.write(np.float64(time.time() - due_s).tobytes())


def held_bytes(root: int) -> int:
    """Proportional memory of a process and all below it."""
    parents, total = {}, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    for pid in descendants(root, parents):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def measure(broker: str, tasks: int, ahead_s: float, threads: int, scratch: Path) -> str:
    late = scratch / "late"
    late.write_bytes(b"")
    app.conf.broker_url = broker
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery", "worker", "-c", "2", "-l", "WARNING"]
    environment = os.environ | {"BROKER": broker, "LATE": str(late)}
    with open(scratch / "worker.log", "wb") as said:
        worker = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        time.sleep(8)
        idle, begun_s = held_bytes(worker.pid), time.time()
        due_s = begun_s + ahead_s
        with ThreadPoolExecutor(threads) as pool:
            for sent in [pool.submit(note.apply_async, (due_s,), countdown=due_s - time.time()) for _ in range(tasks)]:
                sent.result()
        sent_s = time.time() - begun_s
        if time.time() > due_s - 5:
            raise SystemExit(f"{broker}: {tasks} tasks took {sent_s:.0f} s to send: give a longer --ahead")
        time.sleep(due_s - 4 - time.time())
        waiting = held_bytes(worker.pid)
        end_s = time.monotonic() + 60 + tasks / 100
        while late.stat().st_size < tasks * 8 and time.monotonic() < end_s:
            time.sleep(0.2)
        found = np.frombuffer(late.read_bytes(), np.float64) * 1000
        p50, p99 = np.percentile(found, (50, 99)) if len(found) else (np.nan, np.nan)
        early = int((found < 0).sum())
        return (
            f"{broker.partition(':')[0]}: {tasks / sent_s:,.0f} sent a second; worker {idle / 2**20:.0f} MiB idle, "
            f"{waiting / 2**20:.0f} MiB with {tasks:,} waiting; {len(found):,} ran, {early} early, "
            f"late p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, last {found.max(initial=0):,.0f} ms"
        )
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brokers", nargs="+", metavar="URL")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--ahead", type=float, default=3_600.0, metavar="SECONDS", help="from the first one sent")
    parser.add_argument("--threads", type=int, default=8, help="that send")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: a worker left behind would take the next tasks
    for broker in options.brokers:
        with tempfile.TemporaryDirectory(prefix="delay-celery-") as scratch:
            print(measure(broker, options.tasks, options.ahead, options.threads, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
