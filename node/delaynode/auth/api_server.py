"""The API server of Kubernetes, asked about ServiceAccounts' tokens with the pod's own credentials. Blocks."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayregistry.kube.client import KubeClient

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
# Its key set has a type of its own, which it gives only to who takes that.
ACCEPT = "application/json, application/jwk-set+json"
CONNECTIONS = 4
READ_S = 5.0


class KubeApiServer:
    """See key_sources.ApiServer. agent: how the node names itself. It connects when it is asked first."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._client: KubeClient | None = None

    def get(self, path: str) -> Mapping[str, Any]:
        from delayregistry.kube.client import ApiRejected
        from urllib3.exceptions import HTTPError

        try:
            response = self._connected().request("GET", path, read_s=READ_S, accept=ACCEPT)
            if response.status != 200:
                raise OSError(f"GET {path}: {response.status} {response.data[:200].decode('utf-8', 'replace')}")
            answer = json.loads(response.data)
        except (HTTPError, ApiRejected, ValueError) as error:
            raise OSError(f"GET {path}: {error}") from error
        if not isinstance(answer, dict):
            raise OSError(f"GET {path}: the answer is no object")
        return answer

    def review(self, token: str, audience: str) -> Mapping[str, Any]:
        from delayregistry.kube.client import ApiRejected, RequestUnanswered

        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        try:
            answer = self._connected().post(REVIEWS, body, {}, READ_S)
        except ApiRejected as error:
            hint = "; TokenReview needs the ClusterRole system:auth-delegator" if error.code == 403 else ""
            raise OSError(f"{error}{hint}") from error
        except RequestUnanswered as error:
            raise OSError(str(error)) from error
        status = answer.get("status") if isinstance(answer, dict) else None
        return status if isinstance(status, dict) else {}

    def _connected(self) -> KubeClient:
        from delayregistry.kube.client import Credentials, KubeClient

        with self._lock:
            if self._client is None:
                self._client = KubeClient(Credentials.from_environment(), self._agent, CONNECTIONS)
            return self._client

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
