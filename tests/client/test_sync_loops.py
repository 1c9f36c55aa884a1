"""Event loops of sync producers and consumers that were closed: what gRPC has to tell one late disturbs no other."""

from __future__ import annotations

import asyncio

import pytest
from delayclient import sync
from delayclient.errors import Closed


def stopped() -> sync._LoopThread:
    thread = sync._LoopThread("consumer")
    thread.stop()
    return thread


def test_a_loop_that_has_stopped_may_be_told_something_for_a_while_and_says_that_it_is_closed() -> None:
    thread = stopped()
    thread.loop.call_soon_threadsafe(print)  # as gRPC does
    assert not thread.loop.is_closed()
    for what in (lambda: thread.run(asyncio.sleep(0)), lambda: thread.soon(print)):
        with pytest.raises(Closed):
            what()


def test_loops_that_have_stopped_do_not_pile_up() -> None:
    threads = [stopped() for _ in range(sync._MAX_STOPPED + 3)]
    assert [one.loop.is_closed() for one in threads] == [True] * 3 + [False] * sync._MAX_STOPPED


def test_a_stopped_loop_is_closed_once_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_stopped", sync._StoppedLoops())
    monkeypatch.setattr(sync, "_LINGER_S", -1.0)
    assert stopped().loop.is_closed()
