"""/healthz: a process that can't go on as a node says so, and nothing else makes it say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from delaynode.registry.model import TopicSpec
from delaynode.registry.port import Unavailable
from delaynode.serve.http import serve_http
from delaynode.serve.node import Node

from tests.serve.fuzz_inside import Inside, OneNode


async def asked(node: Node) -> tuple[int, str]:
    runner = await serve_http(node, "127.0.0.1:0")
    try:
        host, port = runner.addresses[0]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/healthz") as answer:
            return answer.status, (await answer.text()).strip()
    finally:
        await runner.cleanup()


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


async def until(what: Callable[[], object]) -> None:
    for _ in range(1_000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_a_registry_that_is_away_is_no_reason_to_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        registry = OneNode((TopicSpec("t", 1),))
        inside = await Inside.start(tmp_path, registry)
        try:
            for call in ("renew_lease", "version", "list_leases"):
                monkeypatch.setattr(registry, call, raising(Unavailable("no answer")), raising=False)
            await until(lambda: {"lease-not-renewed", "registry-unreachable"} <= {event for event, _ in inside.log})
            assert await asked(inside.node) == (200, "ok")
        finally:
            await inside.stop()

    asyncio.run(story())


def test_a_node_that_renews_its_lease_no_more_for_a_fault_of_its_own_is_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        registry = OneNode((TopicSpec("t", 1),))
        inside = await Inside.start(tmp_path, registry)
        try:
            assert await asked(inside.node) == (200, "ok")
            monkeypatch.setattr(registry, "renew_lease", raising(KeyError("planted")), raising=False)
            await until(inside.node.broken)
            assert await asked(inside.node) == (503, "renew_loop has ended: KeyError('planted')")
        finally:
            await inside.stop()

    asyncio.run(story())


def test_a_node_that_was_asked_to_stop_is_not_broken(tmp_path: Path) -> None:
    async def story() -> None:
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        await inside.stop()
        assert inside.node.broken() is None

    asyncio.run(story())
