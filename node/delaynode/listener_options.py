"""The options about who may come in, by which port: `--listener` and what goes with it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from delayapi import address

LISTENERS_VARIABLE = "DELAYNODE_LISTENERS"  # those of the option, with ; between them
METRICS_VARIABLE = "DELAYNODE_METRICS_LISTENER"
HTTP_VARIABLE = "DELAYNODE_HTTP_LISTENERS"  # as LISTENERS_VARIABLE
VARIABLES = {  # of the other options
    "certificates": "DELAYNODE_CERTIFICATES",
    "client_ca": "DELAYNODE_CLIENT_CA",
    "peer_certificates": "DELAYNODE_PEER_CERTIFICATES",
    "peers": "DELAYNODE_PEERS",
}
PEERS = ("off", "permissive", "preferred", "required")
DIALS_TLS = ("preferred", "required")
TRANSPORTS = ("plain", "tls")
AUTHENTICATIONS = ("none", "token", "mtls")
PLAIN, INTERNAL, METRICS = "plain", "internal", "metrics"
HTTP_PREFIX = "http-"  # of the names of HTTP listeners, as the security document and metrics have them
INTERNAL_PORT = 7073
MAX_LISTENERS = 8
_SHAPE = f"PORT,{'|'.join(TRANSPORTS)},{'|'.join(AUTHENTICATIONS)}"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """listen, advertise: HOST:PORT, as address.join() writes it. authentication: of auth.identity.Authentication."""

    name: str
    listen: str
    advertise: str  # what others reach it at
    tls: bool
    authentication: str


@dataclass(frozen=True, slots=True)
class Security:
    """Directories, as delayapi.certificates reads them; empty: not given."""

    certificates: str
    client_ca: str  # or a file
    peer_certificates: str
    peers: str  # how the nodes talk to each other: one of PEERS
    connection_age_s: int  # after which a client that came by TLS is asked to come again


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listener",
        action="append",
        metavar="NAME=PORT,plain|tls,none|token|mtls",
        help="a port for gRPC on the host of --listen, and how clients prove who they are; repeatable. tls needs "
        "--certificates, mtls --client-ca too. Without any there is one, `plain`, at --listen, for everybody "
        f"(default: ${LISTENERS_VARIABLE}, with ; between them)",
    )
    parser.add_argument(
        "--metrics-listener",
        metavar="PORT,plain|tls,none|token|mtls",
        default=os.environ.get(METRICS_VARIABLE, ""),
        help="a port for /metrics on the host of --http, in place of --http's, and how who reads them proves who that "
        f"is; it needs the right Describe on all topics (default: ${METRICS_VARIABLE}, else --http for everybody)",
    )
    parser.add_argument(
        "--http-listener",
        action="append",
        metavar="NAME=PORT,plain|tls,none|token|mtls",
        help="a port for MessageService over HTTP on the host of --http, and how clients prove who they are; "
        f"repeatable (default: ${HTTP_VARIABLE}, with ; between them)",
    )
    for name, what in (
        ("certificates", "directory with tls.crt and tls.key, and ca.crt, of the listeners with tls"),
        ("client-ca", "file, or directory with ca.crt: who may have issued the certificates of clients (mtls)"),
        ("peer-certificates", "directory with tls.crt, tls.key and ca.crt: how nodes know each other"),
    ):
        variable = VARIABLES[name.replace("-", "_")]
        parser.add_argument(f"--{name}", default=os.environ.get(variable, ""), help=f"{what} (default: ${variable})")
    parser.add_argument(
        "--peers",
        choices=PEERS,
        default=os.environ.get(VARIABLES["peers"], "off"),
        help="TLS between nodes, for replication and for the calls that they pass on, and seals on heartbeats. "
        "permissive: accepted, plain text is dialled; preferred: both accepted, TLS dialled; "
        f"required: TLS alone (default: ${VARIABLES['peers']}, else off)",
    )
    parser.add_argument(
        "--internal-port",
        type=int,
        default=INTERNAL_PORT,
        help=f"port for nodes and the operator, unless --peers is off (default: {INTERNAL_PORT})",
    )
    parser.add_argument(
        "--connection-age-seconds",
        type=int,
        default=3_600,
        help="how long a client's TLS connection lasts, so that certificates and CAs that were replaced stop counting",
    )


def listeners_of(args: argparse.Namespace, listen: str, advertise: str) -> tuple[ListenerConfig, ...]:
    """What the arguments ask for; the listener `internal` is the last. listen, advertise: those of the node, whose
    hosts all listeners have. Raises ValueError, which begins with the option."""
    asked = args.listener or list(filter(None, os.environ.get(LISTENERS_VARIABLE, "").split(";")))
    if args.peers not in PEERS:  # of the environment: argparse takes a default as it is
        raise ValueError(f"--peers: {args.peers!r}; it is one of {', '.join(PEERS)}")
    if not asked:
        found = [ListenerConfig(PLAIN, listen, advertise, False, "none")]
    else:
        found = [_named_listener(text, listen, advertise, "--listener") for text in asked]
    if args.peers != "off":
        if not args.peer_certificates:
            raise ValueError(f"--peers: {args.peers} needs --peer-certificates")
        found.append(_on_port(INTERNAL, args.internal_port, listen, advertise, True, "peer", "--internal-port"))
    _check(found, args)
    return tuple(found)


def metrics_listener_of(args: argparse.Namespace, http: str, advertise_http: str) -> ListenerConfig | None:
    """None: metrics are at --http. Raises ValueError, which begins with the option."""
    if not args.metrics_listener:
        return None
    option = "--metrics-listener"
    found = _listener(METRICS, args.metrics_listener, http, advertise_http, option)
    _check_files(found, args, option)
    if found.listen == http:
        raise ValueError(f"{option}: it has the port of --http, {http}")
    return found


def http_listeners_of(args: argparse.Namespace, http: str, advertise_http: str) -> tuple[ListenerConfig, ...]:
    """Their names begin with `http-`. Raises ValueError, which begins with the option."""
    option = "--http-listener"
    asked = args.http_listener or list(filter(None, os.environ.get(HTTP_VARIABLE, "").split(";")))
    found = tuple(_named_listener(text, http, advertise_http, option, HTTP_PREFIX) for text in asked)
    _check_apart(found, option)
    for one in found:
        _check_files(one, args, option)
        if one.listen == http:
            raise ValueError(f"{option}: {one.name} has the port of --http, {http}")
    return found


def primary(listeners: Sequence[ListenerConfig]) -> ListenerConfig:
    """That for everybody, if there is one, else the first: a node without `--listener` has no other."""
    return next((one for one in listeners if one.authentication == "none" and not one.tls), listeners[0])


def _named_listener(text: str, listen: str, advertise: str, option: str, prefix: str = "") -> ListenerConfig:
    name, _, rest = text.strip().partition("=")
    if not _fits(rest):
        raise ValueError(f"{option}: {text!r} is not NAME={_SHAPE}, such as tokens=7071,tls,token")
    if not _NAME.fullmatch(name) or name in (INTERNAL, METRICS) or name.startswith(HTTP_PREFIX):
        raise ValueError(
            f"{option}: {name!r} is no name for one: 1 to 15 of a-z, 0-9 and '-', first a letter; not {INTERNAL} or "
            f"{METRICS}, nor with {HTTP_PREFIX} before it"
        )
    return _listener(prefix + name, rest, listen, advertise, option)


def _fits(text: str) -> bool:
    parts = text.split(",")
    return len(parts) == 3 and parts[1] in TRANSPORTS and parts[2] in AUTHENTICATIONS


def _listener(name: str, text: str, listen: str, advertise: str, option: str) -> ListenerConfig:
    if not _fits(text):
        raise ValueError(f"{option}: {text!r} is not {_SHAPE}, such as 7171,tls,token")
    port, transport, authentication = text.split(",")
    if not (port.isascii() and port.isdigit()):
        raise ValueError(f"{option}: {port!r} is no port, in {text!r}")
    if authentication != "none" and transport != "tls":
        raise ValueError(f"{option}: {name} has {authentication}, which needs tls")
    return _on_port(name, int(port), listen, advertise, transport == "tls", authentication, option)


def _on_port(
    name: str, port: int, listen: str, advertise: str, tls: bool, authentication: str, option: str
) -> ListenerConfig:
    if not 0 < port < 1 << 16:
        raise ValueError(f"{option}: {port} is no port, of {name}")
    at, shown = (address.join(address.split(one)[0], port) for one in (listen, advertise))
    return ListenerConfig(name, at, shown, tls, authentication)


def _check_files(one: ListenerConfig, args: argparse.Namespace, option: str) -> None:
    if one.tls and one.name != INTERNAL and not args.certificates:
        raise ValueError(f"{option}: {one.name} has tls, which needs --certificates")
    if one.authentication == "mtls" and not args.client_ca:
        raise ValueError(f"{option}: {one.name} has mtls, which needs --client-ca")


def _check_apart(listeners: Sequence[ListenerConfig], option: str) -> None:
    names, ports = ([one.name for one in listeners], [one.listen for one in listeners])
    for what, all_of in (("name", names), ("port", ports)):
        if len(set(all_of)) != len(all_of):
            raise ValueError(f"{option}: two have one {what}: {', '.join(sorted(all_of))}")


def _check(listeners: Sequence[ListenerConfig], args: argparse.Namespace) -> None:
    if len(listeners) > MAX_LISTENERS:
        raise ValueError(f"--listener: there are {len(listeners)}, with the internal one; allowed: {MAX_LISTENERS}")
    _check_apart(listeners, "--listener")
    for one in listeners:
        _check_files(one, args, "--listener")
    if args.peers not in DIALS_TLS and not any(one.authentication == "none" and not one.tls for one in listeners):
        raise ValueError(
            f"--listener: with --peers {args.peers} nodes pass calls on in plain text, to a listener `plain,none`, and "
            "there is none; --peers preferred does without"
        )
    if args.connection_age_seconds < 1:
        raise ValueError(f"--connection-age-seconds: {args.connection_age_seconds}; it is at least 1")
