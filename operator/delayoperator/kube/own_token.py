"""The operator's own tokens: of its ServiceAccount, by TokenRequest, one for each cluster.

A token names one cluster as its audience: a node that it is shown to can't use it at another cluster, nor at the API
server. The right that it takes is `create` on serviceaccounts/token of the operator's own account.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from delayregistry.kube import KubeClient

LIFETIME_S = 3_600
RENEWED_AFTER = 2 / 3  # of its life; what is left is for an API server that is away
SPARE_S = 30  # before its end, in which it is used no more
AGAIN_S = 5.0  # between requests that failed
ACCOUNT_VARIABLE = "OPERATOR_SERVICE_ACCOUNT"


@dataclass(frozen=True, slots=True)
class OwnAccount:
    """The operator's ServiceAccount. name "": not known, so that there are no tokens."""

    namespace: str = ""
    name: str = ""

    @property
    def principal(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}" if self.name else ""


class OwnToken:
    """Of one cluster. From any thread; a call may wait for the API server."""

    def __init__(
        self, client: KubeClient, account: OwnAccount, audience: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._now_s = client, now_s
        self._path = f"/api/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
        self._body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": LIFETIME_S},
        }
        self._lock = threading.Lock()
        self._token = ""
        self._renew_s = self._ends_s = 0.0
        self.problem = ""  # why there is no newer one; empty: nothing is wrong

    def __call__(self) -> str:
        """Raises OSError: there is none that is valid."""
        with self._lock:
            now_s = self._now_s()
            if now_s >= self._renew_s:
                self._renew(now_s)
            if now_s >= self._ends_s:
                raise OSError(f"the operator has no token for this cluster: {self.problem}")
            return self._token

    def _renew(self, now_s: float) -> None:
        try:
            answer = self._client.post(self._path, self._body, {})
            token, ends = str(answer["status"]["token"]), str(answer["status"]["expirationTimestamp"])
            lifetime_s = min(LIFETIME_S, (datetime.fromisoformat(ends) - datetime.now(UTC)).total_seconds())
        except Exception as error:  # RequestUnanswered, ApiRejected, an answer of another shape
            self.problem = f"{type(error).__name__}: {error}"[:300]
            self._renew_s = now_s + AGAIN_S
            return
        self._token, self.problem = token, ""
        self._renew_s, self._ends_s = now_s + lifetime_s * RENEWED_AFTER, now_s + lifetime_s - SPARE_S
