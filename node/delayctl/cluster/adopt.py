"""`delayctl adopt`: the registry is rebuilt from what the copies know."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from delayctl.common import FAILED, CommandSettings, Hexadecimal, common_options, confirmed, put_json
from delayctl.targets.options import data_option, open_registry_editor


@click.command()
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option("--uid", type=Hexadecimal(), help="The history to go on from, where copies of several are found.")
@click.option(
    "--unproven", is_flag=True, help="Go on though a copy that was in sync is on no node: what it alone had is lost."
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@data_option
@common_options
def adopt(
    settings: CommandSettings, data: Path, shards: tuple[str, ...], uid: int | None, unproven: bool, yes: bool
) -> None:
    """Bring a registry up to what its shards' copies know: after it was restored from an older state, or lost some.

    For shards whose condition says StatusLost or RegistryBehind, and for those that a cluster's condition
    OrphanedCopies names: their objects are gone, and are made again. Every node has to answer: the copy with the
    highest log is taken, and one that nobody sees might have a higher one. What was moved since the registry's state
    was saved is found on any node.
    """
    with open_registry_editor(settings, data) as at:
        found = at.adoptions(shards, uid, unproven=unproven)
        if not found and not settings.as_json:
            click.echo("nothing to adopt: the registry knows all that the copies do")
        if not settings.as_json:
            for it in found:
                click.echo(f"{it.spec.name}: {it.reason}", err=True)
        if found and not yes and not confirmed(f"Go on from these copies ({len(found)} shards)?"):
            sys.exit(FAILED)
        for it in found:
            at.adopt(it)
            if settings.as_json:
                status, spec = it.status, it.spec
                put_json(
                    {
                        "shard": spec.name,
                        "uid": f"{spec.uid:016x}",
                        "epoch": spec.epoch,
                        "in_sync": list(status.in_sync),
                        "why": it.reason,
                    }
                )
            else:
                click.echo(f"{it.spec.name} goes on from epoch {it.spec.epoch}")
