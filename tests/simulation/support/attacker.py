"""An attacker between the nodes: hears each heartbeat, and sends what it likes in anybody's name, past every cut.

It has no key. What it does with a datagram is drawn: sent again, soon and much later; held back, so that it comes late
and out of order; sent back, or to another node; altered; and answered in the name of whoever was asked, with leases for
all that was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from delaynode.replication.heartbeat_guard import _HEAD, MAC_BYTES, MAGIC
from delaynode.replication.protocol import Heartbeat, HeartbeatReply, decode_heartbeat, encode_heartbeat

from tests.simulation.support.machine.loop import MILLI
from tests.simulation.support.stage import Run

Said = Heartbeat | HeartbeatReply


def is_sealed(data: bytes) -> bool:
    return data[:4] == MAGIC.to_bytes(4, "little")


def said(data: bytes) -> Said:
    """What a datagram says: heartbeats are not encrypted."""
    return decode_heartbeat(data[_HEAD.size : -MAC_BYTES] if is_sealed(data) else data)


def altered(data: bytes, message: Said) -> bytes:
    """The datagram with another message in it. Its seal is what it was, for want of the key."""
    if not is_sealed(data):
        return encode_heartbeat(message)
    return data[: _HEAD.size] + encode_heartbeat(message) + data[-MAC_BYTES:]


def granted(heartbeat: Heartbeat, node: str) -> HeartbeatReply:
    """What that node would answer if it granted everything."""
    rows = tuple((uid, epoch, True) for uid, epoch in heartbeat.shards)
    return HeartbeatReply(node, heartbeat.incarnation, heartbeat.heartbeat_id, heartbeat.wall_ms, 60_000, rows)


class Attacker:
    """Owns the network's tap from the start of the run."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self._world, self._rng = run.world, rng
        self.sent = 0
        self._world.network.tap = self._hears

    def _hears(self, source: str, target: str, data: bytes) -> bool:
        rng, message = self._rng, said(data)
        for does, chance in (
            (self._again, 0.3), (self._back, 0.1), (self._elsewhere, 0.1), (self._alters, 0.2), (self._answers, 0.5),
        ):  # fmt: skip
            if rng.random() < chance:
                does(source, target, data, message)
        held = not self._world.calm and rng.random() < 0.03
        if held:
            self._send(target, data, rng.randint(100, 5_000))
        return not held

    def _send(self, target: str, data: bytes, after_ms: int) -> None:
        self.sent += 1
        self._world.scheduler.after(after_ms * MILLI, self._world.network.inject, target, data)

    def _again(self, source: str, target: str, data: bytes, message: Said) -> None:
        for _ in range(self._rng.randint(1, 3)):
            self._send(target, data, self._rng.choice((0, 1, 30, 300, 3_000, 9_000)))

    def _back(self, source: str, target: str, data: bytes, message: Said) -> None:
        self._send(source, data, 1)

    def _elsewhere(self, source: str, target: str, data: bytes, message: Said) -> None:
        self._send(self._rng.choice(sorted(self._world.machines)), data, 1)

    def _alters(self, source: str, target: str, data: bytes, message: Said) -> None:
        changes: tuple[Callable[[], Said], ...] = (
            lambda: replace(message, heartbeat_id=message.heartbeat_id + self._rng.randint(1, 50)),
            lambda: replace(message, node=self._rng.choice(sorted(self._world.machines))),
            lambda: replace(message, shards=tuple((uid, epoch + 1, *rest) for uid, epoch, *rest in message.shards)),
        )
        self._send(target, altered(data, self._rng.choice(changes)()), 1)
        if isinstance(message, HeartbeatReply):
            yes = tuple((uid, epoch, True) for uid, epoch, _ in message.shards)
            self._send(target, altered(data, replace(message, shards=yes, lease_ms=60_000)), 1)

    def _answers(self, source: str, target: str, data: bytes, message: Said) -> None:
        if isinstance(message, Heartbeat):
            self._send(source, encode_heartbeat(granted(message, target)), 1)
            self._send(source, altered(data, granted(message, target)), 1)
