"""More planted bugs, as in mutations.py: what consumers and senders are told of attempts and of message ids."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from delaynode.store.queue.groups import Group
from delaynode.store.queue.message_ids import MessageIds
from delaynode.store.shard import Shard
from delaynode.store.types import I64

from tests.simulation.support.mutations.planting import Put, mutation

STORED_TWICE = "invariant 4: .* stored (as seq .*|twice)|both got seq"


@mutation(None, "attempt .* is handed out twice", (0, 1))
def hands_out_what_is_extended(put: Put) -> None:
    extend = Group.extend
    put(Group, "extend", lambda self, offsets, until_ms: extend(self, offsets, 0))


@mutation(None, STORED_TWICE, (4, 10))
def learns_no_ids_from_the_log(put: Put) -> None:  # ids x failovers
    apply = Shard.apply

    def deaf(self: Shard, frame: Any) -> None:
        with patch.object(MessageIds, "add", lambda *_: None):
            apply(self, frame)

    put(Shard, "apply", deaf)


@mutation(None, STORED_TWICE, (4, 10))
def leaves_ids_out_of_checkpoints(put: Put) -> None:  # ids x checkpoints
    put(MessageIds, "snapshot", lambda self: {})


@mutation(None, STORED_TWICE, (7, 10))
def forgets_ids_before_their_time(put: Put) -> None:
    find = MessageIds.find

    def forgetful(self: MessageIds, ids: Any, time_ms: int) -> tuple[I64, I64]:
        return find(self, ids, time_ms + 26 * 3_600_000 * (len(self) > 12))

    put(MessageIds, "find", forgetful)
