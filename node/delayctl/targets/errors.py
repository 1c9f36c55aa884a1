"""Errors that end a command on a cluster, whether its registry, its directory or Kubernetes is the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delayctl.common import FAILED, UNREACHABLE, fail


class TargetRefused(Exception):
    """The request is impossible; the message says why, and what is possible."""


class TargetUnreachable(Exception):
    """There is no cluster here, or it does not answer."""


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Ends the process with the status that scripts know."""
    try:
        yield
    except TargetRefused as error:
        fail(str(error), FAILED)
    except TargetUnreachable as error:
        fail(str(error), UNREACHABLE)
