"""KEDA's scaler tells of a topic those who may Describe it, also where another has just been told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delaynode.server.doors.keda.service import SCALER_SERVICE
from delaynode.store.errors import Refused

from tests.auth.serving import SecuredNode, secured
from tests.auth.test_operations import DESCRIBERS, DOCUMENT, WHO

REF = keda.ScaledObjectRef(scalerMetadata={"topic": "orders", "group": "mail", "ratePerReplica": "10"})
REQUESTS = {
    "GetMetricSpec": REF,
    "GetMetrics": keda.GetMetricsRequest(scaledObjectRef=REF, metricName="replicas"),
    "IsActive": REF,
}


async def may(node: SecuredNode, method: str, name: str) -> bool:
    try:
        await node.call(method, REQUESTS[method], WHO[name], SCALER_SERVICE)
    except Refused as refused:
        if refused.reason != "PERMISSION_DENIED":
            raise
        return False
    return True


def test_the_scaler_tells_those_who_may_describe_the_topic(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method in REQUESTS:
                assert await may(node, method, "super")
                assert {name for name in WHO if await may(node, method, name)} == DESCRIBERS, method
            with pytest.raises(Refused) as caught:
                await node.stream("StreamIsActive", WHO["none"], REF, service=SCALER_SERVICE)
            assert caught.value.reason == "PERMISSION_DENIED"

    asyncio.run(run())
