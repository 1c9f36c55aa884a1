"""A stage for the operator: the fake API server, controllers and nodes, and operators as threads or as processes.

with Stage(tmp_path) as stage:
    stage.operator()
    stage.create("shop", nodes=3, topics=[{"name": "orders", "queues": 4}])
    stage.settled("shop")
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from delayoperator.__main__ import Operator, Options
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.election.lease import ElectionTimes
from delayoperator.kube.own_token import OwnAccount
from delayoperator.kube.worker import WorkerSettings
from delayregistry.kube import Credentials
from kubernetes import client

from tests.client.support.fakepods import ForwardingApiServer
from tests.kube import fakekinds
from tests.kube.fakeapi import Request
from tests.kube.fakestore import Refused
from tests.operator.kubelet import TICK_S, Kubelet
from tests.operator.runbook import filled

Json = dict[str, Any]
PATIENCE_S = 60.0
IMAGE = "node:1"
NAMESPACE = "default"
LEASE = "operators/delaycluster"  # of the election
LEASE_SECONDS = 2
DEAD_AFTER_MS = 5_000  # an operator of another release
NODES_OWN = (
    "/leases/",
    "/delayshards/",
)  # parts of paths that the operator's maintenance does not write to when all is well


def _at(found: Any, path: list[str]) -> str:
    """The field of an object at this path."""
    for step in path:
        found = found[int(step) if step.isdigit() else step]
    return str(found)


@dataclass
class RunningOperator:
    """An operator in this process."""

    operator: Operator
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    events: list[Json]

    def close(self) -> None:
        if not self.thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(40)


class Stage:
    def __init__(self, directory: Path, tick_s: float = TICK_S) -> None:
        self.directory = directory
        self.server = ForwardingApiServer()
        self.kubelet = Kubelet(self.server.store, tick_s)
        self.operators: list[RunningOperator] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.server.start()
        self.kubeconfig = self.server.write_kubeconfig(self.directory / "kubeconfig")
        self._before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        self.server.store.create(fakekinds.find("namespaces"), "", {"metadata": {"name": NAMESPACE}})
        self.storage_class(expandable=True)
        self.kubelet.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the server's connections would log their end
        self.server.thaw()
        for operator in self.operators:
            operator.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.kubelet.close()
        self.server.close()
        if self._before is None:
            os.environ.pop("KUBECONFIG", None)
        else:
            os.environ["KUBECONFIG"] = self._before
        if kind is None:
            assert self.kubelet.errors == []

    # ------------------------------------------------------------ operators
    def operator(
        self,
        *,
        resync_s: float = 60.0,
        namespaces: tuple[str, ...] = (),
        lease: str = LEASE,
        lease_seconds: int = LEASE_SECONDS,
        image: str = IMAGE,
        secure_by_default: bool = False,
        may_keep_secrets: bool = False,
    ) -> RunningOperator:
        """Start an operator in a thread of this process, with kopf really running in it.

        lease: its release's. image: of the nodes whose cluster names none. secure_by_default, may_keep_secrets: see
        WorkerSettings.
        """
        events: list[Json] = []
        configuration = client.Configuration()
        configuration.host = self.server.url
        started = threading.Event()
        running: list[RunningOperator] = []

        def run() -> None:
            async def main() -> None:
                stop = asyncio.Event()
                election = ElectionTimes(lease_seconds)
                options = Options(namespaces, image, "127.0.0.1:0", lease=lease, election=election)
                made = Operator(
                    options, lambda event: events.append(dict(event)), Credentials(configuration),
                    WorkerSettings(
                        image, account=OwnAccount(lease.partition("/")[0], "operator"), resync_s=resync_s,
                        dead_after_ms=DEAD_AFTER_MS, token=lambda namespace, cluster: lambda: "token",
                        secure_by_default=secure_by_default, may_keep_secrets=may_keep_secrets,
                        prober=lambda access: GrpcProber(),  # the kubelet's nodes answer without TLS
                    ),
                )  # fmt: skip
                thread, loop = threading.current_thread(), asyncio.get_running_loop()
                running.append(RunningOperator(made, thread, loop, stop, events))
                started.set()
                await made.run(stop)

            asyncio.run(main())

        threading.Thread(target=run, name="operator", daemon=True).start()
        assert started.wait(10)
        self.operators.append(running[0])
        return running[0]

    def process(self, lease_seconds: int = LEASE_SECONDS) -> subprocess.Popen[bytes]:
        """Start an operator as in its container: a process that can be killed."""
        environment = {
            **os.environ,
            "DELAYNODE_IMAGE": IMAGE,
            "OPERATOR_HTTP": "127.0.0.1:0",
            "OPERATOR_LEASE": LEASE,
            "OPERATOR_LEASE_SECONDS": str(lease_seconds),
            "KUBECONFIG": str(self.kubeconfig),
        }
        log = (self.directory / f"operator-{len(self.processes)}.log").open("wb")
        command = [sys.executable, "-m", "delayoperator"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        log.close()
        self.processes.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def leader(self, lease: str = LEASE) -> str:
        """The identity of the process that holds the Lease of the election; "": none does."""
        namespace, _, name = lease.partition("/")
        try:
            return str(self.server.get("leases", name, namespace)["spec"]["holderIdentity"])
        except Refused:
            return ""

    def written(self, since_s: float) -> Sequence[Request]:
        """The writes since then, without those that only keep the Lease of the election."""
        return self.server.written(since_s, but=[f"/namespaces/{LEASE.partition('/')[0]}/leases"])

    def writes(self, since_s: float) -> int:
        return len(self.written(since_s))

    # ------------------------------------------------------------ people's actions
    def create(self, name: str = "shop", **spec: Any) -> Json:
        body = {"metadata": {"name": name}, "spec": {"nodes": 3, **spec}}
        return self.server.store.create(fakekinds.find("delayclusters"), NAMESPACE, body, "kubectl")

    def edit(self, name: str = "shop", **spec: Any) -> None:
        self.server.store.patch(fakekinds.find("delayclusters"), NAMESPACE, name, {"spec": spec}, "kubectl")

    def follow(self, command: str, typed: str = "", **names: str) -> Any:
        """Do what a page's command does. typed: at the terminal. names: what its words in capitals stand for.

        Returns what `delayctl` prints, the objects that `kubectl get` and `describe` find.
        """
        match filled(command, NS=NAMESPACE, **names):
            case ["delayctl", *words]:
                return self._delayctl(words, typed)
            case ["kubectl", *words]:
                return self._kubectl(words)
            case words:
                raise AssertionError(f"the stage can't follow {words}")

    def _delayctl(self, words: list[str], typed: str) -> str:
        self.server.kubelet.pods = {
            f"{it.cluster.partition('/')[2]}-{it.node[1:]}": int(it.endpoint.rpartition(":")[2])
            for it in list(self.kubelet.processes.values())
        }
        person, terminal = pty.openpty()
        try:
            os.write(person, typed.encode())
            command = [sys.executable, "-c", "from delayctl.main import main; main()", *words]
            done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=PATIENCE_S)
        finally:
            os.close(person)
            os.close(terminal)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _kubectl(self, words: list[str]) -> Any:
        namespace = NAMESPACE
        if "-n" in words:
            at = words.index("-n")
            namespace, words = words[at + 1], [*words[:at], *words[at + 2 :]]
        match words:
            case ["annotate", kind, name, said]:
                key, given, value = said.partition("=")
                annotations = {key: value} if given else {key.removesuffix("-"): None}
                return self.patch(f"{kind}s", name, {"metadata": {"annotations": annotations}})
            case ["patch", "delaycluster", name, "--type=merge", "-p", patch] | [
                "patch", "delaycluster", name, "--type", "merge", "-p", patch
            ]:  # fmt: skip
                return self.edit(name, **json.loads(patch)["spec"])
            case ["get" | "describe", kind, name]:
                return self.server.get(f"{kind}s", name, namespace)
            case ["get", kind, "-l", selector, "-o", columns]:
                return self._columns(kind, namespace, selector, columns.removeprefix("custom-columns="))
        raise AssertionError(f"the stage can't follow {words}")

    def _columns(self, kind: str, namespace: str, selector: str, columns: str) -> list[list[str]]:
        """As `-o custom-columns=HEADER:PATH,...` shows what has the labels."""
        key, _, value = selector.partition("=")
        paths = [re.findall(r"\w+", column.partition(":")[2]) for column in columns.split(",")]
        found = [it for it in self.server.list(kind, namespace) if it["metadata"].get("labels", {}).get(key) == value]
        return [[_at(it, path) for path in paths] for it in found]

    def apply(self, manager: str, name: str = "shop", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": spec}
        self.server.store.apply(fakekinds.find("delayclusters"), NAMESPACE, name, body, manager)

    def patch(self, plural: str, name: str, patch: Json, part: str = "") -> None:
        self.server.store.patch(fakekinds.find(plural), NAMESPACE, name, patch, "somebody", part)

    def delete(self, plural: str, name: str) -> None:
        self.server.store.delete(fakekinds.find(plural), NAMESPACE, name)

    def storage_class(self, *, expandable: bool) -> None:
        kind = fakekinds.find("storageclasses")
        try:
            self.server.store.patch(kind, "", "standard", {"allowVolumeExpansion": expandable}, "admin")
        except Refused:
            self.server.store.create(kind, "", {"metadata": {"name": "standard"}, "allowVolumeExpansion": expandable})

    # ------------------------------------------------------------ objects
    def get(self, plural: str, name: str) -> Json | None:
        try:
            return self.server.get(plural, name, NAMESPACE)
        except Refused:
            return None

    def there(self, plural: str, name: str) -> Json:
        found = self.get(plural, name)
        assert found is not None, f"{plural} {name} is not there"
        return found

    def names(self, plural: str) -> set[str]:
        return {str(it["metadata"]["name"]) for it in self.server.list(plural, NAMESPACE)}

    def pods(self) -> set[str]:
        """The pods that are not being deleted."""
        return {
            str(it["metadata"]["name"])
            for it in self.server.list("pods", NAMESPACE)
            if "deletionTimestamp" not in it["metadata"]
        }

    def condition(self, kind: str, name: str = "shop") -> Json:
        """The condition of this kind; empty if there is none yet."""
        found = self.get("delayclusters", name) or {}
        conditions: list[Json] = found.get("status", {}).get("conditions", [])
        return next((it for it in conditions if it["type"] == kind), {})

    def reason(self, kind: str, name: str = "shop") -> str:
        return str(self.condition(kind, name).get("reason", ""))

    def events(self, reason: str = "", name: str = "shop") -> list[Json]:
        return [
            it
            for it in self.server.list("events", NAMESPACE)
            if it["involvedObject"]["name"] == name and reason in ("", it["reason"])
        ]

    def is_settled(self, name: str = "shop") -> bool:
        body = self.get("delayclusters", name) or {}
        status = body.get("status", {})
        reasons = [self.reason(kind, name) for kind in ("Ready", "Progressing", "Degraded")]
        seen = status.get("observedGeneration") == body.get("metadata", {}).get("generation")
        return bool(seen) and reasons == ["Serving", "Settled", "Healthy"]

    # ------------------------------------------------------------ waiting
    def settled(self, name: str = "shop", timeout_s: float = PATIENCE_S) -> None:
        self.until(lambda: self.is_settled(name), lambda: self.describe(name), timeout_s)

    def until(
        self, true: Callable[[], object], why: Callable[[], object] = lambda: "", timeout_s: float = PATIENCE_S
    ) -> None:
        until_s = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < until_s, f"not so after {timeout_s:.0f} s: {why() or self.describe()}"
            time.sleep(0.02)

    def describe(self, name: str = "shop") -> str:
        """The words that `kubectl describe` would print."""
        body = self.get("delayclusters", name)
        if body is None:
            return f"there is no DelayCluster {name}"
        lines = [str(body.get("spec"))]
        for it in body.get("status", {}).get("conditions", []):
            lines.append(f"{it['type']}={it['status']} {it['reason']}: {it['message']}")
        lines += [f"{it['type']} {it['reason']}: {it['message']}" for it in self.events(name=name)]
        faults = [it for running in self.operators for it in running.events if "error" in it]
        return "\n".join([*lines, *map(str, faults[-5:]), *self.kubelet.errors[-3:]])
