"""The labels of namespaces whose DelayTopics and DelayUsers a cluster may take (spec.allowedNamespaces)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from delayoperator.crds.tenancy import AllowedNamespaces, allows
from delayoperator.kube.api import Api, ApiError
from delayoperator.kube.kinds import NAMESPACE

REREAD_S = 30.0  # a label that somebody changes counts by the round after that


class NamespaceLabels:
    """For one cluster: few namespaces, each read once in REREAD_S, and only where labels are asked for."""

    def __init__(self, api: Api, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._api, self._monotonic_s = api, monotonic_s
        self._known: dict[str, tuple[Mapping[str, str] | None, float]] = {}  # with when it was read

    def allows(self, allowed: AllowedNamespaces | None, namespace: str) -> bool | None:
        """Whether the namespace, another one than the cluster's, is allowed; None: its labels can't be read."""
        found = allows(allowed, None)
        return allows(allowed, self._labels(namespace)) if found is None else found

    def _labels(self, namespace: str) -> Mapping[str, str] | None:
        now_s = self._monotonic_s()
        labels, read_s = self._known.get(namespace, (None, None))
        if read_s is not None and now_s - read_s < REREAD_S:
            return labels
        try:
            body = self._api.get(NAMESPACE, "", namespace) or {}
            labels = {str(key): str(value) for key, value in (body.get("metadata", {}).get("labels") or {}).items()}
        except ApiError as error:
            if error.forbidden:
                labels = None  # rbac.readNamespaces is off
            # Else as they were read last.
        self._known[namespace] = labels, now_s
        return labels
