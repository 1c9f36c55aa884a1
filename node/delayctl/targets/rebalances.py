"""One cluster's DelayRebalance as commands see it: the object as JSON, and the verbs, which are annotations.

A local cluster keeps it in a file (local_rebalance), Kubernetes as an object (kube_rebalance); what is in it is the
same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from delayctl.common import CommandSettings
from delayctl.targets.errors import TargetRefused, TargetUnreachable, exit_on_errors

EXTRA: Final = "pip install 'delaycluster[spark]'"

READY: Final = "ProposalReady"
MOVING: Final = "Rebalancing"
STOPPED: Final = "Stopped"
OVER: Final = frozenset(("Ready", STOPPED, "NotReady"))


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """The options of a rebalance. None: the default, or as the DelayCluster has it."""

    slot_ms: int | None = None
    horizon_ms: int | None = None
    threshold: float | None = None
    max_moves: int | None = None

    @property
    def given(self) -> list[str]:
        """The options that were."""
        named = {"slot": self.slot_ms, "horizon": self.horizon_ms, "max-moves": self.max_moves}
        return [f"--{name}" for name, value in named.items() if value is not None]


@dataclass(frozen=True, slots=True)
class RebalanceView:
    """A DelayRebalance. Its JSON is in `status`; annotations: the verbs that nobody has taken up yet."""

    status: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> RebalanceView:
        return cls(found.get("status") or {}, (found.get("metadata") or {}).get("annotations") or {})

    @property
    def state(self) -> str:
        return str(self.status.get("state") or "New")

    @property
    def plan(self) -> Mapping[str, Any] | None:
        return self.status.get("plan")

    @property
    def hash(self) -> str:
        return str((self.plan or {}).get("hash") or "")

    @property
    def said(self) -> tuple[str, str]:
        """Reason and message of the condition that holds."""
        found = [it for it in self.status.get("conditions") or () if it.get("status") == "True"]
        return (found[0].get("reason") or "", found[0].get("message") or "") if found else ("", "")

    def expired(self) -> str | None:
        """Since when the plan can't be approved any more; None: it can."""
        until = (self.plan or {}).get("expiresAt")
        try:
            over = until is not None and datetime.fromisoformat(str(until)) <= datetime.now(UTC)
        except (ValueError, TypeError):
            return None  # whoever carries it out decides
        return str(until) if over else None


class RebalanceTarget(ABC):
    """Raises TargetRefused and TargetUnreachable."""

    place: str
    """What to call the cluster with, as options: ` --data DIR`."""
    carried_out_by: str
    """Whoever takes up verbs: `the operator`."""

    @abstractmethod
    def read(self) -> RebalanceView | None:
        """None: nothing was proposed yet."""

    @abstractmethod
    def study(self, options: RebalanceOptions) -> tuple[Mapping[str, Any] | None, str]:
        """A plan that is shown and forgotten, or None; and why."""

    @abstractmethod
    def propose(self, options: RebalanceOptions) -> tuple[bool, str]:
        """Makes a plan, or has it made, and why. False: there is nothing to do."""

    @abstractmethod
    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Asks for a verb."""


@contextmanager
def rebalances(settings: CommandSettings, data: Path, name: str | None) -> Iterator[RebalanceTarget]:
    """--kube's, or those of the cluster in `data`. A refusal ends the process with a line and an exit code."""
    with exit_on_errors():
        if settings.kube is None:
            if name is not None:
                raise click.UsageError("--name is for --kube: a local cluster has one rebalance")
            if not (data / "registry.db").exists():
                raise TargetUnreachable(f"no local cluster in {data}: name its directory, --data DIR")
            try:
                from delaylocal.rebalance_file import RebalanceFileError

                from delayctl.targets.local_rebalance import LocalRebalanceTarget
            except ImportError as error:
                raise TargetRefused(f"a rebalance needs more packages ({error}): {EXTRA}") from error
            try:
                yield LocalRebalanceTarget(data)
            except RebalanceFileError as error:
                raise TargetRefused(str(error)) from error
        else:
            if click.get_current_context().get_parameter_source("data") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--data and --kube name two clusters: give one of them")
            from delayctl.targets.kube_rebalance import KubeRebalanceTarget
            from delayctl.targets.kube_route import accessed

            with accessed(settings.kube) as access:
                yield KubeRebalanceTarget(access, name)


def proposal(settings: CommandSettings, data: Path) -> Mapping[str, Any]:
    """The plan that is proposed or under way; ends the process where there is none."""
    with rebalances(settings, data, None) as at:
        found = at.read()
        if found is None or not found.plan:
            raise TargetRefused(f"nothing is proposed: `delayctl rebalance{at.place}` makes a plan")
        return found.plan
    raise AssertionError
