"""Asks one node for the load to come on the shards that it serves: GetWheel, in as many answers as it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
from delayapi.node_client import NodeClient, token_client
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayclient.errors import DelayError, from_rpc

from delayrebalance.model import I64

WIDEST_SLOT_MS = HOUR_MS  # of a wheel: a slot that begins so much earlier can still reach into a range
LAST_MS = 1 << 53  # later than any horizon


class NodeUnanswered(Exception):
    """A node did not answer; says which, where, and how."""


@dataclass(frozen=True, slots=True)
class ShardSlots:
    """One shard's slots, k of them, ascending, as one answer has them."""

    shard: str
    node: str
    epoch: int
    pending: int
    pending_bytes: int
    taken_at_ms: int  # by the node's clock
    slot_start: I64  # [k] ms
    slot_ms: I64  # [k] how long each is
    messages: I64  # [k]
    bytes: I64  # [k] the node's estimate


@dataclass(frozen=True, slots=True)
class TokenAccess:
    """To the nodes of a cluster, by TLS. roots: PEM of who issues their certificates; empty: the public CAs. They are
    for server_name. token_file: read at each call, since tokens are written anew before they expire."""

    server_name: str
    roots: str
    token_file: str

    def token(self) -> str:
        """Raises OSError."""
        return Path(self.token_file).read_text(encoding="ascii").strip()


def read_wheel(
    endpoint: str,
    from_ms: int = 0,
    to_ms: int = LAST_MS,
    timeout_s: float = 30.0,
    access: TokenAccess | None = None,
) -> Iterator[ShardSlots]:
    """The slots that begin in [from_ms, to_ms), shard by shard. A range too large for an answer is asked for in parts.
    access: None: without TLS.

    The parts are not of one moment: what is due stays within its slot, so none is counted twice for that.
    Raises NodeUnanswered.
    """
    with _client(endpoint, access) as node:
        ranges = [(max(0, from_ms), min(to_ms, LAST_MS))]
        while ranges:
            low, high = ranges.pop()
            if low >= high:
                continue
            request = pb.GetWheelRequest(from_ms=low, to_ms=0 if high == LAST_MS else high)
            try:
                answer = node.get_wheel(request, timeout=timeout_s)
            except grpc.RpcError as error:
                problem = from_rpc(error)
                middle = _middle(low, high, int(time.time() * 1000))
                if problem.reason == "ANSWER_TOO_LARGE" and middle is not None:
                    ranges += [(middle, high), (low, middle)]
                    continue
                raise NodeUnanswered(_sentence(endpoint, problem, timeout_s)) from None
            yield from (_within(shard, answer.now_ms, low, high) for shard in answer.shards)


def resampled(shard: ShardSlots, slot_ms: int, from_ms: int = 0, to_ms: int = LAST_MS) -> ShardSlots:
    """The same load in slots of `slot_ms`, on its multiples; those that begin in [from_ms, to_ms).

    A wider slot's messages are spread evenly over it, in whole messages: their sum stays.
    """
    first, last = shard.slot_start // slot_ms, (shard.slot_start + shard.slot_ms - 1) // slot_ms
    parts = last - first + 1
    source = np.repeat(np.arange(len(first)), parts)
    number = first[source] + np.arange(len(source)) - np.repeat(np.cumsum(parts) - parts, parts)
    start, width = shard.slot_start[source], shard.slot_ms[source]
    begin = np.clip(number * slot_ms - start, 0, width)
    end = np.clip((number + 1) * slot_ms - start, 0, width)
    numbers, at = np.unique(number, return_inverse=True)
    kept = (numbers * slot_ms >= from_ms) & (numbers * slot_ms < to_ms)

    def spread(column: I64) -> I64:
        each = column[source]
        total = np.zeros(len(numbers), np.int64)
        np.add.at(total, at, each * end // width - each * begin // width)
        return total[kept]

    return replace(
        shard,
        slot_start=numbers[kept] * slot_ms,
        slot_ms=np.full(int(kept.sum()), slot_ms, np.int64),
        messages=spread(shard.messages),
        bytes=spread(shard.bytes),
    )


def silent(endpoints: Sequence[str], timeout_s: float, access: TokenAccess | None = None) -> dict[str, str]:
    """The nodes that do not answer within the time, and why. All are asked at once, for a range that holds next to
    nothing."""

    def asked(endpoint: str) -> str | None:
        try:
            for _ in read_wheel(endpoint, 1, 2, timeout_s, access):
                pass
        except NodeUnanswered as error:
            return str(error)
        return None

    if not endpoints:
        return {}
    with ThreadPoolExecutor(min(32, len(endpoints))) as pool:
        answers = dict(zip(endpoints, pool.map(asked, endpoints), strict=True))
    return {endpoint: why for endpoint, why in answers.items() if why is not None}


def _client(endpoint: str, access: TokenAccess | None) -> NodeClient:
    if access is None:
        return NodeClient(endpoint)
    return token_client(endpoint, access.server_name, access.roots, access.token)


def _middle(low: int, high: int, now_ms: int) -> int | None:
    """Where to cut a range, on a minute; None for one that can't be cut. Nearly all of a wheel is after now, most of it
    soon."""
    if low < now_ms < high:
        middle = now_ms
    elif high == LAST_MS:
        middle = low + max(DAY_MS, low - now_ms)
    else:
        middle = (low + high) // 2
    middle = middle // MINUTE_MS * MINUTE_MS
    return middle if low < middle < high else None


def _within(shard: pb.ShardWheel, now_ms: int, low: int, high: int) -> ShardSlots:
    start = np.frombuffer(shard.slot_start, "<i8")
    kept = (start >= low) & (start < high)  # a slot that began before reaches into the range: it is the earlier one's
    columns = (np.frombuffer(it, "<i8")[kept] for it in (shard.slot_width, shard.messages, shard.bytes))
    return ShardSlots(
        f"{shard.topic}-{shard.queue}", shard.node, shard.epoch, shard.pending, shard.pending_bytes, now_ms,
        start[kept], *columns,
    )  # fmt: skip


def _sentence(endpoint: str, problem: DelayError, timeout_s: float) -> str:
    if problem.code == "DEADLINE_EXCEEDED":
        return f"the node at {endpoint} gave no answer to GetWheel within {timeout_s:g} s"
    return f"the node at {endpoint} did not answer GetWheel: {problem.reason or problem.code}: {problem}"
