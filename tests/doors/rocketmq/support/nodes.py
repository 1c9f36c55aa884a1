"""The edges of the nodes that tests run."""

from __future__ import annotations

import os
from importlib.util import find_spec

EDGES = ["grpcio", *(["compiled"] if find_spec("delayedge") is not None else [])]
EVERYTHING = os.environ.get("DELAY_ROCKETMQ_TESTS") == "all"
TRIED_EDGES = EDGES if EVERYTHING else EDGES[-1:]
"""What most tests run on; the fuzz has each of them. DELAY_ROCKETMQ_TESTS=all for all tests on both, which takes six
minutes, with each official client where nodes are killed and where they ask who calls."""
