"""One wrong frame whose crc32 is right: a bit that flipped in a master's memory after its effect, before the crc.

No check can tell such a frame from a right one by itself, and every copy has it. docs/containment.md claims that it is
refused by name, or that it changes the fate of the messages that it names and of no others.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.frames import Frame, FrameKind
from delaynode.store.maintenance import persist
from delaynode.store.types import Buffer

from tests.store.support.consuming import World
from tests.store.support.walks import times
from tests.store.support.world import ROOT
from tests.store.test_store_containment import EFFECTS, flush, ready_for
from tests.store.test_store_damage import use

FLIPS = times(60)  # of each kind
Fate = dict[int, tuple[object, ...]]


def with_a_flip(kind: FrameKind, bit: int | None) -> tuple[World, int, int]:
    """A copy with a frame of that kind behind its checkpoint, one bit of its payload flipped; the frame's messages and
    the bits of its payload.
    """
    operation, _, _ = EFFECTS[kind]
    world = ready_for(operation)
    propose, seen = CommitLog.propose, [0, 0]

    def flipped(
        log: CommitLog, of: FrameKind, epoch: int, count: int, first_seq: int, wall_ms: int,
        payload: tuple[Buffer, ...], flags: int = 0,
    ) -> Frame:  # fmt: skip
        if of is kind:
            data = bytearray(b"".join(payload))
            seen[:] = count, 8 * len(data)
            if bit is not None:
                data[bit // 8] ^= 1 << bit % 8
            payload = (bytes(data),)
        return propose(log, of, epoch, count, first_seq, wall_ms, payload, flags)

    if kind is FrameKind.EPOCH:
        persist.accept_epoch(world.disk, ROOT, world.shard, world.shard.epoch + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "propose", flipped)
        operation(world)
    flush(world)
    world.disk.kill()
    return world, seen[0], seen[1]


def fate(world: World) -> Fate:
    """The fate of each message, by seq: its due and its body. Raises Damaged, Refused."""
    shard, _ = persist.recover(world.disk, ROOT, world.config)
    kept = shard.queue.start
    use(shard, world.disk, world.now)
    rows = shard.queue.read(kept, shard.queue.visible)
    bodies = shard.read_records(rows)
    return {
        int(row["seq"]): (int(row["due"]), bytes(body)) for row, body in zip(rows, split(bodies, rows), strict=True)
    }


def split(bodies: object, rows: np.ndarray) -> list[bytes]:  # type: ignore[type-arg]
    data, ends = b"".join(bodies), np.cumsum(rows["size"]).tolist()  # type: ignore[call-overload]
    return [data[end - size : end] for end, size in zip(ends, rows["size"].tolist(), strict=True)]


@pytest.mark.parametrize("kind", FrameKind, ids=lambda kind: kind.name)
def test_a_wrong_frame_is_refused_or_changes_only_what_it_names(kind: FrameKind) -> None:
    sound, count, bits = with_a_flip(kind, None)
    expected = fate(sound)
    rng, refused, changed = random.Random(kind.name), 0, 0
    most = {
        FrameKind.APPEND: count,
        FrameKind.APPEND_RUNS: count,
        FrameKind.APPEND_IDS: count,
        FrameKind.FIRE: count,
        FrameKind.FIRE_AGAIN: count,
        FrameKind.CANCEL: 2 * count,
        FrameKind.RESCHEDULE: 2 * count,
        FrameKind.RELOCATE: count,
    }.get(kind, 0)
    for bit in sorted(rng.sample(range(bits), min(FLIPS, bits))):
        world, _, _ = with_a_flip(kind, bit)
        try:
            found = fate(world)
        except (Damaged, Refused):
            refused += 1
            continue
        seqs = found.keys() & expected.keys() if kind is FrameKind.TRIM else found.keys() | expected.keys()
        differ = {seq for seq in seqs if found.get(seq) != expected.get(seq)}
        assert len(differ) <= most, f"bit {bit}: {sorted(differ)[:5]}"
        changed += bool(differ)
    print(f"{kind.name}: of {min(FLIPS, bits)} flips {refused} refused, {changed} changed at most {most} messages")
