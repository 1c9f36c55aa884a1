"""Writes the objects that the operator applies beside the DelayShards, for tests without it: spec and nodes' leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from delayregistry.codec import dumps
from delayregistry.kube import Credentials, KubeClient, KubeRegistry, OwnerReference
from delayregistry.kube import objects as kube_objects
from delayregistry.kube.client import ApiRejected
from delayregistry.kube.names import SECURITY_KEY, SETTINGS_KEY, Names
from delayregistry.model import ClusterSpec, Version
from delayregistry.security import SecuritySpec, write_document
from kubernetes.client import Configuration

from tests.kube.fakeapi import FakeApiServer

OWNER = OwnerReference("c", "11111111-2222-3333-4444-555555555555")


def new_settings(names: Names, spec: ClusterSpec, owner: OwnerReference | None) -> dict[str, Any]:
    metadata = kube_objects.new_metadata(names.settings, names.labels, owner)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {SETTINGS_KEY: dumps(spec)}}


def new_lease(names: Names, node: str, owner: OwnerReference | None) -> dict[str, Any]:
    metadata = kube_objects.new_metadata(names.object(node), names.labels, owner)
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


class WritingRegistry(KubeRegistry):
    """The operator's registry, with the writes that the operator makes in other ways."""

    def put_cluster(self, spec: ClusterSpec, version: Version | None) -> Version:
        """Replaces the spec at `version` (None: there are none yet). Raises Conflict, OutcomeUnknown."""
        path, name = self._names.config_maps, self._names.settings
        if version is None:
            return self._create("the cluster", path, new_settings(self._names, spec, self._owner), self._settings)
        patch = {"data": {SETTINGS_KEY: dumps(spec)}}
        return self._patch("the cluster", path, name, "", patch, version, self._settings)

    def put_security(self, spec: SecuritySpec, version: Version | None) -> Version:
        """Likewise the security document."""
        path, name, data = self._names.config_maps, self._names.security, {SECURITY_KEY: write_document(spec)}
        if version is None:
            metadata = kube_objects.new_metadata(name, self._names.labels, self._owner)
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            return self._create("the security document", path, body, self._security)
        return self._patch("the security document", path, name, "", {"data": data}, version, self._security)

    def ensure_leases(self, nodes: Iterable[str]) -> int:
        """Creates those that do not exist; returns how many."""
        made = 0
        for node in nodes:
            try:
                self._client.post(self._names.leases, new_lease(self._names, node, self._owner), self._by)
                made += 1
            except ApiRejected as error:
                if error.code != 409:
                    raise
        return made


@contextmanager
def writing(server: FakeApiServer, cluster: str = "c") -> Iterator[WritingRegistry]:
    client = KubeClient(Credentials(Configuration(host=server.url)), agent="delaycluster-operator")
    registry = WritingRegistry(client, "default", cluster, OWNER)
    try:
        yield registry
    finally:
        registry.close()
        client.close()
