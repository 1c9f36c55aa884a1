"""grpc.health.v1.Health and server reflection as methods, for an edge that has none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from delaynode.limits.budget import Answers
from delaynode.server.dispatch import parse
from delaynode.server.edge import Body, Call, Methods, Stream
from delaynode.server.rpc import EndedError

HEALTH_SERVICE, REFLECTION_SERVICE = health.SERVICE_NAME, reflection.SERVICE_NAME
STATUSES = health_pb2.HealthCheckResponse


class Health:
    """services: what can be asked about, beside the whole; all are unknown before the first tell()."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._status: int | None = None  # not told yet
        self._changed = asyncio.Event()

    def tell(self, *, serving: bool) -> None:
        status = STATUSES.SERVING if serving else STATUSES.NOT_SERVING
        if status != self._status:
            self._status = status
            self._changed.set()
            self._changed = asyncio.Event()

    def methods(self) -> Methods:
        return Methods(internal={"Check": self._check}, streams={"Watch": self._watch})

    async def _check(self, data: Body, _: Call, __: Answers) -> Body:
        if self._status is None or parse(health_pb2.HealthCheckRequest, data).service not in self._services:
            raise EndedError(grpc.StatusCode.NOT_FOUND, "")
        body: bytes = STATUSES(status=self._status).SerializeToString()
        return body

    async def _watch(self, stream: Stream) -> AsyncGenerator[Body, None]:
        service = parse(health_pb2.HealthCheckRequest, await stream.read() or b"").service
        while True:
            changed = self._changed
            known = self._status is not None and service in self._services
            yield STATUSES(status=self._status if known else STATUSES.SERVICE_UNKNOWN).SerializeToString()
            await changed.wait()


def reflection_methods(services: Iterable[str]) -> Methods:
    """Server reflection that lists these services. What asks is refused BAD_REQUEST where it is no such request."""
    servicer = ReflectionServicer(tuple(services))

    async def info(stream: Stream) -> AsyncGenerator[Body, None]:
        async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            while (data := await stream.read()) is not None:
                yield parse(reflection_pb2.ServerReflectionRequest, data)

        async with aclosing(servicer.ServerReflectionInfo(requests(), None)) as answers:
            async for answer in answers:
                yield answer.SerializeToString()

    return Methods(streams={"ServerReflectionInfo": info})
