"""The red team: `python -m tests.redteam.run [--edge compiled] [--only WORDS]`, a line for each attack: ok, FAULT, or
skip where this machine can't try all of it, which shows nothing.

Real nodes, as `delayctl local --secure` starts them, through both edges. Meanwhile a quiet client sends and receives:
a column says how late its messages were at most during the attack. GRPC_VERBOSITY=NONE spares you gRPC's own lines.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
from delaynode.config import EDGE_VARIABLE

from tests.redteam import door_attacks as door_attacks
from tests.redteam.attacks import ATTACKS, ELSEWHERE, NotTriedError, Slow
from tests.redteam.world import World

EDGES = ["grpcio", *(["compiled"] if find_spec("delayedge") is not None else [])]
LATE_MS = 5_000.0  # of the quiet client's messages, at most


@dataclass(frozen=True, slots=True)
class Outcome:
    """fault: why it counts as not refused, or what it disturbed; empty: none. skipped: it was not tried, or not all of
    it, so that it is not shown to be refused."""

    attack: str
    said: str
    late_ms: float
    seconds: float
    fault: str = ""
    skipped: bool = False

    def __str__(self) -> str:
        what = f"FAULT {self.fault}" if self.fault else f"{'skip ' if self.skipped else 'ok   '} {self.said}"
        return f"{self.attack:<62} {self.seconds:4.1f} s  quiet client late {self.late_ms:5.0f} ms  {what[:260]}"


def attack_all(edge: str, told: Callable[[Outcome], None], only: str = "") -> list[Outcome]:
    """Every attack on a cluster whose nodes have that edge."""
    found: list[Outcome] = []

    def note(name: str, run: Callable[[], str]) -> None:
        first, began, errors, said, fault = len(quiet.late_ms), time.monotonic(), len(quiet.errors), "", ""
        skipped = False
        try:
            said = run()
        except NotTriedError as error:
            said, skipped = str(error), True
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        late = max(quiet.late_ms[first:], default=0.0)
        if late > LATE_MS or len(quiet.errors) > errors:
            fault = fault or f"the quiet client is disturbed: {quiet.errors[errors:][:3] or f'{late:.0f} ms late'}"
        found.append(Outcome(name, said, late, time.monotonic() - began, fault, skipped))
        told(found[-1])

    with tempfile.TemporaryDirectory(prefix="delay-redteam-") as directory:
        before = os.environ.get(EDGE_VARIABLE)
        os.environ[EDGE_VARIABLE] = edge
        try:
            with World(Path(directory)) as world:
                quiet, pids = world.quiet, world.cluster.pids
                slow = Slow(world)
                for one in ATTACKS:
                    if only in one.name:
                        note(one.name, lambda one=one: one.run(world))  # type: ignore[misc]
                        slow.drip()
                note("slow handshakes, and those that are never finished", slow.ended)
                same = "all processes live on" if world.cluster.pids == pids else ""
                quiet.finish()
                found.append(_of_quiet(len(quiet.late_ms), quiet.lost, max(quiet.late_ms), quiet.errors, same))
                told(found[-1])
        finally:
            os.environ.pop(EDGE_VARIABLE) if before is None else os.environ.update({EDGE_VARIABLE: before})
    return found


def _of_quiet(came: int, lost: int, late_ms: float, errors: list[str], same: str) -> Outcome:
    fault = (
        "" if not lost and not errors and same else f"{lost} lost, errors: {errors[:3]}, {same or 'a node has died'}"
    )
    return Outcome(
        "the quiet client, meanwhile", f"{came} messages came, none lost, no error; {same}", late_ms, 0.0, fault
    )


@click.command(help=__doc__)
@click.option("--edge", "edges", multiple=True, type=click.Choice(EDGES), default=EDGES, show_default=True)
@click.option("--only", default="", help="Attacks whose names have these words.")
def main(edges: tuple[str, ...], only: str) -> None:
    found: list[Outcome] = []
    for edge in edges:
        click.echo(f"== {edge}")
        found += attack_all(edge, lambda one: click.echo(str(one)), only)
    faults, skipped = sum(bool(one.fault) for one in found), sum(one.skipped and not one.fault for one in found)
    click.echo(f"== {len(found) - faults - skipped} ok, {skipped} skipped, {faults} at fault")
    click.echo("== shown elsewhere")
    for what, where in ELSEWHERE.items():
        click.echo("\n  ".join((what, *where)))
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
