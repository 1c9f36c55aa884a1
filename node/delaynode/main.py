"""delaynode: the server process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# gRPC reads it when it is imported, and has no other way to keep TLS 1.2 out: those of its cipher suites that are left
# are for RSA keys, which no listener has. The suites of TLS 1.3 are always there.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256")

from aiohttp import web
from delayapi.address import split
from delayapi.events import EventLog, take_library_records
from delayapi.http_port import HttpPort
from delayapi.log_levels import LogLevel
from delayregistry.port import RegistryError

from delaynode import config as configuration
from delaynode.auth.api_server import KubeApiServer
from delaynode.config import NodeConfig
from delaynode.limits.connections import address_of, raise_file_limit, received
from delaynode.loop import new_loop
from delaynode.memory import tune_allocator
from delaynode.node.node import Node, ReleaseTooOld, open_registry
from delaynode.server.callers import Callers
from delaynode.server.compiled_edge import CompiledEdge
from delaynode.server.doors.doors import Doors
from delaynode.server.doors.http_json import HttpDoor
from delaynode.server.edge import Methods
from delaynode.server.grpc_edge import GrpcEdge
from delaynode.server.handlers.rows import RowCalls
from delaynode.server.health_port import serve_http
from delaynode.server.listeners import Listener, NewestContext, http_listeners, listeners_of
from delaynode.server.metrics_port import serve_metrics
from delaynode.server.operations import REPLICATION_SERVICE, SERVICE
from delaynode.server.replica_status import ReplicationService
from delaynode.server.service import DelayService
from delaynode.server.user_connections import ClientConnection, UserConnections

STATE_SECONDS = 0.2
CALLS_END_SECONDS = 1.0
TERMINATION_LOG = Path("/dev/termination-log")  # of a Kubernetes container; elsewhere there is none


class Logger:
    """JSON events, one a line, on stderr."""

    def __init__(self, node: str, level: LogLevel) -> None:
        self._node, self._started_with, self.events = node, level, EventLog(level=level)

    def set_level(self, level: LogLevel | None) -> None:
        """None: the one that the process was started with."""
        self.events.level = level or self._started_with

    def __call__(self, event: str, **fields: object) -> None:
        self.events({"event": event, "node": self._node, **fields})


class AuditLogger:
    """Events of the audit log, one a line, on stderr beside the others, whatever their level: `"log": "audit"`."""

    def __init__(self, node: str) -> None:
        self._node, self._events = node, EventLog()

    def __call__(self, event: str, **fields: object) -> None:
        self._events({"event": event, "log": "audit", "node": self._node, **fields})


def note_incarnation(incarnation: str, path: Path = TERMINATION_LOG) -> None:
    """Says which process this container runs: the kubelet reports it when the container has ended, and a failover then
    waits for nothing (`delayoperator/cluster/ended_processes.py`). Before the first lease; without it a failover takes
    the lease's time."""
    note_end(f"incarnation {incarnation}\n", path)


def note_end(text: str, path: Path = TERMINATION_LOG) -> None:
    """What the kubelet is to report when this container has ended."""
    if path.is_file():
        with contextlib.suppress(OSError):
            path.write_text(text, encoding="utf-8")


async def _follow_state(node: Node, edge: GrpcEdge | CompiledEdge, log: Logger) -> None:
    """The health that clients are told, why in the log, and the log's level as the cluster's spec has it."""
    told: str | None = None
    broken = False
    while True:
        log.set_level(node.routes.cluster.log_level if node.routes.cluster is not None else None)
        reason = node.readiness()
        await edge.tell_health(serving=reason is None)
        if (word := None if reason is None else reason.word) != told:
            told = word
            if reason is None:
                log("not-ready-over")
            else:
                log("not-ready", word=reason.word, reason=reason.text)
        node.certificates.tell_changes(log)
        if not broken and (error := node.fatal_error()) is not None:
            broken = True
            log("vital-part-ended", reason=error)
        await asyncio.sleep(STATE_SECONDS)


async def serve(config: NodeConfig) -> None:
    """Run until SIGTERM, or SIGINT: then the whole cluster stops, and nothing is handed over."""
    log = Logger(config.node, config.log_level)
    take_library_records(log.events)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()  # others go on: they take over what is here

    def stop(number: int) -> None:
        if number == signal.SIGTERM:
            leaving.set()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    api = KubeApiServer("delaynode") if config.registry.startswith("kube:") else None
    node = Node(config, open_registry(config.registry), log, AuditLogger(config.node), api)
    note_incarnation(node.incarnation)
    door = HttpDoor(node)  # for everybody, where gRPC is too
    # Before all that may take long: it says what is waited for.
    http = await serve_http(node, config.http, door.routes() if config.serves_everybody else ())
    metrics = await serve_metrics(node)
    try:
        known = await _unless(stopping, node.read_cluster())
    except ReleaseTooOld as error:
        log("release-too-old", reason=str(error))
        note_end(f"{error}\n")
        raise
    if known:
        await _serve_calls(node, door, stopping, leaving, log)
    else:
        log("stopping")
        await node.stop()
    await http.close()
    if metrics is not None:
        await metrics.close()
    await _calls_ended()
    log("stopped")


async def _calls_ended() -> None:
    """Return when the calls that the server's end has cancelled have ended: server.stop() does not wait for them, and
    the end of the loop would cancel gRPC's tasks once more, which then write a traceback each."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        await asyncio.wait(rest, timeout=CALLS_END_SECONDS)


async def _serve_calls(
    node: Node, door: HttpDoor, stopping: asyncio.Event, leaving: asyncio.Event, log: Logger
) -> None:
    config = node.config
    service = DelayService(node)
    rows = RowCalls(service.dispatch)
    doors = Doors(service, rows)
    replication = ReplicationService(service.dispatch)
    services = {SERVICE: service.methods(), REPLICATION_SERVICE: replication.methods(), **doors.services()}
    listeners = listeners_of(config, node.certificates)
    users = UserConnections(
        node.security.rights, node.metrics, partial(_alive, config) if config.edge == "grpcio" else None
    )
    callers = Callers(node.security.identities(), listeners, users, node.clock.now_ms)
    edge = _edge(node, rows, services, listeners, callers)
    door.open(doors.messages.methods())
    ports = [
        _http_port(doors.over_http(node, one, callers), one, config, log)
        for one in http_listeners(config, node.certificates)
    ]
    await node.prepare()
    node.certificates.start()
    await edge.start()
    for port in ports:
        await port.start()
    following = asyncio.create_task(_follow_state(node, edge, log))
    if await _unless(stopping, node.start()):
        node.log("started", listen=config.listen, http=config.http, incarnation=node.incarnation)
        await stopping.wait()
    node.log("stopping")
    if leaving.is_set():
        await node.leave()
    following.cancel()
    await asyncio.get_running_loop().run_in_executor(None, node.certificates.close)  # it waits for threads
    await edge.stop(node.stop)
    for port in ports:
        await port.close()
    await doors.close()
    await rows.close()
    await service.dispatch.forwarder.close()


def _http_port(door: HttpDoor, listener: Listener, config: NodeConfig, log: Logger) -> HttpPort:
    """For MessageService, by that listener."""
    app = web.Application()
    app.add_routes(door.routes())
    return HttpPort(
        app, listener.config.listen, config.max_connections, log, left=door.left,
        context=NewestContext(listener) if listener.config.tls else None, age_s=config.security.connection_age_s,
    )  # fmt: skip


def _edge(
    node: Node, rows: RowCalls, services: Mapping[str, Methods], listeners: Sequence[Listener], callers: Callers
) -> GrpcEdge | CompiledEdge:
    config = node.config
    node.log("edge", kind=config.edge)
    if config.edge == "grpcio":
        return GrpcEdge(config.max_connections, node.flow, services, listeners, callers)
    enqueue, stream = f"/{SERVICE}/Enqueue", f"/{SERVICE}/EnqueueStream"
    return CompiledEdge(config, node.flow, rows, enqueue, stream, services, listeners, callers, node.log)


async def _alive(config: NodeConfig, held: Collection[ClientConnection]) -> set[ClientConnection]:
    """Of these connections, those that there are still: gRPC does not tell of their ends."""
    ports = {split(one.listen)[1] for one in (*config.listeners, *config.http_listeners)}
    found = await asyncio.get_running_loop().run_in_executor(None, received, ports)
    return {connection for connection in held if address_of(connection[1]) in found}


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before the process was told to stop; it is cancelled then. Raises what it raises."""
    doing, told = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)
    return False


def main() -> None:
    if sys.argv[1:2] == ["verify"]:
        from delaynode.verify import main as verify  # what a server never needs

        sys.exit(verify(sys.argv[2:]))
    if sys.argv[1:2] == ["repair"]:
        from delaynode.repair import main as repair

        sys.exit(repair(sys.argv[2:]))
    config = configuration.parse()
    tune_allocator()
    raise_file_limit()
    # a worker that comes back from the disk waits for the interpreter lock at most this long
    sys.setswitchinterval(0.0005)
    # what was imported stays: each full collection would look through it, for some 20 ms in which nothing else runs
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve(config))
    except (RegistryError, OSError, RuntimeError) as error:
        print(f"delaynode: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
