"""`delayctl report`: one archive with what somebody who helps asks for first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from delayctl.common import DEFAULT_ENDPOINT, FAILED, CommandSettings, ConnectTarget, common_options, fail, put_json
from delayctl.targets.errors import exit_on_errors
from delayctl.targets.options import data_option

if TYPE_CHECKING:
    from delayclient.routing.access import Access
    from delayregistry.model import NodeLease

    from delayctl.report.archive import Archive
    from delayctl.targets.kube import KubeAccess

LOG_BYTES: Final = 4 << 20
_READ_S: Final = 30.0
_SMALL: Final = 64 << 10


@click.command()
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="[default: delaycluster-report-CLUSTER-TIME.tar.gz]",
)  # fmt: skip
@data_option
@common_options
def report(settings: CommandSettings, data: Path, output: Path | None) -> None:
    """Gather objects, events, logs, nodes' states and metrics into an archive, to look at or to send to somebody.

    It has no bodies, keys or properties of messages, and no secrets: README.txt and index.json in it say what is in it,
    what is left out, and what could not be had. Nothing of the cluster is changed.
    """
    from delayctl.report.archive import Archive

    local = _is_local(settings, data)
    cluster = settings.kube.cluster if settings.kube else "local" if local else settings.endpoint.replace(":", "-")
    path = output or Path(f"delaycluster-report-{cluster}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    known = _known_secrets(settings, data if local else None)
    try:
        archive = Archive(path, cluster, known)
    except OSError as error:
        fail(f"{path}: {error.strerror}", FAILED)
    try:
        if settings.kube is not None:
            _of_kubernetes(archive, settings)
        elif local:
            _of_directory(archive, settings, data)
        else:
            archive.lacks("objects, logs, metrics", "only an endpoint is known: give --kube or --data")
            _of_nodes(archive, settings, ConnectTarget(settings.endpoint))
    except BaseException:  # there is no such cluster: an archive of nothing would look like a report
        archive.close()
        path.unlink()
        raise
    archive.close()
    if settings.as_json:
        put_json({"file": str(path), "files": len(archive.files), "missing": archive.missing})
        return
    click.echo(f"{path}: {len(archive.files)} files")
    for one in archive.missing:
        click.echo(f"without {one['what']}: {one['why']}", err=True)


def _is_local(settings: CommandSettings, data: Path) -> bool:
    """--data was given; or no other cluster is named, and there is one in the default directory."""
    source = click.get_current_context().get_parameter_source("data")
    if settings.kube is not None:
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError("--data and --kube name two clusters: give one of them")
        return False
    if source is not ParameterSource.DEFAULT:
        return True
    return settings.endpoint == DEFAULT_ENDPOINT and (data / "registry.db").exists()


def _known_secrets(settings: CommandSettings, data: Path | None) -> list[str]:
    """What this machine has of the cluster's tokens and keys: they must not be in a log."""
    paths = [Path(str(settings.access[name])) for name in ("token_file", "client_key") if settings.access.get(name)]
    if data is not None:
        paths += sorted((data / "security").rglob("*"))
    found = []
    for path in paths:
        with suppress(OSError, UnicodeDecodeError):
            if path.is_file() and path.stat().st_size <= _SMALL:
                found.append(path.read_text("ascii").strip())
    return found


# --------------------------------------------------------------------------------------------- Kubernetes


def _of_kubernetes(archive: Archive, settings: CommandSettings) -> None:
    from delayctl.report.kubernetes import collect
    from delayctl.targets.kube import KubeError
    from delayctl.targets.kube_route import accessed, forwarding

    assert settings.kube is not None
    with accessed(settings.kube) as access:
        archive.know(access.secrets())
        collect(archive, _AnsweringApi(access), access.namespace, access.cluster)
        try:
            leases = access.leases()
            with forwarding(access, settings.access) as way:
                _of_nodes(archive, settings, way, leases)
        except KubeError as error:
            archive.lacks("nodes' states and metrics", error)


class _AnsweringApi:
    def __init__(self, access: KubeAccess) -> None:
        self._client = access.client

    def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        return self._client.get(path, query, _READ_S)

    def text(self, path: str, query: Mapping[str, str]) -> str:
        return self._client.text(path, query, _READ_S)


# ------------------------------------------------------------------------------------- a local cluster


def _of_directory(archive: Archive, settings: CommandSettings, data: Path) -> None:
    from delayapi.node_client import TOKENS
    from delayregistry.codec import to_json

    from delayctl.targets.registry import registry_editor

    with exit_on_errors(), registry_editor(data) as at:
        archive.add_json("objects/cluster.json", "what is asked for", to_json(at.cluster()))
        archive.add_json("objects/shards.json", "shards as the registry has them", [to_json(it) for it in at.shards()])
        leases = at.leases()
        archive.add_json("objects/leases.json", "nodes' signs of life", [to_json(it) for it in leases])
    for log in sorted((data / "logs").glob("*.log")):
        archive.add_log(f"logs/{log.name}", f"the last {LOG_BYTES >> 20} MiB at most", _tail(log))
    endpoints = [lease.endpoint_of(TOKENS) or lease.endpoint for lease in leases] or DEFAULT_ENDPOINT
    # A context's token is another cluster's.
    _of_nodes(archive, replace(settings, access={}), ConnectTarget(endpoints, _own_access(data)), leases)


def _own_access(data: Path) -> Access:
    """A cluster with TLS has made its administrator a token."""
    from delayapi.credentials import Tls
    from delaylocal.own_keys import DIRECTORY, SERVER_NAME, OwnKeys

    keys = OwnKeys(data / DIRECTORY)
    if not keys.token_file.exists():
        return {}
    return {"tls": Tls(keys.ca, server_name=SERVER_NAME), "token_file": str(keys.token_file)}


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES))
        if size > LOG_BYTES:
            file.readline()  # a line that is cut
        return file.read().decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------ nodes


def _of_nodes(
    archive: Archive, settings: CommandSettings, way: ConnectTarget, leases: Sequence[NodeLease] = ()
) -> None:
    from delayclient.errors import DelayError
    from delayclient.routing.routing import Cluster

    from delayctl.report.nodes import ask_metrics, ask_nodes

    async def asked(dial: Callable[[str], str], nodes: Iterable[NodeLease]) -> None:
        access = settings.client_access()
        access.update(way.access)
        async with Cluster(way.endpoints, dial=way.dial, **access) as cluster:
            await ask_nodes(archive, cluster)
        await ask_metrics(archive, nodes, access, dial)

    try:
        asyncio.run(asked(way.dial or str, leases))
    except (DelayError, ValueError) as error:  # ValueError: a certificate without its key
        archive.lacks("nodes' states and metrics", error)
