"""Which cluster an object of a team is about, and which namespaces' objects a cluster takes: shaped like Gateway API's.

A DelayTopic or DelayUser says the first, `spec.allowedNamespaces` of the DelayCluster the second: both have to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from delayregistry.model import MAX_QUEUES, MAX_QUOTA
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds import limits
from delayoperator.crds.base import ATOMIC, ATOMIC_MAP, Duration, Int, Model, rule, rules

CLUSTER_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAMESPACE: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
LABEL: Final = r"^[A-Za-z0-9./_-]*$"

FIXED_CLUSTER: Final = rule("self.cluster == oldSelf.cluster", "cluster can't be changed", field=".cluster")
WITH_SELECTOR: Final = rule(
    "(self.from == 'Selector') == has(self.selector)", "from: Selector needs a selector, and nothing else has one"
)
WITH_VALUES: Final = rule(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "In and NotIn need values, Exists and DoesNotExist have none",
)

LabelText = Annotated[StrictStr, Field(pattern=LABEL, max_length=317)]


class ClusterReference(Model):
    """A DelayCluster."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=limits.MAX_NAME, pattern=CLUSTER_NAME)] = Field(
        description="The DelayCluster's name."
    )
    namespace: Annotated[StrictStr, Field(pattern=NAMESPACE, max_length=63)] | None = Field(
        None, description="Its namespace, which has to allow this one (spec.allowedNamespaces). Absent: this one."
    )


class AllowedFrom(StrEnum):
    SAME = "Same"
    ALL = "All"
    SELECTOR = "Selector"


class LabelOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class LabelRequirement(Model):
    """A LabelSelectorRequirement of meta/v1."""

    model_config = ConfigDict(json_schema_extra=rules(WITH_VALUES))

    key: LabelText = Field(min_length=1, description="The label's key.")
    operator: LabelOperator = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: list[LabelText] | None = Field(
        None, max_length=64, description="Of In and NotIn.", json_schema_extra=ATOMIC
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case LabelOperator.EXISTS:
                return self.key in labels
            case LabelOperator.DOES_NOT_EXIST:
                return self.key not in labels
            case LabelOperator.IN:
                return labels.get(self.key) in (self.values or ())
            case LabelOperator.NOT_IN:
                return labels.get(self.key) not in (self.values or ())


class NamespaceSelector(Model):
    """A LabelSelector of meta/v1; {} is all namespaces. All that it asks for has to hold."""

    match_labels: dict[str, LabelText] | None = Field(
        None, max_length=64, description="Labels that the namespace has.", json_schema_extra=ATOMIC_MAP
    )
    match_expressions: list[LabelRequirement] | None = Field(
        None, max_length=64, description="What else holds for its labels.", json_schema_extra=ATOMIC
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        wanted = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in wanted) and all(
            it.matches(labels) for it in self.match_expressions or ()
        )


class NamespaceLimits(Model):
    """What the DelayTopics of one other namespace may ask for, all together. Where a quota is limited, each of them has
    to say its own. What is accepted already stays when a limit is lowered."""

    queues: Int | None = Field(
        None, ge=1, le=MAX_QUEUES, description="Queues, those of topics that were left behind included."
    )
    pending_messages: Int | None = Field(None, ge=1, le=MAX_QUOTA, description="The sum of quotas.pendingMessages.")
    pending_bytes: Int | None = Field(None, ge=1, le=MAX_QUOTA, description="The sum of quotas.pendingBytes.")
    enqueue_per_second: Int | None = Field(None, ge=1, le=MAX_QUOTA, description="The sum of quotas.enqueuePerSecond.")
    retention: Duration | None = Field(
        None, description="The longest retention and dlqRetention of a topic, such as 7d: what was released takes disk."
    )


class AllowedNamespaces(Model):
    """Whose DelayTopics and DelayUsers count for the cluster."""

    model_config = ConfigDict(json_schema_extra=rules(WITH_SELECTOR))

    from_: AllowedFrom = Field(
        AllowedFrom.SAME,
        alias="from",
        description="Same: the cluster's own namespace. All: every namespace. Selector: those that the selector "
        "matches, and the cluster's own.",
    )
    selector: NamespaceSelector | None = Field(
        None, description="Namespaces by their labels. The operator needs the right to get namespaces for it."
    )
    limits: NamespaceLimits | None = Field(
        None, description="What the topics of each other namespace may ask for. Absent: no limits."
    )


def allows(allowed: AllowedNamespaces | None, labels: Mapping[str, str] | None) -> bool | None:
    """Whether another namespace than the cluster's is allowed. labels: the namespace's; None: not known. Returns None
    where that would have to be known."""
    if allowed is None or allowed.from_ is AllowedFrom.SAME:
        return False
    if allowed.from_ is AllowedFrom.ALL:
        return True
    return None if labels is None or allowed.selector is None else allowed.selector.matches(labels)
