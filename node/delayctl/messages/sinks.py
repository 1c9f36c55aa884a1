"""`delayctl sinks run | check`: a topic's messages by HTTP, from this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from delayctl.common import USAGE, CommandSettings, common_options, fail, put_json, run

if TYPE_CHECKING:
    from delayclient.routing.routing import Cluster
    from delaysink.settings import SinkSettings

_SECRETS = click.option(
    "--secrets", type=click.Path(path_type=Path), help="Directory with the secrets, NAME/KEY  [default: FILE's]."
)


@click.group()
def sinks() -> None:
    """Deliver a topic's messages by HTTP, as a DelaySink says."""


@sinks.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@_SECRETS
@click.option("--listen", "address", default="", metavar="H:P", help="Where /healthz, /metrics and /status are.")
@common_options
def run_(settings: CommandSettings, file: Path, secrets: Path | None, address: str) -> None:
    """Deliver what FILE, a DelaySink, says, until Ctrl-C."""
    from delayapi.events import EventLog
    from delaysink.process import run_sink
    from delaysink.settings import BadSink

    sink = _read(file)

    async def delivered(cluster: Cluster) -> None:
        try:
            await run_sink(sink, secrets or file.parent, cluster, address, EventLog())
        except (BadSink, OSError) as error:
            fail(str(error), USAGE)

    run(settings, delivered)


@sinks.command()
@click.argument("file", type=click.Path(path_type=Path))
@_SECRETS
@common_options
def check(settings: CommandSettings, file: Path, secrets: Path | None) -> None:
    """Say whether FILE is a DelaySink, and its secrets are there and well-formed; nothing is sent."""
    from delaysink.process import new_target
    from delaysink.secret_file import BadSecret
    from delaysink.settings import BadSink

    sink = _read(file)
    missing = [str(it.path) for it in sink.secrets if not ((secrets or file.parent) / it.path).is_file()]
    if missing:
        fail(f"{file}: secrets that are not there: {', '.join(missing)}", USAGE)
    try:
        new_target(sink, secrets or file.parent).check_secrets()
    except (BadSecret, BadSink) as error:
        fail(f"{file}: {error}", USAGE)
    if settings.as_json:
        put_json({"sink": sink.name, "topic": sink.topic, "group": sink.group})
    else:
        click.echo(f"{file}: sink {sink.name} of topic {sink.topic}, group {sink.group}")


def _read(file: Path) -> SinkSettings:
    from delaysink.document import read_file
    from delaysink.settings import BadSink

    try:
        return read_file(file)
    except BadSink as error:
        fail(str(error), USAGE)
