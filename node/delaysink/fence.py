"""Which addresses a sink may connect to: public ones, and what its allow-list names. Pure, but for making sockets.

It is asked with the very address that is connected to, after names were resolved: a name that resolves to a public
address when it is looked at and to a private one when it is used gains nothing.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# IANA's registries of special addresses, written out: what Python's `is_global` says depends on its version.
_LOCAL: Final = {
    "loopback": "127.0.0.0/8 ::1/128",
    "link-local": "169.254.0.0/16 fe80::/10",
    "unspecified": "0.0.0.0/8 ::/128",
    "multicast": "224.0.0.0/4 ff00::/8",
}
"""Reached from this machine or pod alone: an allow-list has to name a network within."""
_PRIVATE: Final = {
    "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    "shared by carriers": "100.64.0.0/10",
    "reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 "
    "100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 ::/96 64:ff9b:1::/48",
}
_METADATA: Final = (
    "169.254.169.254 169.254.169.253 169.254.170.2 169.254.170.23 169.254.169.123 fd00:ec2::254 fd00:ec2::253 "
    "fd00:ec2::23 fd20:ce::254 100.100.100.200 192.0.0.192 168.63.129.16"
)
_MAPPED: Final = (ip_network("::ffff:0:0/96"), ip_network("64:ff9b::/96"))
_TUNNELS: Final = (
    (ip_network("2002::/16"), 80, 0),  # 6to4
    (ip_network("2001::/32"), 0, 0xFFFFFFFF),  # Teredo
    (ip_network("64:ff9b:1::/48"), 0, 0),  # NAT64 of one network
    (ip_network("::/96"), 0, 0),  # IPv4-compatible
)
"""Networks whose addresses have an IPv4 address inside: how far from the right, and what it is xor-ed with."""
API_SERVER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"


def _networks(texts: dict[str, str]) -> list[tuple[str, Network]]:
    return [(name, ip_network(it)) for name, text in texts.items() for it in text.split()]


_LOCAL_NETWORKS: Final = _networks(_LOCAL)
_PRIVATE_NETWORKS: Final = _networks(_PRIVATE)
_METADATA_ADDRESSES: Final = frozenset(ip_address(it) for it in _METADATA.split())


class AddressRefused(OSError):
    """An address that this sink may not connect to; says why."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)

    def __str__(self) -> str:
        return str(self.strerror)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, where it is mapped or translated."""
    if isinstance(address, IPv6Address) and any(address in it for it in _MAPPED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _tunnelled(address: Address) -> IPv4Address | None:
    """The IPv4 address that a gateway would send to, where it is written into an IPv6 address."""
    if isinstance(address, IPv6Address) and int(address) > 1:  # not :: and ::1
        for network, shift, mask in _TUNNELS:
            if address in network:
                return IPv4Address((int(address) >> shift & 0xFFFFFFFF) ^ mask)
    return None


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # of one version


@dataclass(frozen=True, slots=True)
class Fence:
    """networks, names: of the allow-list. api_servers: addresses that only a network of their own lets through."""

    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()
    api_servers: frozenset[Address] = frozenset()

    @classmethod
    def of(cls, allow: Iterable[str], api_servers: Iterable[str] | None = None) -> Fence:
        """allow: networks such as 10.1.0.0/16, addresses, names, and names below a domain such as *.shop.svc.
        api_servers: addresses of API servers; None: as Kubernetes tells this process. Raises ValueError.
        """
        networks, names = [], []
        for text in allow:
            if _looks_numeric(text):
                networks.append(ip_network(text))
            elif _is_name(text):
                names.append(text.lower())
            else:
                raise ValueError(f"{text[:80]!r} is no network, address or host name")
        if api_servers is None:
            api_servers = [it for it in (os.environ.get(API_SERVER_VARIABLE, ""),) if _looks_numeric(it)]
        return cls(tuple(networks), tuple(names), frozenset(_unwrapped(ip_address(it)) for it in api_servers))

    def knowing(self, api_servers: Iterable[str]) -> Fence:
        """The same, with more addresses of API servers."""
        more = {_unwrapped(ip_address(it)) for it in api_servers}
        return replace(self, api_servers=self.api_servers | more)

    def allows_name(self, host: str) -> bool:
        """The allow-list names this host: it may then be at private addresses too."""
        host = host.lower().rstrip(".")
        return any(host == it or (it.startswith("*.") and host.endswith(it[1:])) for it in self.names)

    def check_host(self, host: str) -> None:
        """A host as a URL has it: if it is an address it is checked as one, also where it is written as resolvers alone
        read it: 127.1, 0x7f000001, 017700000001. Raises AddressRefused."""
        address: Address
        try:
            address = ip_address(host)
        except ValueError:
            try:
                address = IPv4Address(socket.inet_aton(host))
            except OSError:
                return
        self.check(str(address), named=False)

    def check(self, text: str, *, named: bool) -> None:
        """An address that is about to be connected to. named: the allow-list has its host's name. Raises
        AddressRefused."""
        if why := self._problem(text, named):
            raise AddressRefused(f"{text} is {why}; spec.http.allow does not have it")

    def _problem(self, text: str, named: bool) -> str:
        if "%" in text:
            return "an address with a zone"
        address = _unwrapped(ip_address(text))
        inner = _tunnelled(address)
        return self._problem_of(address, named) or ("" if inner is None else self._problem_of(inner, named))

    def _problem_of(self, address: Address, named: bool) -> str:
        if address in _METADATA_ADDRESSES:
            return "" if self._has_within(ip_network(address)) else "a cloud's metadata service"
        if address in self.api_servers:
            return "" if self._has_within(ip_network(address)) else "the Kubernetes API server"
        for what, network in _LOCAL_NETWORKS:
            if address in network:
                return "" if self._lists(address, network) else what
        for what, network in _PRIVATE_NETWORKS:
            if address in network:
                return "" if named or any(address in it for it in self.networks) else what
        if not address.is_global and not named and all(address not in it for it in self.networks):
            return "not a public address"
        return ""

    def _has_within(self, network: Network) -> bool:
        """The allow-list has this network or a part of it by name: not one that merely covers it."""
        return any(_within(it, network) for it in self.networks)

    def _lists(self, address: Address, within: Network) -> bool:
        return any(address in it and _within(it, within) for it in self.networks)


def socket_maker(fence: Fence, *, named: bool) -> Callable[[tuple[Any, ...]], socket.socket]:
    """aiohttp's `socket_factory`: it is given each address right before it is connected to, literals too."""

    def make(address_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, where = address_info
        if family not in (socket.AF_INET, socket.AF_INET6):
            raise AddressRefused(f"address family {family} is neither IPv4 nor IPv6")
        if family == socket.AF_INET6 and len(where) > 3 and where[3]:
            raise AddressRefused(f"{where[0]} is an address with a zone")
        fence.check(str(where[0]), named=named)
        return socket.socket(family, kind, protocol)

    return make


def _looks_numeric(text: str) -> bool:
    return "%" not in text and (":" in text or text.replace(".", "").replace("/", "").isdigit())


def _is_name(text: str) -> bool:
    labels = text.removeprefix("*.").split(".")
    return len(text) <= 253 and all(
        label.isascii() and label.replace("-", "").isalnum() and not label.startswith("-") for label in labels
    )
