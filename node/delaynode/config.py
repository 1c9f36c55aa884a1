"""The node's settings, from the command line."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from delayapi import address
from delayapi.events import add_level_option
from delayapi.log_levels import LogLevel
from delayregistry.model import Durability

from delaynode.listener_options import (
    ListenerConfig,
    Security,
    add_options,
    http_listeners_of,
    listeners_of,
    metrics_listener_of,
    primary,
)

EDGE_VARIABLE = "DELAYNODE_EDGE"
EDGES = ("auto", "grpcio", "compiled")
ZONE_VARIABLE = "DELAYNODE_ZONE"
MAX_ZONE_CHARS = 63
# A value of a Kubernetes label, which is where it comes from there.
_ZONE = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{MAX_ZONE_CHARS - 2}}}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """node: its id in the registry. registry: `sqlite:PATH`, `kube:NAMESPACE/CLUSTER`. listen, http: HOST:PORT,
    as address.join() writes it."""

    node: str
    data: str
    registry: str
    listen: str
    http: str
    advertise: str  # the gRPC address that others reach this node at
    advertise_http: str  # and the one for HTTP
    durability: Durability | None  # None: what the cluster's spec says
    window_budget: int  # messages in all due windows together
    in_flight_bytes: int  # enqueued bytes that wait for their commit
    unread_bytes: int  # of answers that clients have not read yet
    memory_bytes: int  # of the process: above it, connections that hold much of it are cut
    edge: str  # what carries clients' calls: grpcio or compiled
    max_connections: int  # of clients
    reserve_bytes: int  # of the disk, left free by enqueues
    log_segment_bytes: int  # of a shard's CommitLog: disk is freed a segment at a time
    peer: str  # HOST:PORT for the other nodes: TCP shipping, UDP heartbeats
    advertise_peer: str  # IP:PORT that they reach it at; empty: the same
    accept_clock_step: bool  # believe the wall clock at start, whatever the process before believed
    zone: str  # that it runs in; empty: not known
    listeners: tuple[ListenerConfig, ...]  # that of `listen` and `advertise` among them
    security: Security
    log_level: LogLevel  # while the cluster's spec names none
    metrics_listener: ListenerConfig | None = None  # None: metrics are at `http`
    http_listeners: tuple[ListenerConfig, ...] = ()  # for MessageService over HTTP, beside `http`

    @property
    def serves_everybody(self) -> bool:
        """Whether a listener asks nobody who they are, in plain text: MessageService over HTTP is at `http` then."""
        return any(one.authentication == "none" and not one.tls for one in self.listeners)


def parse(argv: list[str] | None = None) -> NodeConfig:
    parser = argparse.ArgumentParser(
        prog="delaynode",
        description="Keeps and releases the delayed messages of its shards.",
        epilog="`delaynode verify DIR` checks the files of a stopped node or shard; `delaynode repair DIR` gets a "
        "shard past a frame of its log that can't be applied; see their --help.",
    )
    parser.add_argument("--node-id", required=True, help="this node's id in the registry, e.g. n0")
    parser.add_argument("--data", required=True, help="directory for the shards")
    parser.add_argument(
        "--registry",
        required=True,
        help="where the cluster's state lives: sqlite:PATH, or kube:NAMESPACE/CLUSTER (with the pod's credentials; "
        "outside of a pod, or where KUBECONFIG is set, those of the kubeconfig)",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default="127.0.0.1:7070",
        help="HOST:PORT for gRPC; [::] stands for all addresses, of IPv6 and IPv4",
    )
    parser.add_argument(
        "--http",
        type=_address,
        default="127.0.0.1:7170",
        help="HOST:PORT for /healthz, /readyz, without --metrics-listener /metrics, and where a --listener is for "
        "everybody MessageService over HTTP; [::] as above",
    )
    parser.add_argument(
        "--advertise-http", type=_address, default="", help="HOST:PORT that others reach --http at (default: the same)"
    )
    parser.add_argument(
        "--advertise", type=_address, default="", help="HOST:PORT that others reach --listen at (default: the same)"
    )
    parser.add_argument(
        "--peer",
        type=_address,
        default="127.0.0.1:0",
        help="HOST:PORT for the other nodes, TCP and UDP; HOST an IP address, PORT 0: any that is free",
    )
    parser.add_argument(
        "--advertise-peer",
        type=_address,
        default="",
        help="IP:PORT that other nodes reach --peer at (default: the same)",
    )
    parser.add_argument(
        "--zone",
        type=_zone,
        default=os.environ.get(ZONE_VARIABLE, ""),
        help="what may fail with this machine, such as a cloud's availability zone: the copies of a shard are kept in "
        f"different ones (default: ${ZONE_VARIABLE}; empty: not known)",
    )
    parser.add_argument(
        "--window-budget", type=int, default=4_000_000, help="messages kept in memory for the coming minutes"
    )
    parser.add_argument(
        "--in-flight-mib", type=int, default=64, help="MiB of enqueued messages that may wait for their commit"
    )
    parser.add_argument(
        "--unread-mib", type=int, default=256, help="MiB of memory for answers that clients have not read yet"
    )
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=1024,
        help="MiB of memory above which connections are cut that send large requests and do not end them",
    )
    parser.add_argument(
        "--edge",
        choices=EDGES,
        default=os.environ.get(EDGE_VARIABLE, "auto"),
        help="what carries clients' calls: the compiled one is the package delaycluster-edge; auto: that where this "
        f"release of it is installed (default: ${EDGE_VARIABLE}, else auto)",
    )
    parser.add_argument("--max-connections", type=int, default=10_000, help="client connections")
    parser.add_argument("--min-free-mib", type=int, default=256, help="MiB of the disk that new messages leave free")
    parser.add_argument(
        "--log-segment-mib",
        type=int,
        default=64,
        help="MiB of a file of a shard's log; smaller ones free disk sooner",
    )
    parser.add_argument(
        "--accept-clock-step",
        action="store_true",
        help="believe the wall clock as it stands now, also where it went ahead while this node ran before",
    )
    parser.add_argument(
        "--durability", choices=[kind.value.lower() for kind in Durability], help="default: the cluster's"
    )
    add_options(parser)
    add_level_option(parser)
    args = parser.parse_args(argv)
    try:
        edge = _edge(args.edge)
    except ValueError as error:
        parser.error(f"--edge: {error}")
    try:
        listeners = listeners_of(args, args.listen, args.advertise or args.listen)
        metrics = metrics_listener_of(args, args.http, args.advertise_http or args.http)
        http_listeners = http_listeners_of(args, args.http, args.advertise_http or args.http)
    except ValueError as error:
        parser.error(str(error))
    first = primary(listeners)
    return NodeConfig(
        node=args.node_id,
        data=args.data,
        registry=args.registry,
        listen=first.listen,
        http=args.http,
        advertise=first.advertise,
        advertise_http=args.advertise_http or args.http,
        durability=next((kind for kind in Durability if kind.value.lower() == args.durability), None),
        window_budget=args.window_budget,
        in_flight_bytes=args.in_flight_mib << 20,
        unread_bytes=args.unread_mib << 20,
        memory_bytes=args.memory_mib << 20,
        edge=edge,
        max_connections=args.max_connections,
        reserve_bytes=args.min_free_mib << 20,
        log_segment_bytes=args.log_segment_mib << 20,
        peer=args.peer,
        advertise_peer=args.advertise_peer,
        accept_clock_step=args.accept_clock_step,
        zone=args.zone,
        listeners=listeners,
        security=Security(
            args.certificates, args.client_ca, args.peer_certificates, args.peers, args.connection_age_seconds
        ),
        log_level=args.log_level,
        metrics_listener=metrics,
        http_listeners=http_listeners,
    )


def _address(text: str) -> str:
    try:
        return address.normal(text) if text else ""
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, such as 10.0.0.1:7070 or [fd00::1]:7070") from error


def _zone(text: str) -> str:
    try:
        return zone(text) if text else ""
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def zone(name: str) -> str:
    """The name, where it is a zone's. Raises ValueError."""
    if not _ZONE.fullmatch(name):
        raise ValueError(
            f"{name!r} is no zone: 1 to {MAX_ZONE_CHARS} of a-z, A-Z, 0-9, '-', '_' and '.', starting and ending with "
            "a letter or digit, such as eu-west-1a"
        )
    return name


def _edge(asked: str) -> str:
    """grpcio or compiled. Raises ValueError."""
    if asked not in EDGES:  # of the environment: argparse takes a default as it is
        raise ValueError(f"{asked!r}; it is one of {', '.join(EDGES)}")
    own, found = _version("delaycluster"), _version("delaycluster-edge")
    if asked == "auto":
        return "compiled" if found == own else "grpcio"
    if asked == "compiled" and found is None:
        raise ValueError("compiled needs the package delaycluster-edge, which is not installed here")
    if asked == "compiled" and found != own:
        raise ValueError(
            f"delaycluster-edge {found} is installed, and this is delaycluster {own}: install that of {own}"
        )
    return asked


def _version(distribution: str) -> str | None:
    """None: it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
