"""What people may say about the Service that clients use."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import ATOMIC, Model, Text, rules
from delayoperator.crds.pod import Labels


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(StrEnum):
    CLUSTER = "Cluster"
    LOCAL = "Local"


class ClientService(Model):
    """The Service NAME-client. A change of it restarts nothing."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.SERVICE))

    type: ServiceType = Field(
        ServiceType.CLUSTER_IP, description="As of core/v1: ClusterIP, NodePort or LoadBalancer, and whom it lets in."
    )
    labels: Labels | None = Field(
        None,
        description="Labels of the Service, besides the operator's.",
        max_length=64,
        json_schema_extra=rules(limits.ours("labels")),
    )
    annotations: dict[str, Annotated[StrictStr, Field(max_length=4_096)]] | None = Field(
        None,
        description="Annotations of the Service, such as those that a cloud's load balancer reads.",
        max_length=64,
        json_schema_extra=rules(limits.ours("annotations")),
    )
    load_balancer_class: Annotated[StrictStr, Field(min_length=1, max_length=253)] | None = Field(
        None, description="With type LoadBalancer: which load balancer. Kubernetes takes no change of it."
    )
    load_balancer_source_ranges: list[Text] | None = Field(
        None,
        max_length=64,
        description="With type LoadBalancer: the addresses that it lets in, such as 203.0.113.0/24.",
        json_schema_extra=ATOMIC,
    )
    external_traffic_policy: TrafficPolicy | None = Field(
        None,
        description="With type NodePort or LoadBalancer: Local keeps clients' addresses, and sends them to "
        "the machine's own pods only.",
    )
