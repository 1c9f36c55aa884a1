"""Pure builders of the Kubernetes objects that a cluster owns, and whether one has to be applied.

`build(view)` makes them, `differences(desired, live)` says what an apply would change. No I/O, no clock.
"""

from delayoperator.resources.build import build
from delayoperator.resources.compare import Difference, differences
from delayoperator.resources.names import MANAGER
from delayoperator.resources.normal import BadQuantity, quantity, whole_bytes
from delayoperator.resources.ownership import foreign
from delayoperator.resources.restarts import EFFECTS, Effect, effect, restarting
from delayoperator.resources.view import ClusterView, Json, PodSpec, VolumeRequest
from delayoperator.resources.volumes import claim_names, grown

__all__ = [
    "EFFECTS",
    "MANAGER",
    "BadQuantity",
    "ClusterView",
    "Difference",
    "Effect",
    "Json",
    "PodSpec",
    "VolumeRequest",
    "build",
    "claim_names",
    "differences",
    "effect",
    "foreign",
    "grown",
    "quantity",
    "restarting",
    "whole_bytes",
]
