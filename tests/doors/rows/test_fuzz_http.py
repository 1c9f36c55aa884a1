"""Spoiled HTTP requests, cut and flipped, with headers and lengths that contradict each other: each is refused,
answered or cut off, and none is a fault of the node.

DELAY_FUZZ_HTTP_CASES=10000 for a larger sample of each edge; DELAY_FUZZ_SEED for another one.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.doors.support.asking import SERVICE, Asking, Node

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_HTTP_CASES", "600"))
THREADS, ANSWER_S = 8, 0.5
REFUSALS = {400, 404, 405, 408, 413, 414, 415, 417, 426, 429, 431, 501, 504, 505}
METHODS = ("Send", "Receive", "Ack", "Cancel", "ListPending", "ReceiveStream")
PIECES = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1", b"\xff\xfe", b"HTTP/9.9",
    b"x" * 9_000,
    b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Connect-Timeout-Ms: 1\r\n", b"{", b'"', b"\\ud800", b"1e999",
)  # fmt: skip


def good(choose: random.Random) -> bytes:
    method = choose.choice(METHODS)
    fields: dict[str, object] = {"topic": "spoiled"}
    match method:
        case "Send":
            fields["messages"] = [{"bodyText": "x" * choose.choice((0, 1, 5_000)), "delay": "3600s"}]
        case "Receive" | "ReceiveStream":
            fields |= {"group": "fuzzed", "fromEnd": True}
        case "Ack":
            fields = {"receipts": [choose.choice(("", "AAAA", "no receipt"))]}
        case "Cancel":
            fields = {"handles": [choose.choice(("", "AAAA", "no handle"))]}
    body, kind = json.dumps(fields).encode(), "application/json"
    timeout = ""
    if method == "ReceiveStream":
        body, kind, timeout = struct.pack(">BI", 0, len(body)) + body, "application/connect+json", "50"
    head = f"POST {SERVICE}{method} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
    if timeout:
        head += f"Connect-Timeout-Ms: {timeout}\r\n"
    if choose.random() < 0.3:
        return f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def spoiled(data: bytes, choose: random.Random) -> bytes:
    for _ in range(choose.choice((1, 1, 2, 4))):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(5):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bytes((choose.randrange(256),)) + data[at + 1 :]
            case 2:
                data = data[:at] + data[at + choose.choice((1, 2, 20)) :]
            case 3:
                data = data[:at] + choose.choice(PIECES) + data[at:]
            case _:  # as a header of its own
                line = data.find(b"\r\n", at) + 2
                data = data[:line] + choose.choice(PIECES) + data[line:]
    return data


def status_of(address: tuple[str, int], data: bytes) -> int | None:
    """Of the first answer; None: there is none, since the request is not whole, or the connection is cut."""
    with socket.create_connection(address, timeout=20) as raw:
        raw.settimeout(ANSWER_S)
        answer = b""
        try:
            raw.sendall(data)
            while b"\r\n" not in answer and (part := raw.recv(65_536)):
                answer += part
        except (TimeoutError, ConnectionError):
            pass
        return int(answer.split(b" ")[1]) if answer else None


def test_a_spoiled_request_is_refused_and_disturbs_nobody(ask: Callable[..., Asking], nodes: list[Node]) -> None:
    host, _, port = nodes[0].http.rpartition(":")

    def run(number: int) -> Counter[int | None]:
        choose, found = random.Random(SEED * THREADS + number), Counter[int | None]()
        for _ in range(CASES // THREADS):
            data = good(choose)
            if choose.random() < 0.9:
                data = spoiled(data, choose)
            status = status_of((host, int(port)), data)
            found[status] += 1
            assert status is None or status in (100, 200) or status in REFUSALS, (status, data)
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        found = sum(pool.map(run, range(THREADS)), Counter[int | None]())
    assert min(found[200], found[400], found[None]) > CASES / 100, found
    answer = ask(0, "json").json("Send", {"topic": "spoiled", "messages": [{"bodyText": "after"}]})
    assert answer["results"][0]["handle"]
