"""The CustomResourceDefinitions: names, printed columns, subresources, and their YAML as it is checked in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import yaml
from pydantic import BaseModel

from delayoperator.crds import GROUP, VERSION
from delayoperator.crds.base import Json
from delayoperator.crds.cluster import DelayCluster
from delayoperator.crds.rebalance import DelayRebalance
from delayoperator.crds.schedule import DelaySchedule
from delayoperator.crds.shard import DelayShard
from delayoperator.crds.sink import DelaySink
from delayoperator.crds.structural import structural
from delayoperator.crds.topic import DelayTopic
from delayoperator.crds.user import DelayUser

# From then on the rules of a definition may compare quantities (CEL's quantity library). The chart's kubeVersion and
# the documents say the same: tests/skeleton/test_docs.py.
OLDEST_KUBERNETES: Final = "1.29"

HEADER: Final = "# Generated from operator/delayoperator/crds by `make crds`; changes here are overwritten.\n"


@dataclass(frozen=True, slots=True)
class Column:
    """One of kubectl get's. path: JSONPath. wide: only with -o wide."""

    name: str
    path: str
    says: str
    type: str = "string"
    wide: bool = False

    def manifest(self) -> Json:
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.says}
        return {**column, "priority": 1} if self.wide else column


@dataclass(frozen=True, slots=True)
class CrdKind:
    model: type[BaseModel]
    short: str
    columns: tuple[Column, ...]
    scale: Json | None = None

    @property
    def name(self) -> str:
        return self.model.__name__

    @property
    def plural(self) -> str:
        return self.name.lower() + "s"

    @property
    def file(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"

    def manifest(self) -> Json:
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.name,
                    "listKind": f"{self.name}List",
                    "plural": self.plural,
                    "singular": self.name.lower(),
                    "shortNames": [self.short],
                    "categories": ["delay"],
                },
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "additionalPrinterColumns": [column.manifest() for column in self.columns],
                        "subresources": {"status": {}, **({"scale": self.scale} if self.scale else {})},
                        "schema": {"openAPIV3Schema": structural(self.model)},
                    }
                ],
            },
        }

    def text(self) -> str:
        return HEADER + yaml.dump(self.manifest(), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


_AGE = Column("Age", ".metadata.creationTimestamp", "Since when it is there.", "date")


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


CLUSTER: Final = CrdKind(
    DelayCluster,
    "dlc",
    (
        Column("Nodes", ".spec.nodes", "Nodes that are asked for.", "integer"),
        Column("Ready", ".status.readyNodes", "Nodes that are ready.", "integer"),
        Column("Shards", ".status.shards", "Shards of all topics.", "integer"),
        Column("Served", ".status.servedShards", "Shards whose master serves.", "integer"),
        Column("In sync", ".status.inSyncShards", "Shards that have all their copies in sync.", "integer"),
        Column("Status", _ready("reason"), "Why it is ready, or is not."),
        Column("Security", ".status.security", "Whether TLS and rights are Off, Permissive or Required."),
        _AGE,
        Column("Replicas", ".spec.replicas", "Copies of each shard.", "integer", wide=True),
        Column("Durability", ".spec.durability", "When a message counts as stored.", wide=True),
        Column("Delivery", ".spec.delivery", "Who hands messages out.", wide=True),
        Column("Version", ".status.version", "The release of the operator.", wide=True),
        Column("Image", ".status.image", "The nodes' image.", wide=True),
        Column("Message", _ready("message"), "The status in words.", wide=True),
    ),
    scale={
        "specReplicasPath": ".spec.nodes",
        "statusReplicasPath": ".status.nodes",
        "labelSelectorPath": ".status.selector",
    },
)

SHARD: Final = CrdKind(
    DelayShard,
    "dsh",
    (
        Column("Master", ".spec.master", "The node that leads."),
        Column("Replicas", ".spec.replicas", "The nodes with a copy, the master among them."),
        Column("Epoch", ".spec.epoch", "The number of the term.", "integer"),
        Column("Serving", ".status.servingEpoch", "The term that is served: less than the epoch, not yet.", "integer"),
        Column("Condition", ".status.conditions[0].type", "What is wrong; nothing when empty."),
        Column("Reason", ".status.conditions[0].reason", "Why."),
        _AGE,
        Column("In sync", ".status.inSync", "The copies that have every acknowledged message, by copy id.", wide=True),
        Column("Target", ".spec.target", "The nodes that are to have the copies.", wide=True),
        Column("Leaving", ".spec.leaving", "Copies that are about to go.", wide=True),
        Column("Resigned", ".status.resigned", "Why the master serves no more.", wide=True),
        Column("Message", ".status.conditions[0].message", "What is wrong, in words.", wide=True),
    ),
)

REBALANCE: Final = CrdKind(
    DelayRebalance,
    "drb",
    (
        Column("Cluster", ".spec.cluster", "The DelayCluster."),
        Column("State", ".status.state", "How far it is."),
        Column("Plan", ".status.plan.hash", "The plan's name, for the approval."),
        Column("Done", ".status.progress.movesDone", "Moves that are done.", "integer"),
        Column("Moves", ".status.progress.movesTotal", "Moves of the plan.", "integer"),
        _AGE,
        Column("Bytes", ".status.plan.movedBytes", "What the moves copy.", "integer", wide=True),
        Column("Peak before", ".status.plan.before.peakMessages", "The hottest node and slot.", "integer", wide=True),
        Column("Peak after", ".status.plan.after.peakMessages", "The same with every move done.", "integer", wide=True),
        Column("Approval", ".spec.approval", "Who approves; empty: as the DelayCluster says.", wide=True),
    ),
)

TOPIC: Final = CrdKind(
    DelayTopic,
    "dlt",
    (
        Column("Cluster", ".spec.cluster.name", "The DelayCluster."),
        Column("Queues", ".spec.queues", "Queues that are asked for.", "integer"),
        Column("Served", ".status.servedShards", "Shards whose master serves.", "integer"),
        Column("Pending", ".status.pending", "About how many messages wait for their due.", "integer"),
        Column("Due 1h", ".status.dueWithinHour", "About how many are due within the hour.", "integer"),
        Column("Lag", ".status.oldestUnfinished", "How long the oldest message waits for a group.", "date"),
        Column("Status", _ready("reason"), "Why it is ready, or is not."),
        _AGE,
        Column("Topic", ".spec.name", "The topic's name, where it is not the object's.", wide=True),
        Column("Of", ".spec.cluster.namespace", "The DelayCluster's namespace, where it is another one.", wide=True),
        Column("Message", _ready("message"), "The status in words.", wide=True),
    ),
)

USER: Final = CrdKind(
    DelayUser,
    "dlu",
    (
        Column("Cluster", ".spec.cluster.name", "The DelayCluster."),
        Column("Ready", _ready("status"), "Whether the cluster's nodes are told of it."),
        Column("Status", _ready("reason"), "Why, or why not."),
        _AGE,
        Column("Message", _ready("message"), "The status in words.", wide=True),
    ),
)

SCHEDULE: Final = CrdKind(
    DelaySchedule,
    "dls",
    (
        Column("Cluster", ".spec.cluster.name", "The DelayCluster."),
        Column("Topic", ".spec.topic", "The topic that it sends to."),
        Column("Status", _ready("reason"), "Whether it is armed, or why not."),
        Column("Next", ".status.nextTime", "When its next message is due."),
        Column("Fired", ".status.fired", "How often it has fired.", "integer"),
        Column("Last", ".status.lastTime", "How long ago it fired last.", "date"),
        _AGE,
        Column("Of", ".spec.cluster.namespace", "The DelayCluster's namespace, where it is another one.", wide=True),
        Column("Message", _ready("message"), "The status in words.", wide=True),
    ),
)

SINK: Final = CrdKind(
    DelaySink,
    "dlk",
    (
        Column("Cluster", ".spec.cluster.name", "The DelayCluster."),
        Column("Topic", ".spec.topic", "The topic that is delivered."),
        Column("Pods", ".status.replicas", "Pods that are there.", "integer"),
        Column("Ready", _ready("status"), "Whether it delivers."),
        Column("Status", _ready("reason"), "Why, or why not."),
        _AGE,
        Column("URL", ".spec.http.url", "Where to.", wide=True),
        Column("Message", _ready("message"), "The status in words.", wide=True),
    ),
    scale={
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
)

KINDS: Final = (CLUSTER, SHARD, REBALANCE, USER, TOPIC, SCHEDULE, SINK)
