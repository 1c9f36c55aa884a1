"""Callers of every kind, at a running node that asks for rights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.server.operations import SERVICE
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    SecuritySpec,
    SecurityUser,
    StaticToken,
)

from tests.auth.issuing import accounts, jwk, key_set, token
from tests.auth.test_operations import METHODS, SERVICES, USERS, request_of
from tests.serve.support.secured import CLUSTER, Secured

TOPIC = "t"
CALL_SECONDS = 20.0
SPIFFE = "spiffe://example.org/mail"
SHOP = "system:serviceaccount:shop:worker"
DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
NAMES = [user.principal.removeprefix("token:") for user in USERS]


def secret(name: str) -> str:
    return f"the-secret-of-{name}"


def sha256_of(name: str) -> str:
    """Of that secret: what a document keeps."""
    return hashlib.sha256(secret(name).encode()).hexdigest()


def rules(name: str) -> tuple[AccessRule, ...]:
    """Those that the user has on topic `orders`, on the topic here."""
    (user,) = (one for one in USERS if one.principal == f"token:{name}")
    return tuple(
        AccessRule(one.operations, NamePattern(TOPIC) if one.topic == NamePattern("orders") else one.topic, one.group)
        for one in user.rules
    )


DOCUMENT = SecuritySpec(
    AuthorizationMode.REQUIRED,
    super_users=("token:super",),
    issuers=(accounts(key_set(jwk("k1"), jwk("r1", "RS256"))),),
    tokens=tuple(StaticToken(name, sha256_of(name)) for name in [*NAMES, "super"]),
    users=(
        *(SecurityUser(f"token:{name}", rules(name)) for name in NAMES),
        SecurityUser(SPIFFE, rules("consume")),
        SecurityUser(SHOP, rules("consume")),
        # The local cluster's operator asks its nodes by the plain listener.
        SecurityUser("anonymous", (*rules("admin"), *rules("describe"))),
    ),
)
LIKE = {"mail": {"consume"}, "shop": {"consume"}, "anonymous": {"admin", "describe"}}
"""Callers that have the rights of others."""


def among(name: str, those: set[str]) -> bool:
    """Whether that caller is one of those, or like one."""
    return not LIKE.get(name, {name}).isdisjoint(those)


class Asking:
    """A caller: a channel, and what its calls say of it."""

    def __init__(self, channel: grpc.Channel, authorization: str | None = None, *metadata: tuple[str, str]) -> None:
        self._channel = channel
        self._metadata = (*metadata, *(() if authorization is None else (("authorization", authorization),)))

    def unary(self, method: str, data: bytes = b"", metadata: tuple = (), service: str = SERVICE) -> bytes:
        """Raises grpc.RpcError."""
        call = self._channel.unary_unary(f"/{service}/{method}")
        return call(data, metadata=(*self._metadata, *metadata), timeout=CALL_SECONDS)

    def stream(self, method: str, *data: bytes, service: str = SERVICE, seconds: float = CALL_SECONDS) -> list[bytes]:
        """Likewise. seconds: until it is given up."""
        call = self._channel.stream_stream(f"/{service}/{method}")
        return list(call(iter(data), metadata=self._metadata, timeout=seconds))

    def ask(self, method: str, request: Any = None) -> grpc.RpcError | None:
        """How a call ended; None: well. Of an EnqueueStream: how its only request did, a Refusal."""
        service = METHODS[method]
        data = (request_of(method, TOPIC) if request is None else request).SerializeToString()
        try:
            if not SERVICES[service].methods_by_name[method].client_streaming:
                self.unary(method, data, service=service)
            elif method == "EnqueueStream":
                return _refusal(pb.EnqueueResponse.FromString(self.stream(method, data)[0]).error)
            else:
                self.stream(method, data)
        except grpc.RpcError as error:
            return error
        return None

    def code(self, method: str, request: Any = None) -> grpc.StatusCode | None:
        ended = self.ask(method, request)
        return None if ended is None else ended.code()

    def may(self, method: str, request: Any = None) -> bool:
        """Whether the node lets it, whatever else it says of the request."""
        code = self.code(method, request)
        assert code is not UNKNOWN
        return code is not DENIED


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = lambda: code


def _refusal(error: pb.Error) -> Refusal | None:
    return Refusal(next(one for one in grpc.StatusCode if one.value[0] == error.code)) if error.code else None


@contextmanager
def callers(secured: Secured) -> Iterator[dict[str, Asking]]:
    """One of each kind, by the names of tests/auth/test_operations.py, and those of LIKE."""
    tokens, plain = secured.dial("tokens"), grpc.insecure_channel(secured.endpoint("plain"))
    mail, stranger = (secured.dial("mtls", secured.client_ca.issue(name)) for name in (SPIFFE, f"{SPIFFE}/other"))
    roles = {role: secured.dial("internal", secured.peer_ca.issue(CLUSTER + role), roots=secured.peer_ca.pem)
             for role in ("node", "operator", "rebalance")}  # fmt: skip
    found = {name: Asking(tokens.channel, f"Bearer {secret(name)}") for name in [*NAMES, "super"]}
    found |= {role: Asking(client.channel) for role, client in roles.items()}
    found |= {"mail": Asking(mail.channel), "stranger": Asking(stranger.channel), "anonymous": Asking(plain)}
    found |= {"shop": Asking(tokens.channel, f"Bearer {token()}")}
    found |= {"forwarded": Asking(roles["node"].channel, None, ("x-delay-principal", "token:anybody"))}
    try:
        yield found
    finally:
        for client in (tokens, mail, stranger, plain, *roles.values()):
            client.close()
