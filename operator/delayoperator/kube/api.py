"""The few calls to the API server that the operator makes, as JSON, each bounded in time.

Plain dicts here, since objects of a dozen kinds pass through; what is decided from them is made into values first
(`views.py`).
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Protocol

import urllib3
from delayregistry.kube.client import ApiRejected, Credentials, KubeTransport

from delayoperator.kube.kinds import ObjectKind

FIELD_MANAGER = "delaycluster-operator"
CONNECT_S = 3.0
READ_S = 10.0
CONNECTIONS = 16  # kept
PAGE = 500  # objects a list request: a page stays far below the memory of a small operator

Json = dict[str, Any]


def kube_transport(credentials: Credentials, may_write: Callable[[], bool] = lambda: True) -> KubeTransport:
    return KubeTransport(credentials, FIELD_MANAGER, CONNECTIONS, CONNECT_S, may_write)


class ApiError(Exception):
    """The API server did not do what it was asked for. status 0: no answer, so a write may have been done."""

    def __init__(
        self,
        what: str,
        status: int,
        reason: str,
        message: str,
        retry_after_s: float | None = None,
        causes: Collection[str] = (),
    ) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}" if status else f"{what}: {reason}: {message}")
        self.what = what
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.causes = causes

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def forbidden(self) -> bool:
        return self.status in (401, 403)

    @property
    def by_budget(self) -> bool:
        """An eviction that a PodDisruptionBudget does not allow now. An API server that is busy says 429 too."""
        return self.status == 429 and "DisruptionBudget" in self.causes

    @property
    def refused(self) -> bool:
        """The request itself is wrong: the same one will be refused again."""
        return self.status in (400, 405, 413, 415, 422)


class WriteListener(Protocol):
    """Told of each write that was answered, before its caller has the answer."""

    def on_written(self, kind: ObjectKind, body: Json) -> None: ...

    def on_deleted(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None: ...


class Api:
    """Thread-safe. Counts what it sends, by verb: `sent`."""

    def __init__(self, transport: KubeTransport, written: WriteListener | None = None) -> None:
        self._transport, self._written = transport, written
        self._lock = threading.Lock()
        self.sent: Counter[str] = Counter()

    def get(self, kind: ObjectKind, namespace: str, name: str) -> Json | None:
        try:
            return self._call("get", "GET", kind.path(namespace, name), f"{kind.name} {name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def list(self, kind: ObjectKind, namespace: str, selector: str = "") -> list[Json]:
        found: list[Json] = []
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            path = f"{kind.path(namespace)}?{urllib.parse.urlencode(query)}"
            page = self._call("list", "GET", path, f"{kind.name}s of {namespace}")
            found += page.get("items") or ()
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    def apply(self, kind: ObjectKind, body: Json, version: str = "") -> Json:
        """Server-side apply: our fields become so, whoever changed them; nobody else's are touched.

        version: the resourceVersion that the object must still have; "": whether it is there or not, and whatever.
        """
        if version:
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
        path = f"{kind.path(namespace, name)}?fieldManager={FIELD_MANAGER}&force=true"
        return self._write("apply", "PATCH", path, kind, name, body, "application/apply-patch+yaml")

    def merge(self, kind: ObjectKind, namespace: str, name: str, body: Json, subresource: str = "") -> Json:
        """A JSON merge patch; conditional when `body` has a metadata.resourceVersion."""
        path = kind.path(namespace, name) + (f"/{subresource}" if subresource else "")
        path += f"?fieldManager={FIELD_MANAGER}"
        return self._write("patch", "PATCH", path, kind, name, body, "application/merge-patch+json")

    def create(self, kind: ObjectKind, namespace: str, body: Json) -> Json:
        path = f"{kind.path(namespace)}?fieldManager={FIELD_MANAGER}"
        return self._write("create", "POST", path, kind, body["metadata"].get("name", ""), body)

    def delete(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        """The very object with this uid; one that is gone already is as good."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        self._remove("delete", "DELETE", kind.path(namespace, name), kind, namespace, name, uid, body)

    def evict(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        """The same as `delete`, unless the PodDisruptionBudget says no (`by_budget`)."""
        options = {"preconditions": {"uid": uid}}
        meta = {"name": name, "namespace": namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        self._remove("evict", "POST", f"{kind.path(namespace, name)}/eviction", kind, namespace, name, uid, body)

    def _write(
        self, verb: str, method: str, path: str, kind: ObjectKind, name: str, body: Json,
        content: str = "application/json",
    ) -> Json:  # fmt: skip
        answer = self._call(verb, method, path, f"{kind.name} {name}", body, content)
        if self._written is not None:
            self._written.on_written(kind, answer)
        return answer

    def _remove(
        self, verb: str, method: str, path: str, kind: ObjectKind, namespace: str, name: str, uid: str, body: Json
    ) -> None:
        try:
            self._call(verb, method, path, f"{kind.name} {name}", body)
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise
        else:
            if self._written is not None:
                self._written.on_deleted(kind, namespace, name, uid)

    def _call(
        self, verb: str, method: str, path: str, what: str, body: Json | None = None, content: str = "application/json"
    ) -> Json:
        with self._lock:
            self.sent[verb] += 1
        what = f"{verb} {what}"
        try:
            answer = self._transport.request(method, path, body, content, READ_S)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise ApiError(what, 0, "NoAnswer", f"{type(error).__name__}: {error}") from error
        except ApiRejected as error:
            raise ApiError(what, error.code, error.reason, error.message) from error
        try:
            read = json.loads(answer.data) if answer.data else {}
        except ValueError:
            read = {"message": answer.data[:200].decode("utf-8", "replace")}
        if not isinstance(read, dict):
            raise ApiError(what, 0, "NoAnswer", "the answer is no JSON object")
        if answer.status >= 300:
            reason, message = str(read.get("reason") or "Error"), str(read.get("message") or "")
            retry_after_s = _seconds(answer.headers.get("Retry-After"))
            raise ApiError(what, answer.status, reason, message[:500], retry_after_s, _causes(read))
        return read


def _causes(status: Json) -> tuple[str, ...]:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return tuple(str(it.get("reason")) for it in causes or () if isinstance(it, dict))


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else min(60.0, max(0.0, float(text)))
    except ValueError:
        return None
