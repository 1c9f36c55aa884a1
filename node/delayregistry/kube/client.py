"""Requests to the API server: JSON over HTTP, every wait bounded, nothing ever sent twice on its own.

The kubernetes package finds and reads the credentials and makes the connections. Its generated methods are not used:
they turn each object into a tree of Python objects and back, which costs more than the request.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlencode

import urllib3

CONNECT_S = 2.0
READ_S = 3.0
CONNECTIONS = 40  # kept: 32 threads for shards' requests, the watches, a node's renewals and its reads

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

# A server that vanished without a word is noticed within 5 + 3 * 2 s on an idle connection, within 10 s on others.
_KEEPALIVE_S, _PROBE_S, _PROBES, _UNACKNOWLEDGED_MS = 5, 2, 3, 10_000


class RequestUnanswered(Exception):
    """The request may have been done or not, or may even be done later."""


class ApiRejected(Exception):
    """The API server, or a proxy in front of it, answered that it did not do it. code: of HTTP.

    missing: name of the object that the API server says does not exist. Empty for any other 404, such as that of a
    proxy without a backend or of a CRD that is not served at the moment: these say nothing about the object.
    """

    def __init__(self, code: int, reason: str, message: str, missing: str = "") -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.missing = code, reason, message, missing


class Credentials:
    """The configuration of the kubernetes package, and how to read it anew when the server does not know us any more.

    It reads the token's file again each minute by itself.
    """

    def __init__(self, configuration: Any, load: Callable[[Any], None] = lambda configuration: None) -> None:
        self.configuration = configuration
        self._load = load
        self.reload()

    @classmethod
    def from_environment(cls) -> Self:
        """The settings of the pod; outside of one, or where KUBECONFIG is set, the kubeconfig's.

        Raises OSError when there are none.
        """
        from kubernetes import client, config  # 0.16 s of CPU and 34 MiB, for whoever needs it

        loaders: Any = config  # it has no types
        kubeconfig = os.environ.get("KUBECONFIG")

        def load(configuration: Any) -> None:
            if "KUBERNETES_SERVICE_HOST" in os.environ and not kubeconfig:
                loaders.load_incluster_config(client_configuration=configuration)
            else:
                loaders.load_kube_config(config_file=kubeconfig, client_configuration=configuration)

        try:
            return cls(client.Configuration(), load)
        except config.ConfigException as error:
            raise OSError(f"no credentials for Kubernetes: {error}") from error

    def reload(self) -> None:
        self._load(self.configuration)

    def header(self) -> dict[str, str]:
        token = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"Authorization": token} if token else {}


class KubeTransport:
    """Requests with the credentials, from any thread. agent: how it names itself to the server.

    may_write: asked just before each request that is not a read. Where it says no, nothing is sent: ApiRejected 412.
    """

    def __init__(
        self,
        credentials: Credentials,
        agent: str,
        connections: int = CONNECTIONS,
        connect_s: float = CONNECT_S,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        from kubernetes.client.rest import RESTClientObject

        configuration = credentials.configuration
        configuration.connection_pool_maxsize = connections
        configuration.socket_options = _socket_options()
        self._credentials = credentials
        self._host = str(configuration.host).rstrip("/")
        self._agent, self._connect_s, self._may_write = agent, connect_s, may_write
        self._pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager

    def close(self) -> None:
        self._pool.clear()

    def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        content: str = JSON,
        read_s: float = READ_S,
        stream: bool = False,
        accept: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        """Raises urllib3.exceptions.HTTPError or OSError when there was no answer in time, and ApiRejected."""

        data = None if body is None else json.dumps(body).encode()

        def send() -> urllib3.BaseHTTPResponse:
            headers = {
                "Accept": accept,
                "Content-Type": content,
                "User-Agent": self._agent,
                **self._credentials.header(),
            }
            if method != "GET" and not self._may_write():
                raise ApiRejected(412, "NotLeader", "this process does not lead, so nothing was sent")
            return self._pool.request(
                method,
                self._host + url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(self._connect_s, read_s), read=read_s),
                # A write that is sent again after its connection broke would meet its own first success as a conflict.
                retries=False,
                preload_content=not stream,
            )

        response = send()
        if response.status == 401:
            # Nothing was done. The token has run out, say: its file may have a new one.
            response.drain_conn()
            try:
                self._credentials.reload()
            except Exception as error:  # whatever is wrong with the files
                raise ApiRejected(401, "Unauthorized", f"and there are no other credentials: {error}") from error
            response = send()
        return response


class KubeClient(KubeTransport):
    """What registry and CLI ask of the API server. Safe to use from any thread."""

    def get(self, path: str, query: Mapping[str, str] | None = None, read_s: float = READ_S) -> dict[str, Any]:
        """Raises RequestUnanswered, ApiRejected."""
        return self._answer("GET", path, query or {}, read_s=read_s)

    def text(self, path: str, query: Mapping[str, str], read_s: float = READ_S) -> str:
        """An answer that is no JSON, such as a log. Raises RequestUnanswered, ApiRejected."""
        response = self._send("GET", path, query, read_s=read_s, accept="*/*")
        data = self._read(response)
        if response.status >= 300:
            raise _rejected(response.status, data)
        return data.decode("utf-8", "replace")

    def post(self, path: str, body: Mapping[str, Any], query: Mapping[str, str], read_s: float = READ_S) -> Any:
        return self._answer("POST", path, query, body=body, read_s=read_s)

    def merge(self, path: str, patch: Mapping[str, Any], query: Mapping[str, str], read_s: float = READ_S) -> Any:
        """A JSON merge patch; conditional if it has a metadata.resourceVersion."""
        return self._answer("PATCH", path, query, body=patch, content=MERGE_PATCH, read_s=read_s)

    def delete(self, path: str, body: Mapping[str, Any], read_s: float = READ_S) -> Any:
        """body: DeleteOptions."""
        return self._answer("DELETE", path, {}, body=body, read_s=read_s)

    def watch(self, path: str, query: Mapping[str, str], read_s: float) -> WatchStream:
        """read_s: the watch may be silent for so long. Raises RequestUnanswered, ApiRejected."""
        response = self._send("GET", path, {**query, "watch": "1"}, read_s=read_s, stream=True)
        if response.status != 200:
            with response:
                raise _rejected(response.status, self._read(response))
        return WatchStream(response)

    def _answer(self, method: str, path: str, query: Mapping[str, str], **options: Any) -> dict[str, Any]:
        """The answer's JSON. options: of request()."""
        response = self._send(method, path, query, **options)
        data = self._read(response)
        if response.status >= 300:
            raise _rejected(response.status, data)
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise RequestUnanswered(f"{method} {path}: the answer is no JSON") from error
        if not isinstance(answer, dict):
            raise RequestUnanswered(f"{method} {path}: the answer is no object")
        return answer

    def _send(self, method: str, path: str, query: Mapping[str, str], **options: Any) -> urllib3.BaseHTTPResponse:
        try:
            return self.request(method, f"{path}?{urlencode(query)}" if query else path, **options)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RequestUnanswered(f"{method} {path}: {error}") from error

    @staticmethod
    def _read(response: urllib3.BaseHTTPResponse) -> bytes:
        try:
            return response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RequestUnanswered(f"the answer broke off: {error}") from error


class WatchStream:
    """The events of a watch, as they come; it ends when the server ends it."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Raises RequestUnanswered."""
        try:
            for line in self._response:
                event = json.loads(line)
                if not isinstance(event, dict):
                    raise RequestUnanswered("watch: an event is no object")
                yield event
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise RequestUnanswered(f"watch: {error}") from error

    def abort(self) -> None:
        """Ends it from another thread."""
        with suppress(OSError, ValueError, RuntimeError):  # it has ended already
            self._response.shutdown()

    def close(self) -> None:
        self._response.close()


def _rejected(status: int, data: bytes) -> ApiRejected:
    try:
        said = json.loads(data)
        reason, details = str(said.get("reason", "")), said.get("details") or {}
        not_found = status == 404 and said.get("kind") == "Status" and reason == "NotFound"
        missing = str(details.get("name") or "") if not_found else ""
        return ApiRejected(status, reason, str(said.get("message", ""))[:500], missing)
    except (ValueError, AttributeError):
        return ApiRejected(status, "", data[:200].decode("utf-8", "replace"))


def _socket_options() -> list[tuple[int, int, int]]:
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, name):  # not everywhere
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
