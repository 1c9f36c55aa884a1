"""What the store refuses, and what makes a copy unusable."""

from __future__ import annotations


class Refused(Exception):
    """An operation was not stored, and says why.

    reason: a constant of docs/errors.md, e.g. ``DELAY_TOO_LONG``.
    metadata: what a client needs to go on, e.g. ``{"expected": "7"}``.
    """

    def __init__(self, reason: str, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def fresh(self) -> Refused:
        """The same refusal, without the frames that it came through: they keep whatever they refer to."""
        return Refused(self.reason, self.message, **self.metadata)


class Unsynced(OSError):
    """An fsync failed: what was written since the last one may not be on disk, whatever the page cache shows."""


class Damaged(Exception):
    """This copy of the shard can't be trusted: bytes that were known to be on disk are missing or wrong.

    It must not serve; it is fetched again from another copy, or an operator decides.
    """


class NewerFormat(Exception):
    """A newer release wrote this file. This program can't read it, and must leave it as it is.

    Nothing is damaged: the copy is neither marked nor thrown away, and a process of the newer release opens it.
    """


class Unappliable(Damaged):
    """The log's frame at `offset` is whole, but what it says can't be done to this copy; `why` without the place."""

    def __init__(self, offset: int, what: str, why: str) -> None:
        super().__init__(f"frame at {offset}, {what}: {why}")
        self.offset = offset
        self.why = why


class Impossible(Exception):
    """A change that the master wants can't be made: what it would take away is not there. A fault of this program.

    Raised before a frame is proposed: nothing has changed, and the shard serves on. Where a frame that is in the log
    has no possible effect, applying it raises Unappliable instead.
    """


class Trimmed(Exception):
    """What was asked for has been dropped, as nobody needs it any more: it is consumed, or its time is over."""
