"""What a console shows and changes beside messages: the registry, the rebalance, sinks, and the audit log.

A local cluster has them in its directory, one in Kubernetes as objects, read and written with the visitor's own rights.
Everything here blocks, and is called in a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from delayctl.targets.errors import TargetRefused, TargetUnreachable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from delayctl.targets.kube import KubeAccess
    from delayctl.targets.kube_target import KubeTarget
    from delayctl.targets.rebalances import RebalanceTarget
    from delayctl.targets.registry import RegistryEditor

T = TypeVar("T")
LOG_LINES: Final = 2_000
"""So much of each node's log is looked through for audit events, from its end."""
LOG_BYTES: Final = 2 << 20
SINKS: Final = "delaysinks"


@dataclass(frozen=True, slots=True)
class AuditLines:
    """events: the newest first. problems: sentences, one for each log that could not be read."""

    events: Sequence[Mapping[str, Any]] = ()
    problems: Sequence[str] = ()


class ClusterObjects(Protocol):
    """Raises TargetRefused and TargetUnreachable."""

    @property
    def options(self) -> tuple[str, ...]:
        """What commands on them need beside the options that lead to the nodes."""

    @property
    def namespace(self) -> str:
        """Of Kubernetes; "": the cluster is not in it."""

    def registry(self) -> AbstractContextManager[RegistryEditor]: ...

    def rebalance(self) -> AbstractContextManager[RebalanceTarget]: ...

    def sinks(self) -> Sequence[Mapping[str, Any]] | None:
        """The DelaySinks of the cluster; None: it is not in Kubernetes."""

    def audit(self) -> AuditLines: ...


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Of the cluster that `delayctl local` keeps in `data`."""

    data: Path

    @property
    def options(self) -> tuple[str, ...]:
        return () if self.data == Path(".delaycluster") else ("--data", str(self.data))

    @property
    def namespace(self) -> str:
        return ""

    @contextmanager
    def registry(self) -> Iterator[RegistryEditor]:
        from delayctl.targets.registry import registry_editor

        with registry_editor(self.data) as at:
            yield at

    @contextmanager
    def rebalance(self) -> Iterator[RebalanceTarget]:
        self._require()
        from delayctl.targets.local_rebalance import LocalRebalanceTarget
        from delaylocal.rebalance_file import RebalanceFileError

        try:
            yield LocalRebalanceTarget(self.data)
        except RebalanceFileError as error:
            raise TargetRefused(str(error)) from error

    def sinks(self) -> None:
        return None

    @property
    def console_log(self) -> Path:
        """What is done by consoles of this machine, one line each."""
        return self.data / "logs" / "console.log"

    def audit(self) -> AuditLines:
        self._require()
        events: list[Mapping[str, Any]] = []
        problems = []
        written = [self.console_log] if self.console_log.exists() else []
        for path in (*sorted((self.data / "logs").glob("n*.log")), *written):
            try:
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - LOG_BYTES))
                    events += audit_events(path.stem, file.read(LOG_BYTES).decode("utf-8", "replace").splitlines())
            except OSError as error:
                problems.append(f"{path.name}: {error.strerror}")
        return AuditLines(newest_first(events), problems)

    def _require(self) -> None:
        if not (self.data / "registry.db").exists():
            raise TargetUnreachable(f"no local cluster in {self.data}: name its directory, --data DIR")


class KubeObjects:
    """Of a DelayCluster, as whoever `access` is."""

    def __init__(self, access: KubeAccess, token: str = "", asker: str = "") -> None:
        """token: for the nodes. asker: who wants what is asked for, as annotations name them."""
        self._access, self._token, self._asker = access, token, asker

    @property
    def options(self) -> tuple[str, ...]:
        return ()

    @property
    def namespace(self) -> str:
        return self._access.namespace

    @contextmanager
    def registry(self) -> Iterator[RegistryEditor]:
        from delayctl.targets.kube_registry import editor_over

        with _translated(), editor_over(self._access, str, self._token, self._asker) as at:
            yield at

    @contextmanager
    def rebalance(self) -> Iterator[RebalanceTarget]:
        from delayctl.targets.kube_rebalance import KubeRebalanceTarget

        with _translated():
            yield KubeRebalanceTarget(self._access, None)

    def sinks(self) -> Sequence[Mapping[str, Any]]:
        with _translated():
            found = self._access.listed(SINKS)
        return [it for it in found if ((it.get("spec") or {}).get("cluster") or {}).get("name") == self._access.cluster]

    def audit(self) -> AuditLines:
        from delayctl.targets.kube import KubeError

        events: list[Mapping[str, Any]] = []
        problems = []
        with _translated():
            pods = [(kind, pod) for kind in ("node", "console") for pod in self._access.pods(kind)]
        for kind, pod in pods:
            try:
                events += audit_events(pod.name, self._access.log_lines(pod.name, LOG_LINES, kind))
            except KubeError as error:
                problems.append(f"{pod.name}: {error}")
        return AuditLines(newest_first(events), problems)


class ForwardedObjects(KubeObjects):
    """Of a DelayCluster outside of whose network this is: nodes are reached by port-forward."""

    def __init__(self, target: KubeTarget, account: str) -> None:
        from delayctl.targets.kube import KubeAccess

        super().__init__(KubeAccess(target))
        self._target, self._account = target, account

    @contextmanager
    def registry(self) -> Iterator[RegistryEditor]:
        from delayctl.targets.kube_registry import editor_over
        from delayctl.targets.port_forward import Forwards

        with _translated():
            token = self._access.account_token(self._account) if self._account else ""
            with (
                Forwards(self._access, self._access.first_pods()) as forwards,
                editor_over(self._access, forwards.dial, token) as at,
            ):
                yield at


@contextmanager
def _translated() -> Iterator[None]:
    """What Kubernetes says, in the words of every cluster's objects."""
    from delayctl.targets.kube import KubeError, KubeInvalid

    try:
        yield
    except KubeInvalid as error:
        raise TargetRefused(str(error)) from error
    except KubeError as error:
        raise TargetUnreachable(str(error)) from error


def audit_events(node: str, lines: Sequence[str]) -> list[Mapping[str, Any]]:
    """Those lines of a node's log that are of its audit log, with the node beside."""
    found: list[Mapping[str, Any]] = []
    for line in lines:
        if '"audit' not in line:
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("log") == "audit":
            found.append({**event, "node": node})
    return found


def newest_first(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(events, key=time_of, reverse=True)


def time_of(event: Mapping[str, Any]) -> int:
    """ms since 1970 UTC; 0: the line does not say."""
    found = event.get("time_ms")
    return found if isinstance(found, int) else 0


NO_OBJECTS: Final = (
    "you are signed in with a token for the nodes alone, which says nothing of the cluster's objects: sign in with a "
    "token of Kubernetes for this"
)


def required(objects: ClusterObjects | None) -> ClusterObjects:
    """Raises TargetRefused where the visitor has none."""
    if objects is None:
        raise TargetRefused(NO_OBJECTS)
    return objects


async def in_registry(objects: ClusterObjects | None, work: Callable[[RegistryEditor], T]) -> T:
    """What `work` returns, in a thread. Raises TargetRefused, TargetUnreachable."""
    chosen = required(objects)

    def done() -> T:
        with chosen.registry() as at:
            return work(at)

    return await asyncio.to_thread(done)


async def in_rebalance(objects: ClusterObjects | None, work: Callable[[RebalanceTarget], T]) -> T:
    """Likewise."""
    chosen = required(objects)

    def done() -> T:
        with chosen.rebalance() as at:
            return work(at)

    return await asyncio.to_thread(done)
