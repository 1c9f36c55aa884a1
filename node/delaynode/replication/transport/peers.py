"""The port through which replicas of different nodes talk; links.py is it over TCP, the simulation has its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from delaynode.replication.protocol import Message


class Origin(Protocol):
    """The connection on which a master's messages come in."""

    node: str
    incarnation: str  # of the process there

    def reply(self, message: Message) -> None:
        """Send back; lost, as whatever follows, when the connection is gone."""


class Handler(Protocol):
    """Receives what comes in. Called on the event loop; must return at once."""

    def link_up(self, node: str) -> None:
        """Messages to `node` arrive from now on, in order, until link_down()."""

    def link_down(self, node: str) -> None:
        """What was sent to `node` last may be lost; nothing sent before the next link_up() arrives."""

    def from_slave(self, node: str, message: Message) -> None:
        """A reply of `node`, on the link to it."""

    def from_master(self, origin: Origin, message: Message) -> None:
        """A message of another node."""

    def origin_lost(self, origin: Origin) -> None:
        """The connection is gone: nothing more comes from it."""


class Peers(Protocol):
    def want(self, nodes: Iterable[str]) -> None:
        """Keep a link up to each of these nodes, and to no other. A link that fails is tried again by itself."""

    def send(self, node: str, message: Message) -> None:
        """Queue a message; dropped when there is no link."""

    def backlog_bytes(self, node: str) -> int:
        """Bytes queued to `node` that the network has not taken yet."""

    def drop(self, node: str) -> None:
        """Give the link to `node` up and make it anew: nothing is heard from there any more."""
