"""`delayctl rebalance` on a local cluster: the job runs in this process, the cluster's own carries its plan out."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from delaylocal.rebalance_file import RebalanceFile, StoredRebalance
from delayoperator.crds.rebalance import DelayRebalance, PlanModel, RebalanceState

from delayctl.targets.errors import TargetRefused, TargetUnreachable
from delayctl.targets.rebalances import EXTRA, RebalanceOptions, RebalanceTarget, RebalanceView


class LocalRebalanceTarget(RebalanceTarget):
    """The state of the rebalance of the cluster in `data`. Raises RebalanceFileError too."""

    def __init__(self, data: Path) -> None:
        self._data, self._file = data, RebalanceFile(data)
        self.place = "" if data == Path(".delaycluster") else f" --data {data}"
        self.carried_out_by = f"`delayctl local --data {data}`"

    def read(self) -> RebalanceView | None:
        stored = self._file.read()
        return None if stored is None else RebalanceView.of(stored.as_json())

    def study(self, options: RebalanceOptions) -> tuple[Mapping[str, Any] | None, str]:
        plan, why = self._search(options)
        return None if plan is None else plan.model_dump(mode="json", by_alias=True, exclude_none=True), why

    def propose(self, options: RebalanceOptions) -> tuple[bool, str]:
        self._check_not_moving(self._file.read())
        plan, why = self._search(options)
        if plan is None:
            return False, why

        def proposed(stored: StoredRebalance | None) -> StoredRebalance:
            self._check_not_moving(stored)  # somebody else's plan may have been approved while the job ran
            # A proposal begins anew: what became of the last one ends here.
            body = {
                "spec": {"cluster": "local", "threshold": options.threshold},
                "status": {"plan": plan, "state": RebalanceState.PENDING_PROPOSAL},
            }
            return StoredRebalance(DelayRebalance.model_validate(body), 1 if stored is None else stored.generation + 1)

        self._file.edit(proposed)
        return True, why

    def annotate(self, annotations: Mapping[str, str]) -> None:
        self._check_runs()
        self._file.edit(lambda it: it and replace(it, annotations={**it.annotations, **annotations}))

    def _search(self, options: RebalanceOptions) -> tuple[PlanModel | None, str]:
        """A plan, or None where no move is worth its cost; and why."""
        try:
            from delayrebalance.maps import read_map
            from delayrebalance.model import RebalanceError, SearchSettings
            from delayrebalance.proposal import to_plan
            from delayrebalance.run import study_cluster
        except ImportError as error:
            raise TargetRefused(f"making a plan needs Spark ({error}): {EXTRA}") from error
        self._check_runs()
        given = {name: value for name, value in asdict(options).items() if value is not None}
        try:
            settings = replace(SearchSettings(), **given)
            cluster = read_map(f"sqlite:{self._data / 'registry.db'}")
            with _errors_into(self._data / "logs" / "rebalance.log"):
                found = study_cluster(cluster, settings)
        except RebalanceError as error:
            raise TargetRefused(str(error)) from error
        if not found.moves:
            return None, found.why
        return to_plan(found, cluster, settings, now_ms=time.time_ns() // 1_000_000), found.why

    def _check_not_moving(self, stored: StoredRebalance | None) -> None:
        status = None if stored is None else stored.rebalance.status
        if status is not None and status.state is RebalanceState.REBALANCING:
            raise TargetRefused(
                f"a plan is being carried out: `delayctl rebalance{self.place} --status` shows how far, --stop stops it"
            )

    def _check_runs(self) -> None:
        """Raises TargetUnreachable unless the cluster's process holds its directory."""
        try:
            with (self._data / "lock").open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            pass
        raise TargetUnreachable(f"no cluster runs on {self._data}: start it with `delayctl local --data {self._data}`")


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Sends the stderr of Spark's processes and threads, dozens of lines of no use to the user, into a file."""
    sys.stderr.flush()
    path.parent.mkdir(exist_ok=True)
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    except Exception as error:
        error.add_note(f"Spark's own words are in {path}")
        raise
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
