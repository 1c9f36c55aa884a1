"""Settings of the nodes that people may want to change, in their units. Each is an option of `delaynode`."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from delayoperator.crds import limits
from delayoperator.crds.base import Duration, Int, Model, Quantity, rules


class NodeSettingsModel(Model):
    """A change of them restarts the nodes, one after the other. What is absent is as the node has it, or as its memory
    limit makes it."""

    model_config = ConfigDict(json_schema_extra=rules(*limits.NODE_SETTINGS))

    max_connections: Int | None = Field(
        None, ge=1, le=1_000_000, description="The most connections of clients to a node; absent: 10,000."
    )
    min_free: Quantity | None = Field(
        None, description="Disk that new messages leave free, such as 1Gi; at least 64Mi; absent: 256Mi."
    )
    log_segment: Quantity | None = Field(
        None,
        description="Size of the files of a shard's log, 16Mi to 1Gi; absent: 64Mi. Disk is freed a file at a time.",
    )
    connection_age: Duration | None = Field(
        None,
        description="How long a client's TLS connection lasts, 1m to 30d; absent: 1h. Certificates that were replaced "
        "count no more after it.",
    )
    window_budget: Int | None = Field(
        None,
        ge=65_536,
        le=100_000_000,
        description="Messages that a node keeps in memory because they are due within minutes, 28 bytes each; absent: "
        "4,000 for each MiB of the memory limit, or 4,000,000.",
    )
    unread: Quantity | None = Field(
        None,
        description="Memory for answers that slow clients have not read yet, 16Mi to 64Gi; absent: a quarter of the "
        "memory limit, or 256Mi.",
    )
