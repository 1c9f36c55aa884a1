"""Receipts that are well formed, and nobody's: of no message, another attempt, shard, group or topic, or with a bit
that was changed. Each is refused by itself, and changes nothing: the message stays its consumer's.

A receipt is no secret. The first attempt of a message that waits can be named before it is handed out, since a master
that has just been made knows of no leases: who may consume as the group could as well receive and acknowledge it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from delayapi.receipt import Receipt

from tests.doors.rows.test_message_service import WIRES, message, receive, send
from tests.doors.support.asking import Asking, CallFailed, Wire, seconds

Ask = Callable[..., Asking]
REFUSED = {"LEASE_OVER", "FOREIGN_HANDLE", "BAD_REQUEST", "UNKNOWN_TOPIC", "UNKNOWN_QUEUE", "UNKNOWN_GROUP"}
SETTLES: dict[str, dict[str, Any]] = {"Ack": {}, "Nack": {"backoff": seconds(0)}, "Extend": {"lease": seconds(0)}}


def forged(true: str) -> dict[str, str]:
    """By what is wrong with it. A message waits behind the one that is held."""
    receipt = Receipt.decode(true)
    changes: dict[str, dict[str, Any]] = {
        "another attempt of a message that waits": {"offset": receipt.offset + 1, "attempt": receipt.attempt + 1},
        "a message that there is not": {"offset": 2**62},
        "a negative offset": {"offset": -1},
        "an attempt to come": {"attempt": receipt.attempt + 1},
        "no attempt": {"attempt": 0},
        "another shard": {"uid": receipt.uid ^ 1},
        "another queue": {"queue": receipt.queue ^ 1},
        "a queue that there is not": {"queue": 900},
        "another group": {"group": "h"},
        "a group that there is not": {"group": "nobody"},
        "another topic": {"topic": "aside"},
        "a topic that there is not": {"topic": "nothing"},
    }
    texts = {name: replace(receipt, **change).encode() for name, change in changes.items()}
    raw = bytearray(urlsafe_b64decode(true + "=" * (-len(true) % 4)))
    for at in range(0, 8 * len(raw), 7):
        raw[at // 8] ^= 1 << at % 8
        texts[f"bit {at}"] = urlsafe_b64encode(raw).decode().rstrip("=")
        raw[at // 8] ^= 1 << at % 8
    return texts


@pytest.mark.parametrize("wire", WIRES)
def test_forged_receipts_settle_nothing(ask: Ask, topic: str, wire: Wire) -> None:
    client = ask(0, wire)
    assert not client.call("Receive", topic=topic, group="g").deliveries  # else nothing is kept for it beyond h's ack
    send(client, topic, message("held", key="k"), message("waits", key="k"))  # of one queue
    (done,) = receive(client, topic, 1, group="h", max_messages=1)
    assert client.call("Ack", receipts=[done.receipt]).results[0].settled
    (held,) = receive(client, topic, 1, max_messages=1, lease=seconds(600))
    assert (held.body_text, held.attempt) == ("held", 1)
    texts = forged(held.receipt)
    for method, fields in SETTLES.items():
        for what, text in texts.items():
            with pytest.raises(CallFailed) as refused:
                client.call(method, receipts=[text], **fields)
            assert refused.value.reason in REFUSED, (method, what, refused.value)
            assert refused.value.reason == "BAD_REQUEST" or not what.startswith("bit "), (what, refused.value)
    # Beside the true one each is refused by itself.
    *others, (settled, error) = [
        (one.settled, one.error.reason)
        for one in client.call("Extend", receipts=[*texts.values(), held.receipt], lease=seconds(600)).results
    ]
    assert (settled, error) == (True, "")
    assert len(others) == len(texts)
    assert all(not settled and error in REFUSED for settled, error in others), others
    (waits,) = receive(client, topic, 1, lease=seconds(600))
    assert (waits.body_text, waits.attempt) == ("waits", 1)
    assert not client.call("Receive", topic=topic, group="g").deliveries, "what is held is nobody else's"
    assert all(one.settled for one in client.call("Ack", receipts=[held.receipt, waits.receipt]).results)
    groups = {one.group: one for one in client.call("ListGroups", topic=topic).groups}
    assert groups.keys() == {"g", "h"}, "no receipt makes a group"
    left = groups["g"]
    assert (left.available, left.in_flight, left.waiting_retry, left.dead) == (0, 0, 0, 0)
