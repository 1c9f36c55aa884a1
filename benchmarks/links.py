"""Node-to-node links between two processes over loopback: round trips of a frame and its ack, and bytes a second.

    python benchmarks/links.py [--seconds 3]

One process sends FRAMES as a master does, the other acks each as a slave does; both parse all that comes in.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

from delaynode.replication.protocol import Ack, Frames, Message
from delaynode.replication.transport.links import Address, Links
from delaynode.replication.transport.peers import Origin


class Slave:
    """Acks whatever comes."""

    def link_up(self, node: str) -> None: ...
    def link_down(self, node: str) -> None: ...
    def from_slave(self, node: str, message: Message) -> None: ...
    def origin_lost(self, origin: Origin) -> None: ...

    def from_master(self, origin: Origin, message: Message) -> None:
        assert isinstance(message, Frames)
        end = message.offset + len(message.data[0])
        origin.reply(Ack(message.uid, message.epoch, end, end))


class Master(Slave):
    """Keeps `window` FRAMES of `size` bytes under way to n1."""

    def __init__(self) -> None:
        self.links: Links
        self.up = asyncio.Event()
        self.acked = 0
        self.size, self.window = 1024, 1

    def link_up(self, node: str) -> None:
        self.up.set()

    def from_slave(self, node: str, message: Message) -> None:
        self.acked += 1
        if self.window:
            self.ship()

    def ship(self) -> None:
        self.links.send("n1", Frames(7, 1, 0, 0, (self.data,)))

    async def run(self, size: int, window: int, seconds: float) -> tuple[float, float]:
        """Acks a second, and the CPU seconds of this process a second."""
        self.data, self.window, self.acked = bytes(size), window, 0
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(window):
            self.ship()
        await asyncio.sleep(seconds)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        rate, self.window = self.acked / took, 0
        await asyncio.sleep(0.2)
        return rate, cpu / took


def ignore(event: str, **fields: object) -> None: ...


def serve(pipe: Connection) -> None:
    async def main() -> None:
        links = Links("bench", "n1", "b", lambda node: None, Slave(), ignore)
        pipe.send(await links.start("127.0.0.1", 0))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await links.close()
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)

    asyncio.run(main())


async def measure(port: int, seconds: float) -> None:
    master = Master()
    links = master.links = Links("bench", "n0", "a", lambda node: Address("127.0.0.1", port, "b"), master, ignore)
    await links.start("127.0.0.1", 0)
    links.want(["n1"])
    await master.up.wait()
    print(f"{'frame':>9} {'under way':>9} {'acks/s':>9} {'us each':>8} {'MB/s':>7} {'CPU':>5}")
    for size, window in ((1 << 10, 1), (1 << 10, 16), (1 << 10, 256), (64 << 10, 4), (1 << 20, 4), (16 << 20, 2)):
        rate, cpu = await master.run(size, window, seconds)
        megabytes = rate * size / 1e6
        print(f"{size >> 10:>5} KiB {window:>9} {rate:>9.0f} {1e6 / rate:>8.1f} {megabytes:>7.0f} {cpu:>5.2f}")
    await links.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    arguments = parser.parse_args()
    other.start()
    asyncio.run(measure(ours.recv(), arguments.seconds))
    ours.send(None)
    print(f"resident at most, the receiving process: {ours.recv()} MiB")


if __name__ == "__main__":
    main()
