"""`delayctl verify DIR`: what is wrong, and where, with the files of a stopped node or shard.

The node's own program looks: this runs `delaynode verify --json` and shows what it says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from delayctl.common import USAGE, FormerOptions, fail

Event = dict[str, Any]


@click.command("verify")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--clear-damaged", is_flag=True, help="Mend it, and let it serve again if nothing else is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print the events as JSON lines.")
def verify(directory: Path, clear_damaged: bool, as_json: bool) -> None:
    """Check the files below DIR: a node's data directory, or a shard's. The node must be stopped.

    Every frame, index unit, wheel slot and queue entry is read and compared with the others; nothing is changed.
    Exit codes: 0 all is well; 1 something is damaged; 2 wrong usage, or a node is running there.
    """
    command = [sys.executable, "-m", "delaynode.main", "verify", "--json", str(directory)]
    command += ["--clear-damaged"] * clear_damaged
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    if as_json or FormerOptions.of_command().as_json:
        for line in process.stdout:
            sys.stdout.write(line)
    else:
        _show(json.loads(line) for line in process.stdout)
    errors = process.stderr.read()
    code = process.wait()
    if code not in (0, 1) or errors:
        fail(errors.strip().removeprefix("delaynode verify: ") or f"delaynode verify ended with status {code}", USAGE)
    sys.exit(code)


def _show(events: Iterator[Event]) -> None:
    """A progress bar while it reads, findings as they come, then a table of the shards."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    from rich.table import Table

    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    table = Table("shard", "state", box=None, pad_edge=False)
    for name in ("frames", "messages", "units", "entries", "pending", "MB", "seconds"):
        table.add_column(name, justify="right")
    shards = 0
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        for event in events:
            match event["event"]:
                case "shard":
                    bar.reset(task, description=Path(event["directory"]).name, total=event["bytes"])
                case "progress":
                    bar.update(task, completed=event["read"])
                case "finding":
                    colour = "[yellow]note[/]" if event["note"] else "[bold red]DAMAGE[/]"
                    console.print(f"{colour} {escape(event['text'])}", soft_wrap=True)
                case "mended":
                    places = ", ".join(f"{position:,}" for position in event["positions"])
                    console.print(f"{event['directory']}: TimerLog flushes made again: {places}", soft_wrap=True)
                case "cleared":
                    console.print(f"{event['directory']}: nothing else is wrong, the mark is removed", soft_wrap=True)
                case "summary":
                    shards += 1
                    state = f"[bold red]{event['damage']:,} damaged[/]" if event["damage"] else "[green]well[/]"
                    numbers = (f"{event[name]:,}" for name in ("frames", "messages", "units", "entries", "pending"))
                    size, seconds = f"{event['bytes'] / 1e6:,.1f}", f"{event['seconds']:.1f}"
                    table.add_row(Path(event["directory"]).name, state, *numbers, size, seconds)
    if shards:
        console.print(table, soft_wrap=True)
