"""What a node's external scaler says a DelayCluster needs, asked as KEDA's metrics adapter does for an HPA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from delayapi.proto.externalscaler import externalscaler_pb2 as keda

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.forwards import forwarded_port

GET_METRICS = "/externalscaler.ExternalScaler/GetMetrics"
SECONDS = 10.0


@dataclass
class NodeScaler:
    """asked, refused: how many answers there were, and how many errors by their code."""

    channel: grpc.Channel
    cluster: ClusterUnderTest
    asked: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def nodes(self) -> float | None:
        """As many as there should be; None: an error, for which KEDA gives the HPA no number."""
        ref = keda.ScaledObjectRef(
            name=self.cluster.name, namespace=self.cluster.namespace, scalerMetadata={"metric": "nodes"}
        )
        request = keda.GetMetricsRequest(scaledObjectRef=ref, metricName="nodes")
        try:
            data = self.channel.unary_unary(GET_METRICS)(request.SerializeToString(), timeout=SECONDS)
        except grpc.RpcError as error:
            code = error.code().name
            self.refused[code] = self.refused.get(code, 0) + 1
            return None
        self.asked += 1
        (value,) = keda.GetMetricsResponse.FromString(data).metricValues
        assert value.metricValue == value.metricValueFloat
        return float(value.metricValueFloat)


@contextmanager
def node_scaler(cluster: ClusterUnderTest) -> Iterator[NodeScaler]:
    """That of its first node, which no scale-in takes away."""
    with (
        forwarded_port(cluster, f"pod/{cluster.name}-0", 7070) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield NodeScaler(channel, cluster)
