"""Rounds of failover under load: harm one node, watch which node takes over and when, wait until all is whole again.

A round's harm falls on a node that masters shards: kill -9, SIGSTOP past its lease and SIGCONT, or SIGTERM. Its
own shards and the shards of which it holds a slave copy are measured apart: the former need another master, the latter
a smaller in-sync set. Times are the load's: those of acknowledgements, and of deliveries to consumers.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from delayapi.credentials import Tls
from delaylocal import LocalCluster, ports
from delaylocal.own_keys import SERVER_NAME
from delayregistry.model import ShardObject

from tests.faults.support.columns import Totals
from tests.faults.support.sdkload import SdkLoad, Way

WHOLE_SECONDS = 90.0
FOLLOWED_SECONDS = 15.0  # after a lease and a half: others lead
SETTLE_SECONDS = 40.0
CALM_SECONDS = 1.5
FLOWING_SECONDS = 1.0
TELL_SECONDS = 0.01
AROUND_SECONDS = (1.0, 20.0)  # a gap that counts as this round's begins at most so long before and after the harm
BAD_SIGNS = ("Traceback", "shard-damaged", "copy-damaged", "term-refused", "internal-error", "never retrieved")

_GRPC_NOISE = re.compile(r"Traceback [^\n]*\n[^\n]*_schedule_rpc_coro\n[^\n]*CancelledError\n")


def without_grpc_noise(log: str) -> str:
    """A node's log without what gRPC prints past all logging of a call that was under way when the process ended."""
    return _GRPC_NOISE.sub("", log)


class FaultCluster(LocalCluster):
    """A local cluster whose control loop can be away, and whose nodes may get options of their own."""

    def __init__(
        self,
        data: Path,
        *,
        options: Callable[[int, str], Sequence[str]] = lambda number, node: (),
        prefix: Callable[[int, str], Sequence[str]] = lambda number, node: (),
        elsewhere: Sequence[str] = (),
        **desired: Any,
    ) -> None:
        """options, prefix: words after and before a node's command. elsewhere: the nodes' gRPC addresses, if others."""
        self._options, self._prefix, self._elsewhere = options, prefix, list(elsewhere)
        super().__init__(data, **{"nodes": 3, "replicas": 2, **desired})

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def _command(self, number: int, node: str) -> tuple[str, ...]:
        return (*self._prefix(number, node), *super()._command(number, node), *self._options(number, node))

    @property
    def endpoints(self) -> list[str]:
        return self._elsewhere or super().endpoints

    def unready(self) -> list[str]:
        faults = super().unready()
        return [] if self._elsewhere and all(one.startswith("nobody listens") for one in faults) else faults

    def stop_operator(self) -> None:
        """End the control loop; the nodes do not notice."""
        self._stop_loop.set()
        for thread in self._threads:
            thread.join()

    def start_operator(self) -> None:
        self._stop_loop.clear()
        self._threads = [threading.Thread(target=self._run_loop, name="control-loop", daemon=True)]
        self._threads[0].start()

    def _run_loop(self) -> None:
        with (self.data / "logs" / "loop.log").open("ab") as out:
            command = [sys.executable, "-m", "tests.faults.operator", str(self.data)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=out, text=True)
        told = frozenset[str]()
        with suppress(BrokenPipeError):
            while not self._stop_loop.wait(TELL_SECONDS):
                if told != (told := self.ended()):
                    print(*sorted(told), file=process.stdin, flush=True)
        self._stop_loop.wait()
        process.terminate()
        process.wait()

    def shards(self) -> tuple[ShardObject, ...]:
        return self.registry.list_shards()

    def ways(self) -> list[Way]:
        """In, of a cluster with TLS: by a token, and by a certificate. In plain text: the only one."""
        if self.keys is None:
            return [Way(self.endpoints)]
        keys, admin = self.keys, self.keys.admin
        mtls = [f"{ports.HOST}:{port}" for port in self._ports.mtls]
        own = Tls(keys.ca, admin / "tls.crt", admin / "tls.key", SERVER_NAME)
        token = {"tls": Tls(keys.ca, server_name=SERVER_NAME), "token_file": keys.token_file}
        return [Way(self.endpoints, token), Way(mtls, {"tls": own})]

    def masters(self) -> dict[str, list[ShardObject]]:
        """The shards that each node serves; nodes without any are missing."""
        found: dict[str, list[ShardObject]] = {}
        for shard in self.shards():
            if shard.spec.master is not None:
                found.setdefault(shard.spec.master, []).append(shard)
        return found

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The events that all nodes have logged under this name, by time."""
        lines = itertools.chain.from_iterable(
            log.read_text().splitlines() for log in sorted((self.data / "logs").glob("n*.log"))
        )
        found = [json.loads(line) for line in lines if f'"event": "{event}"' in line]
        return sorted(found, key=lambda one: int(one["time_ms"]))

    def at_levels(self, *levels: str) -> list[dict[str, Any]]:
        lines = [line for log in sorted((self.data / "logs").glob("*.log")) for line in log.read_text().splitlines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if event["level"] in levels]

    def check_logs(self, *but: str) -> None:
        for log in sorted((self.data / "logs").glob("*.log")):
            text = without_grpc_noise(log.read_text())
            for sign in set(BAD_SIGNS) - set(but):
                assert sign not in text, f"{log.name}: {sign} in ...{text[max(0, text.index(sign) - 500) :][:2_000]}"


@dataclass(frozen=True, slots=True)
class ShardPause:
    """One shard's pauses in one round, in seconds. None: the shard never went on."""

    shard: str
    role: str  # the harmed node's: master or slave
    enqueue_gap: float | None  # the longest time without an acknowledgement
    delivery_gap: float | None  # the longest time in which consumers got nothing
    served: float | None  # from the harm to the new master's first status; for a slave: to the smaller in-sync set
    first_stored: float | None  # from the harm to the new master's first acknowledgement
    first_delivery: float | None  # from the harm to the new master's first delivery


@dataclass(frozen=True, slots=True)
class Round:
    number: int
    harm: str
    node: str
    whole: float  # seconds from the harm until all shards had all their copies in sync again
    pauses: tuple[ShardPause, ...]


def kill(cluster: FaultCluster, node: str) -> None:
    cluster.kill(node)


def freeze(cluster: FaultCluster, node: str, seconds: float = 4.5) -> None:
    """Freeze the node for longer than its lease of 3 s, and until others lead what it led."""
    cluster.kill(node, signal.SIGSTOP)
    time.sleep(seconds)
    deadline = time.monotonic() + FOLLOWED_SECONDS
    while node in cluster.masters():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody leads what {node} led, {seconds + FOLLOWED_SECONDS:.0f} s after it was frozen")
        time.sleep(0.05)
    cluster.kill(node, signal.SIGCONT)


def restart(cluster: FaultCluster, node: str) -> None:
    """Send SIGTERM: the node hands its shards over, ends, and is started again."""
    pid = cluster.kill(node, signal.SIGTERM)
    deadline = time.monotonic() + WHOLE_SECONDS
    while cluster.pids.get(node, pid) == pid:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{node} was not started again within {WHOLE_SECONDS:.0f} s")
        time.sleep(0.05)


def failover_round(
    cluster: FaultCluster, load: SdkLoad, harm: Callable[[FaultCluster, str], None], number: int, choose: random.Random
) -> Round:
    """One round. Raises LocalClusterError when the cluster does not become whole again."""
    before = cluster.masters()
    node = choose.choice(sorted(before))
    affected = {one.name: one for one in cluster.shards() if node in one.spec.replicas}
    served: dict[str, float] = {}
    ended = threading.Event()
    harmed = time.monotonic()

    def watch() -> None:
        while not ended.wait(0.02):
            for now in cluster.shards():
                old = affected.get(now.name)
                if old is not None and now.name not in served and _went_on(old, now, node):
                    served[now.name] = time.monotonic()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        harm(cluster, node)
        cluster.wait_ready(WHOLE_SECONDS)
        whole = time.monotonic() - harmed
        settle(cluster, load)
    finally:
        ended.set()
        watcher.join()
    pauses = tuple(_pause(load, one, node, harmed, served.get(name)) for name, one in sorted(affected.items()))
    return Round(number, harm.__name__, node, round(whole, 3), pauses)


def settle(cluster: FaultCluster, load: SdkLoad) -> None:
    """Returns when masters stay where they are and messages flow on every queue, or after SETTLE_SECONDS without that.

    A node that has come back gets shards to lead again: that must not count as part of the next round.
    """
    deadline, calm = time.monotonic() + SETTLE_SECONDS, time.monotonic()
    seen: list[tuple[str, int]] = []
    while time.monotonic() < min(deadline, calm + CALM_SECONDS):
        now = [(shard.name, shard.spec.epoch) for shard in cluster.shards()]
        handing = any(shard.spec.switchover is not None for shard in cluster.shards())
        flows = all(
            times and time.monotonic() - times[-1] < FLOWING_SECONDS
            for times in (*load.times.acknowledged, *load.times.delivered)
        )
        if now != seen or handing or not flows:
            seen, calm = now, time.monotonic()
        time.sleep(0.05)


def _went_on(old: ShardObject, now: ShardObject, node: str) -> bool:
    if now.status is None or old.status is None:
        return False
    if old.spec.master == node:
        return now.status.serving_epoch > old.status.serving_epoch
    return now.status.serving_epoch > old.status.serving_epoch or len(now.status.in_sync) < len(old.status.in_sync)


def _pause(load: SdkLoad, shard: ShardObject, node: str, harmed: float, served: float | None) -> ShardPause:
    queue = shard.spec.queue
    stored, delivered = load.times.acknowledged[queue], load.times.delivered[queue]
    return ShardPause(
        shard.name,
        "master" if shard.spec.master == node else "slave",
        longest_gap(stored, harmed),
        longest_gap(delivered, harmed),
        None if served is None else round(served - harmed, 3),
        _first(stored, harmed, served),
        _first(delivered, harmed, served),
    )


def _first(times: Sequence[float], harmed: float, served: float | None) -> float | None:
    """Seconds from the harm to the first of these times, ascending, since the shard is served again."""
    later = [] if served is None else times[int(np.searchsorted(times, served)) :]
    return round(later[0] - harmed, 3) if later else None


def longest_gap(times: Sequence[float], harmed: float) -> float | None:
    """The longest gap between two of these times (s, ascending) that ends after the harm. None: nothing came after."""
    low, high = (int(np.searchsorted(times, at)) for at in (harmed - AROUND_SECONDS[0], harmed + AROUND_SECONDS[1]))
    near = times[low : high + 1]
    gaps = [round(b - a, 3) for a, b in itertools.pairwise(near) if b > harmed]
    return max(gaps, default=None)


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of some durations, in seconds."""

    count: int
    p50: float
    max: float
    never: int  # durations that did not end

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread:
        found = [one for one in values if one is not None]
        p50 = float(np.percentile(found, 50)) if found else 0.0
        return Spread(len(found), round(p50, 3), max(found, default=0.0), len(values) - len(found))

    def __str__(self) -> str:
        never = f", {self.never} never" if self.never else ""
        return f"p50 {self.p50:.2f} max {self.max:.2f} s ({self.count} times{never})"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of all rounds of one kind of harm."""

    harm: str
    rounds: int
    seconds: float
    totals: Totals
    errors: dict[str, int]  # the errors that callers got, by kind
    faults: list[str]
    lateness_p50_ms: float
    lateness_p99_ms: float
    pauses: dict[str, dict[str, Spread]]  # master | slave -> what -> how long
    whole: Spread

    @property
    def good(self) -> bool:
        return not (self.totals.broken or self.errors or self.faults)

    def json(self) -> dict[str, Any]:
        return {"event": "result", **asdict(self), "good": self.good}

    def __str__(self) -> str:
        t = self.totals
        lines = [
            f"{self.harm}: {self.rounds} rounds in {self.seconds:.0f} s; sent {t.sent} acknowledged {t.acknowledged} "
            f"cancelled {t.cancelled} moved {t.moved} delivered {t.delivered} duplicates {t.duplicates}",
            f"missing {t.missing} early {t.early} cancelled but delivered {t.uncancelled} "
            f"stored twice {t.stored_twice} unseen {t.unseen} wrong due {t.wrong_due} invented {t.invented}",
            f"errors seen by callers {sum(self.errors.values())}; "
            f"lateness ms p50 {self.lateness_p50_ms:.0f} p99 {self.lateness_p99_ms:.0f} (outages included)",
        ]
        for role, spreads in self.pauses.items():
            lines += [f"{role}: {what.replace('_', ' ')}: {it}" for what, it in spreads.items() if it.count + it.never]
        if self.rounds:
            lines.append(f"whole again: {self.whole}")
        lines += [f"ERROR {count} x {what}" for what, count in sorted(self.errors.items())]
        lines += [f"FAULT {what}" for what in self.faults[:10]]
        lines += [f"BROKEN {what}: {found}" for what, found in self.totals.broken.items()]
        return "\n".join(lines)


def result(harm: str, rounds: Sequence[Round], load: SdkLoad, seconds: float) -> Result:
    late = np.concatenate(load.late_ms) if load.late_ms else np.zeros(1)
    spreads: dict[str, dict[str, Spread]] = {}
    for role in ("master", "slave"):
        pauses = [one for round_ in rounds for one in round_.pauses if one.role == role]
        spreads[role] = {
            what: Spread.of([getattr(one, what) for one in pauses])
            for what in ("enqueue_gap", "delivery_gap", "served", "first_stored", "first_delivery")
        }
    return Result(
        harm, len(rounds), round(seconds, 1), load.ledger.totals(), dict(load.errors), load.faults,
        float(np.percentile(late, 50)), float(np.percentile(late, 99)), spreads,
        Spread.of([one.whole for one in rounds]),
    )  # fmt: skip
