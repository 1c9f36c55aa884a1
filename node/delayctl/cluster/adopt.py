"""`delayctl adopt`: the registry is rebuilt from what the copies know."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from delayctl.common import FAILED, CommandSettings, common_options, confirmed, put_json
from delayctl.targets.options import data_option, open_registry_editor


@click.command()
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option("--yes", is_flag=True, help="Don't ask.")
@data_option
@common_options
def adopt(settings: CommandSettings, data: Path, shards: tuple[str, ...], yes: bool) -> None:
    """Bring a registry up to what its shards' copies know: after it was restored from an older state, or lost some.

    For shards whose condition says StatusLost or RegistryBehind. Every node has to answer: the copy with the highest
    log is taken, and one that nobody sees might have a higher one. What was moved since the registry's state was saved
    is found on any node.
    """
    with open_registry_editor(settings, data) as at:
        found = at.adoptions(shards)
        if not found and not settings.as_json:
            click.echo("nothing to adopt: the registry knows all that the copies do")
        if not settings.as_json:
            for it in found:
                click.echo(f"{it.shard.name}: {it.reason}", err=True)
        if found and not yes and not confirmed(f"Go on from these copies ({len(found)} shards)?"):
            sys.exit(FAILED)
        for it in found:
            at.adopt(it)
            if settings.as_json:
                status, spec = it.status, it.spec
                put_json(
                    {"shard": it.shard.name, "epoch": spec.epoch, "in_sync": list(status.in_sync), "why": it.reason}
                )
            else:
                click.echo(f"{it.shard.name} goes on from epoch {it.spec.epoch}")
