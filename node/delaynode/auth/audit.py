"""The audit log: who administered, and who was refused what. Bounded in lines a second, whatever callers do.

It has a stream of its own: events of kind `audit-...`, each with principal, operation and resource, which are written
whatever the log's level. A refusal that comes again and again is one line in REPEAT_SECONDS, with how often it came.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from delaynode.auth.rights import AccessQuestion, Denial

REPEAT_SECONDS = 60.0
LINES_A_SECOND = 20.0
BURST = 100.0
MAX_REMEMBERED = 4_096  # refusals

Log = Callable[..., None]


class AuditLog:
    """Owned by the event loop. log: takes the event and its fields."""

    def __init__(self, log: Log, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now_s = log, now_s
        self._tokens, self._filled_s = BURST, now_s()
        self._left_out = 0
        self._refusals: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()  # when said; since then

    def administered(self, method: str, asked: AccessQuestion) -> None:
        """Somebody was let do what changes more than messages."""
        self._write("audit-administered", method=method, **_fields(asked))

    def refused(self, asked: AccessQuestion, why: Denial, allowed: bool) -> None:
        """allowed: all the same, since the cluster's mode is Permissive."""
        fields = _fields(asked)
        key = fields["principal"], fields["operation"], fields["resource"]
        said_s, since = self._refusals.get(key, (float("-inf"), 0))
        if self._now_s() < said_s + REPEAT_SECONDS:
            self._refusals[key] = said_s, since + 1
            return
        if self._write("audit-would-refuse" if allowed else "audit-refused", **fields, why=why.value, again=since):
            self._refusals[key] = self._now_s(), 0
            self._refusals.move_to_end(key)
            while len(self._refusals) > MAX_REMEMBERED:
                self._refusals.popitem(last=False)

    def _write(self, event: str, **fields: object) -> bool:
        now_s = self._now_s()
        self._tokens = min(BURST, self._tokens + (now_s - self._filled_s) * LINES_A_SECOND)
        self._filled_s = now_s
        if self._tokens < 1:
            self._left_out += 1
            return False
        self._tokens -= 1
        left_out, self._left_out = self._left_out, 0
        self._log(event, **fields, **({"left_out": left_out} if left_out else {}))
        return True


def _fields(asked: AccessQuestion) -> dict[str, str]:
    return {
        "principal": asked.identity.principal,
        "operation": asked.operation.value,
        "resource": asked.resource,
    }
