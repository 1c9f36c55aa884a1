"""`delayctl schedules list | show | put | pause | resume | trigger | backfill | delete`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from delayapi.durations import format_instant, format_ms
from delayapi.options import DURATION, INSTANT

from delayctl.common import (
    USAGE,
    CommandSettings,
    common_options,
    confirmed,
    fail,
    harmless,
    print_table,
    put_json,
    run_admin,
    text_of,
)

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.schedules import FiringView, ScheduleView


@click.group()
def schedules() -> None:
    """Messages that a topic sends again and again."""


@schedules.command("list")
@click.argument("topic")
@click.option("--prefix", default="", help="Only ids that begin with this.")
@click.option("--limit", type=click.IntRange(0), default=100, show_default=True, help="At most so many; 0: all.")
@common_options
def list_(settings: CommandSettings, topic: str, prefix: str, limit: int) -> None:
    """List the schedules of TOPIC, by id."""

    async def listed(admin: Admin) -> None:
        found = []
        async for view in admin.schedules.each(topic, prefix):
            if settings.as_json:
                put_json(_json(view))
            found.append(view)
            if len(found) == limit:
                break
        if not settings.as_json:
            _print_list(found)

    run_admin(settings, listed)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@common_options
def show(settings: CommandSettings, topic: str, id: str) -> None:
    """Show the schedule ID of TOPIC: what it says, its next ten times, its last ten firings."""

    async def shown(admin: Admin) -> None:
        _print(settings, await admin.schedules.get(topic, id))

    run_admin(settings, shown)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@click.option("--cron", multiple=True, help="5 fields, or 6 with seconds first; may be given several times.")
@click.option("--every", type=DURATION, help="An interval instead, such as 90s; at least 1s.")
@click.option("--phase", type=DURATION, default=0, help="With --every: so long after its multiples since 1970.")
@click.option("--at", type=INSTANT, multiple=True, help="Instants instead; may be given several times.")
@click.option("--zone", default="", help="Of --cron, such as Europe/Berlin  [default: UTC]")
@click.option("--literal", is_flag=True, help="--cron by the letter when clocks are changed, not by Debian's rule.")
@click.option("--start", type=INSTANT, help="No time before this.")
@click.option("--end", type=INSTANT, help="No time from this on.")
@click.option("--max-firings", type=click.IntRange(0), default=0, help="Over once it has fired so often; 0: never.")
@click.option("--jitter", type=DURATION, default=0, help="Each firing is later by 0 up to this.")
@click.option("--catch-up", type=click.Choice(["latest", "none", "all"]), default="latest", show_default=True,
              help="What of the times that passed while no node served it.")  # fmt: skip
@click.option("--catch-up-window", type=DURATION, default=0, help="How old they may be  [default: 1d]")
@click.option("--skip-while", "overlap_group", default="", metavar="GROUP",
              help="Leave a time out while GROUP has not acknowledged the firing before.")  # fmt: skip
@click.option("--body", default="", help="The message's body.")
@click.option("--body-file", type=click.File("rb"), help="Its body out of a file; - is stdin.")
@click.option("--key", default="", help="Its key.")
@click.option("--tag", default="", help="Its tag.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="One of its properties.")
@click.option("--paused/--not-paused", default=None, help="Pause or resume it too.")
@click.option("--note", default="", help="With --paused: why.")
@click.option("--if-version", type=click.IntRange(0), help="Only if it has this version; 0: only if there is none.")
@common_options
def put(
    settings: CommandSettings,
    topic: str,
    id: str,
    body: str,
    body_file: Any,
    properties: tuple[str, ...],
    paused: bool | None,
    note: str,
    if_version: int | None,
    **said: Any,
) -> None:
    """Make the schedule ID of TOPIC, or change it to what the options say. The same again changes nothing."""
    from delayclient.admin.schedules import Schedule

    if body_file is not None and body:
        raise click.UsageError("give --body or --body-file")
    for one in properties:
        if "=" not in one:
            raise click.UsageError(f"--property {one!r} is not NAME=VALUE")
    named = {name: value for name, _, value in (one.partition("=") for one in properties)}
    try:
        schedule = Schedule(topic, id, body if body_file is None else body_file.read(), properties=named, **said)
        schedule.encode()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for one in schedule.cron:
        fields = one.split()[-3:]
        if len(fields) == 3 and not fields[0].startswith("*") and not fields[2].startswith("*"):
            click.echo(f"delayctl: {one!r} comes on days that are of the month's or of the week's: either is enough",
                       err=True)  # fmt: skip

    async def done(admin: Admin) -> None:
        view, changed = await admin.schedules.put(schedule, paused=paused, note=note, expected_version=if_version)
        if not settings.as_json:
            click.echo(f"schedule {id} of {topic} is {'now' if changed else 'already'} at version {view.version}")
        _print(settings, view)

    run_admin(settings, done)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@click.option("--note", default="", help="Why.")
@common_options
def pause(settings: CommandSettings, topic: str, id: str, note: str) -> None:
    """Fire nothing until it is resumed. Times that pass in between never fire."""

    async def done(admin: Admin) -> None:
        _print(settings, await admin.schedules.pause(topic, id, note))

    run_admin(settings, done)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@click.option("--note", default="", help="Why.")
@common_options
def resume(settings: CommandSettings, topic: str, id: str, note: str) -> None:
    """Let a paused schedule fire again, from now on."""

    async def done(admin: Admin) -> None:
        _print(settings, await admin.schedules.resume(topic, id, note))

    run_admin(settings, done)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@common_options
def trigger(settings: CommandSettings, topic: str, id: str) -> None:
    """Fire it once, now. What comes next stays as it is."""

    async def done(admin: Admin) -> None:
        _print_firings(settings, (await admin.schedules.trigger(topic, id),))

    run_admin(settings, done)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@click.option("--from", "from_ms", type=INSTANT, required=True, help="Times from this on,")
@click.option("--to", "to_ms", type=INSTANT, required=True, help="and before this; at most 1,000 of them.")
@common_options
def backfill(settings: CommandSettings, topic: str, id: str, from_ms: int, to_ms: int) -> None:
    """Fire the times of a range in the past, now, whether they have fired or not."""

    async def done(admin: Admin) -> None:
        _print_firings(settings, await admin.schedules.backfill(topic, id, from_ms, to_ms))

    run_admin(settings, done)


@schedules.command()
@click.argument("topic")
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def delete(settings: CommandSettings, topic: str, id: str, yes: bool) -> None:
    """Delete a schedule. Messages that it has fired stay."""
    if not yes and not confirmed(f"Delete the schedule {id} of {topic}?"):
        fail("nothing was deleted", USAGE)

    async def done(admin: Admin) -> None:
        deleted = await admin.schedules.delete(topic, id)
        if settings.as_json:
            put_json({"topic": topic, "id": id, "deleted": deleted})
        else:
            click.echo(f"deleted the schedule {id} of {topic}" if deleted else f"{topic} has no schedule {id}")

    run_admin(settings, done)


def _json(view: ScheduleView) -> dict[str, Any]:
    found = asdict(view)
    body = found["schedule"]["body"]
    found["schedule"]["body"] = text_of(body) if isinstance(body, bytes) else body
    return found


def _when(view: ScheduleView) -> str:
    schedule = view.schedule
    if schedule.cron:
        return ", ".join(schedule.cron) + (f" {schedule.zone or 'UTC'}")
    if schedule.every is not None:
        return f"every {format_ms(int(schedule.every))}"  # type: ignore[arg-type]  # ms, as a node has it
    return f"{len(schedule.at):,} instants"


def _state(view: ScheduleView) -> str:
    if view.paused:
        return f"paused: {view.note}" if view.note else "paused"
    if view.over or view.next_due_ms is None:
        return "over"
    left_ms = view.next_due_ms - int(time.time() * 1_000)
    return f"next {format_instant(view.next_due_ms)} ({f'in {format_ms(left_ms)}' if left_ms > 0 else 'now'})"


def _print_list(views: list[ScheduleView]) -> None:
    from rich.table import Table

    table = Table(box=None)
    for name in ("id", "when", "state", "fired", "skipped", "missed"):
        table.add_column(name, justify="right" if name in ("fired", "skipped", "missed") else "left")
    for view in views:
        counts = (f"{one:,}" for one in (view.fired, view.skipped, view.missed))
        table.add_row(view.schedule.id, _when(view), _state(view), *counts)
    print_table(table)


def _print(settings: CommandSettings, view: ScheduleView) -> None:
    if settings.as_json:
        put_json(_json(view))
        return
    click.echo(harmless(f"{view.schedule.id}: {_when(view)}; {_state(view)}"))
    click.echo(f"version {view.version}, fired {view.fired:,}, skipped {view.skipped:,}, missed {view.missed:,}")
    for at_ms in view.upcoming_ms:
        click.echo(f"  next  {format_instant(at_ms)}")
    _print_firings(settings, view.last)


def _print_firings(settings: CommandSettings, firings: tuple[FiringView, ...]) -> None:
    for one in firings:
        if settings.as_json:
            put_json(asdict(one))
        else:
            number = f"#{one.number:,}" if one.number else "none"
            click.echo(
                f"  fired {format_instant(one.fired_ms)} {number} for {format_instant(one.nominal_ms)} {one.kind}"
            )
