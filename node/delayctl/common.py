"""Shared by all commands: where the cluster is, --json, an event loop, and errors as one line and an exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from delayapi.options import Parsed

from delayctl.targets.kube_target import KubeTarget, parse_target

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.routing.access import Access
    from delayclient.routing.routing import Cluster
    from rich.table import Table

DEFAULT_ENDPOINT: Final = "127.0.0.1:7070"
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
UNKNOWN: Final = -1  # pending messages where a copy is damaged
WHOLE_COLUMNS: Final = 10_000  # wider than any table
ENVIRONMENT: Final = "DELAYCTL_"

_ACCESS: Final = (
    ("ca", "FILE", "Whom to trust with the nodes' certificates, PEM"),
    ("client-cert", "FILE", "Certificate to show to the nodes, PEM"),
    ("client-key", "FILE", "Its key, PEM"),
    ("server-name", "NAME", "What the nodes' certificates must be for  [default: the endpoint's host]"),
    ("token-file", "FILE", "Token to show to the nodes"),
    ("service-account", "[NS/]NAME", "With --kube: be this ServiceAccount, by a token that the API server gives you"),
)

F = TypeVar("F", bound=Callable[..., Any])


class Hexadecimal(click.ParamType[int]):
    name = "uid"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(str(value), 16)
        except ValueError:
            self.fail(f"{value!r} is no uid: up to 16 of 0-9 and a-f", param, ctx)


@dataclass(frozen=True, slots=True)
class GivenPlace:
    """Where the cluster is and how to reach it, as options of one command or the environment say; None: not said.

    kube_text: as it was written. access: by the names of `delayctl.targets.contexts.Context`.
    """

    endpoint: str | None = None
    kube_text: str | None = None
    context: str | None = None
    access: Mapping[str, str | bool | None] = field(default_factory=dict)

    def names_cluster(self, names: str) -> bool:
        """It says where the cluster is. names: how the three are called. Raises UsageError: it names two clusters."""
        given = [name for name, value in zip(names.split(), self._places, strict=True) if value]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} name two clusters: give one of them")
        return bool(given)

    @property
    def _places(self) -> tuple[str | None, ...]:
        return self.endpoint, self.kube_text, self.context


@dataclass(frozen=True, slots=True)
class FormerOptions:
    """What stood before the command's name; the object of click's context. find_place: called when a command needs it,
    which --help does not; ends the process where there is no such place."""

    find_place: Callable[[], GivenPlace] = GivenPlace
    as_json: bool = False

    @classmethod
    def of_command(cls) -> FormerOptions:
        found = click.get_current_context().obj
        return found if isinstance(found, FormerOptions) else cls()


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """Where the cluster is and how to print. kube: in Kubernetes, and `endpoint` is of no use.

    access: what is not empty of a context's fields that are about TLS and tokens.
    """

    endpoint: str
    as_json: bool
    kube: KubeTarget | None = None
    access: Mapping[str, str | bool] = field(default_factory=dict)

    def client_access(self) -> Access:
        """For the SDK's Cluster. Raises ValueError: a certificate without its key."""
        from delayapi.credentials import Tls

        given = {name: str(value) for name, value in self.access.items() if name != "service_account"}
        access: Access = {}
        if given.keys() - {"token_file"}:
            access["tls"] = Tls(
                ca=given.get("ca", ""),
                certificate=given.get("client_cert", ""),
                key=given.get("client_key", ""),
                server_name=given.get("server_name", ""),
            )
        if "token_file" in given:
            access["token_file"] = given["token_file"]
        return access


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """How to reach the nodes. access: what the way itself knows of TLS and tokens. trouble: why it failed last; empty
    if it did not."""

    endpoints: str | Sequence[str]
    access: Access = field(default_factory=dict)  # type: ignore[assignment]  # all of it may be left out
    dial: Callable[[str], str] | None = None
    trouble: Callable[[], str] = lambda: ""


def place_options(*, hidden: bool) -> Callable[[F], F]:
    """Adds the options that say where the cluster is and how to reach it; the command gets `given`. hidden: they are
    left out of its help, but for --endpoint and --kube.
    """
    options = (
        click.option("--endpoint", metavar="H:P", help="A node; also $DELAYCTL_ENDPOINT  [default: 127.0.0.1:7070]"),
        click.option(
            "--kube",
            "kube_text",
            callback=_checked_kube,
            metavar="[[CTX/]NS/]NAME",
            help="A DelayCluster in Kubernetes, by port-forward; also $DELAYCTL_KUBE.",
        ),
        click.option(
            "--context", metavar="NAME", hidden=hidden, help="One of `delayctl config`; also $DELAYCTL_CONTEXT."
        ),
        click.option(
            "--tls", is_flag=True, default=None, hidden=hidden, help="TLS, where none of the options below asks for it."
        ),
        *(
            click.option(
                f"--{name}", metavar=metavar, hidden=hidden, help=f"{text}; also ${ENVIRONMENT}{_variable(name)}."
            )
            for name, metavar, text in _ACCESS
        ),
    )

    def add(command: F) -> F:
        @wraps(command)
        def wrapped(
            endpoint: str | None, kube_text: str | None, context: str | None, tls: bool | None, **arguments: Any
        ) -> Any:
            access = {name: arguments.pop(name) for name in (_field(name) for name, _, _ in _ACCESS)}
            return command(given=GivenPlace(endpoint, kube_text, context, {"tls": tls, **access}), **arguments)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]

    return add


def common_options(command: F) -> F:
    """Adds the place's options and --json; the command gets `settings`."""

    @place_options(hidden=True)
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def wrapped(given: GivenPlace, as_json: bool, **arguments: Any) -> Any:
        former = FormerOptions.of_command()
        return command(settings=_settings(given, former.find_place(), as_json or former.as_json), **arguments)

    return wrapped  # type: ignore[return-value]


def _settings(own: GivenPlace, former: GivenPlace, as_json: bool) -> CommandSettings:
    """The command's own options go before those of `delayctl`, these before the environment's, and all before the
    current context."""
    from delayctl.targets.contexts import BadConfig, Context, config_path, load

    options, variables = "--endpoint --kube --context", "$DELAYCTL_ENDPOINT $DELAYCTL_KUBE $DELAYCTL_CONTEXT"
    environment = _from_environment()
    found = GivenPlace()
    for place, names in ((own, options), (former, options), (environment, variables)):
        if place.names_cluster(names):
            found = place
            break
    context = Context()
    if not found.endpoint and not found.kube_text:
        try:
            file = load(config_path())
            if name := found.context or file.current:
                context = file.named(name)
        except BadConfig as error:
            raise click.UsageError(str(error)) from None
    kube = found.kube_text or context.kube
    access = {name: getattr(context, name) for name in ("tls", *(_field(name) for name, _, _ in _ACCESS))}
    for place in (environment, former, own):
        access |= {name: value for name, value in place.access.items() if value is not None}
    return CommandSettings(
        found.endpoint or context.endpoint or DEFAULT_ENDPOINT,
        as_json,
        KUBE.convert(kube, None, None) if kube else None,
        {name: value for name, value in access.items() if value},
    )


def _from_environment() -> GivenPlace:
    def variable(name: str) -> str | None:
        return os.environ.get(ENVIRONMENT + name) or None

    access = {_field(name): variable(_variable(name)) for name, _, _ in _ACCESS}
    return GivenPlace(variable("ENDPOINT"), variable("KUBE"), variable("CONTEXT"), access)


def _checked_kube(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        KUBE.convert(value, param, ctx)
    return value


def _field(option: str) -> str:
    return option.replace("-", "_")


def _variable(option: str) -> str:
    return _field(option).upper()


@contextmanager
def connect_target(settings: CommandSettings) -> Iterator[ConnectTarget]:
    """How the cluster is reached; ends the process where that can't be, with a line and an exit code."""
    if settings.kube is None:
        yield ConnectTarget(settings.endpoint)
        return
    from delayctl.targets.kube_route import forwarded

    with forwarded(settings.kube, settings.access) as found:
        yield found


def run(settings: CommandSettings, main: Callable[[Cluster], Awaitable[int | None]]) -> NoReturn:
    """Runs a command with a connection and ends the process with its exit code."""
    from delayapi.handle import BadHandle
    from delayclient.errors import DelayError, Unavailable
    from delayclient.routing.routing import Cluster

    async def connected(way: ConnectTarget) -> int:
        try:
            access = settings.client_access()
            access.update(way.access)
            cluster = Cluster(way.endpoints, dial=way.dial, **access)
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


_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


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


def harmless(text: str) -> str:
    """For a terminal, which does what control characters say: what others have written shows them as \\xNN."""
    return text.translate(_CONTROLS)


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
    for column in table.columns:
        column._cells = [harmless(cell) if isinstance(cell, str) else cell for cell in column._cells]
    Console(width=WHOLE_COLUMNS if whole else None, markup=False, emoji=False).print(table)


KUBE: Final = Parsed("cluster", parse_target)
