"""The node's event loop: timers that don't wait for the next whole millisecond, and nothing else changed."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

from delaynode.loop import SAME_NS, ExactSelector, new_loop


def test_a_wait_ends_by_its_timeout_and_never_before() -> None:
    selector = ExactSelector()
    quickest_s = 1.0
    for _ in range(50):
        began_s = time.monotonic()
        assert selector.select(0.0002) == []
        took_s = time.monotonic() - began_s
        assert took_s >= 0.0002
        quickest_s = min(quickest_s, took_s)
    assert quickest_s < 0.001, "epoll's own waits are whole milliseconds"
    selector.close()


def test_a_timer_that_ran_out_unseen_ends_no_later_wait() -> None:
    selector = ExactSelector()
    reader, writer = socket.socketpair()
    selector.register(reader, 1)
    writer.send(b"a")
    assert len(selector.select(0.001)) == 1  # the timer is left, and runs out
    reader.recv(1)
    time.sleep(0.002)
    assert selector.select(0) == []
    began_s = time.monotonic()
    assert selector.select(0.05) == []
    assert time.monotonic() - began_s >= 0.05
    for one in (selector, reader, writer):
        one.close()


def test_a_wait_for_another_time_sets_the_timer_anew() -> None:
    selector = ExactSelector()
    reader, writer = socket.socketpair()
    selector.register(reader, 1)

    def interrupted(seconds: float) -> None:
        writer.send(b"a")
        assert len(selector.select(seconds)) == 1
        reader.recv(1)

    interrupted(60.0)
    began_s = time.monotonic()
    assert selector.select(0.001) == []
    assert time.monotonic() - began_s < 30
    interrupted(0.001)
    began_s = time.monotonic()
    assert selector.select(0.05) == []
    assert time.monotonic() - began_s >= 0.05 - SAME_NS / 1e9
    ends_s = time.monotonic() + 0.05
    for _ in range(5):
        interrupted(ends_s - time.monotonic())
    while (left_s := ends_s - time.monotonic()) > 0:
        assert selector.select(left_s) == []
    for one in (selector, reader, writer):
        one.close()


def test_timers_run_in_order_and_sockets_are_heard() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for delay in (3, 1, 2):
            loop.call_later(delay / 1000, order.append, delay)
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        loop.call_later(0.004, writer.send, b"a")
        assert await loop.sock_recv(reader, 1) == b"a"
        reader.close()
        writer.close()
        return order

    before = len(os.listdir("/proc/self/fd"))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == [1, 2, 3]
    assert len(os.listdir(Path("/proc/self/fd"))) == before


def test_a_loop_that_always_has_something_to_do_hears_its_sockets() -> None:
    async def main() -> int:
        loop, turns = asyncio.get_running_loop(), 0
        reader, writer = socket.socketpair()
        heard = loop.create_future()
        loop.add_reader(reader, lambda: heard.done() or heard.set_result(None))
        writer.send(b"a")
        while not heard.done():
            turns += 1
            await asyncio.sleep(0)
        loop.remove_reader(reader)
        reader.close()
        writer.close()
        return turns

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(asyncio.wait_for(main(), 60)) > 1
