"""Which operation each call needs: one table of all calls. tests/auth/test_operations.py fails when one is missing.

What is asked of is the request's topic, and its group where the operation is one of groups (Consume, ManageGroup).
"""

from __future__ import annotations

from typing import Final

from delayregistry.security import Operation

SERVICE: Final = "delay.v1.DelayService"
REPLICATION_SERVICE: Final = "delay.v1.ReplicationService"
STREAMED: Final = ("Ack", "Nack", "Extend", "Cancel", "Reschedule")
"""What a CallStream carries: each of its calls needs the operation of its own method."""

OPERATIONS: Final[dict[str, Operation]] = {
    "Enqueue": Operation.PRODUCE,
    "EnqueueStream": Operation.PRODUCE,  # each request
    "Receive": Operation.CONSUME,
    "ReceiveStream": Operation.CONSUME,  # each request
    "Ack": Operation.CONSUME,
    "Nack": Operation.CONSUME,
    "Extend": Operation.CONSUME,
    "Fetch": Operation.CONSUME,
    "Cancel": Operation.CANCEL,
    "Reschedule": Operation.CANCEL,
    "ListPending": Operation.BROWSE,  # without bodies too: it tells handles
    "ListDeadLetters": Operation.BROWSE,
    "QueryRoute": Operation.DESCRIBE,  # asked for all topics it tells of those
    "GetWheel": Operation.DESCRIBE,  # likewise, asked for a whole node
    "Forecast": Operation.DESCRIBE,  # likewise
    "DescribeGroup": Operation.DESCRIBE,
    "DeleteGroup": Operation.MANAGE_GROUP,
    "ResolveDeadLetters": Operation.MANAGE_GROUP,
    # Whoever may send to a topic may have that done again and again. A schedule tells the message that it sends.
    "PutSchedule": Operation.PRODUCE,
    "PauseSchedule": Operation.PRODUCE,
    "ResumeSchedule": Operation.PRODUCE,
    "TriggerSchedule": Operation.PRODUCE,
    "BackfillSchedule": Operation.PRODUCE,
    "DeleteSchedule": Operation.PRODUCE,
    "GetSchedule": Operation.BROWSE,
    "ListSchedules": Operation.BROWSE,
    "DescribeNode": Operation.ADMIN,
    "AcceptClock": Operation.ADMIN,
    "ReplicaStatus": Operation.ADMIN,
    "PurgeCopy": Operation.ADMIN,
}
"""By method. A Fetch without a group reads all that the queue has: it needs Browse. See needed()."""

UNCHECKED: Final = frozenset({"CallStream", "CheckAccess"})
"""Methods that do nothing themselves. A CheckAccess about another than its caller needs Admin."""

AUDITED: Final = frozenset({
    "DeleteGroup", "ResolveDeadLetters", "AcceptClock", "PurgeCopy", "PutSchedule", "PauseSchedule", "ResumeSchedule",
    "TriggerSchedule", "BackfillSchedule", "DeleteSchedule",
})  # fmt: skip
"""What is written into the audit log where it is allowed."""


def needed(method: str, group: str) -> Operation:
    """group: the request's; empty: it names none."""
    return Operation.BROWSE if method == "Fetch" and not group else OPERATIONS[method]
