"""`delayctl auth can-i`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from delayregistry.security import Operation

from delayctl.common import FAILED, CommandSettings, common_options, put_json, run_admin

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin


@click.group()
def auth() -> None:
    """Ask what callers may do."""


@auth.command("can-i")
@click.argument("operation", type=click.Choice(list(Operation), case_sensitive=False))
@click.argument("topic", default="")
@click.option("--group", metavar="GROUP", default="", help="The consumer group, of Consume and ManageGroup.")
@click.option("--as", "principal", metavar="PRINCIPAL", default="", help="Somebody else; that takes Admin.")
@click.option("--as-group", "groups", metavar="NAME", multiple=True, help="A group of that one's token.")
@common_options
def can_i(
    settings: CommandSettings, operation: Operation, topic: str, group: str, principal: str, groups: tuple[str, ...]
) -> None:
    """Say whether OPERATION on TOPIC is allowed, and by which rule. Admin has no TOPIC.

    Exit status: 0 yes, 1 no.
    """

    async def ask(admin: Admin) -> int:
        found = await admin.can_i(operation, topic, group, principal=principal, groups=groups)
        if settings.as_json:
            put_json(asdict(found))
        else:
            click.echo(f"{'yes' if found.allowed else 'no'} - {found.principal}: {found.why}")
        return 0 if found.allowed else FAILED

    run_admin(settings, ask)
