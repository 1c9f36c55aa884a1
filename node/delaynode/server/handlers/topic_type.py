"""A topic's type: which messages it takes, so that a delay that was forgotten, or a wrong topic, is noticed."""

from __future__ import annotations

import numpy as np
from delayregistry.model import TopicType
from numpy.typing import NDArray

from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import IncomingBatch


def check_type(topic: str, kind: TopicType, batch: IncomingBatch, now_ms: int) -> None:
    """Raises Refused WRONG_TOPIC_TYPE for a batch with a message that the topic does not take.

    Delay: what has neither delay nor due (time 0). A due that has passed meanwhile is one still, so a late retry is
    taken as it was the first time. Normal: what is not due at once.
    """
    if kind is TopicType.MIXED:
        return
    if kind is TopicType.DELAY:
        _refuse(batch.time == 0, f"has neither delay nor due time, and topic {topic!r} is of type Delay")
    else:
        relative = batch.relative == 1 if len(batch.relative) else np.zeros(len(batch.time), np.bool_)
        _refuse(batch.time > np.where(relative, 0, now_ms), f"is delayed, and topic {topic!r} is of type Normal")


def _refuse(wrong: NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        raise Refused("WRONG_TOPIC_TYPE", f"message {int(np.argmax(wrong))} {why}")
