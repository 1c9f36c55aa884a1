"""How much is tried: hypothesis profile `ci` by default, more with DELAY_EXAMPLES (a factor, e.g. 20)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FACTOR = float(os.environ.get("DELAY_EXAMPLES", "1"))

settings.register_profile(
    "ci",
    max_examples=max(1, round(100 * FACTOR)),
    stateful_step_count=50,
    deadline=None,
    derandomize=FACTOR == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
)
