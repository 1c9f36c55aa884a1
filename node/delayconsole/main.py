"""`delayctl console`: the console on one's own machine, at 127.0.0.1, with the rights of who started it."""

from __future__ import annotations

import asyncio
import getpass
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from delayctl.common import DEFAULT_ENDPOINT, CommandSettings, common_options, fail, run_admin
from delayctl.targets.options import data_option

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin

    from delayconsole.cluster_objects import ClusterObjects

ADDRESS: Final = "127.0.0.1"
PORT: Final = 7180
FAILED: Final = 1
CALL_TIMEOUT: Final = "5s"
"""Of a call, retries included: a person waits."""


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0: any that is free.")
@click.option(
    "--allow-changes", is_flag=True, help="Let the console cancel, move and so on. Without it, it only looks."
)
@data_option
@common_options
def console(settings: CommandSettings, data: Path, port: int, allow_changes: bool) -> None:
    """Look at the cluster in a browser, at 127.0.0.1.

    Prints a link, whose key lets browsers in, and serves until Ctrl-C. The console shows and does what you may: it
    speaks to the cluster as every other command does.
    """
    if settings.as_json:
        raise click.UsageError("the console prints no JSON")
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise click.UsageError("the console needs Jinja2: pip install 'delaycluster[console]'") from None
    run_admin(settings, lambda admin: _served(settings, admin, port, allow_changes, data), CALL_TIMEOUT)


async def _served(settings: CommandSettings, admin: Admin, port: int, allow_changes: bool, data: Path) -> None:
    from delayconsole.render import missing_assets

    if missing := missing_assets():
        fail(f"{', '.join(missing)} of the console are not installed: run `make assets` in the checkout", FAILED)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
        except OSError as error:
            fail(f"{ADDRESS}:{port} cannot be listened on: {error.strerror}; --port chooses another", FAILED)
        await _serve_on(listener, settings, admin, allow_changes, data)


async def _serve_on(
    listener: socket.socket, settings: CommandSettings, admin: Admin, allow_changes: bool, data: Path
) -> None:
    from aiohttp import web
    from delayapi.events import EventLog

    from delayconsole.app import ConsoleApp
    from delayconsole.cluster_objects import LocalObjects
    from delayconsole.local_sign_in import PATH, LocalSignIn
    from delayconsole.pages import PAGES
    from delayconsole.security import OwnOrigins, SessionKey
    from delayconsole.visitor import Visitor

    port = listener.getsockname()[1]
    objects = await asyncio.to_thread(objects_of, settings, data)
    sign_in = LocalSignIn(Visitor(SessionKey(), admin, getpass.getuser(), program_of(settings), objects), port)
    origins = OwnOrigins.of(f"http://{host}:{port}" for host in (ADDRESS, "localhost"))
    audit = EventLog(objects.console_log) if isinstance(objects, LocalObjects) else _unlogged
    app = ConsoleApp(sign_in, origins, PAGES, allow_changes=allow_changes, cluster=cluster_name(settings), audit=audit)
    runner = web.AppRunner(app.application(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    click.echo(f"http://{ADDRESS}:{port}{PATH}?key={sign_in.key}")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await runner.cleanup()


def _unlogged(event: Mapping[str, object]) -> None:
    """Who changes a cluster from here is in the logs of its nodes and of its API server alone."""


def program_of(settings: CommandSettings) -> tuple[str, ...]:
    """`delayctl` with the options that lead to this cluster, for the commands that pages show."""
    words = ["delayctl"]
    if settings.kube is not None:
        words += ["--kube", cluster_name(settings)]
    elif settings.endpoint != DEFAULT_ENDPOINT:
        words += ["--endpoint", settings.endpoint]
    for name, value in settings.access.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return tuple(words)


def cluster_name(settings: CommandSettings) -> str:
    """For people, and for --kube."""
    if settings.kube is None:
        return settings.endpoint
    it = settings.kube
    return "/".join(part for part in (it.context, it.namespace, it.cluster) if part)


def objects_of(settings: CommandSettings, data: Path) -> ClusterObjects | None:
    """The registry and what is beside it. None: `data` is not of the cluster that --endpoint names."""
    from delayregistry.port import RegistryError
    from delayregistry.sqlite import SqliteRegistry

    from delayconsole.cluster_objects import ForwardedObjects, LocalObjects

    if settings.kube is not None:
        return ForwardedObjects(settings.kube, str(settings.access.get("service_account", "")))
    try:
        registry = SqliteRegistry(data / "registry.db")
        try:
            leases = registry.list_leases()
        finally:
            registry.close()
    except RegistryError:
        return None
    known = {endpoint for lease in leases for endpoint in (lease.endpoint, *(it.endpoint for it in lease.listeners))}
    return LocalObjects(data) if settings.endpoint.replace("localhost", "127.0.0.1") in known else None
