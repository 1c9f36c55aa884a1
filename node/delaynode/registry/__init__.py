"""The registry: where the cluster's desired and observed state lives, with compare-and-swap."""

from __future__ import annotations

from pathlib import Path

from delaynode.registry.port import Registry


def open_registry(url: str, *, create: bool = False) -> Registry:
    """The registry that `--registry` names: `sqlite:PATH`.

    Raises ValueError for another scheme, RegistryError when it can't be opened.
    """
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite" or not rest:
        raise ValueError(f"registry {url!r}: expected sqlite:PATH")
    from delaynode.registry.sqlite import SqliteRegistry

    return SqliteRegistry(Path(rest), create=create)
