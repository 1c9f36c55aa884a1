"""The agent: `python -m delayclient.agent.process FD`. FD: a socket on which the program sends one frame, its settings,
and, once that is answered, a file descriptor for each link.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from delayapi.credentials import Tls

from delayclient import tracing
from delayclient.admin.admin import Admin
from delayclient.admin.views import Outcome
from delayclient.agent import frames
from delayclient.agent.subscription import Subscription, failure
from delayclient.errors import DelayError, NotAllowed
from delayclient.producer.producer import Producer
from delayclient.routing.access import Access
from delayclient.routing.routing import Cluster

_log: Final = logging.getLogger("delayclient")
_PARENT_S: Final = 1.0
_LINK_BYTES: Final = 16 << 20
_PURGE: Final = 1_000


class Agent:
    """One cluster's SDK, for the links of one program."""

    def __init__(self, endpoints: list[str], access: Access) -> None:
        self.cluster = Cluster(endpoints, **access)
        self._producer = Producer(self.cluster)
        self._admin = Admin(self.cluster)
        self._links: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        """Links that are gone, and still say what becomes of their deliveries."""
        self._ops: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "check": self._check,
            "send": self._send,
            "cancel": self._cancel,
            "size": self._size,
            "purge": self._purge,
        }

    def serve(self, sock: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all links as if their program had closed them. Those that it has closed already, as a killed one does
        just before, end by themselves: cancelled, they would leave their deliveries leased.
        """
        for link in self._links - self._ending:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        await self._producer.close()
        await self.cluster.close()

    async def _serve(self, sock: socket.socket) -> None:
        own = asyncio.current_task()
        assert own is not None
        reader, writer = await asyncio.open_connection(sock=sock, limit=_LINK_BYTES)
        subscription = Subscription(self.cluster, lambda header, payload: writer.write(frames.encode(header, payload)))
        try:
            while True:
                sizes = frames.LENGTHS.unpack(await reader.readexactly(frames.LENGTHS.size))
                header, payload = frames.cut(  # type: ignore[misc]  # it is complete
                    bytearray(frames.LENGTHS.pack(*sizes) + await reader.readexactly(sum(sizes)))
                )
                op = header.pop("op")
                try:
                    if subscription.tell(op, header):
                        continue
                    ask = subscription.ops.get(op) or self._ops[op]
                    answer = await (ask(payload, **header) if op == "send" else ask(**header))
                except DelayError as error:
                    answer = failure(error)
                except (ValueError, TypeError) as error:  # the SDK's, before it asks anybody
                    answer = {"error": {"message": str(error), "code": "INVALID_ARGUMENT"}}
                writer.write(frames.encode(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # closed
        finally:
            self._ending.add(own)
            await subscription.close()
            writer.close()

    # --------------------------------------------------------------------------------------------- ops

    async def _check(self, topic: str = "") -> dict[str, Any]:
        """Somebody answers, and has that topic."""
        await (self._admin.route(topic) if topic else self._admin.topics())
        return {}

    async def _send(self, body: bytes, topic: str, **message: Any) -> dict[str, Any]:
        if not isinstance(topic, str):  # the producer would wait for its route
            raise TypeError(f"topic {topic!r}: a name is expected")
        return {"handle": (await self._producer.send(topic, body, **message)).handle}

    async def _cancel(self, key: str, prefix: str = "", topic: str = "") -> dict[str, Any]:
        """Cancels what has this key in a topic, or in all whose name begins so and where this is allowed."""
        names = [topic] if topic else [route.topic for route in await self._admin.topics()]
        cancelled, refused = 0, None
        names = [name for name in names if name.startswith(prefix)]
        for name in names:
            try:
                found = await self._admin.cancel_by_key(name, key)
            except NotAllowed as error:
                refused = error
                names = [other for other in names if other != name]
            else:
                cancelled += sum(row.outcome is Outcome.CANCELLED for row in found)
        if refused is not None and not names:
            raise refused
        return {"cancelled": cancelled}

    async def _size(self, topic: str, group: str) -> dict[str, Any]:
        return {"size": sum(queue.available + queue.waiting_retry for queue in await self._admin.groups(topic, group))}

    async def _purge(self, topic: str) -> dict[str, Any]:
        """Cancels what is pending."""
        purged, handles = 0, []
        async for row in self._admin.list_pending(topic, page=_PURGE):
            handles.append(row.handle)
            if len(handles) == _PURGE:
                purged += (await self._admin.cancel(handles)).count(Outcome.CANCELLED)
                handles = []
        return {"purged": purged + (await self._admin.cancel(handles)).count(Outcome.CANCELLED)}


async def run(control: socket.socket) -> None:
    """Until the program is gone."""
    buffer = bytearray()
    while (settings := frames.cut(buffer)) is None:
        data = control.recv(1)  # a frame only: what follows comes with file descriptors
        if not data:
            return
        buffer += data
    options, parent = settings[0], settings[0].pop("parent")
    endpoints = options.pop("endpoints")
    try:
        if "tls" in options:
            options["tls"] = Tls(**options["tls"])
        agent = Agent(endpoints, cast(Access, options))
    except (ValueError, TypeError) as error:  # an endpoint, a file, or a name that tls does not have
        control.sendall(frames.encode({"error": {"message": str(error), "code": "INVALID_ARGUMENT"}}))
        return
    control.sendall(frames.encode({}))
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def accept() -> None:
        data, descriptors, _, _ = socket.recv_fds(control, 64, 16)
        for descriptor in descriptors:
            agent.serve(socket.socket(fileno=descriptor))
        if not data:
            loop.remove_reader(control)
            gone.set()

    loop.add_reader(control, accept)
    while not gone.is_set() and os.getppid() == parent:
        try:
            await asyncio.wait_for(gone.wait(), _PARENT_S)
        except TimeoutError:
            continue
    await agent.close()


def main() -> None:
    # A terminal's Ctrl-C and a supervisor's SIGTERM go to the whole group: the program ends first, with what it has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="delaycluster agent: %(message)s")
    tracing.switch_off()
    asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
