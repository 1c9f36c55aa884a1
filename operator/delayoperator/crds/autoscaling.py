"""DelayCluster.spec.autoscaling: what a node can do, and how far ahead the operator looks for nodes."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from delayoperator.crds import limits
from delayoperator.crds.base import Duration, Int, Model, rules


class Autoscaling(Model):
    """How many nodes the load to come needs, in status.autoscaling. An autoscaler (a ScaledObject of KEDA with the
    metric `nodes`) follows that through the scale subresource; the operator changes no `nodes` itself."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.AUTOSCALING))

    messages_per_second: Int = Field(
        ge=1,
        le=100_000_000,
        description="Messages a second that a node takes and releases, with the cluster's copies: what `delayctl "
        "bench` shows for the cluster, over its nodes.",
    )
    horizon: Duration = Field(
        "6h",
        description="How far ahead the load is looked at. More nodes are asked for as soon as a herd is in it, fewer "
        f"only if all of it stays quiet: {limits.AUTOSCALING_WORDS['horizon']}.",
    )
    settle: Duration = Field(
        "1h",
        description="For how long nothing may have moved or changed before there may be fewer nodes: "
        f"{limits.AUTOSCALING_WORDS['settle']}.",
    )
    pod_start: Duration = Field(
        "2m",
        description="How long a new node takes from being asked for to being ready, a new machine for it included: "
        f"{limits.AUTOSCALING_WORDS['podStart']}.",
    )
    max_lateness: Duration = Field(
        "1m",
        description="How late the last message of a herd with one due time may be released: "
        f"{limits.AUTOSCALING_WORDS['maxLateness']}. Less asks for more nodes.",
    )
