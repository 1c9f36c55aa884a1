"""What an operator should know of a node that keeps no traffic away: its clock, its disk, its stopped copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delaynode.clock import MAX_CLOCK_SKEW_MS
from delaynode.metrics import NodeState

if TYPE_CHECKING:
    from delaynode.node.node import Node

SLOW_SECONDS = 10.0  # of a write: longer than a disk ever takes that is well


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """kind: a word for it, and the event that says so in the log; logged: False where it is said where it is found.
    text: with names and with the figures of the moment."""

    kind: str
    text: str
    logged: bool = True


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why a node should get no traffic: a word for it, and a text with names."""

    word: str
    text: str


def clock_behind_ms(node: Node) -> int:
    """How far the clock is behind what was released; 0 when it is not."""
    latest = max((host.shard.index.watermark.due for host in node.hosts()), default=0)
    return max(0, latest - node.clock.now_ms())


def state(node: Node) -> NodeState:
    """In figures."""
    behind = clock_behind_ms(node)
    free, reserve = node.disk.poll()
    oldest = node.oldest_write_seconds()
    orphans, orphan_bytes = node.orphans()
    return NodeState(
        node.clock.disbelieved_ms, behind, node.clock_differs_ms, free, reserve, len(node.unusable()), oldest, orphans,
        orphan_bytes, bool(node.security.document.problem), node.certificates.figures(),
    )  # fmt: skip


def conditions(node: Node) -> list[NodeCondition]:
    """Empty when all is well."""
    now = state(node)
    found = []
    if ahead := now.clock_disbelieved_ms:
        text = f"{ahead / 1000:.1f} s ahead of what is believed; correct it, or accept it with delayctl nodes"
        found.append(NodeCondition("clock-disbelieved", f"clock: {text}"))
    if node.skew is not None:
        text = f"{node.skew}; nothing is released by it and no master is chosen here until they agree"
        found.append(NodeCondition("clock-differs", f"clock: {text}"))
    if (behind := now.clock_behind_ms) > MAX_CLOCK_SKEW_MS:
        text = f"{behind / 1000:.1f} s behind what was released; releases pause until it has caught up"
        found.append(NodeCondition("clock-behind", f"clock: {text}"))
    if now.disk_free_bytes < now.disk_reserve_bytes:
        free, reserve = now.disk_free_bytes >> 20, now.disk_reserve_bytes >> 20
        text = f"{free:,} MiB free, {reserve:,} MiB are kept for what is stored already; new messages are refused"
        found.append(NodeCondition("disk-nearly-full", f"disk: {text}"))
    if now.oldest_write_seconds > SLOW_SECONDS:
        found.append(NodeCondition("disk-slow", f"disk: a write takes {now.oldest_write_seconds:.0f} s already"))
    if problem := node.security.document.problem:
        text = f"{problem}; the document before stays in force"
        found.append(NodeCondition("security-document-bad", f"security: {text}"))
    found += (
        NodeCondition(
            "certificate-unusable",
            f"certificate unusable: {use}: {why}; what was good before is used as long as it is valid",
            logged=False,
        )
        for use, why in node.certificates.problems().items()
    )
    found += (
        NodeCondition("shard-stopped", f"shard {name} has stopped: {why}") for name, why in node.unusable().items()
    )
    return found


class ConditionLog:
    """Logs a condition once, when it begins, and its kind with `-over` when it ends."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._last: frozenset[str] = frozenset()

    def update(self, found: list[NodeCondition]) -> None:
        text = {condition.kind: condition.text for condition in found if condition.logged}
        for kind in sorted(text.keys() - self._last):
            self._log(kind, text=text[kind])
        for kind in sorted(self._last - text.keys()):
            self._log(f"{kind}-over")
        self._last = frozenset(text)
