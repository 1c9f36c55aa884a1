"""The fake API server's way to do requests, all but watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kube.fakerequest import Call
from tests.kube.fakestore import Refused, Store


def perform(store: Store, call: Call) -> tuple[int, Any]:
    """Do the request. Returns the HTTP status and the body. Raises Refused."""
    if call.sub not in ("", "status", "scale", "eviction") or (call.sub == "status" and not call.kind.status):
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    if call.sub == "scale":
        return 200, _scale(store, call)
    return _METHODS[call.method](store, call)


def _list(store: Store, call: Call) -> tuple[int, Any]:
    # Simplified: each page shows the state at the time of its request.
    limit, start = int(call.query.get("limit", "0") or 0) or None, int(call.query.get("continue", "0") or 0)
    items, left, version = store.page(call.kind, call.namespace, call.chosen, start, limit)
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if left:
        metadata |= {"continue": str(start + len(items)), "remainingItemCount": left}
    for item in items:  # as in a real server, a list's items do not name their kind
        del item["kind"], item["apiVersion"]
    return 200, {
        "kind": f"{call.kind.kind}List",
        "apiVersion": call.kind.api_version,
        "metadata": metadata,
        "items": items,
    }


def _get(store: Store, call: Call) -> tuple[int, Any]:
    return 200, store.get(call.kind, call.namespace or "", call.name)


def _post(store: Store, call: Call) -> tuple[int, Any]:
    if call.sub == "eviction":
        store.delete(call.kind, call.namespace or "", call.name)
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
    return 201, store.create(call.kind, call.namespace or "", _object(call), call.manager)


def _put(store: Store, call: Call) -> tuple[int, Any]:
    return 200, store.replace(call.kind, call.namespace or "", call.name, _object(call), call.manager, call.sub)


def _patch(store: Store, call: Call) -> tuple[int, Any]:
    where = (call.kind, call.namespace or "", call.name)
    match call.content:
        case "application/apply-patch+yaml" | "application/apply-patch+cbor":
            if "fieldManager" not in call.query:
                raise Refused(400, "BadRequest", "PatchOptions.meta.k8s.io: fieldManager: Required value")
            code = 200 if store.has(*where) else 201
            return code, store.apply(*where, _object(call), call.manager, call.force, call.sub)
        case "application/merge-patch+json" | "application/strategic-merge-patch+json":
            return 200, store.patch(*where, _object(call), call.manager, call.sub)
        case "application/json-patch+json":
            patched = _json_patched(store.get(*where), call.body)
            return 200, store.replace(*where, patched, call.manager, call.sub)
    raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {call.content}")


def _delete(store: Store, call: Call) -> tuple[int, Any]:
    options = call.body if isinstance(call.body, dict) else {}
    if "propagationPolicy" in call.query:
        options = {**options, "propagationPolicy": call.query["propagationPolicy"]}
    if call.name:
        return 200, store.delete(call.kind, call.namespace or "", call.name, options)
    for item in store.list(call.kind, call.namespace, call.chosen)[0]:
        store.delete(call.kind, item["metadata"].get("namespace", ""), item["metadata"]["name"], options)
    return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}


_METHODS: dict[str, Callable[[Store, Call], tuple[int, Any]]] = {
    "GET": _get,
    "LIST": _list,
    "POST": _post,
    "PUT": _put,
    "PATCH": _patch,
    "DELETE": _delete,
}


def _object(call: Call) -> dict[str, Any]:
    if not isinstance(call.body, dict):
        raise Refused(400, "BadRequest", "the body is no object")
    return call.body


# For each kind that can be scaled: the field of spec and status that has the number.
_SCALED = {"DelayCluster": "nodes", "StatefulSet": "replicas", "Deployment": "replicas"}


def _scale(store: Store, call: Call) -> Any:
    field = _SCALED.get(call.kind.kind)
    if field is None:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    where = (call.kind, call.namespace or "", call.name)
    if call.method in ("PUT", "PATCH"):
        wanted = _object(call).get("spec", {}).get("replicas")
        store.patch(*where, {"spec": {field: wanted}}, call.manager)
    found = store.get(*where)
    names = {"name": call.name, "namespace": call.namespace or ""}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {**names, "resourceVersion": found["metadata"]["resourceVersion"]},
        "spec": {"replicas": found.get("spec", {}).get(field, 0)},
        "status": {
            "replicas": found.get("status", {}).get(field, 0),
            "selector": found.get("status", {}).get("selector", ""),
        },
    }


def _json_patched(obj: Any, patch: Any) -> Any:
    """Apply a JSON patch (RFC 6902): add, remove, replace and test."""
    for step in patch:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        place = obj
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if isinstance(place, list):
            at = len(place) if last == "-" else int(last)
        match step["op"]:
            case "test":
                found = place[at] if isinstance(place, list) else place.get(last)
                if found != step.get("value"):
                    raise Refused(422, "Invalid", f"testing path {step['path']} failed")
            case "remove" if isinstance(place, list):
                del place[at]
            case "remove":
                place.pop(last, None)
            case "add" if isinstance(place, list):
                place.insert(at, step["value"])
            case "add" | "replace":
                place[at if isinstance(place, list) else last] = step["value"]
            case other:
                raise Refused(400, "BadRequest", f"JSON patch: {other!r} is not known here")
    return obj
