"""What the nodes say of themselves, by the SDK and by their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

import aiohttp
from delayapi import address
from delayapi.credentials import ClientCredentials
from delayclient.admin.admin import Admin
from delayclient.errors import DelayError
from delayclient.routing.access import Access
from delayclient.routing.routing import Cluster
from delayregistry.model import NodeLease
from google.protobuf.json_format import MessageToDict

from delayctl.cluster.copies import all_copies
from delayctl.cluster.top import lines, sample
from delayctl.report.archive import Archive

ANSWER_S: Final = 10.0
MAX_METRICS_BYTES: Final = 32 << 20
METRICS_PORT: Final = 7171
"""Where the operator has nodes serve /metrics by TLS, for who may Describe all topics, in place of the health port."""


async def ask_nodes(archive: Archive, cluster: Cluster) -> None:
    """Never raises what a node that is away, or refuses, makes of a question."""
    async with Admin(cluster, timeout="10s") as admin:
        for name, what, ask in (
            ("nodes.json", "each node's clock, disk, conditions and copies, as it says", _nodes),
            ("topics.json", "topics, their queues and masters, as a node routes to them", _topics),
            ("copies.json", "copies by shard: role, epoch, log offsets, damage", _copies),
            ("load.json", "by topic: pending, due within the next hour; each group's lag", _load),
        ):
            await _put(archive, name, what, ask(admin))


async def _put(archive: Archive, name: str, what: str, answer: Awaitable[Any]) -> None:
    try:
        archive.add_json(name, what, await answer)
    except DelayError as error:
        archive.lacks(name, error)


async def _nodes(admin: Admin) -> list[dict[str, Any]]:
    return [asdict(node) for node in await admin.nodes()]


async def _topics(admin: Admin) -> list[dict[str, Any]]:
    return [asdict(route) for route in await admin.topics()]


async def _copies(admin: Admin) -> list[dict[str, Any]]:
    found = await all_copies(admin, ANSWER_S)
    return [{"node": row.node, **MessageToDict(row.state)} for copies in found.values() for row in copies.copies]


async def _load(admin: Admin) -> list[dict[str, Any]]:
    return lines(await sample(admin, ""), None)


async def ask_metrics(
    archive: Archive, leases: Iterable[NodeLease], access: Access, dial: Callable[[str], str] = str
) -> None:
    """/metrics of each node. access: what is shown where they are not for everybody. dial: the way to an address that
    a node advertises. Raises BadCredentials."""
    addresses: Mapping[str, str] = {lease.node: lease.http for lease in leases if lease.http}
    credentials = ClientCredentials(**access)
    secured: dict[str, Any] = {"headers": dict(credentials.metadata() or ())}
    if (tls := credentials.tls) is not None:
        secured |= {"ssl": tls.context(), "server_hostname": tls.server_name or None}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:

        async def found(at: str) -> str:
            try:
                return await _text(session, f"http://{dial(at)}/metrics", {})
            except FileNotFoundError:
                if tls is None:
                    raise ValueError("they are by TLS alone, for who may Describe all topics: give a token") from None
            at = address.join(address.split(at)[0], METRICS_PORT)
            return await _text(session, f"https://{dial(at)}/metrics", secured)

        async def ask(node: str, at: str) -> None:
            try:
                archive.add_text(f"metrics/{node}.txt", f"metrics of {node}", await found(at))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                archive.lacks(f"metrics/{node}.txt", str(error) or repr(error))

        await asyncio.gather(*(ask(node, at) for node, at in sorted(addresses.items())))


async def _text(session: aiohttp.ClientSession, url: str, options: Mapping[str, Any]) -> str:
    """Raises FileNotFoundError (404), ValueError with what else the node says, and what aiohttp raises."""
    async with session.get(url, allow_redirects=False, **options) as answer:
        data = bytearray()
        async for part in answer.content.iter_any():
            data += part
            if len(data) >= MAX_METRICS_BYTES:
                break
        text = data[:MAX_METRICS_BYTES].decode("utf-8", "replace")
        if answer.status == 404:
            raise FileNotFoundError(url)
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {text.strip()[:300]}")
        return text
