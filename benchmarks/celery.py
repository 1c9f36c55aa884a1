"""Celery's tasks that wait, by broker: `python -m benchmarks.celery`, less than twelve minutes.

For each broker, which is started empty and keeps what it has acknowledged on its disk: a worker, tasks sent with one
eta, what the worker's processes hold in memory before it, and how late the tasks run. Then some tasks with an eta for a
worker that is killed with all its processes before it, or its main process alone just after it, and another one that
takes its place. Redis and RabbitMQ are Debian's.

Each part has its time. What could not be sent before the eta, or had not run in the time after it, is told. A million
tasks an hour ahead: `--tasks 1000000 --ahead 3600 --within 1800`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.metadata import requires
from pathlib import Path

import delayclient.celery  # noqa: F401
import numpy as np
from celery import Celery
from delaylocal import LocalCluster, ports
from delayregistry.model import TopicSpec
from numpy.typing import NDArray

from benchmarks.peers import redis
from benchmarks.peers.processes import Failed, Missing, await_ready, build, descendants, program, running

KILLED_TASKS, KILLED_AHEAD_S, KILLED_WAIT_S = 1_000, 15.0, 14.0
KILLS = (  # when, after the eta, s
    ("a worker killed 10 s before", -10.0, os.killpg),
    ("a worker's main process alone killed 0.5 s after", 0.5, os.kill),
)
START_S = 8.0  # of a worker
RUN = np.dtype([("task", "<i8"), ("late_s", "<f8")])  # of a task, as the worker notes it
QUIET_S = 5.0  # before the eta: nothing is sent any more


def application(broker: str | None) -> Celery:
    """One for each broker: its connections are kept in pools."""
    made = Celery("bench", broker=broker)
    made.conf.update(
        task_ignore_result=True, broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},  # RabbitMQ: a task is sent once the broker has it
    )  # fmt: skip
    return made


app = application(os.environ.get("BROKER"))


@app.task(name="note")
def note(due_s: float, number: int) -> None:
    with open(os.environ["LATE"], "ab") as log:
        log.write(np.array([(number, time.time() - due_s)], RUN).tobytes())


# ---------------------------------------------------------------- brokers
@contextmanager
def delaycluster(scratch: Path) -> Iterator[str]:
    with LocalCluster(scratch / "cluster", nodes=1, topics=[TopicSpec("celery", 8)]) as cluster:
        cluster.wait_ready()
        yield f"delaycluster://{cluster.endpoints[0]}"


@contextmanager
def by_redis(scratch: Path) -> Iterator[str]:
    wanted = next(one for one in requires("kombu") or () if one.endswith('extra == "redis"')).partition(";")[0]
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "delaycluster" / "celery-redis"
    if not kept.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", kept, wanted]
        build(command, "pip can't fetch Redis's client")
    sys.path.append(str(kept))
    os.environ["PYTHONPATH"] = str(kept)
    (data := scratch / "redis").mkdir()
    with redis.start(data, scratch) as server:
        yield f"redis://{server.address}"


@contextmanager
def rabbitmq(scratch: Path) -> Iterator[str]:
    found = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # which changes no user, as the one on PATH does
    server = program(lambda: str(found) if found.exists() else None, "rabbitmq-server")
    port, distribution, epmd = ports.choose(0, 3).grpc
    environment = {
        "RABBITMQ_NODENAME": f"bench{port}@localhost", "RABBITMQ_NODE_PORT": str(port), "HOME": str(scratch),
        "RABBITMQ_DIST_PORT": str(distribution), "ERL_EPMD_PORT": str(epmd), "RABBITMQ_NODE_IP_ADDRESS": ports.HOST,
        "RABBITMQ_MNESIA_BASE": str(scratch / "data"), "RABBITMQ_LOG_BASE": str(scratch / "logs"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(scratch / "plugins"), "RABBITMQ_PID_FILE": str(scratch / "pid"),
    }  # fmt: skip
    names = program(lambda: shutil.which("epmd"), "erlang-base")
    log = scratch / "rabbitmq.log"
    with (
        running([names, "-port", str(epmd), "-address", ports.HOST], log),
        running([server], log, env=environment) as process,
    ):
        await_ready(process, log, partial(listens, port))
        yield f"amqp://guest:guest@{ports.HOST}:{port}"


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return not tried.connect_ex((ports.HOST, port))


BROKERS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "delaycluster": delaycluster, "redis": by_redis, "rabbitmq": rabbitmq,
}  # fmt: skip


# ---------------------------------------------------------------- workers
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


@contextmanager
def worker(broker: str, late: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It is killed in the end, with all its processes that are left."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery", "worker", "-c", "2", "-l", "WARNING"]
    environment = os.environ | {"BROKER": broker, "LATE": str(late)}
    with open(late.with_suffix(".log"), "ab") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        time.sleep(START_S)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def send(sender: Celery, first: int, tasks: int, due_s: float, threads: int) -> tuple[int, float]:
    """How many tasks were sent before it was too late for their eta, and how long that took, s. first: its number."""

    def send_some(thread: int) -> int:
        numbers = range(first + thread, first + tasks, threads)
        for sent, number in enumerate(numbers):
            if time.time() > due_s - QUIET_S:
                return sent
            sender.send_task("note", (due_s, number), countdown=due_s - time.time())
        return len(numbers)

    begun_s = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        sent = sum(pool.map(send_some, range(threads)))
    if not sent:
        raise SystemExit(f"no task was sent within {due_s - QUIET_S - time.time():.0f} s: give a longer --ahead")
    return sent, time.monotonic() - begun_s


def runs(late: Path, first: int, tasks: int, wait_s: float) -> NDArray[np.void]:
    """What ran of the tasks from this number on, in its order, once so many did or the wait is over. dtype: RUN."""
    end_s = time.monotonic() + wait_s
    while True:
        if late.stat().st_size >= tasks * RUN.itemsize or time.monotonic() > end_s:
            found = np.frombuffer(late.read_bytes(), RUN)
            found = found[found["task"] >= first]
            if len(np.unique(found["task"])) >= tasks or time.monotonic() > end_s:
                return found
        time.sleep(0.2)


def described(found: NDArray[np.void], tasks: int) -> str:
    if not len(found):
        return f"none of {tasks:,} ran"
    different = len(np.unique(found["task"]))
    late_ms = found["late_s"] * 1000
    p50, p99 = np.percentile(late_ms, (50, 99))
    return (
        f"{different:,} of {tasks:,} ran, {len(found) - different:,} runs were another one of the same task, "
        f"{int((late_ms < 0).sum())} early; late p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, last {late_ms.max():,.0f} ms"
    )


def measure(name: str, wanted: int, ahead_s: float, within_s: float, threads: int, scratch: Path) -> None:
    with BROKERS[name](scratch) as broker:
        sender = application(broker)
        (late := scratch / "late").touch()
        with worker(broker, late) as process:
            idle, due_s = held_bytes(process.pid), time.time() + ahead_s
            tasks, sent_s = send(sender, 0, wanted, due_s, threads)
            time.sleep(max(0.0, due_s - 4 - time.time()))
            waiting = held_bytes(process.pid)
            found = runs(late, 0, tasks, due_s - time.time() + within_s)
            ran_s = time.time() - due_s
            ended = process.poll() is not None
        print(
            f"{name}: {tasks:,} of {wanted:,} sent, {tasks / sent_s:,.0f} a second; worker {idle / 2**20:.0f} MiB "
            f"idle, {waiting / 2**20:.0f} MiB with them waiting; {described(found, tasks)}; {ran_s:.0f} s", flush=True,
        )  # fmt: skip
        if ended:
            print(
                f"{name}: the worker has ended by itself: ...{late.with_suffix('.log').read_text()[-2_000:]}",
                flush=True,
            )
        for part, (what, after_s, kill) in enumerate(KILLS):
            first = wanted + part * KILLED_TASKS  # what is left of the parts before runs too, and does not count
            (killed := scratch / kill.__name__).touch()
            with worker(broker, killed) as process:
                due_s = time.time() + KILLED_AHEAD_S
                tasks, _ = send(sender, first, KILLED_TASKS, due_s, threads)
                time.sleep(max(0.0, due_s + after_s - time.time()))
                kill(process.pid, signal.SIGKILL)
                with worker(broker, killed):
                    found = runs(killed, first, tasks, due_s - time.time() + KILLED_WAIT_S)
            print(f"{name}, {what}: {described(found, tasks)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brokers", nargs="*", metavar="BROKER", help=f"{', '.join(BROKERS)}; by default all")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--ahead", type=float, metavar="SECONDS", default=90.0, help="the eta (%(default)g)")
    parser.add_argument("--within", type=float, metavar="SECONDS", default=60.0, help="after it, to run (%(default)g)")
    parser.add_argument("--threads", type=int, default=8, help="that send")
    options = parser.parse_args()
    if wrong := set(options.brokers) - BROKERS.keys():
        parser.error(f"no such broker: {', '.join(wrong)}; there are {', '.join(BROKERS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: a worker left behind would take the next tasks
    for name in options.brokers or BROKERS:
        with tempfile.TemporaryDirectory(prefix="delay-celery-") as scratch:
            try:
                measure(name, options.tasks, options.ahead, options.within, options.threads, Path(scratch))
            except (Missing, Failed) as error:
                print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
