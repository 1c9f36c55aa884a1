"""Pure builders of the Kubernetes objects that a cluster owns, and whether one has to be applied.

`build(view)` makes them, `differences(desired, live)` says what an apply would change. No I/O, no clock.
"""

from delayoperator.resources.build import build
from delayoperator.resources.compare import Difference, differences, foreign
from delayoperator.resources.names import MANAGER
from delayoperator.resources.normal import BadQuantity, quantity, whole_bytes
from delayoperator.resources.statefulset import grown
from delayoperator.resources.view import ClusterView, Json, PodSpec, VolumeRequest

__all__ = [
    "MANAGER",
    "BadQuantity",
    "ClusterView",
    "Difference",
    "Json",
    "PodSpec",
    "VolumeRequest",
    "build",
    "differences",
    "foreign",
    "grown",
    "quantity",
    "whole_bytes",
]
