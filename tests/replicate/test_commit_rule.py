"""The commit rule: how far a term commits, and whether it may answer, by what each counted member has stored."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaynode.replication.in_sync import InSync
from delaynode.replication.peer_replica import PeerReplica
from delaynode.replication.term.commit_rule import CommitRule
from delaynode.replication.term.state import Term, TermState

ME, B, C = "copy-a", "copy-b", "copy-c"
NODES = {B: "n1", C: "n2"}
WRITTEN, SYNCED = 900, 700  # this copy's log


def rule(in_sync: InSync, durable: dict[str, int], leases: Iterable[str] = (), *, fsync: bool = True) -> CommitRule:
    """durable: of the members that the master has a link to. leases: the nodes whose lease is live."""
    members = {copy: PeerReplica(NODES[copy], replica_id=copy, durable=offset) for copy, offset in durable.items()}
    held = set(leases)
    parts: Any = SimpleNamespace(
        log=SimpleNamespace(synced=SYNCED, written=WRITTEN),
        shipping=SimpleNamespace(member_of=members.get),
        replica_leases=SimpleNamespace(live=lambda uid, nodes: held.issuperset(nodes)),
    )
    term = Term(1, 7, "n0", "process", ME, lag_ms=10_000, fsync=fsync)
    state = TermState(serving=True)
    return CommitRule(term, state, parts.log, parts.shipping, in_sync, cast(Any, parts.replica_leases))


def in_sync(written: str, *, joining: str = "", tried: str = "") -> InSync:
    """Sets by the last letters of the copies' names."""

    def named(letters: str) -> frozenset[str]:
        return frozenset(f"copy-{letter}" for letter in letters)

    return InSync(named(written), [named(tried)] if tried else [], set(named(joining)))


@pytest.mark.parametrize(
    ("counted", "durable", "limit"),
    [
        (in_sync("a"), {B: 100}, SYNCED),  # b is not counted: nobody waits for it
        (in_sync("ab"), {B: 100}, 100),
        (in_sync("ab"), {B: 900}, SYNCED),  # a slave may be quicker than this copy's disk
        (in_sync("abc"), {B: 600, C: 500}, 500),
        (in_sync("ab"), {}, 0),  # named, and there is no link to it: what it has is not known
        (in_sync("a", joining="b"), {B: 300}, 300),  # commits wait before the registry is told
        (in_sync("a", tried="ab"), {B: 300}, 300),  # the registry may name it already
        (in_sync("ab", tried="a"), {B: 300}, 300),  # and it may name it still
    ],
)
def test_a_commit_is_what_every_counted_member_has(counted: InSync, durable: dict[str, int], limit: int) -> None:
    assert rule(counted, durable).commit_limit() == limit


def test_with_async_the_page_cache_will_do() -> None:
    assert rule(in_sync("a"), {}, fsync=False).commit_limit() == WRITTEN


@pytest.mark.parametrize(
    ("counted", "leases", "live"),
    [
        (in_sync("a"), (), True),  # nobody else may be chosen
        (in_sync("ab"), ("n1",), True),
        (in_sync("ab"), (), False),
        (in_sync("abc"), ("n1",), False),
        (in_sync("a", joining="b"), (), False),
        (in_sync("a", tried="ab"), (), False),
    ],
)
def test_an_answer_takes_a_lease_of_every_counted_member(counted: InSync, leases: tuple[str, ...], live: bool) -> None:
    assert rule(counted, {B: 0, C: 0}, leases).live() is live


def test_a_member_without_a_link_has_granted_nothing() -> None:
    assert not rule(in_sync("ab"), {}, ("n1", "n2")).live()


@pytest.mark.parametrize("over", [{"serving": False}, {"ended": "stepped down"}, {"handover": object()}])
def test_a_term_that_is_over_or_given_away_answers_nothing(over: dict[str, Any]) -> None:
    found = rule(in_sync("a"), {})
    for name, value in over.items():
        setattr(found.state, name, value)
    assert not found.live()
