"""`delaycluster://` as Celery's broker: a kombu transport. Importing this module makes the scheme known.

    import delayclient.celery
    app = Celery("shop", broker="delaycluster://127.0.0.1:7070")

A task with `eta` or `countdown`, and a retry, waits on the cluster's disks and reaches a worker when it is due. A queue
is a topic, and all its workers are one group. A task's id is its message's key, by which revoke() cancels it.
"""

from __future__ import annotations

import json
import math
import select
from collections.abc import Callable
from typing import Any, Final, TypeVar

from celery import current_app
from celery.utils.time import maybe_iso8601, maybe_make_aware
from delayapi.durations import duration_ms
from kombu.exceptions import ChannelError
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, virtual

from delayclient.agent.client import AgentLost, ClusterRefused, Link, connect

DEFAULT_PORT: Final = 7070
DEFAULTS: Final = {"topic_prefix": "", "group": "celery", "lease": "60s"}
ACCESS: Final = ("tls", "token_file", "token")
NO_CONTROL: Final = "delaycluster:// has no remote control but revoke"
_log: Final = get_logger(__name__)
T = TypeVar("T")


class NotReached(ConnectionError):
    """The cluster can't be reached, or can't answer now: kombu connects again and repeats what it did."""


class NotTaken(ChannelError):
    """The cluster refused it, and repeating it has no use: docs/errors.md has the reasons."""


class QoS(virtual.QoS):
    """Settles messages by their delivery tags, which are the agent's."""

    def ack(self, delivery_tag: int) -> None:
        self.channel.settle("ack", delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """It comes again after the group's backoff, or is a dead letter at once."""
        self.channel.settle("retry" if requeue else "dead", delivery_tag, "rejected by the worker, whose log says why")
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Nothing: the agent gives back what is not settled when the channel is closed."""
        return []


def check_headers(found: dict[str, Any]) -> None:
    """What Celery looks at only once the task has its place in the pool. Raises ValueError, TypeError.

    An error there ends the worker, or loses that place: after as many as the pool has processes the worker works on
    nothing any more.
    """
    limits = found.get("timelimit")
    soft, hard = (None, None) if limits is None else limits
    for limit in (soft, hard):
        if limit is not None and not isinstance(limit, int | float):
            raise ValueError(f"timelimit {limits!r}: two numbers of seconds or null are expected")
    for name, kind, expected in (
        ("id", (str, int), "a text"), ("stamped_headers", list, "a list of texts"), ("stamps", dict, "an object"),
    ):  # fmt: skip
        value = found.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} {value!r}: {expected} or null is expected")
    for stamp in found.get("stamped_headers") or ():
        if not isinstance(stamp, str):
            raise ValueError(f"stamped_headers has {stamp!r}: a list of texts is expected")


class Channel(virtual.Channel):
    """One link to the agent for calls, and one for deliveries once it consumes."""

    QoS = QoS
    supports_fanout = True  # so that _put_fanout is asked; workers are told by Transport.implements that there is none

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._calls: Link | None = None
        self.deliveries: Link | None = None
        self._queues: dict[str, str] = {}  # by topic
        self._no_ack: set[str] = set()

    # ------------------------------------------------------------------------------------------ publish

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Returns once the message is stored. Raises NotReached, NotTaken."""
        headers = message.get("headers") or {}
        call = {"op": "send", "topic": self._topic(queue), "key": headers.get("id"), "tag": headers.get("task")}
        if headers.get("eta"):
            call["at"] = due_ms(headers["eta"])
        self._call(call, json.dumps(message).encode())

    def _inplace_augment_message(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        """A text stays text, so that any client of the cluster can read it and write it."""
        plain = message["content-encoding"] == "utf-8" and "compression" not in message["headers"]
        self.body_encoding = "utf-8" if plain else "base64"
        if plain and isinstance(message["body"], bytes):
            message["body"] = message["body"].decode()
        super()._inplace_augment_message(message, exchange, routing_key)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        """Workers hear no broadcasts. That of a revocation is a cancel, whose answer is certain."""
        command = self.Message(message, channel=self).payload
        method, arguments = command.get("method"), command.get("arguments") or {}
        if method != "revoke":
            raise NotTaken(f"{NO_CONTROL}: {method!r} reaches no worker")
        ids = arguments["task_id"]
        for task_id in ids if isinstance(ids, (list, tuple, set)) else [ids]:
            prefix = self.connection.option("topic_prefix")
            if not self._call({"op": "cancel", "key": task_id, "prefix": prefix})["cancelled"]:
                _log.warning("revoke: task %s is not pending: a worker has it, or it has ended", task_id)

    # ------------------------------------------------------------------------------------------ consume

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        if self.deliveries is None:
            self.deliveries = self.connection.open_link()
            self._send_room()
        topic, option = self._topic(queue), self.connection.option
        request = {"op": "consume", "topic": topic, "group": option("group"), "lease_ms": duration_ms(option("lease"))}
        reaching(self.deliveries.call, request)
        self._queues[topic] = queue
        if no_ack:
            self._no_ack.add(topic)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.connection.watch(self.deliveries)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and self.deliveries is not None:
            self.deliveries.send({"op": "leave", "topic": self._topic(queue)})

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._send_room()

    def _send_room(self) -> None:
        if self.deliveries is not None:
            reaching(self.deliveries.send, {"op": "room", "messages": self.qos.prefetch_count})

    def deliver(self, timeout_s: float) -> bool:
        """Hands one message to its consumer; false: none came in time."""
        assert self.deliveries is not None
        found = reaching(self.deliveries.delivery, timeout_s)
        if found is None:
            return False
        header, body = found
        tag = header["tag"]
        queue = self._queues.get(header["topic"])
        if queue not in self.connection._callbacks:  # it was cancelled meanwhile
            self.settle("give_back", tag)
            return True
        try:
            message = json.loads(body)
            properties = message["properties"]
            properties["delivery_tag"] = tag
            properties.setdefault("delivery_info", {})["redelivered"] = header["attempt"] > 1
            check_headers(message["headers"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.error("%s: not a message of Celery's, it is a dead letter now: %r", header["handle"], error)
            self.settle("dead", tag, f"not a message of Celery's: {error!r}")
            return True
        if header["topic"] in self._no_ack:
            self.settle("ack", tag)
        try:
            self.connection._callbacks[queue](message)
        except (*Transport.connection_errors, *Transport.channel_errors):
            raise
        except Exception as error:  # Celery raises at some headers that are no task's, and would end its worker by them
            _log.exception("%s: the worker can't take this message, it comes again", header["handle"])
            self.settle("retry", tag, repr(error))
            self.qos._delivered.pop(tag, None)
        return True

    def settle(self, op: str, tag: int, reason: str = "") -> None:
        if self.deliveries is None:
            raise NotReached("the channel is closed: what it did not acknowledge is delivered again")
        reaching(self.deliveries.send, {"op": op, "tags": [tag], "reason": reason})

    # -------------------------------------------------------------------------------------------- queues

    def _size(self, queue: str) -> int:
        """What is due and no worker has."""
        call = {"op": "size", "topic": self._topic(queue), "group": self.connection.option("group")}
        size: int = self._call(call)["size"]
        return size

    def _purge(self, queue: str) -> int:
        """Cancels what is pending. What is due already stays: workers get it. By a link of its own, since it takes a
        while where a million tasks wait, and other greenlets may use the channel meanwhile."""
        link = self.connection.open_link()
        try:
            purged: int = reaching(link.call, {"op": "purge", "topic": self._topic(queue)})[0]["purged"]
        finally:
            link.close()
        return purged

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        raise NotTaken(f"queue {queue!r} is a topic: it is deleted where the cluster's topics are declared")

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        raise NotTaken(f"queue {queue!r}: single messages can't be got by delaycluster://, only consumed")

    def _queue_bind(self, *_: Any) -> None:
        """For brokers that keep their bindings; the base class has remembered it for this process."""

    def _topic(self, queue: str) -> str:
        if queue.endswith(".pidbox"):
            raise NotTaken(f"{NO_CONTROL}: nobody would answer to {queue!r}")
        return f"{self.connection.option('topic_prefix')}{queue}"

    def _call(self, request: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        if self._calls is None or not self._calls.usable:
            self._calls = self.connection.open_link()
        answer: dict[str, Any] = reaching(self._calls.call, request, payload)[0]
        return answer

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
                if self.deliveries is not None and self.deliveries.usable:
                    self.deliveries.call({"op": "close"})
            except AgentLost:
                pass  # leases end by themselves
            finally:
                for link in filter(None, (self._calls, self.deliveries)):
                    link.close()
                self._calls = self.deliveries = None


class Transport(virtual.Transport):
    """Connections of one process to a cluster share its agent."""

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = driver_name = "delaycluster"
    connection_errors = recoverable_connection_errors = (NotReached, AgentLost)
    channel_errors = (NotTaken,)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=frozenset(["direct", "topic"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._loop: Any = None
        options = client.transport_options
        # kombu and Celery add options of their own.
        self._options = DEFAULTS | {name: options[name] for name in DEFAULTS if name in options}
        self._access = {name: options[name] for name in ACCESS if name in options}
        self._endpoint = f"{client.hostname or 'localhost'}:{client.port or DEFAULT_PORT}"

    def option(self, name: str) -> str:
        return str(self._options[name])

    def driver_version(self) -> str:
        return "1"

    def open_link(self) -> Link:
        return reaching(connect, [self._endpoint], self._access)

    def establish_connection(self) -> Transport:
        """Raises NotReached, NotTaken."""
        link = self.open_link()
        try:
            reaching(link.call, {"op": "check"})
        finally:
            link.close()
        super().establish_connection()
        return self

    # ----------------------------------------------------------------------------------------- deliveries

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        self._loop = loop
        for channel in self._consuming():
            self.watch(channel.deliveries)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        for channel in self._consuming():
            loop.remove_reader(channel.deliveries)

    def watch(self, link: Link | None) -> None:
        if self._loop is not None and link is not None:
            self._loop.add_reader(link.fileno(), self.on_readable)
            self._loop.call_soon(self.on_readable)  # what came with a call's answer is not in the socket any more

    def on_readable(self) -> None:
        while self._deliver_one():
            pass

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        if self._deliver_one():
            return
        links = [channel.deliveries for channel in self._consuming()]
        select.select(links, [], [], timeout)
        if not self._deliver_one():
            raise TimeoutError

    def _deliver_one(self) -> bool:
        return any(channel.deliver(0) for channel in self._consuming())

    def _consuming(self) -> list[Any]:
        return [channel for channel in self.channels if channel.deliveries is not None]


def due_ms(eta: str) -> int:
    """A task's eta, ISO text, in ms since 1970 UTC, rounded up. Without a zone it is the application's."""
    due_s: float = maybe_make_aware(maybe_iso8601(eta), current_app.timezone).timestamp()
    return math.ceil(due_s * 1000)


def reaching(call: Callable[..., T], *args: Any) -> T:
    """The call's result. Raises NotReached, NotTaken."""
    try:
        return call(*args)
    except ClusterRefused as error:
        raise (NotReached if error.retryable else NotTaken)(str(error)) from None
    except AgentLost as error:
        raise NotReached(str(error)) from None


TRANSPORT_ALIASES["delaycluster"] = f"{__name__}:Transport"
