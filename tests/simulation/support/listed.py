"""All schedules and all planted mistakes: importing this module fills the two lists."""

from __future__ import annotations

from tests.simulation.support.attacks import (  # noqa: F401
    attacks,
    attacks_on_clocks,
    attacks_on_containment,
    attacks_on_copies,
    attacks_on_ends,
    attacks_on_heartbeats,
    attacks_on_identity,
    attacks_on_objects,
    attacks_on_operation,
    attacks_on_progress,
    attacks_on_take_ups,
    attacks_on_terms,
)
from tests.simulation.support.attacks.schedules import ATTACKS
from tests.simulation.support.mutations import (  # noqa: F401
    mutations,
    mutations_of_clients,
    mutations_of_heartbeats,
    mutations_of_identity,
    mutations_of_maintenance,
    mutations_of_schedules,
    mutations_of_silent_ends,
    mutations_of_terms,
)
from tests.simulation.support.mutations.planting import MUTATIONS

__all__ = ["ATTACKS", "MUTATIONS"]
