"""Whom a commit waits for, while writes of the in-sync set are under way."""

from __future__ import annotations

from delaynode.replication.in_sync import InSync

ME, B, C = "a", "b", "c"
ALONE, WITH_B, WITH_C = frozenset((ME,)), frozenset((ME, B)), frozenset((ME, C))


def test_a_refused_write_says_nothing_about_one_before_it_that_got_no_answer() -> None:
    in_sync = InSync(ALONE)
    in_sync.join(B)
    in_sync.trying(WITH_B)  # no answer: it may be in the registry
    in_sync.drop(B)
    in_sync.trying(ALONE)
    in_sync.refused(ALONE)
    assert in_sync.counted() == WITH_B, "the registry may name b: it could be chosen"
    assert not in_sync.is_resolved


def test_a_refused_write_leaves_an_equal_one_that_got_no_answer() -> None:
    in_sync = InSync(ALONE)
    for _ in range(2):
        in_sync.trying(WITH_B)
    in_sync.refused(WITH_B)
    assert in_sync.counted() == WITH_B


def test_a_refused_write_alone_leaves_nothing_to_wait_for() -> None:
    in_sync = InSync(WITH_B)
    in_sync.trying(ALONE)
    in_sync.refused(ALONE)
    assert (in_sync.counted(), in_sync.is_resolved) == (WITH_B, True)


def test_a_write_that_succeeded_ends_all_that_were_sent_before_it() -> None:
    in_sync = InSync(ALONE)
    in_sync.trying(WITH_B)
    in_sync.trying(WITH_C)
    assert in_sync.counted() == {ME, B, C}
    in_sync.succeeded(WITH_C)
    assert (in_sync.counted(), in_sync.is_resolved) == (WITH_C, True)
