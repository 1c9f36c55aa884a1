"""Names: what a DNS server answers is judged at each connection, with the address that is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import connector
from delaysink.api_server import API_SERVER_NAME, api_server_addresses
from delaysink.events import OutgoingMessage
from delaysink.fence import API_SERVER_VARIABLE
from delaysink.http_target import HttpTarget
from delaysink.outcome import Attempt, Verdict
from delaysink.settings import HttpSettings, read_settings

from tests.sinks.support.dns import RebindingDns, UdpResolver
from tests.sinks.support.receiver import Receiver, status

ALLOWED, REFUSED = "127.0.0.5", "127.0.0.1"
HOST = "rebind.example"


class Rebound:
    """A sink that may connect to ALLOWED, a DNS server, and a receiver at each of the two addresses, of one port."""

    def __init__(self, target: HttpTarget, dns: RebindingDns, allowed: Receiver, refused: Receiver) -> None:
        self._target, self.dns, self.allowed, self.refused = target, dns, allowed, refused

    async def deliver(self, host: str = HOST) -> Attempt:
        url = f"http://{host}:{self.refused.port}/"
        return await self._target.deliver(OutgoingMessage("id", 0, 1, properties={"webhook-url": url}))


@asynccontextmanager
async def rebound(secrets: Path, monkeypatch: pytest.MonkeyPatch, allow: list[str]) -> Any:
    """The sink's connector is its own but for the DNS server that its resolver asks."""
    spec = {"topic": "t", "http": {"timeout": "2s", "fromMessage": ["Url"], "allow": allow}}
    settings = read_settings("s", spec).target
    assert isinstance(settings, HttpSettings)
    target = HttpTarget(settings, secrets, 4)
    closing = status(200, Connection="close")  # so each delivery makes a connection
    async with (
        RebindingDns() as dns,
        Receiver(lambda _: closing, host=REFUSED) as refused,
        Receiver(lambda _: closing, host=ALLOWED, port=refused.port) as allowed,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(connector, "DefaultResolver", lambda **_: UdpResolver(dns.port))
            await target.open()
        try:
            yield Rebound(target, dns, allowed, refused)
        finally:
            await target.close()


Claim = Callable[[Rebound], Awaitable[None]]


def run(secrets: Path, monkeypatch: pytest.MonkeyPatch, claim: Claim, *allow: str) -> None:
    async def main() -> None:
        async with rebound(secrets, monkeypatch, list(allow) or [f"{ALLOWED}/32"]) as world:
            await claim(world)

    asyncio.run(main())


def assert_refused(attempt: Attempt) -> None:
    assert attempt.verdict is Verdict.FAILED
    assert f"{REFUSED} is loopback; spec.http.allow does not have it" in attempt.says


def test_a_name_that_is_rebound_after_a_delivery_gets_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(world: Rebound) -> None:
        world.dns.answers = [[ALLOWED], [REFUSED]]
        assert (await world.deliver()).verdict is Verdict.DELIVERED
        assert world.allowed.connections == 1
        for _ in range(3):
            assert_refused(await world.deliver())
        assert (world.dns.asked, world.allowed.connections, world.refused.connections) == (4, 1, 0)
        world.dns.answers = [[ALLOWED]]  # and back: what is allowed is not kept away
        assert (await world.deliver()).verdict is Verdict.DELIVERED
        # The same answer, were the fence not there: the test's own proof that it leads to the second receiver.
        (found,) = await UdpResolver(world.dns.port).resolve(HOST, world.refused.port)
        with socket.create_connection((REFUSED, found["port"]), 5):
            pass

    run(tmp_path, monkeypatch, claim)


@pytest.mark.parametrize("answer", [[ALLOWED, REFUSED], [REFUSED, ALLOWED]])
def test_of_an_answer_with_both_only_the_allowed_address_is_connected_to(
    answer: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(world: Rebound) -> None:
        world.dns.answers = [answer]
        for _ in range(3):
            assert (await world.deliver()).verdict is Verdict.DELIVERED
        assert (world.allowed.connections, world.refused.connections) == (3, 0)
        await world.allowed.__aexit__()  # nobody listens there any more: the other one is no way out
        assert (await world.deliver()).verdict is Verdict.FAILED
        assert world.refused.connections == 0

    run(tmp_path, monkeypatch, claim)


@pytest.mark.parametrize("name", [HOST, "*.example"])
def test_an_allowed_name_does_not_lead_to_loopback(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(world: Rebound) -> None:
        world.dns.answers = [[ALLOWED], [REFUSED], [REFUSED, REFUSED]]
        assert (await world.deliver()).verdict is Verdict.DELIVERED
        for _ in range(2):
            assert_refused(await world.deliver())
        assert world.refused.connections == 0

    run(tmp_path, monkeypatch, claim, name, f"{ALLOWED}/32")


def test_an_allowed_name_is_known_in_punycode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only form that a URL may have; what it stands for is not what the allow-list has."""

    async def claim(world: Rebound) -> None:
        world.dns.answers = [["192.0.2.9"]]  # where nobody is
        for host, allowed in (("xn--bcher-kva.example", True), ("XN--BCHER-KVA.example", True), (HOST, False)):
            assert ("does not have it" not in (await world.deliver(host)).says) == allowed, host

    run(tmp_path, monkeypatch, claim, "xn--bcher-kva.example")


def test_the_api_server_is_known_where_its_variable_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some platforms set it: it is resolved, and so is the Service's name, whose address is another one."""
    there = {"api.example.com": "127.0.0.6", API_SERVER_NAME: ALLOWED}

    async def lookup(_: Any, host: str, *__: Any, **___: Any) -> list[Any]:
        if host not in there:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (there[host], 0))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", lookup)
    monkeypatch.setenv(API_SERVER_VARIABLE, "api.example.com")
    assert asyncio.run(api_server_addresses()) == {"127.0.0.6", ALLOWED}

    async def claim(world: Rebound) -> None:
        world.dns.answers = [[ALLOWED], ["127.0.0.6"]]
        for _ in range(2):
            attempt = await world.deliver()
            assert "the Kubernetes API server" in attempt.says
        assert world.allowed.connections == 0

    run(tmp_path, monkeypatch, claim, "127.0.0.0/24", HOST)
    there.clear()
    with pytest.raises(OSError, match=r"'api\.example\.com', which can't be resolved"):
        asyncio.run(api_server_addresses())
    monkeypatch.setenv(API_SERVER_VARIABLE, "")
    assert asyncio.run(api_server_addresses()) == frozenset()
