"""The disk sizes of docs/operations.md: its examples by its own formula, and the formula by the store's constants."""

from __future__ import annotations

import re

from delaynode.store.config import ShardConfig
from delayoperator.crds.cluster import DelayClusterSpec

from scripts.names import ROOT

GIB = 1 << 30
SECTION = (ROOT / "docs/operations.md").read_text().split("\n## What a node needs\n")[1].split("\n## ")[0]


def gib(messages: float, size: int, replicas: int, nodes: int, busy: int = 0, quiet: int = 0) -> float:
    """The formula, as the page has it."""
    (slack, each), (loud, calm), (rest,) = (
        [float(it) for it in re.search(pattern, SECTION).groups()]  # type: ignore[union-attr]
        for pattern in (
            r"\n +([\d.]+) x messages x \(bytes \+ (\d+)\) x part\n",
            r"busy queues  x ([\d.]+) GiB +x part\n  \+ quiet queues x ([\d.]+) GiB +x part",
            r"\n  \+ ([\d.]+) GiB\n```",
        )
    )
    part = min(1.0, replicas / (nodes - 1))
    return (slack * messages * (size + each) / GIB + busy * loud + quiet * calm) * part + rest


def test_the_examples_are_right_and_the_default_is_for_quiet_queues() -> None:
    spec = DelayClusterSpec.model_validate({})
    assert (spec.storage.size, spec.replicas, spec.nodes) == ("10Gi", 2, 3)
    assert "8 busy queues take 10 GiB" in SECTION
    assert gib(0, 0, 2, 3, busy=8) > 10
    assert "4 million messages of 1 kB" in SECTION
    assert gib(4e6, 1_000, 2, 3, quiet=8) < 10 < gib(5e6, 1_000, 2, 3, quiet=8)
    assert "Fifty million" in SECTION
    assert round(gib(50e6, 1_000, 3, 5, quiet=32) + 0.5) == 66
    assert "take 66 GiB on each" in SECTION


def test_a_copy_gets_what_the_store_keeps_of_a_busy_and_of_a_quiet_queue() -> None:
    config = ShardConfig()
    dead = config.log_segment_bytes // 8
    quiet = 2 * config.timer_segment_bytes + config.log_segment_bytes + config.queue_segment_bytes + dead
    assert quiet <= gib(0, 0, 2, 3, quiet=1) * GIB - 0.5 * GIB
    assert quiet + config.keep.keep_log_bytes <= gib(0, 0, 2, 3, busy=1) * GIB - 0.5 * GIB
