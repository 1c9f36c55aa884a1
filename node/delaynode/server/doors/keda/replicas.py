"""How many replicas of a worker a load to come needs. Pure.

By arrival curve, not by peaks: a herd of one second need not be served in one second. R replicas that work from now on
are late by at most `late_s` if for each window of time what comes in it, and for one that begins now what waits, is no
more than they do in the window and `late_s` beyond it:

    R = max over windows (s, t] of (D(t) - D(s) + (s = 0: B)) / (rate * (t - s + late_s))

D(t): due until t; B: what waits. Only windows that begin within the lead count: for the others there is time to ask
again. What comes in a bucket counts as come at its beginning.
"""

from __future__ import annotations

import math

import numpy as np

from delaynode.store.types import I64

MAX_REPLICAS = 1_000_000  # told; a ScaledObject has its own limit


def replicas_needed(waiting: int, arrivals: I64, bucket_s: float, *, rate: float, lead_s: float, late_s: float) -> int:
    """waiting: messages that are released and not done. arrivals (k,): those to come until the end of each bucket.
    rate: messages per second of a replica. lead_s: until one that is asked for now works."""
    due = np.concatenate(([0], arrivals))
    widest_s = late_s + bucket_s * np.arange(len(arrivals))
    most = 0.0
    for begin in range(min(len(arrivals), math.ceil(lead_s / bucket_s) + 1)):
        work = due[begin + 1 :] - due[begin] + (waiting if begin == 0 else 0)
        most = max(most, float((work / widest_s[: len(work)]).max()))
    return min(MAX_REPLICAS, math.ceil(round(most / rate, 6)))
