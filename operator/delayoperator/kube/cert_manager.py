"""Why cert-manager has not issued what a cluster asks it for, in its own words."""

from __future__ import annotations

from collections.abc import Sequence

from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.kinds import CERTIFICATE, CERTIFICATE_REQUEST

# Annotations of a request: whose it is, and which one of its requests, from 1.
CERTIFICATE_NAME, REVISION = "cert-manager.io/certificate-name", "cert-manager.io/certificate-revision"
MAX_CHARS = 200  # of what is said of one: issuers quote what others have answered them


def why_lacking(api: Api, namespace: str, names: Sequence[str]) -> list[str]:
    """names: of Certificates. A sentence for each that is not issued; none where its kinds can't be read, or are not
    there: that is told where they are applied.

    Asked only while nodes lack a certificate: requests are in no cache.
    """
    try:
        certificates = {it["metadata"]["name"]: it for it in api.list(CERTIFICATE, namespace)}
        requests = api.list(CERTIFICATE_REQUEST, namespace)
    except ApiError as error:
        if error.not_found or error.forbidden:
            return []
        raise
    newest = {_annotation(it, CERTIFICATE_NAME): it for it in sorted(requests, key=_revision)}
    said = []
    for name in names:
        found = certificates.get(name)
        if found is not None and (why := _unready(found)):
            asked = newest.get(name)
            why = _unready(asked) or why if asked is not None else why
            said.append(f"Certificate {name} is not issued: {why[:MAX_CHARS]}")
    return said


def _annotation(body: Json, name: str) -> str:
    return str((body["metadata"].get("annotations") or {}).get(name, ""))


def _revision(request: Json) -> int:
    said = _annotation(request, REVISION)
    return int(said) if said.isdecimal() else 0


def _unready(body: Json) -> str:
    """The message of its condition Ready; "": it is Ready."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready: Json = next((it for it in conditions if it.get("type") == "Ready"), {})
    return "" if ready.get("status") == "True" else str(ready.get("message") or "cert-manager says nothing of it")
