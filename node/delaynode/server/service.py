"""delay.v1.DelayService over the node's shards.

Every call comes and leaves as bytes: a call for a shard that is served elsewhere is passed on unread, once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delayapi.slots import together
from delayapi.units import DAY_MS, HOUR_MS, format_bytes
from google.protobuf.message import Message

from delaynode.limits.budget import Answers
from delaynode.node.node import Node
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.call_stream import CallStreams
from delaynode.server.dispatch import Dispatch, ServeShard, parse, small
from delaynode.server.edge import Body, Call, Methods, Serve
from delaynode.server.handlers.consume import ConsumeCalls
from delaynode.server.handlers.enqueue import EnqueueCalls
from delaynode.server.handlers.forecast import Forecasts
from delaynode.server.handlers.node_calls import NodeCalls
from delaynode.server.handlers.pending import PendingCalls
from delaynode.server.handlers.schedules import ScheduleCalls
from delaynode.server.operations import STREAMED
from delaynode.store.errors import Refused
from delaynode.store.timer.due_window import NEVER
from delaynode.store.types import MAX_SEQ

SLOT_COLUMNS = 4  # of 8 bytes a slot
MAX_WHEEL_BYTES = 32 << 20  # slots in an answer to GetWheel


class DelayService:
    """One for a node. Served by an edge, which is given methods()."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.dispatch = Dispatch(node)
        self.enqueueing = EnqueueCalls(self.dispatch)
        self.consuming = ConsumeCalls(self.dispatch)
        self.pending = PendingCalls(self.dispatch)
        self.scheduling = ScheduleCalls(self.dispatch)
        self.nodes = NodeCalls(self.dispatch)
        self.forecasts = Forecasts(self.dispatch)

    def methods(self) -> Methods:
        consuming, pending, scheduling = self.consuming, self.pending, self.scheduling
        for_shards: dict[str, tuple[type[Message], ServeShard]] = {
            "Ack": (pb.AckRequest, small(consuming.ack)),
            "Nack": (pb.NackRequest, small(consuming.nack)),
            "Extend": (pb.ExtendRequest, small(consuming.extend)),
            "Cancel": (pb.CancelRequest, small(pending.cancel)),
            "ListPending": (pb.ListPendingRequest, pending.list_pending),
            "DescribeGroup": (pb.DescribeGroupRequest, small(consuming.describe_group)),
            "DeleteGroup": (pb.DeleteGroupRequest, small(consuming.delete_group)),
            "ListDeadLetters": (pb.ListDeadLettersRequest, consuming.list_dead_letters),
            "ResolveDeadLetters": (pb.ResolveDeadLettersRequest, small(consuming.resolve_dead_letters)),
            "PutSchedule": (schedules_pb2.PutScheduleRequest, small(scheduling.put)),
            "GetSchedule": (schedules_pb2.GetScheduleRequest, small(scheduling.get)),
            "ListSchedules": (schedules_pb2.ListSchedulesRequest, scheduling.list_page),
            "PauseSchedule": (schedules_pb2.PauseScheduleRequest, small(scheduling.pause)),
            "ResumeSchedule": (schedules_pb2.PauseScheduleRequest, small(scheduling.resume)),
            "DeleteSchedule": (schedules_pb2.DeleteScheduleRequest, small(scheduling.delete)),
        }
        calls: dict[str, Serve] = {name: self.dispatch.for_shard(name, *how) for name, how in for_shards.items()}
        for name, kind, fire in (
            ("TriggerSchedule", schedules_pb2.TriggerScheduleRequest, scheduling.trigger),
            ("BackfillSchedule", schedules_pb2.BackfillScheduleRequest, scheduling.backfill),
        ):
            calls[name] = self.dispatch.for_caller(name, kind, fire)
        calls["Reschedule"] = self.dispatch.for_caller("Reschedule", pb.RescheduleRequest, pending.reschedule)
        calls["Receive"] = self.dispatch.for_caller("Receive", pb.ReceiveRequest, consuming.receive)
        calls["Fetch"] = self.dispatch.for_caller("Fetch", pb.FetchRequest, consuming.fetch, reads=True)
        calls |= self.nodes.calls()
        calls["Forecast"] = self.forecasts.forecast
        calls |= {"QueryRoute": self._query_route, "GetWheel": self._get_wheel}
        streams = {
            "CallStream": CallStreams(self.dispatch, {name: calls[name] for name in STREAMED}).call_stream,
            "EnqueueStream": self.enqueueing.enqueue_stream,
            "ReceiveStream": consuming.receive_stream,
        }
        return Methods(calls, {"Enqueue": self.enqueueing.enqueue}, streams)

    async def _get_wheel(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(pb.GetWheelRequest, data)
        if request.slot_ms and not _fits_hours(request.slot_ms):
            raise Refused("BAD_REQUEST", f"slot_ms: {request.slot_ms:,}; expected a part of an hour, or whole hours")
        if request.topic:
            found = self.dispatch.find_host("GetWheel", request, call)
            if isinstance(found, RemoteMaster):
                forwarder = self.dispatch.forwarder
                return await forwarder.call(found.node, "GetWheel", data, call.time_remaining(), call.identity())
            hosts = [found]
        else:
            hosts = [host for host in self.node.hosts() if self.dispatch.allows("GetWheel", call, host.topic)]
        answer, size = pb.GetWheelResponse(now_ms=self.node.clock.now_ms()), 0
        for host in hosts:
            shard = await self._wheel(host, request.from_ms, request.to_ms or MAX_SEQ, request.slot_ms)
            size += SLOT_COLUMNS * len(shard.messages)
            if size > MAX_WHEEL_BYTES:
                raise Refused(
                    "ANSWER_TOO_LARGE",
                    f"the slots of {len(answer.shards) + 1} of {len(hosts)} shards have {size:,} bytes, an answer's "
                    f"limit is {format_bytes(MAX_WHEEL_BYTES)}: ask for less time, wider slots, or shard by shard",
                )
            await answers.reserve(SLOT_COLUMNS * len(shard.messages))
            answer.shards.append(shard)
        return answer.SerializeToString()

    async def _wheel(self, host: ShardHost, from_ms: int, to_ms: int, slot_ms: int) -> pb.ShardWheel:
        shard, index = host.shard, host.shard.index
        counting = index.begin_count(to_ms)
        next_due_ms = index.window.next_due()
        wheel = pb.ShardWheel(  # all as of one moment, so that it adds up
            topic=shard.identity.topic, queue=shard.identity.queue, node=self.node.config.node,
            watermark_ms=index.watermark.due, pending=index.pending, pending_bytes=index.pending_bytes,
            released=shard.queue.end, epoch=shard.epoch, log_end=shard.log_end, oldest_ms=shard.space.oldest_ms(),
            next_due_ms=0 if next_due_ms == NEVER else next_due_ms,
        )  # fmt: skip
        start, width, count = await host.off_loop(counting)
        inside = (start + width > from_ms) & (start < to_ms)
        start, width, count = together(start[inside], width[inside], count[inside], slot_ms)
        mean = wheel.pending_bytes / wheel.pending if wheel.pending else 0.0
        wheel.slot_start, wheel.slot_width = start.tobytes(), width.tobytes()
        wheel.messages = count.tobytes()
        wheel.bytes = (count * mean).astype(np.int64).tobytes()
        await host.wait_committed(wheel.log_end)
        return wheel

    async def _query_route(self, data: Body, call: Call, _: Answers) -> Body:
        request = parse(pb.QueryRouteRequest, data)
        answer = pb.QueryRouteResponse()
        if request.topic:
            self.dispatch.check("QueryRoute", call, request.topic)
            names = [request.topic]
        else:
            names = [name for name in self.node.routes.topics() if self.dispatch.allows("QueryRoute", call, name)]
        for name in names:
            answer.topics.append(self._route(name, self.node.routes.queues(name), call.listener()))
        return answer.SerializeToString()

    def _route(self, name: str, shards: list[Any], listener: str) -> pb.TopicRoute:
        """listener: that the client has come by, and comes by to other nodes."""
        cluster = self.node.routes.cluster
        topic = cluster.topic(name) if cluster else None
        horizon_ms = (cluster.horizon_days if cluster else 40) * DAY_MS
        route = pb.TopicRoute(
            topic=name,
            max_delay_ms=min(horizon_ms, topic.max_delay_ms) if topic and topic.max_delay_ms else horizon_ms,
            max_attempts=topic.max_attempts if topic else 16,
        )
        for shard in shards:
            endpoint = self.node.routes.endpoint(shard, listener)
            route.queues.add(
                queue=shard.spec.queue, uid=shard.spec.uid, epoch=shard.status.serving_epoch if shard.status else 0,
                node=shard.spec.master or "", endpoint=endpoint, readable=self.node.routes.readable(shard, listener),
            )  # fmt: skip
        return route


def _fits_hours(width_ms: int) -> bool:
    """Slots of this width end where an hour does: none would overlap one of the hour level."""
    return width_ms > 0 and (HOUR_MS % width_ms == 0 or width_ms % HOUR_MS == 0)
