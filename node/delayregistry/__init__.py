"""The registry: where the cluster's desired and observed state lives, with compare-and-swap."""

from __future__ import annotations

from pathlib import Path

from delayregistry.port import Registry


def open_registry(url: str, *, create: bool = False) -> Registry:
    """The registry that `--registry` names: `sqlite:PATH`, or `kube:NAMESPACE/CLUSTER`, which need not answer yet.

    Raises ValueError for anything else, RegistryError when it can't be opened.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "kube":
        from delayregistry.kube import open_for_node

        return open_for_node(rest)
    if scheme != "sqlite" or not rest:
        raise ValueError(f"registry {url!r}: expected sqlite:PATH or kube:NAMESPACE/CLUSTER")
    from delayregistry.sqlite import SqliteRegistry

    return SqliteRegistry(Path(rest), create=create)
