"""Fixtures: a fake node behind an edge, and channels to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "node"), str(ROOT / "tests/security")]

from fakenode import FakeNode  # noqa: E402 - found by that path


@pytest.fixture
def start() -> Iterator[Callable[..., FakeNode]]:
    """Starts fake nodes with the limits that are given; ends them, and checks that each came to rest."""
    nodes: list[FakeNode] = []

    def start_one(**limits: int) -> FakeNode:
        nodes.append(FakeNode(**limits))
        return nodes[-1]

    yield start_one
    for node in nodes:
        node.stop()
        assert node.faults == []


@pytest.fixture
def node(start: Callable[..., FakeNode]) -> FakeNode:
    return start()


@pytest.fixture
def channel(node: FakeNode) -> Iterator[grpc.Channel]:
    with node.channel() as channel:
        yield channel
