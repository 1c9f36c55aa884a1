"""Clients over HTTP that are gone at once, in each phase of a call: they lose no message and hold nothing."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from delaylocal import LocalCluster
from prometheus_client.parser import text_string_to_metric_families

from tests.doors.support.asking import SERVICE, Asking, Node
from tests.serve.support.client import poll

Ask = Callable[..., Asking]
EACH = 5  # clients in a phase


def request(method: str, kind: str = "json", **fields: Any) -> tuple[bytes, bytes]:
    """(head, body)"""
    body = json.dumps(fields).encode()
    if kind == "connect+json":
        body = struct.pack(">BI", 0, len(body)) + body
    head = f"POST {SERVICE}{method} HTTP/1.1\r\nhost: x\r\ncontent-type: application/{kind}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode(), body


def come(node: Node, said: bytes) -> socket.socket:
    host, _, port = node.http.rpartition(":")
    one = socket.create_connection((host, int(port)), timeout=60)
    one.sendall(said)
    return one


def vanish(*clients: socket.socket) -> None:
    """As processes that are killed: the connection is reset."""
    for one in clients:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()


def under_way(node: Node) -> float:
    text = urlopen(f"http://{node.http}/metrics", timeout=60).read().decode()
    families = text_string_to_metric_families(text)
    return next(family.samples[0].value for family in families if family.name == "delay_http_calls")


def test_clients_that_vanish_in_any_phase_lose_nothing_and_hold_nothing(
    cluster: LocalCluster, ask: Ask, nodes: list[Node], topic: str
) -> None:
    def connections() -> int:
        return len(list(Path(f"/proc/{cluster.pids['n0']}/fd").iterdir()))

    client, before = ask(1, "json"), connections()
    kept = {f"kept {at}" for at in range(20)}
    group: dict[str, Any] = {"topic": topic, "group": "g", "bodyFormat": "BODY_FORMAT_TEXT"}
    receiving = {**group, "lease": "5s", "maxMessages": 2, "wait": "30s"}

    def sending(at: int) -> tuple[bytes, bytes]:
        return request(
            "Send", topic=topic, messages=[{"bodyText": f"vanished {at}", "properties": {"x": "x" * 50_000}}]
        )

    phases: dict[str, Callable[[int], bytes]] = {
        "connected": lambda at: b"",
        "half a head": lambda at: sending(at)[0][:30],
        "no body": lambda at: sending(at)[0],
        "half a body": lambda at: b"".join(sending(at))[:25_000],
        "sent": lambda at: b"".join(sending(at)),
        "waits": lambda at: b"".join(request("Receive", **receiving)),
        "waits in a stream": lambda at: b"".join(request("ReceiveStream", "connect+json", **group, lease="5s")),
    }
    vanish(*(come(nodes[0], said(at)) for said in phases.values() for at in range(EACH)))
    client.json("Send", {"topic": topic, "messages": [{"bodyText": name} for name in kept]})
    answered = [come(nodes[0], b"".join(request("Receive", **receiving))) for _ in range(EACH)]
    assert all(one.recv(20).startswith(b"HTTP/1.1 200") for one in answered)
    vanish(*answered)

    came: list[str] = []

    def receive() -> bool:
        found = client.json("Receive", {**group, "wait": "1s"}).get("deliveries", [])
        assert all(one["attempt"] <= 2 for one in found), "each was in one lost client's hands at most"
        came.extend(one["bodyText"] for one in found)
        if found:
            client.json("Ack", {"receipts": [one["receipt"] for one in found]})
        return kept <= set(came)

    poll("all that was kept has come", receive, 120)
    assert set(came) - kept <= {f"vanished {at}" for at in range(EACH)}
    poll("no call is under way", lambda: under_way(nodes[0]) == 0, 120)
    poll("no connection is left", lambda: connections() <= before + EACH, 120)
