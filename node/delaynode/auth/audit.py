"""The audit log: who administered, and who was refused what. Bounded in lines a second, whatever callers do.

All refusals have one bound, and what each caller administers has one: who is refused a thousand times a second does
not hide what somebody does meanwhile.

It has a stream of its own: events of kind `audit-...`, each with principal, operation and resource, which are written
whatever the log's level. A refusal that comes again and again is one line in REPEAT_SECONDS, with how often it came.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from delaynode.auth.rights import AccessQuestion, Denial

REPEAT_SECONDS = 60.0
LINES_A_SECOND = 20.0
BURST = 100.0
MAX_REMEMBERED = 4_096  # refusals, and callers
REFUSALS = ""  # as a caller

Log = Callable[..., None]


class AuditLog:
    """Owned by the event loop. log: takes the event and its fields."""

    def __init__(self, log: Log, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now_s = log, now_s
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()  # by caller
        self._refusals: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()  # when said; since then

    def administered(self, method: str, asked: AccessQuestion) -> None:
        """Somebody was let do what changes more than messages."""
        fields = _fields(asked)
        self._write(fields["principal"], "audit-administered", method=method, **fields)

    def refused(self, asked: AccessQuestion, why: Denial, allowed: bool) -> None:
        """allowed: all the same, since the cluster's mode is Permissive."""
        fields = _fields(asked)
        key = fields["principal"], fields["operation"], fields["resource"]
        said_s, since = self._refusals.get(key, (float("-inf"), 0))
        if self._now_s() < said_s + REPEAT_SECONDS:
            self._refusals[key] = said_s, since + 1
            return
        event = "audit-would-refuse" if allowed else "audit-refused"
        if self._write(REFUSALS, event, **fields, why=why.value, again=since):
            self._refusals[key] = self._now_s(), 0
            self._refusals.move_to_end(key)
            while len(self._refusals) > MAX_REMEMBERED:
                self._refusals.popitem(last=False)

    def _write(self, caller: str, event: str, **fields: object) -> bool:
        now_s = self._now_s()
        one = self._allowances.pop(caller, None) or _Allowance(BURST, now_s)
        self._allowances[caller] = one
        while len(self._allowances) > MAX_REMEMBERED:
            self._allowances.popitem(last=False)
        one.lines = min(BURST, one.lines + (now_s - one.filled_s) * LINES_A_SECOND)
        one.filled_s = now_s
        if one.lines < 1:
            one.left_out += 1
            return False
        one.lines -= 1
        left_out, one.left_out = one.left_out, 0
        self._log(event, **fields, **({"left_out": left_out} if left_out else {}))
        return True


@dataclass(slots=True)
class _Allowance:
    """lines: that may be written now. left_out: since the last one that was."""

    lines: float
    filled_s: float
    left_out: int = 0


def _fields(asked: AccessQuestion) -> dict[str, str]:
    return {
        "principal": asked.identity.principal,
        "operation": asked.operation.value,
        "resource": asked.resource,
    }
