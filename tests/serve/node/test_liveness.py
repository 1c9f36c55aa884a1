"""/healthz: a process that can't go on as a node says so, and nothing else makes it say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from delaynode.node.node import Node
from delaynode.server.health_port import serve_http
from delayregistry.model import Condition, ConditionType, TopicSpec
from delayregistry.port import RegistryUnavailable

from tests.serve.support.fuzz_inside import Inside, OneNode


async def asked(node: Node) -> tuple[int, str]:
    runner = await serve_http(node, "127.0.0.1:0")
    try:
        host, port = runner.address
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/healthz") as answer:
            return answer.status, (await answer.text()).strip()
    finally:
        await runner.close()


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
                monkeypatch.setattr(registry, call, raising(RegistryUnavailable("no answer")), raising=False)
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
            await until(inside.node.fatal_error)
            assert inside.node.fatal_error() == "renew_loop has ended: KeyError('planted')"
            assert await asked(inside.node) == (503, "vital-part-ended")
        finally:
            await inside.stop()

    asyncio.run(story())


def test_a_shard_that_has_been_blocked_for_a_while_keeps_no_traffic_from_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        node = inside.node
        try:
            own = node.routes.objects["t", 0]
            now_ms = node.clock.now_ms()
            for since_ms, expected in (
                (None, "1 shards are not served yet: t-1"),
                (now_ms - 10_000, "1 shards are not served yet: t-1"),
                (now_ms - 70_000, None),
            ):
                conditions = () if since_ms is None else (Condition(ConditionType.BLOCKED, "NodeAway", "", since_ms),)
                lost = replace(own, name="t-1", spec=replace(own.spec, uid=99, queue=1), conditions=conditions)
                node.routes.objects = {("t", 0): own, ("t", 1): lost}
                assert node.not_ready() == expected
        finally:
            await inside.stop()

    asyncio.run(story())


def test_a_node_that_was_asked_to_stop_is_not_broken(tmp_path: Path) -> None:
    async def story() -> None:
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        await inside.stop()
        assert inside.node.fatal_error() is None

    asyncio.run(story())
