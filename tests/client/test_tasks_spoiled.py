"""Spoiled messages of Celery's and Django's, and spoiled frames to their agent, from a seed.

DELAY_FUZZ_TASKS_CASES=5000 for more; DELAY_FUZZ_SEED.
"""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from delayclient import sync
from delayclient.agent import frames
from delayclient.agent.client import AgentProcess
from delaylocal import LocalCluster

from tests.client.support.celeryworld import Shop, wait
from tests.client.support.djangoworld import Project

CASES = int(os.environ.get("DELAY_FUZZ_TASKS_CASES", "150"))
SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
WRONG = (None, True, -1, 2**70, 1e300, "", "\x00", "\u202e", "9" * 400, [], {}, [[[]]], {"a": {"b": []}})
LAST_S = 60 + CASES / 10
CELERY = {
    "body": '[["x"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {
        "lang": "py", "task": "tests.client.support.celerytasks.note", "id": "i", "root_id": "i", "parent_id": None,
        "group": None, "eta": None, "expires": None, "retries": 0, "timelimit": [None, None], "argsrepr": "('x',)",
        "kwargsrepr": "{}", "origin": "o", "ignore_result": False, "stamps": {}, "stamped_headers": None,
    },
    "properties": {
        "correlation_id": "i", "reply_to": "r", "delivery_mode": 2, "priority": 0, "body_encoding": "utf-8",
        "delivery_info": {"exchange": "", "routing_key": "c-spoiled"}, "delivery_tag": "t",
    },
}  # fmt: skip
DJANGO = {"id": "i", "task": "tests.client.support.djangotasks.note", "args": ["x"], "kwargs": {}}


def spoiled(rng: random.Random, good: dict[str, Any]) -> bytes:
    """One field is another value or is missing, or bytes are cut, turned or put in; or it is quite another text."""
    message = json.loads(json.dumps(good))
    kind = rng.randrange(4)
    if kind < 2:
        at = message
        while True:
            name = rng.choice(list(at))
            if not (isinstance(at[name], dict) and at[name] and rng.random() < 0.8):
                break
            at = at[name]
        if kind == 0:
            at[name] = rng.choice(WRONG)
        else:
            del at[name]
        return json.dumps(message).encode()
    text = bytearray(json.dumps(message).encode())
    if kind == 2:
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        return bytes(text[: rng.randint(1, len(text))] if rng.random() < 0.5 else text)
    others = (
        b"[" * 100_000,
        b'{"id":' * 20_000,
        b"\xff\xfe",
        b"NaN",
        b"null",
        b'"x"',
        b"9" * 5_000,
        rng.randbytes(300),
    )
    return rng.choice(others)


@pytest.mark.parametrize("door", [Shop, Project])
def test_spoiled_messages_end_no_worker_and_each_is_settled(
    task_cluster: LocalCluster, tmp_path: Path, door: type[Shop | Project]
) -> None:
    """Some of them are still tasks. What is none is a dead letter, or one once it was tried three times."""
    topic, group, good = ("c-spoiled", "celery", CELERY) if door is Shop else ("d-spoiled", "django", DJANGO)
    it, rng = door(task_cluster.endpoints[0], topic, tmp_path / "log"), random.Random(SEED)
    with sync.Producer(it.endpoint) as producer, sync.Admin(it.endpoint) as admin, it.worker() as worker:
        for _ in range(CASES):
            producer.send(topic, spoiled(rng, good))

        def left() -> int:
            found = admin.groups(topic, group)
            return sum(queue.available + queue.waiting_retry + queue.in_flight for queue in found)

        for _ in range(2):  # a queue that the group has not asked for yet has no row
            it.send("note", "after") if isinstance(it, Shop) else it.enqueue("note", "after")
        wait(lambda: len(it.lines("after")) == 2, worker.said, LAST_S)
        wait(lambda: left() == 0, worker.said, LAST_S)
        assert worker.poll() is None, worker.said.read_text()[-3000:]
        dead = list(admin.dead_letters(topic, group))
    assert len(dead) > CASES / 4
    if door is Project:
        assert all(one.dead_reason for one in dead)


WRONG_HEADERS = [
    *(("timelimit", it) for it in (2**70, 1e300, [1], ["a", None], {"a": 1, "b": 2})),
    *(("stamped_headers", it) for it in (-1, True, [["x"]], "x")),
    *(("stamps", it) for it in (-1, ["x"])),
    *(("id", it) for it in ([], {})),
]


def test_headers_that_are_looked_at_late_cost_no_place_in_the_pool(task_cluster: LocalCluster, tmp_path: Path) -> None:
    """Celery's own semaphore lost one by each, and had as many as processes; or the worker ended."""
    it = Shop(task_cluster.endpoints[0], "c-limits", tmp_path / "log")
    with sync.Producer(it.endpoint) as producer, sync.Admin(it.endpoint) as admin, it.worker() as worker:
        for name, wrong in WRONG_HEADERS:
            message = json.loads(json.dumps(CELERY))
            message["headers"] |= {"stamped_headers": ["x"], "stamps": {}, name: wrong}
            producer.send("c-limits", json.dumps(message).encode())
        for _ in range(4):
            it.send("note", "after")
        wait(lambda: len(it.lines("after")) == 4, worker.said)
        wait(lambda: len(list(admin.dead_letters("c-limits", "celery"))) == len(WRONG_HEADERS), worker.said)
        assert worker.poll() is None, worker.said.read_text()[-3000:]


def test_spoiled_frames_end_a_link_or_are_refused_and_other_links_go_on(task_cluster: LocalCluster) -> None:
    agent = AgentProcess([task_cluster.endpoints[0]], {})
    rng, other = random.Random(SEED), agent.link()
    for case in range(CASES):
        link = agent.link()
        sock = socket.socket(fileno=os.dup(link.fileno()))
        sock.settimeout(20)
        try:
            sock.sendall(spoiled_frame(rng))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):  # answers, and then the end
                pass
        except ConnectionError:
            pass
        finally:
            sock.close()
            link.close()
        if case % 10 == 0:
            other.call({"op": "check"})
    other.call({"op": "check"})
    assert agent.running
    other.close()
    agent._socket.close()
    assert agent._process.wait(20) == 0


def spoiled_frame(rng: random.Random) -> bytes:
    known = [
        {"op": "check", "topic": "c-spoiled"}, {"op": "send", "topic": "c-spoiled", "key": "k", "tag": "t", "at": 1},
        {"op": "cancel", "key": "k", "topic": "c-spoiled"}, {"op": "size", "topic": "c-spoiled", "group": "g"},
        {"op": "purge", "topic": "c-spoiled"}, {"op": "room", "messages": 1}, {"op": "ack", "tags": [1]},
        {"op": "consume", "topic": "c-spoiled", "group": "g", "lease_ms": 2_000}, {"op": "leave", "topic": "c-spoiled"},
    ]  # fmt: skip
    header = dict(rng.choice(known))
    match rng.randrange(5):
        case 0:
            header[rng.choice(list(header))] = rng.choice(WRONG)
        case 1:
            del header[rng.choice(list(header))]
        case 2:
            header[rng.choice(["x", "self", "payload", "body"])] = rng.choice(WRONG)
        case 3:
            text = rng.choice([b"[]", b"null", b"{", b"\xff", b"[" * 50_000, rng.randbytes(50)])
            return frames.LENGTHS.pack(len(text), 0) + text
        case 4:
            data = frames.encode(header, b"body")
            return rng.choice([data[: rng.randrange(len(data))], rng.randbytes(60), b"\xff" * 8 + data])
    return frames.encode(header, b"body")
