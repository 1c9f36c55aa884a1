"""Shared by all commands: --endpoint, --kube and --json, an event loop, and errors as one line and an exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from delayapi.options import Parsed

from delayctl.targets.kube_target import KubeTarget, parse_target

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.routing.routing import Cluster
    from rich.table import Table

DEFAULT_ENDPOINT: Final = "127.0.0.1:7070"
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
UNKNOWN: Final = -1  # pending messages where a copy is damaged
WHOLE_COLUMNS: Final = 10_000  # wider than any table

F = TypeVar("F", bound=Callable[..., Any])


class Hexadecimal(click.ParamType[int]):
    name = "uid"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(str(value), 16)
        except ValueError:
            self.fail(f"{value!r} is no uid: up to 16 of 0-9 and a-f", param, ctx)


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """Where the cluster is and how to print. kube: in Kubernetes, and `endpoint` is of no use."""

    endpoint: str
    as_json: bool
    kube: KubeTarget | None = None


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """How to reach the nodes. trouble: why the way itself failed last; empty if it did not."""

    endpoints: str | Sequence[str]
    dial: Callable[[str], str] | None = None
    trouble: Callable[[], str] = lambda: ""


def endpoint_options(command: F) -> F:
    """Adds --endpoint and --kube."""
    endpoint = click.option(
        "--endpoint", metavar="H:P", help="A node; also $DELAYCTL_ENDPOINT  [default: 127.0.0.1:7070]"
    )
    kube = click.option(
        "--kube",
        type=KUBE,
        metavar="[[CTX/]NS/]NAME",
        help="A DelayCluster in Kubernetes, by port-forward; also $DELAYCTL_KUBE.",
    )
    return endpoint(kube(command))


def common_options(command: F) -> F:
    """Adds --endpoint, --kube and --json; the command gets `settings`."""

    @endpoint_options
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def wrapped(endpoint: str | None, kube: KubeTarget | None, as_json: bool, **arguments: Any) -> Any:
        given = click.get_current_context().obj or {}
        as_json = as_json or bool(given.get("json"))
        return command(settings=_settings(endpoint, kube, as_json, given), **arguments)

    return wrapped  # type: ignore[return-value]


def _settings(
    endpoint: str | None, kube: KubeTarget | None, as_json: bool, given: Mapping[str, Any]
) -> CommandSettings:
    """The command's own options go before those of `delayctl`, and these before the environment's."""
    for asked, where in (
        ((endpoint, kube), "--endpoint and --kube"),
        ((given.get("endpoint"), given.get("kube")), "--endpoint and --kube"),
        (_from_environment(), "$DELAYCTL_ENDPOINT and $DELAYCTL_KUBE"),
    ):
        endpoint, kube = asked
        if endpoint and kube:
            raise click.UsageError(f"{where} name two clusters: give one of them")
        if endpoint or kube:
            break
    return CommandSettings(endpoint or DEFAULT_ENDPOINT, as_json, kube)


def _from_environment() -> tuple[str | None, KubeTarget | None]:
    kube = os.environ.get("DELAYCTL_KUBE")
    return os.environ.get("DELAYCTL_ENDPOINT"), KUBE.convert(kube, None, None) if kube else None


@contextmanager
def connect_target(settings: CommandSettings) -> Iterator[ConnectTarget]:
    """How the cluster is reached; ends the process where that can't be, with a line and an exit code."""
    if settings.kube is None:
        yield ConnectTarget(settings.endpoint)
        return
    from delayctl.targets.kube_route import forwarded

    with forwarded(settings.kube) as found:
        yield found


def run(settings: CommandSettings, main: Callable[[Cluster], Awaitable[int | None]]) -> NoReturn:
    """Runs a command with a connection and ends the process with its exit code."""
    from delayclient.errors import DelayError, Unavailable
    from delayclient.handle import BadHandle
    from delayclient.routing.routing import Cluster

    async def connected(way: ConnectTarget) -> int:
        try:
            cluster = Cluster(way.endpoints, dial=way.dial)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        async with cluster:
            return await main(cluster) or 0

    try:
        with connect_target(settings) as found:
            try:
                code = asyncio.run(connected(found))
            except Unavailable as error:
                trouble = found.trouble()
                fail(f"{error} ({trouble})" if trouble else str(error), UNREACHABLE)
        sys.stdout.flush()
    except BadHandle as error:
        fail(str(error), USAGE)
    except DelayError as error:
        fail(str(error), FAILED)
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def run_admin(
    settings: CommandSettings, main: Callable[[Admin], Awaitable[int | None]], timeout: str = "30s"
) -> NoReturn:
    """As run(), for a command that looks at the cluster or changes it. timeout: of each call, retries included."""

    async def administered(cluster: Cluster) -> int | None:
        from delayclient.admin.admin import Admin

        async with Admin(cluster, timeout=timeout) as admin:
            return await main(admin)

    run(settings, administered)


def fail(message: str, code: int) -> NoReturn:
    """One line on stderr, and out."""
    click.echo(f"delayctl: {message}", err=True)
    sys.exit(code)


def confirmed(question: str) -> bool:
    """Asks the person at the terminal; ends the process where there is none."""
    if not sys.stdin.isatty():
        fail("nobody to ask: give --yes", USAGE)
    return click.confirm(question, err=True)


def put_json(value: Any) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")


def text_of(body: bytes) -> str:
    """A body as text; bytes that are not UTF-8 appear as \\xNN."""
    return body.decode("utf-8", "backslashreplace")


@contextmanager
def progress(
    what: str, total: int | None, *, as_json: bool, draws_per_second: float = 10
) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr when that is a terminal; gives the function that moves it on."""
    if as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=draws_per_second, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


def print_table(table: Table) -> None:
    """On a terminal as wide as that is; elsewhere whole, one line a row: a script or a file has no width."""
    from rich.console import Console

    whole = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=WHOLE_COLUMNS if whole else None).print(table)


KUBE: Final = Parsed("cluster", parse_target)
