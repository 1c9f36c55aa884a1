"""Celery and Django at a node with TLS, tokens and rights: who comes in, and what the others are told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delayclient.agent.client import ClusterRefused
from delayclient.celery import NotTaken
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
)  # fmt: skip
from delayregistry.sqlite import SqliteRegistry

from tests.client.support.celeryworld import Shop, end, wait
from tests.client.support.djangoworld import Project

SENDS = StaticToken("sender", hashlib.sha256(b"it-sends").hexdigest())
PRODUCE = AccessRule((Operation.PRODUCE,), NamePattern(prefix=""))
DOCUMENT = SecuritySpec(
    AuthorizationMode.REQUIRED, tokens=(SENDS,), users=(SecurityUser("token:sender", (PRODUCE,)),)
)  # fmt: skip
Door = Callable[..., Shop | Project]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data = tmp_path_factory.mktemp("secured")
    registry = SqliteRegistry(data / "registry.db", create=True)
    registry.put_security(DOCUMENT, None)
    registry.close()
    topics = [TopicSpec(name, 2) for name in ("shop", "project")]
    with LocalCluster(data, nodes=1, topics=topics, secure=True) as cluster:
        cluster.wait_ready()
        yield cluster


@pytest.mark.parametrize(("door", "error"), [(Shop, NotTaken), (Project, ClusterRefused)])
def test_who_may_not_is_told_why_and_what_was_sent_is_worked_on_by_who_may(
    cluster: LocalCluster, tmp_path: Path, door: Door, error: type[Exception]
) -> None:
    assert cluster.keys is not None
    ca = {"tls": {"ca": str(cluster.keys.ca)}}

    def opened(name: str, **options: Any) -> Shop | Project:
        return door(cluster.endpoints[0], door.__name__.lower(), tmp_path / name, **options)

    (tmp_path / "guessed").write_text("guessed")
    strangers = {
        "speaks TLS, and this client does not: give tls": opened("plain"),
        "asks who calls": opened("nobody", **ca),
        "the token is no static one of this cluster": opened("bad", **ca, token_file=str(tmp_path / "guessed")),
    }
    for says, stranger in strangers.items():
        with pytest.raises(error, match=says):
            send(stranger, "note", "a stranger's")
    sender, admin = (
        opened("sender", **ca, token="it-sends"),
        opened("it", **ca, token_file=str(cluster.keys.token_file)),
    )
    send(sender, "note", "sender's")
    send(admin, "note", "admin's")
    nobody = strangers["asks who calls"]
    refused = {"asks who calls": nobody, "'token:sender' may not Consume": sender}
    workers = {says: one.start() for says, one in refused.items()}
    try:
        for says, worker in workers.items():
            assert worker.wait(60) != 0
            assert says in worker.said.read_text()
    finally:
        for worker in workers.values():
            end(worker)
    with admin.worker() as worker:
        wait(lambda: len(admin.lines()) == 2, worker.said)
    assert sorted(line[0] for line in admin.lines()) == ["admin's", "sender's"]
    assert not any(one.lines() for one in (*strangers.values(), sender))


@pytest.mark.parametrize(("door", "error"), [(Shop, NotTaken), (Project, ClusterRefused)])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tls": {"ca": "/nowhere/ca.crt"}}, "/nowhere/ca.crt cannot be read"),
        ({"tls": {"cacert": "x"}}, "unexpected keyword argument 'cacert'"),
    ],
)
def test_options_that_cannot_be_used_are_refused_and_not_tried_again(
    tmp_path: Path, door: Door, error: type[Exception], options: dict[str, Any], says: str
) -> None:
    """An agent that can't start is no agent that was lost, which is tried again for ever."""
    with pytest.raises(error, match=says):
        send(door("127.0.0.1:1", "shop", tmp_path / "log", **options), "note", "x")


def send(door: Shop | Project, *task: str) -> None:
    (door.send if isinstance(door, Shop) else door.enqueue)(*task)
