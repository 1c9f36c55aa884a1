"""`delayctl rebalance`: a plan of moves that spreads the load to come, its approval, and how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from delayapi.durations import format_ms
from delayapi.options import DURATION
from delayoperator.crds import APPROVE, VERB

from delayctl.common import FAILED, CommandSettings, common_options, print_table, put_json
from delayctl.targets.errors import TargetRefused
from delayctl.targets.options import ProgressBar, data_option
from delayctl.targets.rebalances import (
    MOVING,
    OVER,
    READY,
    STOPPED,
    RebalanceOptions,
    RebalanceTarget,
    RebalanceView,
    rebalances,
)

POLL_S = 0.2
TAKEN_UP_S = 60.0  # the process that carries it out reads it several times a second; a machine may be busy
PENDING = "(the one that is proposed)"


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be proposed; nothing is kept.")
@click.option(
    "--approve",
    is_flag=False,
    flag_value=PENDING,
    metavar="[HASH]",
    help="Carry the proposed plan out, or go on with one that was stopped. HASH: only if it is this one.",
)
@click.option("--stop", is_flag=True, help="Start no more moves; those under way are finished.")
@click.option("--status", is_flag=True, help="Show what is proposed or under way.")
@click.option("--wait", is_flag=True, help="With --approve, --stop or --status: until it is over.")
@click.option("--timeout", type=DURATION, default="1h", show_default=True, help="How long to wait.")
@click.option("--slot", "slot_ms", type=DURATION, help="Slots of time in which the load is counted  [default: 5m]")
@click.option("--horizon", "horizon_ms", type=DURATION, help="How far ahead it is looked at  [default: 24h]")
@click.option(
    "--threshold",
    type=click.FloatRange(1, 100),
    help="A node is hot in a slot above so many times the nodes' mean  [default: 1.5]",
)
@click.option("--max-moves", type=click.IntRange(1, 1_000), help="The most moves of a plan  [default: 100]")
@click.option("--name", metavar="NAME", help="With --kube: the DelayRebalance  [default: CLUSTER-rebalance]")
@data_option
@common_options
def rebalance(
    settings: CommandSettings,
    data: Path,
    dry_run: bool,
    approve: str | None,
    stop: bool,
    status: bool,
    wait: bool,
    timeout: int,
    name: str | None,
    **given: Any,
) -> None:
    """Propose moves that spread the load to come over the nodes.

    A Spark job reads what is due from the nodes' wheels, and searches for the fewest and cheapest moves that lower the
    highest load of a node in a slot of time. Nothing moves before it is approved. `delayctl wheel --nodes --proposed`
    shows the load by node before and after.
    """
    verbs = [flag for flag, given in (("--dry-run", dry_run), ("--approve", approve), ("--stop", stop)) if given]
    verbs += ["--status"] if status else []
    options = RebalanceOptions(**given)
    if len(verbs) > 1:
        raise click.UsageError(f"{' and '.join(verbs)}: one at a time")
    if verbs and not dry_run and options != RebalanceOptions():
        raise click.UsageError(f"{verbs[0]} makes no plan: --slot, --horizon, --threshold and --max-moves do nothing")
    if wait and (not verbs or dry_run):
        raise click.UsageError("--wait goes with --approve, --stop or --status")
    until_s = time.monotonic() + timeout / 1000
    with rebalances(settings, data, name) as at:
        if settings.kube is None and not settings.as_json and (dry_run or not verbs) and sys.stderr.isatty():
            click.echo("looking at the load to come; Spark takes a while to start ...", err=True)
        if dry_run:
            plan, why = at.study(options)
            _show(settings, RebalanceView({"plan": plan} if plan else {}), why, at)
        elif approve or stop or status:
            seen = _approved(at, approve) if approve else _stopped(at) if stop else _require_rebalance(at)
            if wait:
                seen = _await_over(at, settings, until_s)
            _show(settings, seen, "", at)
            if wait and seen.state == "NotReady":
                sys.exit(FAILED)
        else:
            made, why = at.propose(options)
            seen = _await_proposal(at, settings, until_s) if made else RebalanceView()
            _show(settings, seen, why, at)
            if seen.state == "NotReady":
                sys.exit(FAILED)


def _require_rebalance(at: RebalanceTarget) -> RebalanceView:
    found = at.read()
    if found is None:
        raise TargetRefused(f"nothing was proposed yet: `delayctl rebalance{at.place}` makes a plan")
    return found


def _approved(at: RebalanceTarget, given: str) -> RebalanceView:
    seen = _require_rebalance(at)
    if seen.state not in (READY, STOPPED) or not seen.hash:
        raise TargetRefused(f"there is nothing to approve: {_described(seen)}")
    if given not in (PENDING, seen.hash):
        raise TargetRefused(f"the plan is {seen.hash}, not {given}: look at it with --status")
    over = seen.expired()
    if over is not None:
        raise TargetRefused(f"plan {seen.hash} expired at {over}: `delayctl rebalance{at.place}` makes another")
    at.annotate({APPROVE: seen.hash})
    taken = _await_taken_up(at, APPROVE)
    if taken.status.get("approved") != seen.hash or taken.state in (READY, STOPPED):
        raise TargetRefused(f"plan {seen.hash} was not approved: {_described(taken)}")
    return taken


def _stopped(at: RebalanceTarget) -> RebalanceView:
    seen = _require_rebalance(at)
    if seen.state not in (MOVING, "PendingProposal"):
        raise TargetRefused(f"there is nothing to stop: {_described(seen)}")
    at.annotate({VERB: "stop"})
    return _await_taken_up(at, VERB)


def _await_taken_up(at: RebalanceTarget, verb: str) -> RebalanceView:
    until_s = time.monotonic() + TAKEN_UP_S
    while True:
        seen = _require_rebalance(at)
        if verb not in seen.annotations:
            return seen
        if time.monotonic() > until_s:
            raise TargetRefused(
                f"it is asked for, and nobody has taken it up within {TAKEN_UP_S:g} s: {at.carried_out_by} does that"
            )
        time.sleep(POLL_S)


def _await_proposal(at: RebalanceTarget, settings: CommandSettings, until_s: float) -> RebalanceView:
    with ProgressBar("rebalance", settings) as progress:
        while True:
            seen = at.read() or RebalanceView()
            if seen.state not in ("New", "PendingProposal") and VERB not in seen.annotations:
                return seen
            progress.show("the job looks at the load to come", 0, 0)
            if time.monotonic() > until_s:
                raise TargetRefused(f"no proposal came in time: {_described(seen)}; {at.carried_out_by} has it made")
            time.sleep(POLL_S)


def _await_over(at: RebalanceTarget, settings: CommandSettings, until_s: float) -> RebalanceView:
    with ProgressBar("rebalance", settings) as bar:
        while True:
            seen = _require_rebalance(at)
            if seen.state in OVER:
                return seen
            if seen.state != MOVING:
                raise TargetRefused(f"nothing is under way: {_described(seen)}")
            done = seen.status.get("progress") or {}
            bar.show(str(done.get("current") or "starts"), int(done.get("percent") or 0), 100)
            if time.monotonic() > until_s:
                raise TargetRefused(f"not over yet: {_described(seen)}; it goes on")
            time.sleep(POLL_S)


def _described(seen: RebalanceView) -> str:
    reason, message = seen.said
    return f"{seen.state}{f' ({reason})' if reason else ''}{f': {message}' if message else ''}"


def _show(settings: CommandSettings, seen: RebalanceView, why: str, at: RebalanceTarget) -> None:
    reason, message = seen.said
    if settings.as_json:
        figures = {name: seen.status.get(name) for name in ("approved", "progress", "plan")}
        put_json({"state": seen.status.get("state"), "reason": reason, "message": why or message, **figures})
        return
    if why:
        click.echo(why)
    if seen.plan is not None and seen.plan.get("moves"):
        _print_plan(seen.plan)
    if seen.status.get("state"):
        click.echo(_described(seen) if seen.state != READY else f"{seen.state}: nothing moves before it is approved")
    progress = seen.status.get("progress")
    if progress:
        _print_progress(progress)
    if seen.state == READY:
        click.echo(f"`delayctl rebalance{at.place} --approve {seen.hash}` carries it out")


def _print_progress(progress: Mapping[str, Any]) -> None:
    done, total = progress.get("movesDone") or 0, progress.get("movesTotal") or 0
    text = f"{done} of {total} moves done, {(progress.get('bytesDone') or 0) / (1 << 20):,.1f} MiB copied"
    if progress.get("movesRefused"):
        text += f", {progress['movesRefused']} refused"
    if done < total and progress.get("secondsLeft"):
        text += f"; about {format_ms(int(progress['secondsLeft']) * 1000)} left"
    click.echo(text)


def _print_plan(plan: Mapping[str, Any]) -> None:
    from delayoperator.cluster.shard_summary import counted_of
    from rich.console import Console
    from rich.table import Table

    console = Console()
    moves = plan.get("moves") or []
    size = f"{(plan.get('movedBytes') or 0) / (1 << 20):,.1f} MiB to copy"
    name = f"plan {plan['hash']}" if plan.get("hash") else "a plan"
    until = f"; expires at {plan['expiresAt']}" if plan.get("expiresAt") else ""
    console.print(f"{name}: {counted_of(len(moves), 'move')}, {size}{until}", highlight=False, soft_wrap=True)
    before, after = plan.get("before") or {}, plan.get("after") or {}
    if before and after:
        reached, bound = after.get("peakMessages") or 0, before.get("lowerBoundMessages") or 0
        ratio = f", {reached / bound:.2f} times what no plan gets below ({bound:,.0f})" if bound else ""
        console.print(
            f"highest load of a node in a slot: {before.get('peakMessages') or 0:,} now, {reached:,} then{ratio}; "
            f"hot slots: {before.get('hotSlots') or 0} now, {after.get('hotSlots') or 0} then",
            highlight=False,
            soft_wrap=True,
        )
    table = Table(box=None, pad_edge=False)
    for heading in ("SHARD", "FROM", "TO", "HOW"):
        table.add_column(heading, no_wrap=True)
    for heading in ("BYTES", "MESSAGES", "DUE MEANWHILE"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("STATE", overflow="fold")
    for move in moves:
        counts = (move.get("bytes"), move.get("messages"), move.get("dueDuringMove"))
        table.add_row(
            move["shard"],
            move["from"],
            move["to"],
            "takes over" if move["to"] in (move.get("replicas") or ()) else "copy",
            *("?" if count is None else f"{count:,}" for count in counts),
            ": ".join(filter(None, (move.get("state"), move.get("reason")))),
        )
    print_table(table)
