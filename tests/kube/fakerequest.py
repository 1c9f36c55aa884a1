"""A request to the fake API server, taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from tests.kube import fakekinds
from tests.kube.fakekinds import Kind
from tests.kube.fakeselect import Chooser, chooser
from tests.kube.fakestore import Refused


@dataclass(frozen=True, slots=True)
class Call:
    """method: GET, LIST, WATCH, POST, PUT, PATCH, DELETE. content: the Content-Type. name: "" for a collection."""

    method: str
    kind: Kind
    namespace: str | None
    name: str
    sub: str
    query: Mapping[str, str]
    chosen: Chooser
    content: str
    body: Any

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager", "unknown")

    @property
    def force(self) -> bool:
        return self.query.get("force", "") in ("true", "1", "True")


async def parse(request: web.Request) -> Call | None:
    """Returns None for a path that names no objects. Raises Refused."""
    match request.path.strip("/").split("/"):
        case ["api", "v1", *rest] if rest:
            group = ""
        case ["apis", group, _, *rest] if rest:
            pass
        case _:
            return None
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, sub, *_ = (*rest, "", "")
    try:
        kind = fakekinds.find(plural, group)
    except KeyError:
        return None
    body = await _body(request)
    method = request.method
    if method == "GET" and request.query.get("watch", "").lower() in ("1", "true"):
        method = "WATCH"
    elif method == "GET" and not name:
        method = "LIST"
    try:
        chosen = chooser(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
    except ValueError as error:
        raise Refused(400, "BadRequest", f"unable to parse selector: {error}") from error
    return Call(method, kind, namespace, name, sub, dict(request.query), chosen, request.content_type, body)


async def _body(request: web.Request) -> Any:
    text = await request.text()
    if not text:
        return None
    try:
        return yaml.safe_load(text) if "yaml" in request.content_type else await request.json()
    except ValueError as error:
        raise Refused(400, "BadRequest", f"error decoding: {error}") from error
