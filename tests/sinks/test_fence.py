"""Which addresses a sink may connect to: a hundred that lead inside, in every way of writing them."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
from delaysink.events import OutgoingMessage
from delaysink.fence import API_SERVER_VARIABLE, AddressRefused, Fence
from delaysink.http_target import HttpTarget
from delaysink.outcome import Verdict
from delaysink.settings import HttpSettings, read_settings
from delaysink.url import BadUrl, checked_url

from tests.sinks.support.receiver import Receiver, status

INSIDE_TEXT = """
127.0.0.1 127.0.0.2 127.1.2.3 127.255.255.254 ::1 0.0.0.0 0.1.2.3 :: 10.0.0.1 10.96.0.1 10.255.255.255
172.16.0.1 172.17.0.1 172.31.255.255 192.168.0.1 192.168.255.255 169.254.169.254 169.254.169.253 169.254.170.2
169.254.170.23 169.254.169.123 169.254.0.1 169.254.255.255 100.64.0.1 100.100.100.200 100.127.255.255
168.63.129.16 192.0.0.1 192.0.0.8 192.0.0.170 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.19.255.255
198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.254 255.255.255.255 fe80::1
fe80::a9fe:a9fe febf::1 fec0::1 fc00::1 fd00::1 fd00:ec2::254 fd00:ec2::253 fd20:ce::254 fdff::1 ff01::1
ff02::1 ff02::fb ff0e::1 2001:db8::1 3fff::1 5f00::1 100::1 2001::1 2001:2::1 2001:10::1 2001:20::1
2002:7f00:1:: 2002:a00:1:: 2002:a9fe:a9fe:: 64:ff9b:1::1 64:ff9b:1::a00:1 64:ff9b::7f00:1 64:ff9b::a00:1
64:ff9b::a9fe:a9fe 64:ff9b::c0a8:1 64:ff9b::ac10:1 64:ff9b::6440:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1
::ffff:172.16.0.1 ::ffff:192.168.0.1 ::ffff:169.254.169.254 ::ffff:0.0.0.0 ::ffff:100.64.0.1 ::ffff:224.0.0.1
::ffff:7f00:1 ::ffff:a9fe:a9fe ::ffff:a60:1 ::127.0.0.1 ::10.0.0.1 ::169.254.169.254 ::7f00:1 ::2
::ffff:192.0.2.1 fe80::1%1 fe80::1%lo ::1%1
fd00:ec2::23 127.0.0.53 192.168.1.254 169.254.20.10 169.254.0.23 ::ffff:168.63.129.16 ::ffff:100.100.100.200
::ffff:192.0.0.192 ::ffff:6440:1 64:ff9b::a9fe:aa02 64:ff9b::a83f:8110 64:ff9b::7f00:35 64:ff9b:1::a9fe:a9fe
2002:c0a8:1:: 2002:a83f:8110::1 2001:0:1:2:0:0:5601:5601 ::a9fe:a9fe ::168.63.129.16 fe80::5efe:7f00:1
::ffff:10.96.0.1%eth0 fd00:ec2::254%2
"""
INSIDE = INSIDE_TEXT.split()
WRITTEN_TEXT = """
2130706433 0x7f000001 017700000001 0x7f.1 127.1 127.0.1 0177.0.0.1 0x7f.0x0.0x0.0x1 0 0x0 0x7F000001 127.0x1
0251.0376.0251.0376 2852039166 0xa9fea9fe 0xA9.0xFE.0xA9.0xFE 169.16689662 10.1 0xa.1 012.0.0.1 3232235777 192.168.257
"""
WRITTEN = WRITTEN_TEXT.split()
"""Hosts that the machine's resolver reads as addresses inside."""


def test_the_list_has_a_hundred_addresses() -> None:
    assert len(set(INSIDE)) == len(INSIDE) >= 115
    assert len(set(WRITTEN)) == len(WRITTEN) >= 20
    for address in INSIDE:
        ip_address(address)  # none is refused because it can't be read


@pytest.mark.parametrize("host", WRITTEN)
def test_an_address_is_refused_however_it_is_written(host: str) -> None:
    """By the fence itself, before any library judges how it is written; a message with it is not tried."""
    for fence in (Fence.of([]), Fence.of(["0.0.0.0/5"])):  # of which the allow-list has other ones
        with pytest.raises(AddressRefused, match=r"^[0-9.]+ is .*does not have it"):
            fence.check_host(checked_url(f"http://{host}/").host or "")


@pytest.mark.parametrize("inner", ["127.0.0.1", "169.254.169.254", "168.63.129.16", "10.96.0.1", "192.168.0.1"])
def test_no_network_of_tunnels_lets_through_what_is_inside_of_them(inner: str) -> None:
    """6to4, NAT64, Teredo and IPv4-compatible addresses: an allow-list that has all IPv6 means none of these."""
    high, low = (int(IPv4Address(inner)) >> 16, int(IPv4Address(inner)) & 0xFFFF)
    there = [
        f"::ffff:{inner}", f"64:ff9b::{inner}", f"64:ff9b:1::{inner}", f"2002:{high:x}:{low:x}::1", f"::{inner}",
        f"2001:0:808:808:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",
    ]  # fmt: skip
    fence = Fence.of(["::/0"], api_servers=["10.96.0.1"])
    for address in there:
        with pytest.raises(AddressRefused, match="does not have it"):
            fence.check(address, named=False)
    for address in ("2002:808:808::1", "64:ff9b:1::808:808", "::8.8.8.8"):
        fence.check(address, named=False)


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_refused(address: str) -> None:
    for fence in (Fence.of([]), Fence.of(["8.8.8.0/24", "2606:4700::/32"], api_servers=())):
        with pytest.raises(AddressRefused, match="does not have it"):
            fence.check(address, named=False)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "172.32.0.1", "100.128.0.1", "11.0.0.1"])
def test_a_public_address_is_not(address: str) -> None:
    Fence.of([]).check(address, named=False)


@pytest.mark.parametrize(
    ("allow", "address", "named", "allowed"),
    [
        (["10.0.0.0/8"], "10.1.2.3", False, True),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", False, True),
        (["10.0.0.0/8"], "192.168.0.1", False, False),
        (["10.0.0.0/8"], "10.96.0.1", False, False),  # the API server is not meant by it
        (["10.96.0.1"], "10.96.0.1", False, True),
        (["0.0.0.0/0", "::/0"], "10.1.2.3", False, True),
        (["0.0.0.0/0", "::/0"], "127.0.0.1", False, False),
        (["0.0.0.0/0", "::/0"], "169.254.169.254", False, False),
        (["0.0.0.0/0", "::/0"], "::1", False, False),
        (["169.254.0.0/16"], "169.254.169.254", False, False),
        (["169.254.0.0/16"], "169.254.1.1", False, True),
        (["169.254.169.254"], "169.254.169.254", False, True),
        (["127.0.0.0/8"], "127.0.0.1", False, True),
        (["hook.shop.svc"], "10.1.2.3", True, True),
        (["hook.shop.svc"], "127.0.0.1", True, False),
        (["hook.shop.svc"], "169.254.169.254", True, False),
        (["hook.shop.svc"], "10.96.0.1", True, False),
        (["fd00:1::/32"], "fd00:1::5", False, True),
        (["fd00::/8"], "fd00:ec2::254", False, False),
    ],
)
def test_an_allow_list_lets_through_what_it_names(allow: list[str], address: str, named: bool, allowed: bool) -> None:
    fence = Fence.of(allow, api_servers=["10.96.0.1"])
    if allowed:
        fence.check(address, named=named)
    else:
        with pytest.raises(AddressRefused):
            fence.check(address, named=named)


API_SERVERS = [
    ("10.96.0.1", "10.96.0.1"), ("172.20.0.1", "::ffff:172.20.0.1"), ("fd00:10:96::1", "fd00:10:96::1"),
    ("FD00:10:96:0::1", "fd00:10:96::1"), ("20.1.2.3", "20.1.2.3"),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "address"), API_SERVERS)
def test_the_api_server_is_known_by_the_variable_of_kubernetes(
    variable: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_SERVER_VARIABLE, variable)
    around = ["10.0.0.0/8", "172.16.0.0/12", "20.0.0.0/8", "fd00::/8", "kubernetes.default.svc"]
    for named in (False, True):
        with pytest.raises(AddressRefused, match="the Kubernetes API server"):
            Fence.of(around).check(address, named=named)
    Fence.of([variable.lower()]).check(address, named=False)
    monkeypatch.delenv(API_SERVER_VARIABLE)
    Fence.of(around).check(address, named=False)  # as outside of Kubernetes


def test_names_are_matched_whole_or_below_a_domain() -> None:
    fence = Fence.of(["hook.shop.svc", "*.example.com"])
    for host in ("hook.shop.svc", "HOOK.shop.svc.", "a.example.com", "a.b.example.com"):
        assert fence.allows_name(host), host
    for host in ("example.com", "evilexample.com", "hook.shop.svc.evil.com", "xhook.shop.svc", ""):
        assert not fence.allows_name(host), host


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "300.1.1.1", "fe80::1%1", "a b", "-a.com", "*", "https://x", "::/129", ""]
)
def test_an_allow_list_that_can_not_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Fence.of([text])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://user:pw@example.com/", "a user name or a password"),
        ("https://user@example.com/", "a user name or a password"),
        ("https://@example.com/", "a user name or a password"),
        ("http://example.com@127.0.0.1/", "a user name or a password"),
        ("http://[fe80::1%25eth0]/", "zone"),
        ("http://[fe80::1%eth0]/", "zone|not a URL"),
        ("https://exa\tmple.com/", r"'\\t'"),
        ("https://example.com/\r\nX: y", r"'\\r'"),
        ("https://example.com/a b", "' '"),
        ("https://exämple.com/", "punycode"),
        ("https://example。com/", "punycode"),
        ("https://①②⑦.0.0.1/", "punycode"),
        ("http://127.0.0.1\\@example.com/", r"'\\\\'"),
        ("ftp://example.com/", "neither https"),
        ("file:///etc/passwd", "neither https"),
        ("gopher://127.0.0.1:6379/_x", "neither https"),
        ("http+unix://x/", "neither https"),
        ("//example.com/", "neither https"),
        ("https:///x", "no host|not a URL"),
        ("https://example.com:0/", "port 0"),
        ("https://example.com:99999/", "not a URL"),
        ("https://example.com:x/", "not a URL"),
        ("https://example.com/#part", "fragment"),
        ("https://ex%61mple.com/", "escape|not a URL"),
        ("https://" + "a" * 3_000 + ".com/", "limit is 2,048"),
        ("", "neither https"),
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str, says: str) -> None:
    with pytest.raises(BadUrl, match=says):
        checked_url(url)


@pytest.mark.parametrize(
    "url", ["https://example.com", "http://xn--bcher-kva.example/a?b=c", "https://[2606:4700::1]:8443/"]
)
def test_other_urls_are_taken(url: str) -> None:
    assert checked_url(url).host


def settings(**more: Any) -> HttpSettings:
    target = read_settings("s", {"topic": "t", "http": {"timeout": "5s", "fromMessage": ["Url"], **more}}).target
    assert isinstance(target, HttpSettings)
    return target


def delivered_to(url: str, tmp_path: Any, **more: Any) -> Any:
    """What becomes of a message with that URL."""

    async def main() -> Any:
        target = HttpTarget(settings(**more), tmp_path, 4)
        await target.open()
        try:
            return await target.deliver(OutgoingMessage("id", 0, 1, properties={"webhook-url": url}))
        finally:
            await target.close()

    return asyncio.run(main())


def test_no_way_of_writing_an_address_gets_a_connection_to_it(tmp_path: Any) -> None:
    """With a receiver on this machine that would be found, were it connected to."""

    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver:
            target = HttpTarget(settings(), tmp_path, 4)
            await target.open()
            for host in [*(f"[{it}]" if ":" in it else it for it in INSIDE if "%" not in it), *WRITTEN, "localhost"]:
                url = f"http://{host}:{receiver.port}/"
                attempt = await target.deliver(OutgoingMessage("id", 0, 1, properties={"webhook-url": url}))
                assert attempt.verdict in (Verdict.IMPOSSIBLE, Verdict.FAILED), (host, attempt)
                assert "does not have it" in attempt.says, (host, attempt)
            await target.close()
            assert receiver.connections == 0

    asyncio.run(main())
