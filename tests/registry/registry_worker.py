"""A process of its own for the registry's tests: `python registry_worker.py PATH COMMAND [ARG...]`.

Prints one line per event, flushed; what each command does is said beside it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from delayregistry.model import NodeLease, ShardStatus
from delayregistry.port import Conflict, OutcomeUnknown, RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry


def say(*words: object) -> None:
    print(*words, flush=True)


def race(registry: SqliteRegistry, name: str, rounds: int) -> None:
    """Bumps the shard's epoch by compare-and-swap; says each epoch that it won."""
    for _ in range(rounds):
        while True:
            shard = registry.get_shard(name)
            assert shard is not None
            try:
                registry.write_spec(name, replace(shard.spec, epoch=shard.spec.epoch + 1), shard.version)
            except (Conflict, OutcomeUnknown):
                continue
            say("won", shard.spec.epoch + 1)
            break


def hold(registry: SqliteRegistry) -> None:
    """Sits inside a write transaction, having changed something, until killed."""
    with registry._writes.transaction() as db:
        db.execute("UPDATE meta SET version = version + 1000")
        say("holding")
        time.sleep(600)


def write_for_ever(registry: SqliteRegistry, name: str) -> None:
    """Says each status's serving epoch once its write was answered."""
    epoch = 0
    while True:
        shard = registry.get_shard(name)
        assert shard is not None
        epoch = (shard.status.serving_epoch if shard.status else 0) + 1
        registry.write_status(name, ShardStatus(epoch, "worker", ("copy",)), shard.version)
        say("written", epoch)


def renew(registry: SqliteRegistry, node: str) -> None:
    """Renews a lease every 20 ms, for ever."""
    lease = NodeLease(node, "worker", "e", "h")
    while True:
        lease = replace(lease, renewals=lease.renewals + 1)
        try:
            registry.renew_lease(lease)
        except RegistryUnavailable:
            say("unavailable")
        time.sleep(0.02)


def main() -> None:
    path, command, *args = sys.argv[1:]
    say("up")
    sys.stdin.readline()
    registry = SqliteRegistry(Path(path), create=command == "create")
    match command:
        case "create":
            say(registry.version())
        case "race":
            race(registry, args[0], int(args[1]))
        case "hold":
            hold(registry)
        case "write":
            write_for_ever(registry, args[0])
        case "renew":
            renew(registry, args[0])


main()
