"""A client of the wire contract alone: generated classes and grpc, nothing of the SDK, whose bugs it would share."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delaylocal import LocalCluster
from google.rpc import error_details_pb2
from grpc_status import rpc_status

SERVICE = "/delay.v1.DelayService/"
OPTIONS = [
    ("grpc.max_receive_message_length", 80 << 20),
    ("grpc.max_send_message_length", 80 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
]
CALL_SECONDS = 20.0  # no call of these tests takes so long, unless the node hangs

METHODS: dict[str, tuple[Any, Any]] = {
    "QueryRoute": (pb.QueryRouteRequest, pb.QueryRouteResponse),
    "Enqueue": (pb.EnqueueRequest, pb.EnqueueResponse),
    "Fetch": (pb.FetchRequest, pb.MessageBatch),
    "Receive": (pb.ReceiveRequest, pb.MessageBatch),
    "Ack": (pb.AckRequest, pb.AckResponse),
    "Nack": (pb.NackRequest, pb.NackResponse),
    "Extend": (pb.ExtendRequest, pb.ExtendResponse),
    "Cancel": (pb.CancelRequest, pb.CancelResponse),
    "Reschedule": (pb.RescheduleRequest, pb.RescheduleResponse),
    "ListPending": (pb.ListPendingRequest, pb.PendingBatch),
    "GetWheel": (pb.GetWheelRequest, pb.GetWheelResponse),
    "DescribeGroup": (pb.DescribeGroupRequest, pb.DescribeGroupResponse),
    "DeleteGroup": (pb.DeleteGroupRequest, pb.DeleteGroupResponse),
    "ListDeadLetters": (pb.ListDeadLettersRequest, pb.MessageBatch),
    "ResolveDeadLetters": (pb.ResolveDeadLettersRequest, pb.ResolveDeadLettersResponse),
    "PutSchedule": (schedules_pb2.PutScheduleRequest, schedules_pb2.PutScheduleResponse),
    "GetSchedule": (schedules_pb2.GetScheduleRequest, schedules_pb2.ScheduleState),
    "ListSchedules": (schedules_pb2.ListSchedulesRequest, schedules_pb2.ListSchedulesResponse),
    "PauseSchedule": (schedules_pb2.PauseScheduleRequest, schedules_pb2.ScheduleState),
    "ResumeSchedule": (schedules_pb2.PauseScheduleRequest, schedules_pb2.ScheduleState),
    "TriggerSchedule": (schedules_pb2.TriggerScheduleRequest, schedules_pb2.FireScheduleResponse),
    "BackfillSchedule": (schedules_pb2.BackfillScheduleRequest, schedules_pb2.FireScheduleResponse),
    "DeleteSchedule": (schedules_pb2.DeleteScheduleRequest, schedules_pb2.DeleteScheduleResponse),
}
NODE_METHODS: dict[str, tuple[Any, Any]] = {  # calls about a node, not about a shard
    "DescribeNode": (pb.DescribeNodeRequest, pb.NodeState),
    "AcceptClock": (pb.AcceptClockRequest, pb.AcceptClockResponse),
}
CLUSTER_METHODS: dict[str, tuple[Any, Any]] = {"Forecast": (pb.ForecastRequest, pb.ForecastResponse)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def i64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def u32(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def ints(column: bytes) -> list[int]:
    """An i64 column."""
    found: list[int] = np.frombuffer(column, "<i8").tolist()
    return found


def crc(text: str) -> int:
    return zlib.crc32(text.encode()) if text else 0


class Failure(Exception):
    """A call's error: gRPC code and, where the node gave one, ErrorInfo."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code: grpc.StatusCode = error.code()
        self.message: str = error.details() or ""
        self.reason = self.domain = ""
        self.metadata: dict[str, str] = {}
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                self.reason, self.domain, self.metadata = info.reason, info.domain, dict(info.metadata)
        super().__init__(f"{self.code.name} {self.reason}: {self.message}")


@dataclass(frozen=True)
class Msg:
    """One message to be sent. at_ms: its due; delay_ms: relative to the master's clock."""

    body: bytes = b"x"
    at_ms: int | None = None
    delay_ms: int | None = None
    key: str = ""
    tag: str = ""

    def record(self) -> bytes:
        return pb.Message(key=self.key, tag=self.tag, body=self.body, born_ms=1).SerializeToString()


@dataclass(frozen=True)
class Sent:
    """The answer to an Enqueue. due: as stored, ms."""

    uid: int
    seqs: list[int]
    due: list[int]
    duplicate: bool = False


@dataclass(frozen=True)
class Got:
    """One message out."""

    offset: int
    due_ms: int
    seq: int
    attempt: int
    message: pb.Message
    received_ms: int

    @property
    def body(self) -> bytes:
        return bytes(self.message.body)


def request(topic: str, queue: int, messages: Sequence[Msg], producer: int = 0, number: int = 0) -> pb.EnqueueRequest:
    records = [message.record() for message in messages]
    return pb.EnqueueRequest(
        topic=topic,
        queue=queue,
        count=len(messages),
        time=i64(*(m.delay_ms if m.delay_ms is not None else m.at_ms or 0 for m in messages)),
        relative=bytes(m.delay_ms is not None for m in messages),
        size=u32(*map(len, records)),
        key_hash=u32(*(crc(m.key) for m in messages)),
        tag_hash=u32(*(crc(m.tag) for m in messages)),
        records=b"".join(records),
        producer_id=producer,
        number=number,
    )


def sent(answer: pb.EnqueueResponse, messages: Sequence[Msg]) -> Sent:
    due = ints(answer.due) or [m.at_ms or 0 for m in messages]
    return Sent(answer.uid, list(range(answer.first_seq, answer.first_seq + answer.count)), due, answer.duplicate)


def rows(batch: pb.MessageBatch) -> list[Got]:
    """The rows of a batch, each column checked to have `count` rows."""
    received = now_ms()
    columns = [ints(batch.offset), ints(batch.due), ints(batch.seq)]
    sizes = np.frombuffer(batch.size, "<u4").tolist()
    attempts = np.frombuffer(batch.attempt, "<u4").tolist() or [1] * batch.count
    assert {batch.count} == {len(column) for column in (*columns, sizes, attempts)}
    ends = list(itertools.accumulate(sizes, initial=0))
    assert ends[-1] == len(batch.records)
    return [
        Got(offset, due, seq, attempt, pb.Message.FromString(batch.records[low:high]), received)
        for offset, due, seq, attempt, low, high in zip(*columns, attempts, ends[:-1], ends[1:], strict=True)
    ]


class Client:
    """Calls every method of the service, at one node. own: on a connection that no other client has."""

    def __init__(self, endpoint: str, *, own: bool = False) -> None:
        self.endpoint = endpoint
        self.channel = grpc.insecure_channel(endpoint, [*OPTIONS, ("grpc.use_local_subchannel_pool", int(own))])

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def raw(
        self, method: str, data: bytes, seconds: float = CALL_SECONDS, metadata: tuple[tuple[str, str], ...] = ()
    ) -> bytes:
        """Raises Failure."""
        try:
            answer: bytes = self.channel.unary_unary(SERVICE + method)(data, timeout=seconds, metadata=metadata)
            return answer
        except grpc.RpcError as error:
            raise Failure(error) from error

    def attempt(self, method: str, data: bytes) -> bytes | Failure:
        try:
            return self.raw(method, data)
        except Failure as failure:
            return failure

    def call(self, method: str, **fields: Any) -> Any:
        asked, answered = METHODS.get(method) or NODE_METHODS.get(method) or CLUSTER_METHODS[method]
        return answered.FromString(self.raw(method, asked(**fields).SerializeToString()))

    def stream(
        self, requests: Iterable[pb.EnqueueRequest | bytes], seconds: float = CALL_SECONDS
    ) -> Generator[Any, None, None]:
        """EnqueueStream: its answers."""
        return self._streamed("EnqueueStream", pb.EnqueueResponse, requests, seconds)

    def receive_stream(self, requests: Iterable[pb.ReceiveRequest | bytes]) -> Generator[Any, None, None]:
        """ReceiveStream: its answers."""
        return self._streamed("ReceiveStream", pb.MessageBatch, requests, CALL_SECONDS)

    def call_stream(self, *messages: Sequence[pb.Call] | bytes) -> dict[int, pb.Answer]:
        """CallStream: the answers to these messages' calls, by id, each given once."""
        asked = [one if isinstance(one, bytes) else pb.Calls(call=one) for one in messages]
        found: dict[int, pb.Answer] = {}
        for answers in self._streamed("CallStream", pb.Answers, asked, CALL_SECONDS):
            for answer in answers.answer:
                assert answer.id not in found
                found[answer.id] = answer
        return found

    def _streamed(
        self, method: str, answered: Any, requests: Iterable[Any], seconds: float
    ) -> Generator[Any, None, None]:
        data = (one if isinstance(one, bytes) else one.SerializeToString() for one in requests)
        answers = self.channel.stream_stream(SERVICE + method)(data, timeout=seconds)
        try:
            for answer in answers:
                yield answered.FromString(answer)
        except grpc.RpcError as error:
            raise Failure(error) from error
        finally:
            answers.cancel()


@dataclass
class Shard:
    """One queue of its own for a test, with short forms of the calls."""

    client: Client
    topic: str
    queue: int
    fields: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = {"topic": self.topic, "queue": self.queue}

    def at(self, client: Client) -> Shard:
        """The same queue, asked through another client."""
        return Shard(client, self.topic, self.queue)

    def call(self, method: str, **fields: Any) -> Any:
        return self.client.call(method, **self.fields, **fields)

    def request(self, *messages: Msg, producer: int = 0, number: int = 0) -> pb.EnqueueRequest:
        return request(self.topic, self.queue, messages, producer, number)

    def send(self, *messages: Msg, producer: int = 0, number: int = 0) -> Sent:
        made = self.request(*messages, producer=producer, number=number)
        answer = self.client.raw("Enqueue", made.SerializeToString())
        return sent(pb.EnqueueResponse.FromString(answer), messages)

    def receive(self, group: str = "g", **fields: Any) -> list[Got]:
        return rows(self.call("Receive", group=group, **fields))

    def waiting(self, group: str = "g", **fields: Any) -> Callable[..., list[Got]]:
        """Begin a Receive, and return once the node has it.

        The returned function waits for the answer, for so many seconds if it is told, and raises Failure.
        """
        asked = pb.ReceiveRequest(**self.fields, group=group, **fields).SerializeToString()
        self.round_trip()  # connected, so that calls go out in their order
        call = self.client.channel.unary_unary(SERVICE + "Receive").future(asked, timeout=CALL_SECONDS)
        self.round_trip()

        def answer(timeout_s: float | None = None) -> list[Got]:
            try:
                return rows(pb.MessageBatch.FromString(call.result(timeout_s)))
            except grpc.RpcError as error:
                raise Failure(error) from error

        return answer

    def round_trip(self) -> None:
        """Returns once the node has taken up what this connection sent before: it takes up calls and ends in order.

        It calls twice: the node takes up the earlier call first, but may need more turns of its event loop for it.
        """
        for _ in range(2):
            self.call("DescribeGroup")

    def receive_all(self, count: int, group: str = "g", seconds: float = 10.0, **fields: Any) -> list[Got]:
        """Receives, without acknowledging, until there are `count` messages or the time is over."""
        found: list[Got] = []
        deadline = time.monotonic() + seconds
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            found += self.receive(group, max_messages=count - len(found), wait_ms=int(left * 1000), **fields)
        return found

    def fetch(self, offset: int = 0, **fields: Any) -> list[Got]:
        return rows(self.call("Fetch", offset=offset, **fields))

    def ack(self, *ranges: tuple[int, int], group: str = "g") -> int:
        answer = self.call(
            "Ack", group=group, start=i64(*(low for low, _ in ranges)), end=i64(*(high for _, high in ranges))
        )
        return int(answer.acknowledged)

    def ack_all(self, got: Iterable[Got], group: str = "g") -> int:
        return self.ack(*sorted((one.offset, one.offset + 1) for one in got), group=group)

    def settle(self, method: str, got: Sequence[Got], group: str = "g", **fields: Any) -> Any:
        """Acknowledges, extends or ends these attempts."""
        offset, attempt = i64(*(one.offset for one in got)), u32(*(one.attempt for one in got))
        return self.call(method, group=group, offset=offset, attempt=attempt, **fields)

    def nack(self, got: Sequence[Got], backoff_ms: int, group: str = "g") -> Any:
        return self.settle("Nack", got, group, backoff_ms=backoff_ms)

    def cancel(self, message: Sent) -> list[int]:
        answer = self.call("Cancel", uid=message.uid, due=i64(*message.due), seq=i64(*message.seqs))
        return list(answer.outcome)

    def reschedule(self, message: Sent, *times: int, relative: bool = False) -> tuple[list[int], Sent]:
        """The outcomes, and the new handles."""
        answer = self.call(
            "Reschedule",
            uid=message.uid,
            due=i64(*message.due),
            seq=i64(*message.seqs),
            time=i64(*times),
            relative=bytes([relative] * len(times)),
        )
        return list(answer.outcome), Sent(message.uid, message.seqs, ints(answer.due))

    def pending(self, **fields: Any) -> list[tuple[int, int]]:
        """(due, seq) of all pending messages of the range, by pages."""
        found: list[tuple[int, int]] = []
        after = {"after_due": 0, "after_seq": 0}
        while True:
            page = self.call("ListPending", **after, **fields)
            found += zip(ints(page.due), ints(page.seq), strict=True)
            if not page.more:
                return found
            after = {"after_due": found[-1][0], "after_seq": found[-1][1]}

    def group(self, name: str = "g") -> pb.GroupState:
        answer: pb.DescribeGroupResponse = self.call("DescribeGroup", group=name)
        (state,) = answer.groups
        return state

    def wheel(self) -> pb.ShardWheel:
        answer: pb.GetWheelResponse = self.call("GetWheel")
        (shard,) = answer.shards
        return shard

    def stored(self) -> tuple[int, int]:
        """(messages pending, messages released): a refused call must not change them."""
        shard = self.wheel()
        return shard.pending, shard.released


def wait_served(cluster: LocalCluster) -> None:
    """Returns once every node answers for every shard.

    By the registry, where wait_ready() looks, a shard is served a little earlier: its master has yet to apply its log,
    and the other nodes to hear of it.
    """
    cluster.wait_ready(240)
    for endpoint in cluster.endpoints:
        with Client(endpoint) as client:
            for topic in cluster.desired.topics:
                for queue in range(topic.queues):
                    shard = Shard(client, topic.name, queue)
                    poll(f"{endpoint} answers for {topic.name}-{queue}", lambda: is_served(shard))  # noqa: B023


def is_served(shard: Shard) -> bool:
    return is_answered(lambda: shard.call("DescribeGroup"))


def is_answered(ask: Callable[[], object]) -> bool:
    """False while the shard that it asks is between two masters: a node that has come back is given its shards back."""
    try:
        ask()
    except Failure as failure:
        if failure.reason not in ("NOT_SERVING", "NOT_MASTER"):
            raise
        return False
    return True


def poll(what: str, condition: Any, seconds: float = 15.0) -> Any:
    """Returns condition()'s first true value."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
