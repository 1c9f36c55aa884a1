"""`delayctl config`: named clusters, and which of them commands go to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from delayctl.common import (
    USAGE,
    CommandSettings,
    GivenPlace,
    common_options,
    fail,
    place_options,
    print_table,
    put_json,
)
from delayctl.targets.contexts import BadConfig, Context, ContextFile, config_path, load, save

_PATHS = ("ca", "client_cert", "client_key", "token_file")


@click.group()
def config() -> None:
    """Named clusters, and which of them commands go to.

    They are in ~/.config/delayctl/config.toml, or in $DELAYCTL_CONFIG. A command goes where its options say, else the
    environment, else the current context.
    """


@config.command("get-contexts")
@common_options
def get_contexts(settings: CommandSettings) -> None:
    """List the contexts."""
    file = _loaded()
    if settings.as_json:
        for name, context in sorted(file.contexts.items()):
            put_json({"context": name, "current": name == file.current, **dict(context.given())})
        return
    from rich.table import Table

    table = Table("current", "context", "cluster", "ca", "client cert", "token file", box=None, pad_edge=False)
    for name, context in sorted(file.contexts.items()):
        place = context.endpoint or f"kube:{context.kube}"
        table.add_row("*" * (name == file.current), name, place, context.ca, context.client_cert, context.token_file)
    print_table(table)


@config.command("use-context")
@click.argument("name")
def use_context(name: str) -> None:
    """Let commands go to this context."""
    _change(lambda file: file.using(name))


@config.command("set-context")
@click.argument("name")
@place_options(hidden=False)
def set_context(name: str, given: GivenPlace) -> None:
    """Make a context, or change what is given of one. An empty text takes something away.

    Tokens and keys stay in their files; a context has only the files' names.
    """
    if given.context is not None:
        raise click.UsageError("--context is of commands that go to a cluster")
    values = {"endpoint": given.endpoint, "kube": given.kube_text, **given.access}
    for path in _PATHS:
        if values.get(path):
            values[path] = str(Path(str(values[path])).expanduser().absolute())

    def change(file: ContextFile) -> ContextFile:
        before = asdict(file.contexts.get(name, Context()))
        if values["endpoint"] or values["kube"]:
            before |= {"endpoint": "", "kube": ""}
        return file.with_context(
            name, Context(**before | {key: value for key, value in values.items() if value is not None})
        )

    _change(change)


@config.command("delete-context")
@click.argument("name")
def delete_context(name: str) -> None:
    """Forget a context; the files that it names stay."""
    _change(lambda file: file.without(name))


def _loaded() -> ContextFile:
    try:
        return load(config_path())
    except BadConfig as error:
        fail(str(error), USAGE)


def _change(change: Callable[[ContextFile], ContextFile]) -> None:
    file = _loaded()
    try:
        save(config_path(), change(file))
    except BadConfig as error:
        fail(str(error), USAGE)
