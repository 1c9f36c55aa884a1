"""Shared by the commands that change the cluster's registry: --data, errors as exit codes, a bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from delayctl.common import CommandSettings
from delayctl.targets.errors import exit_on_errors

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from delayctl.targets.registry import RegistryEditor

F = TypeVar("F", bound=Callable[..., Any])


def data_option(command: F) -> F:
    """Adds --data; the command gets `data`."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".delaycluster"),
        show_default=True,
        metavar="DIR",
        envvar="DELAYCTL_DATA",
        help="The directory of the local cluster, without --kube; also $DELAYCTL_DATA.",
    )(command)


@contextmanager
def open_registry_editor(settings: CommandSettings, data: Path) -> Iterator[RegistryEditor]:
    """The registry of the cluster: --kube's, or the one in `data`. What it refuses ends the process with a line and
    an exit code."""
    from delayctl.targets.registry import registry_editor

    with exit_on_errors():
        if settings.kube is None:
            with registry_editor(data) as at:
                yield at
        else:
            if click.get_current_context().get_parameter_source("data") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--data and --kube name two clusters: give one of them")
            from delayctl.targets.kube_registry import kube_registry_editor

            with kube_registry_editor(settings.kube, str(settings.access.get("service_account", ""))) as at:
                yield at


class ProgressBar:
    """A bar on stderr when that is a terminal, with words for what happens and a total that may still change."""

    def __init__(self, what: str, settings: CommandSettings) -> None:
        self._what = what
        self._shown = not settings.as_json and sys.stderr.isatty()
        self._bar: RichProgress | None = None

    def __enter__(self) -> ProgressBar:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """total 0: not known."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._what}: {what}", completed=done, total=total or None)
