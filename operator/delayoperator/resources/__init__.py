"""Pure builders of the Kubernetes objects that a cluster owns, and whether one has to be applied.

`build(view)` makes them, `differences(desired, live)` says what an apply would change. No I/O, no clock.
"""

from delayoperator.resources.build import build
from delayoperator.resources.compare import differences, foreign
from delayoperator.resources.normal import whole_bytes
from delayoperator.resources.statefulset import grown
from delayoperator.resources.view import ClusterView

__all__ = [
    "ClusterView",
    "build",
    "differences",
    "foreign",
    "grown",
    "whole_bytes",
]
