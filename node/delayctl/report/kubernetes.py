"""What the API server knows of a cluster: its objects, events and logs, and the operator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from delayregistry.kube.client import ApiRejected, RequestUnanswered
from delayregistry.kube.names import CLUSTER_LABEL, GROUP_VERSION

from delayctl.report.archive import Archive
from delayctl.targets.pod_logs import newest_log

LOG_LINES: Final = 10_000
LOG_BYTES: Final = 16 << 20
CONTAINERS: Final = ("node", "operator", "sink", "rebalance", "console")
"""Whose logs are taken: sidecars of others may log what they like."""
OPERATOR: Final = "app.kubernetes.io/component=operator,app.kubernetes.io/part-of=delaycluster"

_OURS: Final = ("delayshards", "delayrebalances", "delaytopics", "delayusers", "delaysinks", "delayschedules")
_LABELLED: Final = (
    ("/api/v1", "pods"), ("/api/v1", "services"), ("/api/v1", "persistentvolumeclaims"), ("/api/v1", "configmaps"),
    ("/apis/apps/v1", "statefulsets"), ("/apis/apps/v1", "deployments"), ("/apis/batch/v1", "cronjobs"),
    ("/apis/batch/v1", "jobs"), ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"), ("/apis/coordination.k8s.io/v1", "leases"),
)  # fmt: skip


class ApiReader(Protocol):
    """Both raise ApiRejected, RequestUnanswered."""

    def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]: ...
    def text(self, path: str, query: Mapping[str, str]) -> str: ...


def collect(archive: Archive, api: ApiReader, namespace: str, cluster: str) -> None:
    """What is refused or does not answer is said in the archive; Secrets are never asked for."""
    inside = f"/namespaces/{namespace}"
    _take(archive, "version.json", "of the API server", lambda: api.get("/version", {}))
    ours = f"/apis/{GROUP_VERSION}{inside}"
    _take(archive, "objects/delaycluster.json", "the DelayCluster",
          lambda: api.get(f"{ours}/delayclusters/{cluster}", {}))  # fmt: skip
    for plural in _OURS:
        found = _list(archive, api, f"{ours}/{plural}", {}, plural)
        mine = [one for one in found or () if _is_of(one, cluster)]
        if mine:
            archive.add_json(f"objects/{plural}.json", f"{len(mine)} {plural}", mine)
    labelled = {"labelSelector": f"{CLUSTER_LABEL}={cluster}"}
    pods: list[dict[str, Any]] = []
    for group, plural in _LABELLED:
        found = _list(archive, api, f"{group}{inside}/{plural}", labelled, plural)
        if found:
            archive.add_json(f"objects/{plural}.json", f"{len(found)} {plural}", found)
        if plural == "pods":
            pods = found or []
    events = _list(archive, api, f"/api/v1{inside}/events", {}, "events") or []
    names = {cluster, *(str(pod["metadata"]["name"]) for pod in pods)}
    about = [one for one in events if _is_about(one, cluster, names)]
    archive.add_json("events.json", f"{len(about)} events about the cluster's objects", about)
    _logs(archive, api, pods)
    _operator(archive, api)


def _operator(archive: Archive, api: ApiReader) -> None:
    """In whatever namespace it is; who may not look there gets the rest."""
    selector = {"labelSelector": OPERATOR}
    for path, plural in (("/apis/apps/v1/deployments", "deployments"), ("/api/v1/pods", "pods")):
        found = _list(archive, api, path, selector, f"the operator's {plural}") or []
        if found:
            archive.add_json(f"operator/{plural}.json", f"the operator's {plural}", found)
        if plural == "pods":
            _logs(archive, api, found, "operator/")


def _logs(archive: Archive, api: ApiReader, pods: list[dict[str, Any]], folder: str = "") -> None:
    for pod in pods:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        restarted = {
            one.get("name") for one in pod.get("status", {}).get("containerStatuses", ()) if one.get("restartCount")
        }
        for container in (one["name"] for one in pod.get("spec", {}).get("containers", ())):
            if container not in CONTAINERS:
                continue
            for suffix, previous in (("", False), *((("-previous", True),) if container in restarted else ())):
                query = {"container": container, **({"previous": "true"} if previous else {})}
                name = f"{folder}logs/{meta['name']}-{container}{suffix}.log"
                try:
                    archive.add_log(name, f"the last {LOG_LINES:,} lines, {LOG_BYTES >> 20} MiB at most",
                                    _newest(api, path, query))  # fmt: skip
                except (ApiRejected, RequestUnanswered) as error:
                    archive.lacks(name, error)


def _newest(api: ApiReader, path: str, query: Mapping[str, str]) -> str:
    found = newest_log(lambda options: api.text(path, {**query, **options}).encode(), LOG_LINES, LOG_BYTES)
    return found.decode("utf-8", "replace")


def _take(archive: Archive, name: str, what: str, ask: Callable[[], dict[str, Any]]) -> None:
    try:
        archive.add_json(name, what, ask())
    except (ApiRejected, RequestUnanswered) as error:
        archive.lacks(name, error)


def _list(
    archive: Archive, api: ApiReader, path: str, query: Mapping[str, str], what: str
) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = api.get(path, query)["items"]
        return found
    except (ApiRejected, RequestUnanswered) as error:
        archive.lacks(what, error)
        return None


def _is_of(found: Mapping[str, Any], cluster: str) -> bool:
    """A custom resource of this cluster: by its label, by what its spec names, or by its own name."""
    meta, named = found["metadata"], (found.get("spec") or {}).get("cluster")
    if isinstance(named, dict):
        named = named.get("name")
    of = (meta.get("labels") or {}).get(CLUSTER_LABEL) or named
    return of == cluster if of else str(meta["name"]).startswith(f"{cluster}.")


def _is_about(event: Mapping[str, Any], cluster: str, names: set[str]) -> bool:
    name = str((event.get("involvedObject") or event.get("regarding") or {}).get("name", ""))
    return name in names or name.startswith((f"{cluster}.", f"{cluster}-"))
