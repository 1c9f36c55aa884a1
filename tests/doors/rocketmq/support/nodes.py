"""The edges of the nodes that tests run."""

from __future__ import annotations

import os
from importlib.util import find_spec

EDGES = ["grpcio", *(["compiled"] if find_spec("delayedge") is not None else [])]
OFFICIAL_EDGES = EDGES if os.environ.get("DELAY_OFFICIAL_CLIENTS") == "all" else EDGES[-1:]
"""What official clients, which are slow to start, are tried on: DELAY_OFFICIAL_CLIENTS=all for both."""
