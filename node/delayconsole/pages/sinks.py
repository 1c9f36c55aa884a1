"""DelaySinks: where a topic's messages are delivered to, and what their pods say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from delayctl.targets.errors import TargetUnreachable

from delayconsole.page import ConsolePage, PageView

TARGETS: Final = ("http", "nats", "kafka")


async def show(view: PageView) -> Mapping[str, Any]:
    objects, problems = view.visitor.objects, []
    found = None
    if objects is not None:
        try:
            found = await asyncio.to_thread(objects.sinks)
        except TargetUnreachable as error:
            problems.append(f"The DelaySinks can't be listed: {error}.")
    return {
        "known": found is not None,
        "command": "" if objects is None else f"kubectl -n {objects.namespace} get delaysinks",
        "rows": [sink_row(it) for it in found or ()],
        "problems": problems,
        "local": objects is not None and found is None and not problems,
    }


def sink_row(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Of a DelaySink. What is missing, or of another shape, is empty: objects come from elsewhere."""
    meta, spec, status = (_mapping(body.get(name)) for name in ("metadata", "spec", "status"))
    kind = next((it for it in TARGETS if it in spec), "")
    target = _mapping(spec.get(kind))
    said = status.get("conditions")
    conditions = [_mapping(it) for it in said] if isinstance(said, list) else []
    ready = next((it for it in conditions if it.get("type") == "Ready"), _mapping(None))
    return {
        "name": str(meta.get("name", "")),
        "topic": str(spec.get("topic", "")),
        "group": str(spec.get("group") or meta.get("name", "")),
        "kind": {"http": "HTTP", "nats": "NATS", "kafka": "Kafka"}.get(kind, "?"),
        "target": str(target.get("url") or target.get("subject") or target.get("topic") or _servers(target)),
        "ready": str(ready.get("status", "")),
        "reason": str(ready.get("reason", "")),
        "message": str(ready.get("message", "")),
        "replicas": str(status.get("replicas", "")),
    }


def _servers(target: Mapping[str, Any]) -> str:
    """Of a target whose subject or topic each message names."""
    found = target.get("servers")
    return ", ".join(map(str, found)) if isinstance(found, list) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


PAGE: Final = ConsolePage("sinks", "Sinks", "/sinks", "sinks.html", show)
