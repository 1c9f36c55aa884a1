"""LocalCluster: node processes, the registry's file and the control loop in this process, as one object.

    with LocalCluster(directory, nodes=3, topics=[TopicSpec("orders", 8)], port=0) as cluster:
        cluster.wait_ready()
        ... cluster.endpoints, cluster.pids, cluster.kill("n1") ...

A directory holds `registry.db`, `lock`, `logs/`, `n0/`, `n1/`, ..., of a cluster with TLS `security/`, and, once moves
were proposed, `rebalance.json`; started again on it, the cluster goes on from there. When this process dies, however it
dies, the node processes die too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Unpack

from delayapi.events import EventLog
from delaynode.node.data_lock import DataInUse, lock_data
from delayoperator.cluster.ended_processes import EndedProcesses
from delayoperator.cluster.versions import decide_nodes_version
from delayoperator.control_loop.loop import WRITERS, ControlLoop, Log, new_uid
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.plan import ObservedNode
from delayregistry.port import RegistryError, RegistryUnavailable
from delayregistry.security import read_document
from delayregistry.sqlite import SqliteRegistry

from delaylocal import ports, spec
from delaylocal.own_keys import DIRECTORY, OwnKeys, make_keys
from delaylocal.supervise import STOP_TIMEOUT_S, Supervisor

NODE_COMMAND = (sys.executable, "-P", "-m", "delaynode.main")  # -P: nothing in the working directory is imported
EARLY_ENDS_GIVEN_UP = 5  # a node that never stayed up so many times in a row won't
LOG_TAIL_BYTES = 2_000
REBALANCE = "rebalance.json"
REBALANCE_POLL_S, REBALANCE_FAILED_S = 0.5, 10.0
VERSIONS_POLL_S = 0.5


class LocalClusterError(Exception):
    """The cluster can't be started, or does not get ready; says why and what to do."""


class LocalCluster:
    """See the module.

    requested: options of the cluster. One that is None: as the directory has it, else the default.
    port: gRPC at port, port + 1, ..., HTTP at port + 100, ..., among themselves at port + 200, ...; 0 = any free ones.
    zones: the nodes are in these in turn, n0 in the first; for this start only. Empty: not known.
    secure: TLS, tokens and rights, by keys that are made here. None: if the directory has been started so before.
    on_event: gets every event (node-started, node-died, node-restarted, ...), from other threads.
    node_command: the node's program; its options are appended.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        zones: Sequence[str] = (),
        secure: bool | None = None,
        on_event: Log | None = None,
        node_command: Sequence[str] = NODE_COMMAND,
        **requested: Unpack[spec.LocalSpec],
    ) -> None:
        self.data = data.resolve()
        self._requested = requested
        self._port, self._zones, self._secure = port, tuple(zones), secure
        self.keys: OwnKeys | None = None
        self._on_event: Log = on_event or (lambda event: None)
        self._node_command = tuple(node_command)
        self._former: dict[str, str] = {}  # what each node's lease named before its present process started
        self._ends = EndedProcesses()
        self._started = False

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the processes and the control loop; does not wait for them.

        Raises LocalClusterError: another one runs on this directory, a port is in use, an option that can't be granted.
        """
        try:
            self.data.mkdir(0o700, parents=True, exist_ok=True)  # a new one: all messages are in it
            self._lock = self._locked()
        except OSError as error:
            raise LocalClusterError(f"cannot keep a cluster in {self.data}: {error.strerror}") from error
        try:
            self.registry = SqliteRegistry(self.data / "registry.db", create=True)
            try:
                self._prepare()
            except BaseException:
                self.registry.close()
                raise
        except (RegistryError, ports.PortInUse, ValueError, OSError) as error:
            self._lock.close()
            raise LocalClusterError(str(error)) from error
        self._supervisor.start()
        for thread in self._threads:
            thread.start()
        self._started = True

    def _prepare(self) -> None:
        found = self.registry.read_cluster()
        self.desired = spec.merge(None if found is None else found.spec, self._requested, self._nodes_on_disk())
        secure = self._was_secure() if self._secure is None else self._secure
        self._ports = ports.choose(self._port, self.desired.nodes, secure=secure)
        # Nodes of a supervisor that was killed a moment ago may still be dying.
        ports.await_unused(self._ports.all, timeout_s=1.0)
        if found is None or found.spec != self.desired:
            self.registry.put_cluster(self.desired, None if found is None else found.version)
        if secure:
            self.keys = self._secured()
        logs = self.data / "logs"
        logs.mkdir(exist_ok=True)
        self._operator_events = EventLog(logs / "operator.log")
        commands = {node: self._command(number, node) for number, node in enumerate(self.desired.node_ids)}
        self._supervisor = Supervisor(commands, logs, self._on_event, self._record_former, self._record_exit)
        self._stop_loop = threading.Event()
        self._loop: ControlLoop | None = None
        self._threads = [
            threading.Thread(target=self._run_loop, name="control-loop", daemon=True),
            threading.Thread(target=self._run_rebalancer, name="rebalancer", daemon=True),
            threading.Thread(target=self._run_versions, name="versions", daemon=True),
        ]

    def _was_secure(self) -> bool:
        """Also when its keys were deleted, which are then made anew: nobody comes in who did not before."""
        return (self.data / DIRECTORY).exists() or self.registry.read_security() is not None

    def _secured(self) -> OwnKeys:
        """Raises ValueError for a CA or a security document that can't be read."""
        keys = make_keys(self.data / DIRECTORY)
        found = self.registry.read_security()
        before = None if found is None else read_document(found.text)
        document = keys.document(before)
        if document != before:
            self.registry.put_security(document, None if found is None else found.version)
        return keys

    def _new_prober(self) -> GrpcProber:
        return GrpcProber() if self.keys is None else GrpcProber(self.keys.operator_access())

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> tuple[str, ...]:
        """Stops the nodes cleanly, then the loop. Returns the ids of nodes that had to be killed after `timeout_s`."""
        if not self._started:
            return ()
        killed = self._supervisor.stop(timeout_s)
        self._stop_loop.set()
        for thread in self._threads:
            thread.join()
        self.registry.close()
        self._operator_events.close()
        self._lock.close()
        self._started = False
        return killed

    @property
    def endpoints(self) -> list[str]:
        """gRPC addresses, a node each, in the order of the node ids."""
        return [f"{ports.HOST}:{port}" for port in self._ports.grpc]

    @property
    def http(self) -> list[str]:
        return [f"{ports.HOST}:{port}" for port in self._ports.http]

    @property
    def http_tokens(self) -> list[str]:
        """Of a secure cluster: for HTTP by TLS."""
        return [f"{ports.HOST}:{port}" for port in self._ports.http_tokens]

    @property
    def peers(self) -> list[str]:
        """Where the nodes reach each other, TCP and UDP."""
        return [f"{ports.HOST}:{port}" for port in self._ports.peer]

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the node processes that run now, by node id."""
        return self._supervisor.pids

    def kill(self, node: str, signum: int = signal.SIGKILL) -> int:
        """Sends a signal to a node's process and returns its pid. It is restarted when it ends.

        After SIGKILL the process is gone when this returns. Raises ProcessLookupError when none runs.
        """
        return self._supervisor.signal(node, signum)

    def restart_each(
        self,
        on_step: Callable[[str], None] | None = None,
        timeout_s: float = 120.0,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Restarts the nodes one after the other, each once all shards have all their copies in sync: nobody's pause
        is longer than a switchover. on_step: gets the id of each node that is back. given_up: stop waiting, and return.

        Raises LocalClusterError when a node does not come back in time; the others are left as they are then.
        """
        for node in self.desired.node_ids:
            self.wait_ready(timeout_s, given_up)
            if given_up():
                return
            before = self._supervisor.signal(node, signal.SIGTERM)
            deadline_s = time.monotonic() + timeout_s
            while self._supervisor.pids.get(node, before) == before and not given_up():
                if time.monotonic() > deadline_s:
                    raise LocalClusterError(f"{node} (pid {before}) did not stop within {timeout_s:.0f} s of SIGTERM")
                time.sleep(0.03)
            self.wait_ready(timeout_s, given_up)
            if on_step is not None and not given_up():
                on_step(node)

    def unready(self) -> list[str]:
        """Why not every shard is served by the present processes, with all its copies in sync, a sentence each.

        Raises LocalClusterError when a node does not stay up.
        """
        for node in self.desired.node_ids:
            if self._supervisor.early_ends(node) >= EARLY_ENDS_GIVEN_UP:
                raise LocalClusterError(f"{node} does not stay up; the end of its log:\n{self._log_tail(node)}")
        try:
            shards, leases = self.registry.list_shards(), self.registry.list_leases()
        except RegistryUnavailable as error:
            return [str(error)]
        running = self._supervisor.pids
        down = [f"{node} is not running" for node in self.desired.node_ids if node not in running]
        faults = down + spec.unmet(self.desired, shards, leases, dict(self._former))
        if faults:
            return faults
        listening = (
            *self._ports.grpc,
            *self._ports.http,
            *self._ports.mtls,
            *self._ports.internal,
            *self._ports.http_tokens,
        )
        if deaf := [port for port in listening if not ports.accepts(port)]:
            return [f"nobody listens on {ports.HOST}:{port} yet" for port in deaf]
        # A master's status is in the registry a moment before it serves.
        reasons = zip(self.desired.node_ids, map(ports.unready_reason, self._ports.http), strict=True)
        return [f"{node} is not ready: {reason}" for node, reason in reasons if reason is not None]

    def _nodes_on_disk(self) -> int:
        """So many it takes for all that have shards in the directory."""
        found = (path.parent.name.removeprefix("n") for path in self.data.glob("n*/shards"))
        return max((int(number) + 1 for number in found if number.isdecimal()), default=0)

    def blocked(self) -> dict[str, str]:
        """Once nothing but blocked shards is missing: those, by name, and why. Else empty.

        Raises LocalClusterError when a node does not stay up.
        """
        faults = self.unready()
        try:
            found = spec.blocked_shards(self.registry.list_shards())
        except RegistryUnavailable:
            return {}
        told = {f"shard {name} {why}": (name, why) for name, why in found.items()}
        return dict(told[fault] for fault in faults) if faults and told.keys() >= set(faults) else {}

    def wait_ready(self, timeout_s: float = 60.0, given_up: Callable[[], bool] = lambda: False) -> None:
        """Returns once every shard is served. Raises LocalClusterError, which says what is missing, when late."""
        deadline_s = time.monotonic() + timeout_s
        while (faults := self.unready()) and not given_up():
            if time.monotonic() > deadline_s:
                shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
                raise LocalClusterError(f"not ready after {timeout_s:.0f} s: {shown}. Logs: {self.data / 'logs'}")
            time.sleep(0.03)

    def _locked(self) -> IO[str]:
        lock = (self.data / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise LocalClusterError(
                f"a local cluster runs on {self.data} already (pid {holder}); stop it, or give another --data"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _command(self, number: int, node: str) -> tuple[str, ...]:
        options = {
            "--node-id": node,
            "--data": str(self.data / node),
            "--registry": f"sqlite:{self.data / 'registry.db'}",
            "--listen": self.endpoints[number],
            "--http": self.http[number],
            "--peer": self.peers[number],
            "--durability": self.desired.durability.value.lower(),
        }
        if self._zones:
            options["--zone"] = self._zones[number % len(self._zones)]
        secured = () if self.keys is None else self._listeners(number, self.keys)
        return (*self._node_command, *(part for option in options.items() for part in option), *secured)

    def _listeners(self, number: int, keys: OwnKeys) -> tuple[str, ...]:
        at = self._ports
        return (
            *("--listener", f"tokens={at.grpc[number]},tls,token"),
            *("--listener", f"mtls={at.mtls[number]},tls,mtls"),
            *("--http-listener", f"tokens={at.http_tokens[number]},tls,token"),
            *("--certificates", str(keys.server), "--client-ca", str(keys.clients)),
            *("--peers", "required", "--peer-certificates", str(keys.peers)),
            *("--internal-port", str(at.internal[number])),
        )

    def _record_former(self, node: str) -> None:
        # The lease of the process before looks just like a living one's. If we did not know it, we could call a
        # cluster ready that is not: so a registry that can't be read puts the start off.
        found = self._leased_by(node)
        if found is not None:
            self._former[node] = found

    def _record_exit(self, node: str) -> None:
        # The lease may still name the process before this one: its own lease may never have come. And a process that
        # holds the data's lock still runs: it takes the lock before it has a lease.
        found = self._leased_by(node)
        if found is None or found == self._former.get(node):
            return
        try:
            lock_data(str(self.data / node)).close()
        except DataInUse:
            return
        self._ends.add([found])

    def _leased_by(self, node: str) -> str | None:
        return next((lease.incarnation for lease in self.registry.list_leases() if lease.node == node), None)

    def ended(self) -> frozenset[str]:
        """The incarnations of node processes that have ended while this object watched over them."""
        return self._ends.known()

    def _run_loop(self) -> None:
        while not self._stop_loop.is_set():
            loop = ControlLoop(
                self.registry,
                new_uid,
                self._operator_events,
                prober=self._new_prober(),
                ended=self.ended,
                writers=WRITERS,
            )
            self._loop = loop
            try:
                loop.run(self._stop_loop)
            except Exception as error:  # a cluster without its operator must be heard of, and gets a new one
                self._on_event({"event": "operator-failed", "error": f"{type(error).__name__}: {error}"})
                self._stop_loop.wait(1.0)

    def _run_rebalancer(self) -> None:
        # Its models need a package that most clusters can do without.
        while not (self.data / REBALANCE).exists():
            if self._stop_loop.wait(REBALANCE_POLL_S):
                return
        while not self._stop_loop.is_set():
            try:
                from delaylocal.rebalance import Rebalancer

                rebalancer = Rebalancer(self.data, self.registry, self._nodes, self._new_prober, self._operator_events)
                rebalancer.run(self._stop_loop)
            except Exception as error:  # nor is a rebalance to stand still unheard of
                self._on_event({"event": "rebalancer-failed", "error": f"{type(error).__name__}: {error}"})
                self._stop_loop.wait(REBALANCE_FAILED_S)

    def _run_versions(self) -> None:
        while not self._stop_loop.wait(VERSIONS_POLL_S):
            with contextlib.suppress(RegistryError):  # another writer was faster, or it gives no answer: the next time
                found = self.registry.read_cluster()
                if found is None:
                    continue
                cluster = found.spec
                settled = len(self.pids) == cluster.nodes
                decided = decide_nodes_version(
                    cluster.nodes_version, cluster.node_ids, self._nodes(), settled=settled, finalize=True
                )
                if decided.version != cluster.nodes_version:
                    self.registry.put_cluster(replace(cluster, nodes_version=decided.version), found.version)
                    self._operator_events({"event": "nodes-version-raised", "nodes_version": decided.version})

    def _nodes(self) -> Mapping[str, ObservedNode]:
        return {} if self._loop is None else self._loop.nodes

    def _log_tail(self, node: str) -> str:
        path = self._supervisor.log_path(node)
        text = path.read_bytes()[-LOG_TAIL_BYTES:] if path.exists() else b""
        return text.decode("utf-8", "replace").strip() or "(empty)"
