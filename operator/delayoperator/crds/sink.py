"""DelaySink: a topic delivered by HTTP, to NATS or to Kafka, by pods that the operator makes.

The schema has the shape alone: what a value means is judged by `delaysink.settings`, as the process itself does it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from delaysink.settings import (
    MAX_ALLOWED,
    MAX_ATTEMPTS,
    MAX_CONCURRENCY,
    MAX_HEADERS,
    ContentMode,
    FromMessage,
    KafkaMechanism,
)
from delaysink.url import MAX_URL, MAX_VALUE, METHODS
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import (
    ATOMIC,
    TOPIC_NAME,
    Bool,
    Duration,
    Int,
    Model,
    ResourceAmount,
    Text,
    list_map,
    rule,
    rules,
)
from delayoperator.crds.status import ConditionModel
from delayoperator.crds.tenancy import CLUSTER_NAME, FIXED_CLUSTER

MAX_REPLICAS = 100
MAX_SINK_NAME = 50  # its pods' names are longer
_SECRET_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
_HOST_PORT = r"^[^,]+:[0-9]+$"
_SERVER = r"^(nats|tls)://[!-~]+$"
_NAMED = rule(
    f"self.metadata.name.size() <= {MAX_SINK_NAME} && self.metadata.name.matches('^[a-z0-9-]+$')",
    f"a DelaySink's name has at most {MAX_SINK_NAME} of a-z, 0-9 and '-'",
)


_ONE_TARGET = rule(
    "[has(self.http), has(self.nats), has(self.kafka)].filter(it, it).size() == 1", "it has one of http, nats and kafka"
)


class SinkReason(StrEnum):
    """Why a DelaySink is Ready, or is not."""

    DELIVERING = "Delivering"
    PAUSED = "Paused"  # spec.paused
    GONE = "Gone"  # the receiver answered 410; a change of the spec tries it again
    CIRCUIT_OPEN = "CircuitOpen"  # deliveries in a row failed; one is tried at a time
    SECRET_UNUSABLE = "SecretUnusable"
    NOT_REACHABLE = "NotReachable"
    CLUSTER_REFUSES = "ClusterRefuses"  # no such topic, no right to it, or no node that answers
    STARTING = "Starting"  # no pod has reported yet
    INVALID_SPEC = "InvalidSpec"  # what was accepted before goes on
    NAME_TAKEN = "NameTaken"  # an object of a needed name is somebody else's
    NOT_APPLIED = "NotApplied"  # the API server did not take its objects


class SinkCluster(Model):
    """The DelayCluster that has the topic."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=limits.MAX_NAME, pattern=CLUSTER_NAME)] = Field(
        description="The DelayCluster's name; it is in the sink's own namespace."
    )


class SecretKeyModel(Model):
    """One key of a Secret of the sink's namespace."""

    name: Annotated[StrictStr, Field(pattern=_SECRET_NAME, max_length=253)] = Field(description="The Secret's name.")
    key: Annotated[StrictStr, Field(pattern=_SECRET_KEY, max_length=253)] = Field(description="The key in it.")


class SecretSource(Model):
    """Where a secret is. The sink's pods mount it; the operator never reads it."""

    secret: SecretKeyModel = Field(description="The Secret and its key.")


class HttpSinkModel(Model):
    """Where messages go by HTTP, and how."""

    url: Annotated[StrictStr, Field(max_length=MAX_URL)] | None = Field(
        None, description="Where to: https:// or http://. Absent: each message says it, with fromMessage: [Url]."
    )
    method: Annotated[StrictStr, Field(pattern=f"^({'|'.join(METHODS)})$", max_length=8)] = Field(
        "POST", description="The method: POST, PUT, PATCH, DELETE or GET."
    )
    mode: ContentMode = Field(
        ContentMode.BINARY,
        description="Binary: a CloudEvent with its attributes as headers. Structured: a CloudEvent as one JSON object. "
        "Plain: the message's body alone.",
    )
    headers: dict[str, Annotated[StrictStr, Field(max_length=MAX_VALUE)]] | None = Field(
        None, max_length=MAX_HEADERS, description="Added to each request. Secrets go in authorization."
    )
    content_type: Annotated[StrictStr, Field(max_length=256)] = Field(
        "application/octet-stream", description="Of bodies whose message has no property content-type."
    )
    source: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' source; absent: urn:delaycluster:CLUSTER:TOPIC."
    )
    type: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' type; absent: io.delaycluster.message."
    )
    timeout: Duration = Field("15s", description="How long an answer may take; 10m at most.")
    signing: SecretSource | None = Field(
        None,
        description="Signs each request as Standard Webhooks does: whsec_ and 24 to 64 bytes in base64; two with a "
        "space between while one replaces the other.",
    )
    authorization: SecretSource | None = Field(
        None, description="The header Authorization, such as Bearer ..., for the sink's own URL alone."
    )
    ca: SecretSource | None = Field(
        None, description="Whom to trust with the receiver's certificate, PEM; absent: public authorities."
    )
    allow: list[Annotated[StrictStr, Field(max_length=253)]] | None = Field(
        None,
        max_length=MAX_ALLOWED,
        description="Addresses besides public ones: networks such as 10.1.0.0/16, host names, and *. with a domain.",
        json_schema_extra=ATOMIC,
    )
    from_message: list[FromMessage] | None = Field(
        None,
        max_length=len(FromMessage),
        description="What a message's properties webhook-url, webhook-method and webhook-header-NAME may say.",
        json_schema_extra=ATOMIC,
    )


class NatsSinkModel(Model):
    """To which stream of NATS JetStream messages go, as CloudEvents with Nats-Msg-Id."""

    servers: list[Annotated[StrictStr, Field(pattern=_SERVER, max_length=263)]] = Field(
        min_length=1, max_length=16, description="Such as nats://nats.example.com:4222.", json_schema_extra=ATOMIC
    )
    subject: Annotated[StrictStr, Field(max_length=255)] | None = Field(
        None, description="Of a stream; without wildcards. Absent: the topic's name."
    )
    source: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' source; absent: urn:delaycluster:CLUSTER:TOPIC."
    )
    type: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' type; absent: io.delaycluster.message."
    )
    credentials: SecretSource | None = Field(None, description="A .creds file; absent: none is shown.")
    timeout: Duration = Field("10s", description="How long NATS may take to store it; 10m at most.")


class KafkaSaslModel(Model):
    """How the sink proves to Kafka who it is."""

    mechanism: KafkaMechanism = Field(
        KafkaMechanism.SCRAM_SHA_512, description="Plain (with tls alone), ScramSha256 or ScramSha512."
    )
    username: Annotated[StrictStr, Field(min_length=1, max_length=512)] = Field(
        description="The user's name, as Kafka knows it."
    )
    password: SecretSource = Field(description="The user's password.")


class KafkaSinkModel(Model):
    """To which topic of Kafka messages go, as CloudEvents."""

    servers: list[Annotated[StrictStr, Field(pattern=_HOST_PORT, max_length=261)]] = Field(
        min_length=1, max_length=16, description="Such as kafka.example.com:9092.", json_schema_extra=ATOMIC
    )
    topic: Annotated[StrictStr, Field(min_length=1, max_length=249)] | None = Field(
        None, description="Kafka's topic; absent: of the same name."
    )
    source: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' source; absent: urn:delaycluster:CLUSTER:TOPIC."
    )
    type: Annotated[StrictStr, Field(max_length=512)] | None = Field(
        None, description="CloudEvents' type; absent: io.delaycluster.message."
    )
    tls: Bool = Field(False, description="Whether Kafka's listener has TLS.")
    ca: SecretSource | None = Field(
        None, description="Whom to trust with Kafka's certificates, PEM; absent: public authorities."
    )
    sasl: KafkaSaslModel | None = Field(None, description="Who the sink is; absent: it does not say.")
    timeout: Duration = Field("15s", description="How long Kafka may take to store it; 10m at most.")


class SinkDeadLetters(Model):
    """When a message is given up, and where it goes then."""

    topic: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] | None = Field(
        None, description="A topic that gets them, with status and answer as properties; absent: the group has them."
    )
    max_attempts: Int = Field(
        MAX_ATTEMPTS, ge=1, le=MAX_ATTEMPTS, description="After so many attempts, or the topic's maxAttempts if less."
    )


class SinkResources(Model):
    """Of each pod's container, as core/v1 has them."""

    requests: dict[str, ResourceAmount] | None = Field(None, max_length=16, description="What it is sure to get.")
    limits: dict[str, ResourceAmount] | None = Field(None, max_length=16, description="What it gets at most.")


class DelaySinkSpec(Model):
    """What is delivered, and where to."""

    model_config = ConfigDict(json_schema_extra=rules(FIXED_CLUSTER, _ONE_TARGET))

    cluster: SinkCluster = Field(description="The DelayCluster that has the topic. Can't be changed.")
    topic: Annotated[StrictStr, Field(pattern=TOPIC_NAME, max_length=50)] = Field(description="The topic.")
    group: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = Field(
        None, description="The consumer group; absent: the sink's name. Another group gets the messages again."
    )
    tags: list[Annotated[StrictStr, Field(max_length=255)]] | None = Field(
        None, max_length=64, description="The group's tag filter; absent: all messages.", json_schema_extra=ATOMIC
    )
    http: HttpSinkModel | None = Field(None, description="Where messages go by HTTP, and how.")
    nats: NatsSinkModel | None = Field(None, description="To which stream of NATS they go instead.")
    kafka: KafkaSinkModel | None = Field(None, description="To which topic of Kafka they go instead.")
    max_concurrency: Int = Field(
        32, ge=1, le=MAX_CONCURRENCY, description="How many requests of one pod may be under way at once."
    )
    dead_letters: SinkDeadLetters | None = Field(None, description="When a message is given up, and where it goes.")
    paused: Bool = Field(False, description="Whether it stops; messages wait for it, within the topic's retention.")
    replicas: Int = Field(1, ge=0, le=MAX_REPLICAS, description="Pods; they share the group's messages.")
    resources: SinkResources | None = Field(
        None, description="Of each pod's container; absent: 50m of CPU and 96Mi are asked for."
    )


class DelaySinkStatus(Model):
    """What its pods say."""

    observed_generation: Int | None = Field(None, ge=0, description="The metadata.generation that this is about.")
    conditions: list[ConditionModel] | None = Field(
        None,
        max_length=32,
        description="Ready: each pod that has reported delivers.",
        json_schema_extra=list_map("type"),
    )
    replicas: Int | None = Field(None, ge=0, description="Pods that are there.")
    selector: Text | None = Field(None, description="What chooses its pods, for kubectl scale and autoscalers.")


class DelaySink(Model):
    """Delivers a topic's due messages by HTTP, to NATS or to Kafka, as a consumer group in pods of its own. What fails
    goes back into the wheel. By HTTP it is signed, and goes only to addresses that the sink may reach.
    """

    model_config = ConfigDict(json_schema_extra=rules(_NAMED))

    spec: DelaySinkSpec = Field(description="What is delivered, and where to.")
    status: DelaySinkStatus | None = Field(None, description="What its pods say.")
