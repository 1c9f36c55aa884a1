"""A bit that rots in what a node serves: the call that meets it is told, and so is everyone after it, for good."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.units import DAY_MS
from delaylocal import LocalCluster

from tests.serve.support.client import Client, Failure, Msg, Sent, Shard, poll
from tests.serve.test_restart import restarted

BODY = b"the body of a message"


@pytest.fixture
def shard(own: LocalCluster) -> Iterator[Shard]:
    with Client(own.endpoints[0]) as client:
        yield Shard(client, "t", 0)


def flip(directory: Path, wanted: Callable[[bytes], int]) -> Path:
    """Flip a bit of the byte that is `wanted` in a file of this directory, as a disk would: nobody is told."""
    for path in sorted(directory.iterdir()):
        data = bytearray(path.read_bytes())
        at = wanted(bytes(data))
        if at >= 0:
            data[at] ^= 4
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data[at : at + 1])
            return path
    raise AssertionError(f"nothing to flip in {directory}")


Call = Callable[[Shard, Sent], object]
CALLS: dict[str, tuple[str, Call]] = {
    "fetch bodies": ("log", lambda shard, _: shard.fetch()),
    "receive bodies": ("log", lambda shard, _: shard.receive(max_messages=100)),
    "fetch queue units": ("queue", lambda shard, _: shard.fetch()),
    "receive queue units": ("queue", lambda shard, _: shard.receive()),
    "receive by tag": ("queue", lambda shard, _: shard.receive("tagged", tags=["red"])),
    "cancel": ("timerlog", lambda shard, far: shard.cancel(far)),
    "reschedule": ("timerlog", lambda shard, far: shard.reschedule(far, *far.due)),
    "list": ("timerlog", lambda shard, _: shard.pending()),
    "cancel by key": ("timerlog", lambda shard, _: shard.call("Cancel", key="k", from_ms=0, to_ms=2**62)),
}
PLACES: dict[str, Callable[[bytes], int]] = {
    "log": lambda data: data.rfind(BODY),
    "queue": lambda data: 40 * 20 - 1,
    "timerlog": lambda data: 52 * 5,
}


def lived(own: LocalCluster, shard: Shard) -> tuple[Path, Sent]:
    """Pending and released messages, all of them below a checkpoint; the shard's directory, and what is pending."""
    Shard(shard.client, "t", 1).send(Msg(b"well"))
    far = shard.send(*[Msg(BODY, delay_ms=3 * DAY_MS + n, key="k") for n in range(40)])
    shard.send(*[Msg(BODY, tag="red") for _ in range(40)])
    shard.receive_all(40, group="all", invisible_ms=60_000)
    restarted(own, signal.SIGTERM)
    return next(path.parent for path in own.data.rglob("shard.json") if json_of(path)["queue"] == 0), far


@pytest.mark.parametrize("call", CALLS)
def test_the_call_that_meets_it_is_told_and_so_is_every_call_after_it(
    call: str, own: LocalCluster, shard: Shard
) -> None:
    part, ask = CALLS[call]
    directory, far = lived(own, shard)
    path = flip(directory / part, PLACES[part])
    with pytest.raises(Failure) as failed:
        ask(shard, far)
    assert (failed.value.code, failed.value.reason) == (grpc.StatusCode.DATA_LOSS, "SHARD_DAMAGED"), failed.value
    assert str(path.parent) in failed.value.message
    for again in (shard.fetch, shard.wheel, lambda: shard.send(Msg())):
        with pytest.raises(Failure, match="SHARD_DAMAGED"):
            again()
    assert [one.body for one in Shard(shard.client, "t", 1).fetch()] == [b"well"]


def test_b5_a_copy_that_was_found_damaged_is_not_served_by_the_next_process(own: LocalCluster, shard: Shard) -> None:
    directory, _ = lived(own, shard)
    path = flip(directory / "log", PLACES["log"])
    with pytest.raises(Failure, match="SHARD_DAMAGED"):
        shard.fetch()
    poll("the mark is on disk", (directory / "damaged").exists)
    assert str(path.parent) in json_of(directory / "damaged")["reason"]
    own.kill("n0", signal.SIGKILL)
    other = Shard(shard.client, "t", 1)
    poll("the other shard is served", lambda: served(other), 30)
    with pytest.raises(Failure, match=r"SHARD_DAMAGED: .*has failed before.*delaynode verify"):
        shard.fetch()


def served(shard: Shard) -> bool:
    try:
        return [one.body for one in shard.fetch()] == [b"well"]
    except Failure:
        return False


def json_of(path: Path) -> dict[str, Any]:
    """Without shard.json's line of crc32."""
    content: dict[str, Any] = json.loads(path.read_text().partition("\ncrc32")[0])
    return content
