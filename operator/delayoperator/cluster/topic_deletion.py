"""Whether the shards of a deleted DelayTopic may go: nothing is lost that nobody spoke of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayoperator.cluster.shard_summary import counted_of, some
from delayoperator.resources.names import PREFIX

FINALIZER = PREFIX + "delete-messages"
CONFIRM = PREFIX + "delete-messages"  # an annotation: the number of pending messages that are to go


@dataclass(frozen=True, slots=True)
class LeftShard:
    """A shard that no topic has any more. pending: messages that wait for their due; unfinished: released, and not done
    for some group, or by no group at all. None: that is not known, and `unknown` says why."""

    name: str
    pending: int | None = None
    unfinished: int | None = None
    unknown: str = ""


def why_kept(left: Sequence[LeftShard], confirmed: str, retire: str) -> str:
    """Why they may not go yet; "": they may. confirmed: the annotation's value. retire: the command by which a person
    deletes them uncounted."""
    silent = [f"{it.name}: {it.unknown}" for it in left if it.pending is None]
    if silent:
        return (
            f"what is left can't be counted: {some(silent)}. Keep it with deletionPolicy: Retain; or delete it all, "
            f"uncounted, with `{retire}`, which asks for -1"
        )
    pending = sum(it.pending or 0 for it in left)
    if confirmed == str(pending):
        return ""
    unfinished = [it for it in left if it.unfinished is None or it.unfinished]
    if not pending and not unfinished:
        return "" if not confirmed else f"annotation {CONFIRM} says {confirmed[:20]}, and 0 messages are pending"
    said = [f"{counted_of(pending, 'message')} pending"] if pending else []
    named = (f"{it.name}: {it.unknown if it.unfinished is None else it.unfinished}" for it in unfinished)
    said += [f"released and not done: {some(tuple(named))}"] if unfinished else []
    return (
        f"{'; '.join(said)}. Let them be consumed or cancelled; or delete them all by annotation {CONFIRM}={pending}; "
        "or keep them with deletionPolicy: Retain"
    )
