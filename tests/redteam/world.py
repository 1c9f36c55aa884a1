"""The cluster that is attacked: two nodes as `delayctl local --secure` starts them, users beside the admin, an OIDC
provider that counts how often its keys are asked for, and a quiet client whose messages must keep flowing."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from delayapi.credentials import Tls
from delayclient import Consumer, Producer
from delaylocal import LocalCluster
from delaylocal.own_keys import CLUSTER_URI, SERVER_NAME
from delayregistry.model import TopicSpec
from delayregistry.security import AccessRule, NamePattern, Operation, SecuritySpec, SecurityUser, StaticToken
from delayregistry.sqlite import SqliteRegistry

from tests.auth.issuing import jwk, key_set, oidc
from tests.auth.test_keys import Provider
from tests.security.authority import Authority, Issued
from tests.serve.support.asking import DOCUMENT, Asking, secret, sha256_of
from tests.serve.support.client import OPTIONS

LISTENERS = ("tokens", "mtls", "internal")
HTTP = "http-tokens"  # MessageService's
NODE = f"{CLUSTER_URI}/role/node"
ATTEMPTS = 5  # of topic t: what only who may see it is told
WILD = ("*", ".*", "m.", "m*", "^mail$", "?")
"""Groups that the user `wild` may consume as: those that are called so, and those that begin so."""


def document(provider: Provider) -> SecuritySpec:
    """The one of tests/serve/support/asking.py, without rights of those who have no name."""
    rules = [AccessRule((Operation.CONSUME,), NamePattern("t"), pattern)
             for name in WILD for pattern in (NamePattern(name), NamePattern(prefix=name))]  # fmt: skip
    return SecuritySpec(
        DOCUMENT.authorization,
        super_users=DOCUMENT.super_users,
        issuers=(*DOCUMENT.issuers, oidc(issuer=provider.url, jwks="", ca=provider.trusted)),
        tokens=(*DOCUMENT.tokens, StaticToken("wild", sha256_of("wild"))),
        users=(*(user for user in DOCUMENT.users if user.principal != "anonymous"),
               SecurityUser("token:wild", tuple(rules))),
    )  # fmt: skip


class World:
    """`with World(directory) as world`. ca, peer_ca: the cluster's own, from its directory: what an attacker shows may
    be issued by them too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.provider = Provider()
        said = {"issuer": self.provider.url, "jwks_uri": f"{self.provider.url}/keys"}
        self.provider.answers |= {"/.well-known/openid-configuration": json.dumps(said), "/keys": key_set(jwk("k1"))}

    def __enter__(self) -> World:
        registry = SqliteRegistry(self._directory / "registry.db", create=True)
        registry.put_security(document(self.provider), None)
        registry.close()
        topics = [TopicSpec("t", 2, max_attempts=ATTEMPTS), TopicSpec("quiet", 2)]
        self.cluster = LocalCluster(self._directory, nodes=2, replicas=2, topics=topics, secure=True)
        self.cluster.start()
        try:
            self.cluster.wait_ready()
            security = self._directory / "security"
            self.ca, self.peer_ca = Authority.read(security / "ca"), Authority.read(security / "peer-ca")
            self.quiet = Quiet(self)
            self.quiet.start()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.quiet.finish()
        self.cluster.stop()
        self.provider.close()
        logs = [path.read_text() for path in (self._directory / "logs").glob("n*.log")]
        tracebacks = [log[log.index("Traceback") :][:3_000] for log in logs if "Traceback" in log]
        assert not tracebacks, tracebacks[0]

    def port(self, listener: str, node: int = 0) -> int:
        ports = self.cluster._ports
        at = {"tokens": ports.grpc, "mtls": ports.mtls, "internal": ports.internal, "peer": ports.peer,
              HTTP: ports.http_tokens}  # fmt: skip
        return at[listener][node]

    def channel(self, listener: str, client: Issued | None = None, roots: bytes | None = None) -> grpc.Channel:
        """A connection of its own to n0."""
        trusted = roots or (self.peer_ca if listener == "internal" else self.ca).pem
        key, chain = (client.key_pem, client.chain_pem) if client else (None, None)
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", SERVER_NAME)]
        credentials = grpc.ssl_channel_credentials(trusted, key, chain)
        return grpc.secure_channel(f"127.0.0.1:{self.port(listener)}", credentials, options)

    def caller(self, name: str) -> Asking:
        """By a static token."""
        return Asking(self.channel("tokens"), f"Bearer {secret(name)}")

    def socket(self, listener: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port(listener)), timeout=15)

    def handshake(
        self, listener: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, client: Issued | None = None
    ) -> ssl.SSLSocket:
        """Of that version alone, with all that OpenSSL has of it. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):  # of old versions
            context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, version
            context.minimum_version = version
        context.set_alpn_protocols(["h2"])
        if client is not None:
            pem = self._directory / f"client-{time.monotonic_ns()}.pem"
            pem.write_bytes(client.key_pem + client.chain_pem)
            context.load_cert_chain(pem)
        return context.wrap_socket(self.socket(listener))

    def logged(self, event: str) -> list[dict[str, Any]]:
        """By both nodes."""
        logs = [(self._directory / "logs" / f"n{node}.log").read_text() for node in range(2)]
        lines = [line for log in logs for line in log.splitlines() if f'"event": "{event}"' in line]
        return [json.loads(line) for line in lines]

    def led(self) -> list[tuple[str, str | None, int]]:
        """Who leads which shard, and in which epoch."""
        return [(one.name, one.spec.master, one.spec.epoch) for one in self.cluster.registry.list_shards()]


class Quiet:
    """A client with a message each 50 ms, due 100 ms later, in a thread of its own. late_ms: of each that came."""

    def __init__(self, world: World) -> None:
        keys = world.cluster.keys
        assert keys is not None
        self._access: dict[str, Any] = {"tls": Tls(keys.ca, server_name=SERVER_NAME), "token_file": keys.token_file}
        self._endpoints = ",".join(world.cluster.endpoints)
        self.sent = 0
        self.came: set[int] = set()
        self.late_ms: list[float] = []
        self.errors: list[str] = []
        self._ending = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self.came:
            assert time.monotonic() < deadline, f"the quiet client gets nothing: {self.errors[:3]}"
            time.sleep(0.05)

    def finish(self) -> None:
        self._ending = True
        self._thread.join(60)

    @property
    def lost(self) -> int:
        return self.sent - len(self.came)

    async def _run(self) -> None:
        async with (
            Producer(self._endpoints, **self._access) as producer,
            Consumer(self._endpoints, "quiet", "g", **self._access) as consumer,
        ):
            consuming = asyncio.create_task(self._consume(consumer))
            while not self._ending:
                try:
                    await producer.send("quiet", str(self.sent).encode(), delay=100)
                    self.sent += 1
                except Exception as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.05)
            for _ in range(100):
                if not self.lost:
                    break
                await asyncio.sleep(0.1)
            consuming.cancel()
            with suppress(asyncio.CancelledError):
                await consuming

    async def _consume(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.late_ms.append(time.time() * 1_000 - message.due_ms)
            self.came.add(int(message.body))
            await message.ack()
