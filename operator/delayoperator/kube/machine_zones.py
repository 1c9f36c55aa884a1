"""The zones of Kubernetes' machines, by the label of their Node objects."""

from __future__ import annotations

import time
from collections.abc import Callable

from delayoperator.kube.api import Api, ApiError
from delayoperator.kube.kinds import NODE
from delayoperator.resources.pod import ZONE

REREAD_S = 600.0  # a label that somebody changes is noticed by then; so is a right that is granted later


class MachineZones:
    """For one cluster: few machines, each read once in REREAD_S."""

    def __init__(self, api: Api, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._api, self._monotonic_s = api, monotonic_s
        self._known: dict[str, tuple[str, float]] = {}  # by machine: its zone, and when it was read
        self._refused_s: float | None = None  # when it was last said that Nodes are not ours to read

    def zone(self, machine: str) -> str:
        """An empty text where it has none, or is not known: nothing waits for a zone."""
        now_s = self._monotonic_s()
        zone, read_s = self._known.get(machine, ("", None))
        refused = self._refused_s is not None and now_s - self._refused_s < REREAD_S
        if not machine or refused or (read_s is not None and now_s - read_s < REREAD_S):
            return zone
        try:
            body = self._api.get(NODE, "", machine) or {}
        except ApiError as error:
            if error.forbidden:
                # rbac.readNodes is off: zones are what the nodes say themselves, from their pods' labels.
                self._refused_s = now_s
                self._known.clear()
                return ""
            return zone  # as it was read last; the next round asks again
        zone = str(((body.get("metadata") or {}).get("labels") or {}).get(ZONE, ""))
        self._known[machine] = zone, now_s
        return zone
