"""externalscaler.ExternalScaler: KEDA's calls, answered from the forecast of the whole cluster.

What can't be told is an error: KEDA then does as `fallback` says. A 0 would send the workers home.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delayregistry.port import RegistryError

from delaynode.limits.budget import Answers
from delaynode.server.dispatch import Dispatch, parse
from delaynode.server.doors.calls import LaterCall
from delaynode.server.doors.keda.metadata import NODES, Asked, asked, asks_for_nodes
from delaynode.server.doors.keda.replicas import replicas_needed
from delaynode.server.edge import Body, Call, Methods, Stream
from delaynode.server.handlers.forecast import Forecasts
from delaynode.store.errors import Refused

SCALER_SERVICE: Final = "externalscaler.ExternalScaler"
METRIC: Final = "replicas"
KEPT_SECONDS = 1.0  # an answer for KEDA's calls of one round: of its own poll and of the HPA's
MAX_ADVICE_SECONDS = 900.0  # the operator says it anew every 300 s
LOOK_SECONDS = 2.0  # between two looks for a stream

Key: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Outlook:
    """active: some message waits, or comes within the horizon."""

    replicas: int
    active: bool


class ScalerService:
    """One for a node. Owned by the event loop."""

    def __init__(self, dispatch: Dispatch, forecasts: Forecasts) -> None:
        self._dispatch, self._forecasts = dispatch, forecasts
        self._kept: dict[Key, tuple[float, asyncio.Task[pb.TopicForecast]]] = {}

    def methods(self) -> Methods:
        unary = {"IsActive": self._is_active, "GetMetricSpec": self._metric_spec, "GetMetrics": self._metrics}
        return Methods(unary, {}, {"StreamIsActive": self._stream_is_active})

    async def _metric_spec(self, data: Body, call: Call, _: Answers) -> Body:
        """Without a look at the cluster: a ScaledObject whose scaler can't answer this is never begun."""
        metadata = parse(keda.ScaledObjectRef, data).scalerMetadata
        nodes = asks_for_nodes(metadata)
        self._dispatch.check("Forecast", call, "" if nodes else asked(metadata).topic)
        spec = keda.MetricSpec(metricName=NODES if nodes else METRIC, targetSize=1, targetSizeFloat=1.0)
        body: Body = keda.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString()
        return body

    async def _metrics(self, data: Body, call: Call, _: Answers) -> Body:
        request = parse(keda.GetMetricsRequest, data)
        metadata = request.scaledObjectRef.scalerMetadata
        nodes = asks_for_nodes(metadata)
        name = NODES if nodes else METRIC
        if request.metricName != name:
            raise Refused("BAD_REQUEST", f"there is no metric {request.metricName[:100]!r}; there is {name!r}")
        count = await self._nodes(call) if nodes else (await self._outlook(asked(metadata), call)).replicas
        value = keda.MetricValue(metricName=name, metricValue=count, metricValueFloat=count)
        body: Body = keda.GetMetricsResponse(metricValues=[value]).SerializeToString()
        return body

    async def _is_active(self, data: Body, call: Call, _: Answers) -> Body:
        metadata = parse(keda.ScaledObjectRef, data).scalerMetadata
        active = await self._active(metadata, call)
        body: Body = keda.IsActiveResponse(result=active).SerializeToString()
        return body

    async def _stream_is_active(self, stream: Stream) -> AsyncGenerator[Body, None]:
        """What is so at first, and each change."""
        data = await stream.read()
        if data is None:
            raise Refused("BAD_REQUEST", "the call has no request")
        metadata = parse(keda.ScaledObjectRef, data).scalerMetadata
        told: bool | None = None
        while True:
            active = await self._active(metadata, stream)
            if active is not told:
                told = active
                yield keda.IsActiveResponse(result=active).SerializeToString()
            await asyncio.sleep(LOOK_SECONDS)

    async def _active(self, metadata: Mapping[str, str], call: Call) -> bool:
        """Of nodes always, as a cluster is never scaled to 0. Raises Refused."""
        if asks_for_nodes(metadata):
            self._dispatch.check("Forecast", call)
            return True
        return (await self._outlook(asked(metadata), call)).active

    async def _nodes(self, call: Call) -> int:
        """How many nodes the operator says there should be. Raises Refused."""
        self._dispatch.check("Forecast", call)
        try:
            said = await self._dispatch.node.membership.read_advice()
        except RegistryError as error:
            raise Refused("NOT_SERVING", f"how many nodes there should be is not known: {error}") from error
        if said is None:
            why = "the DelayCluster has no spec.autoscaling, or its operator has said nothing yet"
            raise Refused("NOT_SERVING", f"how many nodes there should be is not known: {why}")
        age_s = time.time() - said.at_ms / 1_000
        if age_s > MAX_ADVICE_SECONDS:
            why = f"its operator said it last {age_s:,.0f} s ago; the limit is {MAX_ADVICE_SECONDS:.0f} s"
            raise Refused("NOT_SERVING", f"how many nodes there should be is not known: {why}")
        return said.nodes

    async def _outlook(self, wanted: Asked, call: Call) -> Outlook:
        """Raises Refused."""
        self._dispatch.check("Forecast", call, wanted.topic)
        found = await self._forecast(wanted, call)
        (group,) = found.groups
        # Queues that the group has not reached keep messages which it may skip: one worker will show.
        waiting = group.available + group.in_flight + group.waiting_retry + (group.unseen > 0)
        arrivals = np.frombuffer(found.arrivals, "<i8")
        count = replicas_needed(
            waiting, arrivals, wanted.bucket_ms / 1000, rate=wanted.rate, lead_s=wanted.lead_s, late_s=wanted.late_s
        )
        return Outlook(count, waiting + int(arrivals[-1]) > 0)

    async def _forecast(self, wanted: Asked, call: Call) -> pb.TopicForecast:
        key = wanted.topic, wanted.group, wanted.bucket_ms, wanted.buckets
        since, task = self._kept.get(key, (0.0, None))
        now = time.monotonic()
        if task is None or now - since > KEPT_SECONDS or _has_failed(task):
            self._kept = {one: kept for one, kept in self._kept.items() if now - kept[0] <= KEPT_SECONDS}
            later = LaterCall(call.identity(), call.listener(), call.peer())  # others may wait for it
            task = asyncio.create_task(self._ask(key, later))
            task.add_done_callback(_has_failed)
            self._kept[key] = now, task
        try:
            return await asyncio.shield(task)
        except Refused as refused:
            raise refused.fresh() from None

    async def _ask(self, key: Key, call: LaterCall) -> pb.TopicForecast:
        topic, group, bucket_ms, buckets = key
        request = pb.ForecastRequest(topic=topic, group=group, bucket_ms=bucket_ms, buckets=buckets)
        (found,) = (await self._forecasts.of(request, call)).topics
        return found


def _has_failed(task: asyncio.Task[pb.TopicForecast]) -> bool:
    """Also of one that nobody waits for any more, whose error would be reported."""
    return task.done() and (task.cancelled() or task.exception() is not None)
