"""What a visitor of a console in a cluster signs in with, and what the cluster makes of it.

    a token for the nodes    a static one, or one of a provider: shown to the nodes as it is. No objects of Kubernetes
    a token of Kubernetes    shown to the API server alone. By it the console asks for a token for the nodes, of a
                             ServiceAccount that the visitor may be: as `delayctl --kube --service-account` does

The console asks the cluster before it believes either. Kubernetes' own rights say who may be whom.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jwt
from delayapi.credentials import MAX_TOKEN_BYTES, Tls
from delayclient.admin.admin import Admin
from delayclient.errors import DelayError, NotAuthenticated
from delayctl.targets.kube import KubeAccess, KubeError

from delayconsole.cluster_objects import KubeObjects
from delayconsole.refusals import SignInRefused
from delayconsole.security import SessionKey
from delayconsole.sessions import LIFETIME_S, Close
from delayconsole.visitor import Visitor

CALL_TIMEOUT: Final = "5s"
SERVICE_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class ConsolePlace:
    """The cluster of a console in it. endpoint: of its nodes. kubernetes: the API server's URL; "": it is not to be
    asked. kubernetes_ca: a file."""

    namespace: str
    cluster: str
    endpoint: str
    ca: str
    server_name: str
    kubernetes: str = ""
    kubernetes_ca: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Somebody whom the cluster knows. close: ends their connections. lifetime_s: of what they have shown."""

    visitor: Visitor
    close: Close
    lifetime_s: float


class VisitorIdentities:
    """Of one cluster. now_s: Unix time."""

    def __init__(self, place: ConsolePlace, now_s: Callable[[], float] = time.time) -> None:
        self._place, self._now_s = place, now_s

    async def by_node_token(self, token: str, name: str = "") -> Admitted:
        """name: for people; "": as the nodes know them. Raises SignInRefused."""
        return await self._admitted(_token(token), name, ("delayctl", *self._options()), None)

    async def by_kubernetes(self, token: str, account: str) -> Admitted:
        """account: [NAMESPACE/]NAME of the ServiceAccount that the nodes are to see; "": the token's own. Raises
        SignInRefused."""
        place, shown = self._place, _token(token)
        if not place.kubernetes:
            raise SignInRefused("this console asks no API server: sign in with a token for the nodes")
        access = KubeAccess.with_token(place.kubernetes, place.kubernetes_ca, shown, place.namespace, place.cluster)
        try:
            who, chosen, node_token = await asyncio.to_thread(self._asked, access, account)
        except KubeError as error:
            await asyncio.to_thread(access.close)
            raise SignInRefused(f"Kubernetes does not let you in: {error}") from None
        except SignInRefused:
            await asyncio.to_thread(access.close)
            raise
        objects = KubeObjects(access, node_token, who)
        program = "delayctl", "--kube", f"{place.namespace}/{place.cluster}", "--service-account", chosen
        try:
            found = await self._admitted(node_token, who, program, objects)
        except BaseException:
            await asyncio.to_thread(access.close)
            raise

        async def close() -> None:
            await found.close()
            await asyncio.to_thread(access.close)

        return Admitted(found.visitor, close, min(found.lifetime_s, self._left_s(shown)))

    def _asked(self, access: KubeAccess, account: str) -> tuple[str, str, str]:
        """Who it is, the ServiceAccount that it is for the nodes, and that one's token. Raises KubeError."""
        who = access.who_am_i()
        if not who or who == "system:anonymous":
            raise SignInRefused("Kubernetes does not know this token")
        chosen = account.strip()
        if not chosen and who.startswith(SERVICE_ACCOUNT):
            chosen = "/".join(who.removeprefix(SERVICE_ACCOUNT).split(":", 1))
        if not chosen:
            raise SignInRefused(
                f"you are {who}: name a ServiceAccount that has rights in this cluster, and whose tokens you may create"
            )
        if (
            len(chosen) > 320
            or chosen.count("/") > 1
            or not chosen.replace("/", "").replace("-", "").replace(".", "").isalnum()
        ):
            raise SignInRefused("a ServiceAccount is NAME or NAMESPACE/NAME")
        return who, chosen, access.account_token(chosen, int(LIFETIME_S))

    async def _admitted(self, token: str, name: str, program: tuple[str, ...], objects: KubeObjects | None) -> Admitted:
        """The nodes are asked whether they know who shows it."""
        place = self._place
        tls = Tls(ca=place.ca, server_name=place.server_name)
        admin = Admin(place.endpoint, timeout=CALL_TIMEOUT, tls=tls, token=token)
        await admin.__aenter__()

        async def close() -> None:
            await admin.__aexit__(None, None, None)

        try:
            seen = await admin.can_i("Admin")
        except NotAuthenticated as error:
            await close()
            raise SignInRefused(f"the nodes do not know this token: {error}") from None
        except DelayError as error:
            await close()
            raise SignInRefused(f"the nodes can't be asked who you are: {error}") from None
        visitor = Visitor(SessionKey(), admin, name or seen.principal, program, objects, may_leave=True)
        return Admitted(visitor, close, self._left_s(token))

    def _options(self) -> tuple[str, ...]:
        place = self._place
        return "--endpoint", place.endpoint, "--ca", "ca.crt", "--token-file", "token"

    def _left_s(self, token: str) -> float:
        """How long a token is valid still, by its own word; one that says nothing, for as long as the nodes take it."""
        try:
            claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False, "verify_exp": False})
            return float(claims["exp"]) - self._now_s()
        except (jwt.PyJWTError, KeyError, TypeError, ValueError):
            return LIFETIME_S


def _token(text: str) -> str:
    """Raises SignInRefused for what no header can carry."""
    found = "".join(text.split())  # terminals wrap what people copy
    if not found:
        raise SignInRefused("no token was given")
    if len(found) > MAX_TOKEN_BYTES:
        raise SignInRefused(f"the token has {len(found):,} bytes; at most {MAX_TOKEN_BYTES:,}")
    if not found.isascii() or not found.isprintable():
        raise SignInRefused("a token has no such characters: copy it again")
    return found
