"""A delaynode with tiny segments and hasty maintenance: `python -m tests.faults.eager_node`, with delaynode's own
options.

A node's maintenance of days happens here within seconds: segments of 64 KiB close, lose most of their messages, are
emptied and freed. Everything else is the real node. It logs each emptying as `emptied`, with the RELOCATEs written.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType

from delaynode import config as configuration
from delaynode import main
from delaynode.node import node, settings
from delaynode.replica.hosts.host import NodeResources
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.store.config import ShardConfig
from delaynode.store.maintenance import evacuation
from delaynode.store.maintenance.evacuation import EvacuationJob
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.shard import Shard

SEGMENT_BYTES = 64 << 10


def replace_in(module: ModuleType, name: str, value: object) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name} any more"
    setattr(module, name, value)


def eager() -> None:
    """Replace the sizes and times of this process; call it before the node is made."""
    sizes = partial(ShardConfig, timer_segment_bytes=SEGMENT_BYTES, queue_segment_bytes=SEGMENT_BYTES)
    keep = partial(KeepConfig, keep_log_bytes=256 << 10, keep_log_ms=1_000, relocate_after_ms=0, relocate_share=0.75)
    replace_in(settings, "ShardConfig", sizes)
    replace_in(settings, "KeepConfig", keep)
    hasty = Intervals(checkpoint=1.0, busy_checkpoint=1.0, free=0.3, trim=0.3, empty_again=1.0)
    replace_in(node, "NodeResources", partial(NodeResources, intervals=hasty))
    relocate = evacuation.relocate

    def logged(shard: Shard, job: EvacuationJob, now_ms: int) -> int:
        frames = relocate(shard, job, now_ms)
        letters = sum(int((rows["due"] == 0).sum()) for rows, _ in job.batches)
        event = {"time_ms": now_ms, "event": "emptied", "relocates": frames, "letters": letters}
        print(json.dumps(event), file=sys.stderr, flush=True)
        return frames

    replace_in(evacuation, "relocate", logged)
    parse = configuration.parse
    replace_in(configuration, "parse", lambda argv=None: replace(parse(argv), log_segment_bytes=SEGMENT_BYTES))


if __name__ == "__main__":
    eager()
    main.main()
