"""Every message is accounted for: what was stored and not cancelled is pending or was released, once, and nothing else.

Only a log of which nothing is freed can say so; of another, each unit is compared with what frames there are.
"""

from __future__ import annotations

import numpy as np

from delaynode.store.types import Bools
from delaynode.store.verify.findings import MAX_PER_KIND, Report
from delaynode.store.verify.log_pass import LogFacts
from delaynode.store.verify.queue_pass import QueueFacts
from delaynode.store.verify.table import PairSource, PairTally, tallies
from delaynode.store.verify.timer_pass import TimerFacts

STORED, QUEUED, PENDING = 0, 1, 2


def account(
    directory: str, facts: LogFacts, queue: QueueFacts, timer: TimerFacts, trimmed: bool, report: Report
) -> None:
    """trimmed: the queue's first units are gone, so a message that is nowhere may have been released."""
    born = np.ones(facts.rows, bool)
    relocated = facts.relocated["row"]
    born[relocated[relocated < facts.rows]] = False
    due, seq = facts.records["due"][: facts.rows][born], facts.records["seq"][: facts.rows][born]
    sources = [
        PairSource(due, seq, STORED),
        PairSource(facts.moved_to["due"], facts.moved_to["seq"], STORED),
        PairSource(facts.ended["due"], facts.ended["seq"], STORED, -1),
        PairSource(queue.rows["due"], queue.rows["seq"], QUEUED),
        PairSource(timer.pending["due"], timer.pending["seq"], PENDING),
    ]

    def tell(path: str, tally: PairTally, bad: Bools, what: str) -> None:
        rows = np.flatnonzero(bad)
        for at in rows[:MAX_PER_KIND].tolist():
            where = f"message (due {tally.due[at]}, seq {tally.seq[at]})"
            report.add(f"{directory}/{path}", -1, what, where=where)
        report.more(f"{directory}/{path}", what, max(0, len(rows) - MAX_PER_KIND))

    for tally in tallies(*sources):
        stored, released, pending = tally.counts
        tell("log", tally, (stored < 0) | (stored > 1), "stored, moved and cancelled more often than can be")
        tell("queue", tally, released > 1, "released more than once")
        tell("queue", tally, (released == 1) & (stored < 1), "released, though cancelled, moved away or never stored")
        tell("timerlog", tally, (pending == 1) & (stored < 1), "pending, though cancelled, moved away or never stored")
        tell("timerlog", tally, (pending == 1) & (released > 0), "pending, though released")
        if not trimmed and queue.complete and timer.complete:
            lost = (stored == 1) & (released == 0) & (pending == 0)
            tell("timerlog", tally, lost, "stored and not cancelled, but neither pending nor released")
