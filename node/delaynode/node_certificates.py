"""The certificates of a node, by use, each the newest good one on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from delayapi.certificates import Certificates, CertificateStore, load_certificates, load_roots
from delayregistry.model import ListenerTrust

from delaynode.listener_options import Security

SERVER, CLIENT_CA, PEER = "server", "client-ca", "peer"
ROLE = "/role/"
MAX_ROOTS_BYTES = 16 << 10  # told to others: they are in each renewal of the lease


class NodeCertificates:
    """stores: by use; those that the settings name. Threads look at the disk from start() on, until close()."""

    def __init__(self, security: Security) -> None:
        asked = (
            (SERVER, security.certificates, load_certificates),
            (CLIENT_CA, security.client_ca, load_roots),
            (PEER, security.peer_certificates, load_certificates),
        )
        self.stores: Mapping[str, CertificateStore] = {
            use: CertificateStore(Path(path), load) for use, path, load in asked if path
        }
        self._told: dict[str, str | None] = {}

    def start(self) -> None:
        for store in self.stores.values():
            store.start()

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def current(self, use: str) -> Certificates | None:
        store = self.stores.get(use)
        return None if store is None else store.current

    def problems(self) -> dict[str, str]:
        """What is wrong with what is on disk, by use. What was good before is still used."""
        return {use: store.problem for use, store in self.stores.items() if store.problem is not None}

    def figures(self) -> tuple[tuple[str, bool, float | None], ...]:
        """By use: whether what is on disk can't be used, and when what is in use expires, Unix time, s."""
        return tuple(
            (use, store.problem is not None, None if (held := store.current) is None else held.not_after_ms / 1_000)
            for use, store in self.stores.items()
        )

    def tell_changes(self, log: Callable[..., None]) -> None:
        """Say what has become wrong, or good again, since the last time."""
        found = self.problems()
        for use in self.stores:
            if found.get(use) != self._told.get(use):
                if use in found:
                    log("certificate-unusable", use=use, reason=found[use])
                else:
                    log("certificate-usable", use=use)
        self._told = dict(found)

    def trust(self) -> ListenerTrust | None:
        """What others need to know of the listeners' certificate; None: there is none, or it has no DNS name."""
        own = self.current(SERVER)
        if own is None or not own.host or len(own.roots_pem) > MAX_ROOTS_BYTES:
            return None
        return ListenerTrust(own.host, own.roots_pem.decode("ascii"))

    def cluster_uri(self) -> str:
        """What the URIs of this cluster's own processes begin with, before their role: as in this node's own
        certificate. Empty: it has none."""
        own = self.current(PEER)
        for name in own.names if own is not None else ():
            if name.startswith("spiffe://delaycluster/") and ROLE in name:
                return name[: name.index(ROLE) + len(ROLE)]
        return ""
