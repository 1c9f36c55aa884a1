"""What an attacker on the network, or a client without rights, tries. Each attack returns how it was refused, in words
for the report; raises AssertionError where it was not, and NotTriedError where this machine can't try all of it.

Attacks that other tests show better are in ELSEWHERE, with the tests' names (file::function).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import grpc
import pytest
from delayapi.credentials import Tls
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayclient import errors
from delayclient.sync import Producer
from delaylocal.own_keys import CLUSTER_URI, SERVER_NAME
from delaynode.replication.heartbeat_guard import HeartbeatGuard, HeartbeatKey
from delaynode.replication.protocol import Heartbeat, HeartbeatReply, encode_heartbeat
from delaynode.replication.transport.connection import Hello, decode_answer
from delaynode.server.operations import OPERATIONS, STREAMED
from delayregistry.model import BadSpec
from delayregistry.security import AccessRule, NamePattern, Operation

from tests.auth.issuing import token
from tests.auth.test_operations import METHODS, request_of
from tests.redteam.world import HTTP, LISTENERS, NODE, WILD, World
from tests.security.authority import DAY, Authority
from tests.serve.server.test_tokens_served import BAD, encoded
from tests.serve.support.asking import DENIED, TOPIC, UNKNOWN, Asking, secret
from tests.serve.support.client import poll
from tests.simulation.support.attacker import is_sealed, said

UNKNOWN_KEYS = 10_000
TLS_PORTS = (*LISTENERS, "peer", HTTP)
OLD = {"1.0": ssl.TLSVersion.TLSv1, "1.1": ssl.TLSVersion.TLSv1_1, "1.2": ssl.TLSVersion.TLSv1_2}
CUT_SECONDS = 25.0  # a handshake has 10
FLOOD = 600  # handshakes at once, of each port, that are never begun
SLOW = 40  # clients at once that are slow, or never finish
KEY_UPDATES, HANDSHAKES = 2_000, 300

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "prefix rules: every pattern of names": (
        "tests/auth/test_rights.py::test_names_are_literal_or_begin_so",
        "tests/auth/test_rights.py::test_dots_and_stars_of_a_groups_name_stand_for_themselves",
    ),
    "RPC x identity x right, one by one": (
        "tests/serve/server/test_rights_served.py::test_every_call_is_made_by_those_who_may_and_by_no_other",
        "tests/serve/server/test_rights_served.py::test_every_call_of_message_service_likewise",
    ),
    "heartbeats sent back, held back, altered; a key used in another's name": (
        "tests/replicate/test_heartbeat_guard.py::test_it_comes_back_to_nobody_and_is_for_no_other_node",
        "tests/replicate/test_heartbeat_guard.py::test_a_heartbeat_that_was_held_back_is_answered_but_binds_nobody",
        "tests/replicate/test_heartbeat_guard.py::test_no_flipped_bit_is_taken",
        "tests/replicate/test_heartbeat_guard.py::test_a_node_that_has_the_key_speaks_in_no_other_name",
    ),
    "heartbeats replayed": (
        "tests/replicate/test_heartbeat_guard.py::test_each_counts_once_in_any_order_within_the_window",
    ),
    "an attacker between nodes makes no second master": (
        "tests/simulation/test_attacker.py::test_invariants_hold_whatever_an_attacker_does_with_heartbeats",
    ),
    "a stream whose token expires": (
        "tests/serve/server/test_tokens_served.py::test_a_stream_ends_when_its_token_does",
    ),
    "certificates swapped for bad ones": (
        "tests/serve/server/test_tls.py::test_a_bad_certificate_replaces_none_and_is_told_of",
    ),
    "a DelayUser for a cluster that does not allow its namespace": (
        "tests/crds/test_security_document.py::test_a_namespace_that_is_not_allowed_or_not_known_has_no_users",
    ),
    "a page in a browser, by DNS rebinding": (
        "tests/doors/rows/test_http.py::test_what_is_no_call_is_refused_by_its_status",
    ),
    "a group of one provider's tokens, named by another's": (
        "tests/auth/test_rights.py::test_a_group_of_one_provider_is_none_of_another_ones",
    ),
    "a consumer group whose name is an escape sequence": (
        "tests/serve/server/test_bad_input.py::test_is_refused_with_what_and_where_and_changes_nothing",
    ),
    "metrics of a node on a port of their own, without rights": (
        "tests/serve/server/test_metrics_port.py::test_a_token_needs_the_right_to_describe_all_topics",
        "tests/serve/server/test_metrics_port.py::test_plain_text_and_older_tls_are_refused",
    ),
    "metrics of the operator on a port of their own, without a certificate": (
        "tests/operator/test_metrics_port.py::"
        "test_only_who_has_a_certificate_of_the_ca_reads_them_and_newer_certificates_are_taken_up",
        "tests/operator/test_metrics_port.py::test_of_a_ca_that_issues_more_only_the_clients_that_are_named_read_them",
        "tests/operator/test_metrics_port.py::test_plain_text_and_older_tls_are_refused",
    ),
    "the port of a sink, by pods that its NetworkPolicy does not name": (
        "tests/resources/test_objects.py::test_the_port_of_a_sink_is_for_the_operator_and_who_reads_metrics",
    ),
    "the console: forged cookies, origins and hosts; plain text and older TLS": (
        "tests/console/test_app.py::test_a_forged_cookie_is_none",
        "tests/console/test_app.py::test_a_change_from_another_origin_is_refused",
        "tests/console/test_app.py::test_another_host_is_refused_also_with_the_cookie",
        "tests/console/real/test_in_a_cluster.py::test_plain_text_and_older_tls_are_refused",
    ),
    "a machine's clock that is an hour ahead": (
        "tests/auth/test_tokens.py::test_a_clock_that_is_set_an_hour_ahead_ends_no_token",
    ),
}


class NotTriedError(Exception):
    """This machine lacks what an attack, or a part of it, needs. What could be tried was refused."""


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    run: Callable[[World], str]


ATTACKS: list[Attack] = []


def attack(name: str) -> Callable[[Callable[[World], str]], Callable[[World], str]]:
    def add(run: Callable[[World], str]) -> Callable[[World], str]:
        ATTACKS.append(Attack(name, run))
        return run

    return add


# ---------------------------------------------------------------- tokens
def _add_token(kind: str) -> None:
    make, why = BAD[kind]

    @attack(f"a token, {kind}")
    def run(world: World) -> str:
        ended = Asking(world.channel("tokens"), f"Bearer {make()}").ask("QueryRoute")
        assert ended is not None
        assert ended.code() is UNKNOWN
        assert why in ended.details(), ended.details()
        return ended.details()


for _kind in BAD:
    _add_token(_kind)


@attack("a token of 1 MB")
def token_of_a_megabyte(world: World) -> str:
    ended = Asking(world.channel("tokens"), "Bearer " + "a" * (1 << 20)).ask("QueryRoute")
    assert ended is not None
    assert ended.code() is not grpc.StatusCode.OK
    assert world.caller("super").may("QueryRoute")
    longest = Asking(world.channel("tokens"), "Bearer " + "a.b." + "c" * 7_000).ask("QueryRoute")
    assert longest is not None
    assert longest.code() is UNKNOWN, longest.details()
    return f"{ended.code().name}, before it is looked at; one of 7 KB: {longest.details()}"


@attack(f"{UNKNOWN_KEYS:,} unknown key ids")
def unknown_keys(world: World) -> str:
    body, mac = _of_provider(world)
    asked = world.provider.asked("/keys")
    channel = world.channel("tokens")
    call = channel.unary_unary("/delay.v1.DelayService/QueryRoute")
    refused: dict[grpc.StatusCode, int] = {}

    def bearer(number: int) -> tuple[tuple[str, str], ...]:
        head = encoded(json.dumps({"alg": "ES256", "kid": f"x{number}"}).encode())
        return (("authorization", f"Bearer {head}.{body}.{mac}"),)

    began = time.monotonic()
    for first in range(0, UNKNOWN_KEYS, 50):
        calls = [call.future(b"", metadata=bearer(number), timeout=20) for number in range(first, first + 50)]
        for one in calls:
            refused[one.code()] = refused.get(one.code(), 0) + 1
    seconds = time.monotonic() - began
    fetches = world.provider.asked("/keys") - asked
    assert refused == {UNKNOWN: UNKNOWN_KEYS}, refused
    assert fetches <= 2 + seconds / 30, f"{fetches} fetches of the issuer's keys in {seconds:.1f} s"
    channel.close()
    return f"all {UNKNOWN.name}, {UNKNOWN_KEYS / seconds:,.0f} a second; the issuer was asked {fetches} times"


def _of_provider(world: World) -> tuple[str, str]:
    _, body, mac = token(iss=world.provider.url).split(".")
    return body, mac


# ---------------------------------------------------------------- certificates
@attack("a server whose certificate is for another name")
def server_of_another_name(world: World) -> str:
    keys = world.cluster.keys
    assert keys is not None
    with Producer(
        world.cluster.endpoints[0], tls=Tls(keys.ca, server_name="other.svc"), token_file=keys.token_file
    ) as one:
        try:
            one.send("t", b"x", delay=5)
        except errors.TlsFailed as error:
            return str(error)
    raise AssertionError("the client has sent its token there")


@attack("client certificates that do not count")
def bad_client_certificates(world: World) -> str:
    mine = "spiffe://example.org/mail"  # may Consume
    good = Asking(world.channel("mtls", world.ca.issue(mine)))
    assert good.may("QueryRoute"), "the control: this certificate counts"
    kinds = {
        "of another CA": Authority("delaycluster local CA").issue(mine),
        "expired": world.ca.issue(mine, begins=-2 * DAY, ends=-DAY),
        "not yet valid": world.ca.issue(mine, begins=DAY),
        "of the peers' CA": world.peer_ca.issue(mine),
        "none": None,
    }
    for kind, client in kinds.items():
        ended = Asking(world.channel("mtls", client), None).ask("QueryRoute")
        assert ended is not None, kind
        assert ended.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), (kind, ended.code())
    unknown = Asking(world.channel("mtls", world.ca.issue(f"{mine}/other"))).ask("QueryRoute")
    assert unknown is not None
    assert unknown.code() is DENIED
    return f"{', '.join(kinds)}: no connection; for another name: {unknown.details()}"


@attack("certificates of others at the nodes' own listener")
def strangers_at_internal(world: World) -> str:
    said = ""
    for uri in (f"{CLUSTER_URI}x/role/node", f"{CLUSTER_URI}/role/admin", "spiffe://example.org/mail"):
        ended = Asking(world.channel("internal", world.peer_ca.issue(uri))).ask("ReplicaStatus")
        assert ended is not None, uri
        assert ended.code() is UNKNOWN, (uri, ended.code())
        said = ended.details()
    ended = Asking(world.channel("internal", world.ca.issue(NODE))).ask("ReplicaStatus")
    assert ended is not None, "a node's name of the clients' CA"
    assert ended.code() is grpc.StatusCode.UNAVAILABLE
    return said


# ---------------------------------------------------------------- TLS
@attack("TLS 1.0, 1.1 and 1.2 at every port")
def old_versions(world: World) -> str:
    client = {"mtls": world.ca.issue("spiffe://example.org/mail"), "internal": world.peer_ca.issue(NODE),
              "peer": world.peer_ca.issue(NODE)}  # fmt: skip
    told = set()
    for listener in TLS_PORTS:
        with world.handshake(listener, client=client.get(listener)) as good:
            assert good.version() == "TLSv1.3", listener
        for name, version in OLD.items():
            try:
                world.handshake(listener, version, client.get(listener)).close()
            except OSError as error:
                told.add(str(error).partition(" (")[0].removeprefix("[SSL: "))
            else:
                raise AssertionError(f"{listener} speaks TLS {name}")
    return f"at {', '.join(TLS_PORTS)}: {', '.join(sorted(told))}"


@attack("plain text at TLS ports, TLS at a plain one")
def plain_text(world: World) -> str:
    for listener in LISTENERS:
        for start in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            with world.socket(listener) as connection:
                connection.sendall(start)
                answer = _all(connection)
                assert answer[:1] in (b"", b"\x15"), (listener, answer)  # an alert of TLS at most
    hello = Hello(*_cluster_of(world), *_process(world, 0))
    with world.socket("peer") as connection:
        connection.sendall(hello.encode())
        _, refusal = decode_answer(_all(connection))
        assert refusal == "this node takes TLS alone"
    host, port = world.cluster.http[0].split(":")
    context = ssl.create_default_context()
    try:
        context.wrap_socket(socket.create_connection((host, int(port)), timeout=15), server_hostname=SERVER_NAME)
    except OSError as error:
        return f"connections end; the peer port: {refusal!r}; the client: {error}"
    raise AssertionError("TLS where there is none")


@attack("floods of renegotiations, key updates and handshakes")
def renegotiation(world: World) -> str:
    if shutil.which("openssl") is None:
        raise NotTriedError("there is no openssl here")
    from_client = ("openssl", "s_client", "-tls1_3", "-alpn", "h2", "-connect")
    at = f"127.0.0.1:{world.port('tokens')}"
    asked = subprocess.run([*from_client, at], input=b"R\n", capture_output=True, timeout=30, check=False).stderr
    assert b"wrong ssl version" in asked or b"no renegotiation" in asked.lower(), asked[-300:]
    updates = subprocess.Popen(
        [*from_client, at], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert updates.stdin is not None
    told, first = bytearray(), threading.Event()

    def listen(output: IO[bytes]) -> None:
        while part := os.read(output.fileno(), 65_536):
            told.extend(part)
            if b"KEYUPDATE" in told:
                first.set()

    reader = threading.Thread(target=listen, args=(updates.stdout,), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 60
        with suppress(BrokenPipeError):
            while not first.wait(0.2):  # until it is connected, and reads
                assert time.monotonic() < deadline, "the control: one is sent"
                updates.stdin.write(b"K\n")
                updates.stdin.flush()
            for _ in range(KEY_UPDATES):
                updates.stdin.write(b"K\n")  # a letter counts where it is the first that is read
                updates.stdin.flush()
                time.sleep(0.0002)
    finally:
        updates.kill()
        reader.join(20)
        updates.communicate(timeout=20)
    sent = told.count(b"KEYUPDATE")
    assert sent < KEY_UPDATES // 2, f"all of {sent} key updates are taken from one client"
    assert sent, "the control: one is sent"

    def shake(_: int) -> None:
        with suppress(OSError):
            world.handshake("tokens").close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(shake, range(HANDSHAKES)))
    assert world.caller("super").may("QueryRoute")
    return f"TLS 1.3 has no renegotiation; cut after {sent} key updates; {HANDSHAKES} handshakes beside"


@attack(f"{FLOOD:,} handshakes at once, at each port, that are never begun")
def handshake_flood(world: World) -> str:
    client = {"mtls": world.ca.issue("spiffe://example.org/mail"), "internal": world.peer_ca.issue(NODE),
              "peer": world.peer_ca.issue(NODE)}  # fmt: skip
    led, waits = world.led(), {}
    for listener in TLS_PORTS:
        with ExitStack() as stack:
            for _ in range(FLOOD):
                stack.enter_context(world.socket(listener))
            began = time.monotonic()
            with world.handshake(listener, client=client.get(listener)) as good:
                assert good.version() == "TLSv1.3", listener
            waits[listener] = time.monotonic() - began
            assert world.caller("super").may("QueryRoute")
    assert world.led() == led
    return "beside them one takes " + ", ".join(f"{waits[one]:.1f} s at {one}" for one in TLS_PORTS)


class Slow:
    """Clients that begin a handshake and are slow, or never finish it, at each TLS port; begun before all attacks, as
    they take as long as a handshake may."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[socket.socket] = []
        self._began = time.monotonic()
        for listener in TLS_PORTS:
            for number in range(SLOW // len(TLS_PORTS)):
                connection = world.socket(listener)
                connection.sendall((b"\x16\x03\x01\x02\x00\x01", b"\x16", b"")[number % 3])
                self._open.append(connection)

    def drip(self) -> None:
        """One byte more, of those that are slow."""
        for connection in self._open[::2]:
            with suppress(OSError):
                connection.sendall(b"\x00")

    def ended(self) -> str:
        for connection in self._open:
            left = self._began + CUT_SECONDS - time.monotonic()
            connection.settimeout(max(0.1, left))
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                raise AssertionError("a handshake that is never finished lasts") from None
            except OSError:
                pass
            connection.close()
        return f"{len(self._open)} of them, all cut within {time.monotonic() - self._began:.0f} s"


# ---------------------------------------------------------------- between nodes
def _cluster_of(world: World) -> tuple[str, str, str]:
    """The start of a Hello in the name of n1."""
    found = world.cluster.registry.read_cluster()
    assert found is not None
    return (found.spec.name, *_process(world, 1))


def _process(world: World, node: int) -> tuple[str, str]:
    (lease,) = (one for one in world.cluster.registry.list_leases() if one.node == f"n{node}")
    return lease.node, lease.incarnation


@attack("a peer that claims to be another node")
def another_node(world: World) -> str:
    hello = Hello(*_cluster_of(world), *_process(world, 0))
    led = world.led()
    with world.handshake("peer", client=world.peer_ca.issue(NODE, f"{NODE}/n9")) as link:
        link.sendall(replace(hello, heartbeat_key=HeartbeatKey.new().encode()).encode())
        _, refusal = decode_answer(_all(link))
    assert refusal == "the certificate is of node n9, not 'n1'"
    for names in ((f"{CLUSTER_URI}/role/operator",), (f"{CLUSTER_URI}x/role/node",), ("spiffe://example.org/mail",)):
        with world.handshake("peer", client=world.peer_ca.issue(*names)) as link:
            answer = b""
            with suppress(OSError):
                link.sendall(hello.encode())
                answer = _all(link)
            assert answer == b"", names
    assert world.led() == led
    return f"{refusal}; the operator's, another cluster's and a client's certificate: no word"


@attack("forged and replayed heartbeats")
def heartbeats(world: World) -> str:
    led = world.led()
    try:
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    except PermissionError:
        heard = []
    else:
        with sniffer:
            heard = _heard(sniffer, {world.port("peer", node) for node in range(2)})
        assert heard, "the nodes are silent"
    name, process = _process(world, 1)
    beat = Heartbeat(name, int(process, 16), 1 << 40, time.time_ns() // 1_000_000, ((1, 1 << 30),))
    reply = HeartbeatReply(name, int(_process(world, 0)[1], 16), 1, beat.wall_ms, 60_000, ((1, 1, True),))
    guard = HeartbeatGuard(name, process, lambda: 1_000, 1_000)
    guard.ask_by(_cluster_of(world)[0], "n0", _process(world, 0)[1], HeartbeatKey.new())
    forged = [encode_heartbeat(beat), encode_heartbeat(reply), guard.seal("n0", beat)]
    forged += [data[:-1] + bytes([data[-1] ^ 1]) for _, data in heard[:5]]
    to = ("127.0.0.1", world.port("peer"))
    with ExitStack() as stack:
        here, elsewhere = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        here.bind(("127.0.0.1", 0))  # the address that the leases name
        elsewhere.bind(("127.0.0.66", 0))  # so that the log names it
        for sender in (elsewhere, here):
            for data in forged:
                sender.sendto(data, to)
            for port, data in heard * 3:
                sender.sendto(data, ("127.0.0.1", port))
        here.settimeout(1.0)
        with suppress(TimeoutError):
            raise AssertionError(f"it was answered: {here.recv(4096)!r}")

    def said_of_it() -> list[dict[str, Any]]:
        return [one for one in world.logged("heartbeat-unauthenticated") if one["peer"] == "127.0.0.66"]

    logged = poll("the node says something of it", said_of_it, 10)
    assert world.led() == led
    refused = f"no answer; {logged[0]['reason']}"
    if not heard:
        raise NotTriedError(f"none replayed, for want of CAP_NET_RAW; {len(forged)} forged: {refused}")
    return f"{len(forged)} forged, {3 * len(heard)} replayed: {refused}"


def _heard(sniffer: socket.socket, ports: set[int]) -> list[tuple[int, bytes]]:
    """Sealed heartbeats of a second, or of ten until there is one, with the ports that they went to. Each was taken."""
    found: list[tuple[int, bytes]] = []
    begun = time.monotonic()
    sniffer.settimeout(0.2)
    while time.monotonic() < begun + (1.0 if found else 10.0):
        with suppress(TimeoutError):
            packet = sniffer.recv(65_536)
            head = (packet[0] & 15) * 4
            data, port = packet[head + 8 :], int.from_bytes(packet[head + 2 : head + 4])
            if (
                packet[9] == socket.IPPROTO_UDP
                and port in ports
                and is_sealed(data)
                and isinstance(said(data), Heartbeat)
            ):
                found.append((port, data))
    time.sleep(0.2)
    return found


# ---------------------------------------------------------------- rights
@attack("prefix rules with dots and stars")
def wild_rules(world: World) -> str:
    told = set()
    for name in WILD:
        for pattern in ({"literal": name}, {"prefix": name}):
            try:
                AccessRule((Operation.PRODUCE,), NamePattern(**pattern))
            except BadSpec as error:
                told.add(str(error).partition(": ")[2])
            else:
                raise AssertionError(f"a rule for topics takes {pattern}")
    wild = world.caller("wild")
    for group in ("mail", "m", "x"):
        ended = wild.ask("Receive", request_of("Receive", TOPIC, group))
        assert ended is not None, group
        assert ended.code() is DENIED, group
    assert all(wild.may("Receive", request_of("Receive", TOPIC, name)) for name in ("m.x", "*")), "the control"
    return f"rules for groups {' '.join(WILD)} don't allow group mail, m or x; for topics: {told.pop()}"


@attack("every RPC without rights")
def every_rpc(world: World) -> str:
    nobody = Asking(world.channel("tokens"))
    stranger = Asking(world.channel("mtls", world.ca.issue("spiffe://example.org/stranger")))
    for method in METHODS:
        assert nobody.code(method) is UNKNOWN, method
        for caller in (world.caller("none"), stranger):
            assert method not in OPERATIONS or caller.code(method) is DENIED, method
    for caller in (world.caller("none"), stranger):
        calls = [pb.Call(id=number, method=method, request=request_of(method, TOPIC).SerializeToString(), wait_ms=9_000)
                 for number, method in enumerate(STREAMED)]  # fmt: skip
        bodies = caller.stream("CallStream", pb.Calls(call=calls).SerializeToString())
        answers = [one for body in bodies for one in pb.Answers.FromString(body).answer]
        assert [one.error.reason for one in answers] == ["PERMISSION_DENIED"] * len(STREAMED)
        assert caller.code("CheckAccess", pb.CheckAccessRequest(operation="Admin", principal="token:super")) is DENIED
    for method in ("Check", "Watch"):
        with pytest.raises(grpc.RpcError) as refused:
            nobody.stream(method, b"", service="grpc.health.v1.Health")
        assert refused.value.code() is UNKNOWN, method
    for version in ("v1", "v1alpha"):
        service = f"grpc.reflection.{version}.ServerReflection"
        with pytest.raises(grpc.RpcError) as refused:
            world.caller("super").stream("ServerReflectionInfo", b"\x3a\x00", service=service)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    return f"{len(METHODS)} RPCs: {UNKNOWN.name} without a token, {DENIED.name} without rights; no reflection"


HTTP_PATHS = ("healthz", "readyz", "metrics")


@attack("every HTTP path, and others")
def every_path(world: World) -> str:
    for path in ("", "security", "debug/pprof/", "metrics/../security", "%2e%2e/etc/passwd", "api/v1", "x" * 5_000):
        assert _http(world, path) in (400, 404, 414), path
    for path in HTTP_PATHS:
        assert _http(world, path) == 200, path
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert _http(world, path, method) == 405, (method, path)
    keys = world.cluster.keys
    assert keys is not None
    hidden = (keys.token_file.read_text().strip(), secret("super"), "PRIVATE KEY", "sha256")
    for path in HTTP_PATHS:
        with urllib.request.urlopen(f"http://{world.cluster.http[0]}/{path}", timeout=20) as answer:
            text = answer.read().decode()
        assert not any(word in text for word in hidden), path
    with world.handshake("tokens") as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(OSError):
            assert b"200" not in _all(connection)
    return f"{', '.join(HTTP_PATHS)} by GET alone, without secrets; others 404, other methods 405"


def _http(world: World, path: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://{world.cluster.http[0]}/{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def _all(connection: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(65_536):
            found += data
    return found
