"""Random walks through a World: what may happen next, drawn from any source of integers.

The same walk runs under hypothesis (which shrinks it) and under plain seeds (which are twenty times as fast).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS

from tests.store.support.consuming import World, tag_of
from tests.store.support.model import Key
from tests.store.support.producing import Item

DELAYS = (
    -5000, -1, 0, 1, 1, 2, 5, 5, 5, 40, 999, 1000, 1000, 30_000, MINUTE_MS - 1, MINUTE_MS, MINUTE_MS + 1, 5 * MINUTE_MS,
    HOUR_MS, 3 * HOUR_MS, 23 * HOUR_MS, 24 * HOUR_MS + 5, 25 * HOUR_MS, 26 * HOUR_MS, 47 * HOUR_MS, 49 * HOUR_MS,
    3 * DAY_MS, 39 * DAY_MS, 40 * DAY_MS, 40 * DAY_MS + 1,
)  # fmt: skip
LEAPS = (
    1, 1, 5, 40, 40, 999, 1000, 1000, 30_000, MINUTE_MS, MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, HOUR_MS, 6 * HOUR_MS,
    24 * HOUR_MS,
)  # fmt: skip
LONG_LEAPS = (24 * HOUR_MS, 50 * HOUR_MS, 3 * DAY_MS, 8 * DAY_MS, 45 * DAY_MS)
GROUPS = ("a", "b", "c")
FILTERS: tuple[tuple[str, ...], ...] = ((), ("red",), ("blue", "red"))


Draw = Callable[[int, int], int]
"""draw(low, high): an integer in [low, high]."""


def pick_key(world: World, draw: Draw) -> Key:
    """The handle of some message: live, gone, or made up."""
    live, gone = sorted(world.model.live), sorted(world.model.gone)
    choice = draw(0, 9)
    if live and choice < 6:
        return live[draw(0, len(live) - 1)]
    if gone and choice < 9:
        return gone[draw(0, len(gone) - 1)]
    return (world.now + draw(-(10**6), 10**9), draw(-1, world.model.next_seq + 2))


def pick_due(world: World, draw: Draw) -> int:
    """A delay; often the due of another live message, to the millisecond."""
    live = sorted(world.model.live)
    if live and draw(0, 3) == 0:
        return live[draw(0, len(live) - 1)][0] - world.now
    return DELAYS[draw(0, len(DELAYS) - 1)]


def item(world: World, draw: Draw) -> Item:
    tags = (0, tag_of("red"), tag_of("blue"))
    return Item(pick_due(world, draw), bool(draw(0, 1)), draw(1, 60), tags[draw(0, 2)])


def enqueue(world: World, draw: Draw) -> None:
    producer, number = 0, 0
    if draw(0, 2) == 0:
        producer = draw(1, 2)
        known = world.model.producers.get(producer)
        last = known.answers[-1].number if known else -1
        number = max(0, last + 1 + (0, 0, 0, 0, -1, -1, -3, -16, -17, 1)[draw(0, 9)])
    count = (1, 1, 2, 3, 12)[draw(0, 4)]
    if draw(0, 5) == 0:  # many messages with one due
        one = item(world, draw)
        world.enqueue([one] * count, producer, number)
    else:
        world.enqueue([item(world, draw) for _ in range(count)], producer, number)


def message_id(number: int) -> bytes:
    """Ids that differ in their first or in their last byte alone, and one of zeros."""
    return (bytes([number]) + bytes(15), bytes(15) + bytes([number]))[number % 2]


def enqueue_ids(world: World, draw: Draw) -> None:
    count = (1, 1, 2, 3, 12)[draw(0, 4)]
    world.enqueue_ids([item(world, draw) for _ in range(count)], [message_id(draw(0, 40)) for _ in range(count)])


def lookup(world: World, draw: Draw) -> None:
    keys = [pick_key(world, draw) for _ in range(draw(1, 4))]
    if draw(0, 3) == 0:
        keys.append(keys[0])
    world.begin_lookup(keys)
    world.finish_if_found()


def cancel_some(world: World, draw: Draw) -> None:
    world.cancel(*[pick_key(world, draw) for _ in range(draw(1, 4))])


def reschedule_one(world: World, draw: Draw) -> None:
    world.reschedule(pick_key(world, draw), item(world, draw))


def there_and_back(world: World, draw: Draw) -> None:
    """Move a message from its due D1 to D2, and back to D1."""
    key = pick_key(world, draw)
    moved = item(world, draw)
    if key in world.model.live:
        world.reschedule(key, moved)
        there = (world.now + moved.time, key[1])
        if there in world.model.live:
            world.reschedule(there, Item(key[0] - world.now))


def scan(world: World, draw: Draw) -> None:
    live = sorted(world.model.live) or [(world.now, 0)]
    low, high = live[draw(0, len(live) - 1)], live[draw(0, len(live) - 1)]
    low, high = min(low, high), max(low, high)
    if draw(0, 1):
        low = (low[0] - 1000, 0)
    world.begin_scan(low, (high[0] + draw(0, 90_000), 0), (None, 1, 5)[draw(0, 2)])


def advance(world: World, draw: Draw) -> None:
    """Advance the clock: mostly by a little, at most by more than a shard's horizon, as when it was down."""
    horizon = world.config.horizon_ms
    leaps = LEAPS if draw(0, 15) else tuple(leap for leap in LONG_LEAPS if leap <= 4 * horizon)
    world.advance(leaps[draw(0, len(leaps) - 1)])


def live_a_while(world: World, draw: Draw) -> None:
    world.advance((1, 10, 1000, MINUTE_MS)[draw(0, 3)])
    world.settle()


def half_an_hour_down(world: World, draw: Draw) -> None:
    """Send messages due within one hour, or in one millisecond, and cascade some of them to the minute level."""
    ahead = (23 * HOUR_MS, 24 * HOUR_MS + 5, 25 * HOUR_MS)[draw(0, 2)]
    spread = (0, 1, 1000, MINUTE_MS)[draw(0, 3)]
    for _ in range(draw(1, 3)):
        world.enqueue([Item(ahead + k * spread) for k in range(draw(1, 9))])
        world.checkpoint()
    world.advance((HOUR_MS, 2 * HOUR_MS)[draw(0, 1)])
    pieces = draw(0, 4)
    for _ in range(30):
        world.begin_cascade()
        pieces -= world.cascading is not None
        world.run_cascade()
        if pieces < 0:
            return
        world.finish_cascade()


def deliver(world: World, draw: Draw) -> None:
    world.deliver(GROUPS[draw(0, 2)], draw(1, 6), (1 << 30, 50)[draw(0, 5) == 0], (1, 1000, 60_000)[draw(0, 2)])


def some_offset(world: World, draw: Draw, group: str) -> int:
    known = world.model.groups.get(group)
    at_work = sorted({*known.open, *known.redriven}) if known else []
    if at_work and draw(0, 3):
        return at_work[draw(0, len(at_work) - 1)]
    return draw(-1, world.visible + 1)


def ack(world: World, draw: Draw) -> None:
    group = GROUPS[draw(0, 2)]
    if draw(0, 5) == 0:
        end = draw(0, world.visible)
        return world.ack(group, [(0, end)] if end else [])
    low = [some_offset(world, draw, group) for _ in range(draw(1, 3))]
    return world.ack(group, [(o, o + draw(1, 2)) for o in low])


def some_attempts(world: World, draw: Draw, group: str) -> list[tuple[int, int]]:
    """(offset, attempt) rows, most of them of attempts that are not over."""
    known = world.model.groups.get(group)
    rows = []
    for _ in range(draw(1, 3)):
        offset = some_offset(world, draw, group)
        attempt = world._state(known, offset).attempt if known and draw(0, 4) else draw(0, 3)
        rows.append((offset, attempt))
    return rows


def ack_attempts(world: World, draw: Draw) -> None:
    group = GROUPS[draw(0, 2)]
    world.ack_attempts(group, some_attempts(world, draw, group))


def nack(world: World, draw: Draw) -> None:
    group = GROUPS[draw(0, 2)]
    reason = ("", "status 503", "keine Antwort \N{EM DASH} " * 9)[world.now % 3]
    rows, backoff_ms = some_attempts(world, draw, group), (0, -1, 1, 5000)[draw(0, 3)]
    world.nack(group, rows, backoff_ms, dead=draw(0, 5) == 0, reason=reason)


def extend(world: World, draw: Draw) -> None:
    group = GROUPS[draw(0, 2)]
    world.extend(group, some_attempts(world, draw, group), (0, 1, 1000, 60_000)[draw(0, 3)])


def resolve(world: World, draw: Draw) -> None:
    group = GROUPS[draw(0, 2)]
    known = world.model.groups.get(group)
    dead = sorted(known.dead) if known else []
    offsets = [dead[draw(0, len(dead) - 1)], draw(0, 20)] if dead and draw(0, 1) else None
    world.resolve(group, offsets, redrive=bool(draw(0, 2)))


def crash_soon(world: World, draw: Draw) -> None:
    world.disk.crash_after(draw(0, 12))


def disk_error(world: World, draw: Draw) -> None:
    operation = ("append", "sync", "replace")[draw(0, 2)]
    path = ("", "/log/", "/queue/", "/timerlog/")[draw(0, 3)]
    world.disk.fail_next(operation, (errno.ENOSPC, errno.EIO)[draw(0, 1)], path)


Step = Callable[[World, Draw], object]

MESSAGES: dict[str, tuple[int, Step]] = {
    "enqueue": (10, enqueue),
    "enqueue ids": (4, enqueue_ids),
    "advance": (5, advance),
    "step back": (1, lambda w, d: w.advance(-d(1, 2000))),
    "tick": (5, lambda w, d: w.tick()),
    "live a while": (4, live_a_while),
    "lookup": (3, lookup),
    "run lookup": (3, lambda w, d: w.run_lookup(d(0, 3))),
    "finish cancel": (2, lambda w, d: w.finish_cancel(d(0, 3))),
    "finish reschedule": (2, lambda w, d: w.finish_reschedule([item(w, d), item(w, d)], d(0, 3))),
    "cancel": (2, cancel_some),
    "reschedule": (2, reschedule_one),
    "there and back": (1, there_and_back),
    "scan": (1, scan),
    "run scan": (1, lambda w, d: w.run_scan(d(0, 3))),
    "finish scan": (1, lambda w, d: w.finish_scan(d(0, 3))),
}
JOBS: dict[str, tuple[int, Step]] = {
    "begin write": (3, lambda w, d: w.begin_write()),
    "run write": (3, lambda w, d: w.run_write()),
    "finish write": (3, lambda w, d: w.finish_write()),
    "commit": (3, lambda w, d: w.commit(d(0, 2))),
    "pump": (3, lambda w, d: w.pump()),
    "begin load": (3, lambda w, d: w.begin_load()),
    "run load": (3, lambda w, d: w.run_load()),
    "finish load": (3, lambda w, d: w.finish_load()),
    "half an hour down": (3, half_an_hour_down),
    "begin cascade": (3, lambda w, d: w.begin_cascade()),
    "run cascade": (3, lambda w, d: w.run_cascade()),
    "finish cascade": (3, lambda w, d: w.finish_cascade()),
    "begin checkpoint": (2, lambda w, d: w.begin_checkpoint()),
    "run checkpoint": (2, lambda w, d: w.run_checkpoint()),
    "finish checkpoint": (2, lambda w, d: w.finish_checkpoint()),
    "checkpoint": (1, lambda w, d: w.checkpoint()),
    "copy wheels": (1, lambda w, d: w.copy_wheels()),
    "check wheel": (1, lambda w, d: w.check_wheel()),
}
TIDYING: dict[str, tuple[int, Step]] = {
    "trim": (3, lambda w, d: w.trim()),
    "begin empty": (2, lambda w, d: w.begin_empty(d(0, 9))),
    "run empty": (2, lambda w, d: w.run_empty()),
    "finish empty": (2, lambda w, d: w.finish_empty()),
    "empty all": (1, lambda w, d: w.empty_all()),
    "begin clean": (2, lambda w, d: w.begin_clean()),
    "run clean": (2, lambda w, d: w.run_clean()),
    "finish clean": (2, lambda w, d: w.finish_clean()),
    "clean": (1, lambda w, d: w.clean()),
    "check ledger": (1, lambda w, d: w.check_ledger()),
}
CONSUMERS: dict[str, tuple[int, Step]] = {
    "join": (2, lambda w, d: w.join(GROUPS[d(0, 2)], FILTERS[d(0, 2)], from_end=d(0, 3) == 0)),
    "deliver": (4, deliver),
    "ack": (3, ack),
    "ack attempts": (2, ack_attempts),
    "nack": (3, nack),
    "extend": (2, extend),
    "expire": (2, lambda w, d: w.expire()),
    "resolve": (2, resolve),
    "expire dead": (1, lambda w, d: w.expire_dead()),
    "delete group": (1, lambda w, d: w.delete_group(GROUPS[d(0, 2)]) if d(0, 4) == 0 else None),
    "check groups": (1, lambda w, d: w.check_groups()),
}
SCHEDULE_IDS = ("a", "b", "c", "d", "e", "\u00fc" * 9)


def put_schedule(world: World, draw: Draw) -> None:
    interval = (1, 7, 1000, 1001, MINUTE_MS, HOUR_MS)[draw(0, 5)]
    world.put_schedule(SCHEDULE_IDS[draw(0, 5)], interval, paused=draw(0, 4) == 0)


def fire_due(world: World, draw: Draw) -> None:
    what = [("fire", "fire", "fire", "skip", "miss")[draw(0, 4)] for _ in range(3)]
    world.fire_due(what, (1, 2, 100)[draw(0, 2)], (0, 0, 1, 3, 30)[draw(0, 4)])


def fire_by_hand(world: World, draw: Draw) -> None:
    what = ("trigger", "backfill")[draw(0, 1)]
    world.fire_by_hand(SCHEDULE_IDS[draw(0, 5)], what, world.now - draw(0, HOUR_MS))


SCHEDULES: dict[str, tuple[int, Step]] = {
    "put schedule": (4, put_schedule),
    "fire": (6, fire_due),
    "fire by hand": (1, fire_by_hand),
    "delete schedule": (1, lambda w, d: w.delete_schedule(SCHEDULE_IDS[d(0, 5)])),
}
TROUBLE: dict[str, tuple[int, Step]] = {
    "power cut": (1, lambda w, d: w.power_cut()),
    "kill": (1, lambda w, d: w.kill()),
    "stop": (1, lambda w, d: w.stop()),
    "crash soon": (2, crash_soon),
    "disk error": (1, disk_error),
}


def finale(world: World) -> None:
    """All that was accepted and not cancelled comes out, once, in order; then all groups are drained."""
    world.disk.kill()  # no more trouble
    world.settle()
    world.check_wheel()
    while world.model.live:
        due = min(world.model.live)[0]
        world.now = max(world.now, due)
        world.settle()
    world.checkpoint()
    world.clean()
    world.empty_all()
    world.power_cut()
    world.check_ledger()
    released = [(q.due, q.seq) for q in world.model.queue]
    assert len(set(released)) == len(released), "released twice"
    for name in world.model.groups:
        world.expire()
        world.drain(name)
    world.check_groups()
