"""`delaysink`: the process of a sink, as the operator's Deployment runs it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import click
from delayapi.credentials import BadCredentials, Tls
from delayapi.events import EventLog
from delayclient.routing.access import Access
from delayclient.routing.routing import Cluster

from delaysink.document import read_file
from delaysink.process import run_sink
from delaysink.settings import BadSink

USAGE: Final = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sink", "path", type=click.Path(path_type=Path), required=True, help="The DelaySink, YAML or JSON.")
@click.option("--endpoint", "endpoints", multiple=True, required=True, metavar="H:P", help="A node; may be repeated.")
@click.option("--secrets", type=click.Path(path_type=Path), default=Path("."), help="Directory with NAME/KEY.")
@click.option("--listen", "address", default="", metavar="H:P", help="Where /healthz, /metrics and /status are.")
@click.option("--ca", default="", metavar="FILE", help="Whom to trust with the nodes' certificates, PEM.")
@click.option("--token-file", default="", metavar="FILE", help="Token to show to the nodes.")
@click.option("--server-name", default="", metavar="NAME", help="What the nodes' certificates must be for.")
def main(
    path: Path, endpoints: tuple[str, ...], secrets: Path, address: str, ca: str, token_file: str, server_name: str
) -> None:
    """Deliver a topic's messages as a DelaySink says, until SIGTERM."""

    async def delivered() -> None:
        access: Access = {}
        if ca:
            access["tls"] = Tls(ca=ca, server_name=server_name)
        if token_file:
            access["token_file"] = token_file
        async with Cluster(endpoints, **access) as cluster:
            await run_sink(read_file(path), secrets, cluster, address, EventLog())

    try:
        asyncio.run(delivered())
    except (BadSink, BadCredentials, OSError) as error:
        click.echo(f"delaysink: {error}", err=True)
        sys.exit(USAGE)
