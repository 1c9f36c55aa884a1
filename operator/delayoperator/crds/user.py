"""DelayUser: who calls a cluster, how it proves that, and what it may do; shaped like Strimzi's KafkaUser.

The operator compiles a cluster's users into its security document (security_document.py), which nodes follow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from delayregistry.model import MAX_QUOTA
from delayregistry.security import MAX_GROUP_CHARS, Operation
from pydantic import ConfigDict, Field, StrictStr

from delayoperator.crds.base import ATOMIC, Int, Model, Quantity, Text, list_map, rule, rules
from delayoperator.crds.status import ConditionModel, Timestamp
from delayoperator.crds.tenancy import FIXED_CLUSTER, NAMESPACE, ClusterReference

ACCOUNT = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
ISSUER = r"^[!-\"$-~]+$"  # without '#', which ends it in a principal: no other issuer and subject give the same one
CERTIFICATE = r"^(spiffe://|dns:)[!-~]+$"
SHA256 = r"^[0-9a-f]{64}$"
TOPIC_PART = r"^[a-z0-9-]*$"
MAX_IDENTITIES = 64  # of each kind
MAX_USER_RULES = 200  # delayregistry.security.MAX_RULES

_ONE_PATTERN = rule(
    "has(self.literal) != has(self.prefix)", "it has either literal or prefix; the prefix '' stands for all"
)


class UserReason(StrEnum):
    """Why a DelayUser is Ready, or is not."""

    IN_FORCE = "InForce"
    NOT_APPLIED = "NotApplied"  # the cluster's security document does not have it yet
    DOCUMENT_TOO_LARGE = "DocumentTooLarge"  # the last document that was not too large stays in force
    INVALID_SPEC = "InvalidSpec"
    IDENTITY_TAKEN = "IdentityTaken"  # another DelayUser of the cluster is known by it
    # Of a user of another namespace than the cluster's:
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"  # spec.allowedNamespaces of the cluster does not have it
    NAMESPACE_UNKNOWN = "NamespaceUnknown"  # the operator can't read the namespace's labels
    IDENTITY_NOT_ALLOWED = "IdentityNotAllowed"  # it is not a ServiceAccount of its own namespace
    RULES_LEFT_OUT = "RulesLeftOut"  # of topics that are not its namespace's; the other rules are in force


class ServiceAccountIdentity(Model):
    """A ServiceAccount, by its projected token for the cluster's audience."""

    name: Annotated[StrictStr, Field(pattern=ACCOUNT, max_length=253)] = Field(description="The ServiceAccount's name.")
    namespace: Annotated[StrictStr, Field(pattern=NAMESPACE, max_length=63)] | None = Field(
        None, description="The ServiceAccount's namespace; absent: the DelayUser's."
    )


class OidcIdentity(Model):
    """A user of an OIDC provider, by its token."""

    issuer: Annotated[StrictStr, Field(pattern=ISSUER, max_length=256)] = Field(
        description="The provider, as its tokens name it (iss), such as https://login.example.com."
    )
    subject: Annotated[StrictStr, Field(min_length=1, max_length=240)] = Field(
        description="The user, as the claim says that the cluster goes by: sub, unless it is told otherwise."
    )


class TokenIdentity(Model):
    """A static token, of which nothing is kept but its hash. Two at a time let one follow the other."""

    sha256: Annotated[StrictStr, Field(pattern=SHA256, max_length=64)] = Field(
        description="The token's SHA-256, 64 of 0-9 and a-f: printf %s TOKEN | sha256sum."
    )
    expires_at: Timestamp | None = Field(None, description="From then on it is refused; absent: never.")


class NameMatch(Model):
    """A name, or all names that begin in one way. No character in either stands for others."""

    model_config = ConfigDict(json_schema_extra=rules(_ONE_PATTERN))


class TopicMatch(NameMatch):
    """Topics: one by its name, or all that begin with a prefix."""

    literal: Annotated[StrictStr, Field(pattern=TOPIC_PART, max_length=50)] | None = Field(
        None, description="The topic's name."
    )
    prefix: Annotated[StrictStr, Field(pattern=TOPIC_PART, max_length=50)] | None = Field(
        None, description="What the topics' names begin with; '' for all topics."
    )


class GroupMatch(NameMatch):
    """Groups: one by its name, or all that begin with a prefix."""

    literal: Annotated[StrictStr, Field(max_length=MAX_GROUP_CHARS)] | None = Field(
        None, description="The group's name."
    )
    prefix: Annotated[StrictStr, Field(max_length=MAX_GROUP_CHARS)] | None = Field(
        None, description="What the groups' names begin with; '' for all groups."
    )


class UserRule(Model):
    """Allows operations on topics, and on groups of theirs. Rules only allow: what none allows is refused."""

    operations: list[Operation] = Field(
        min_length=1,
        max_length=len(Operation),
        description="Produce, Cancel, Browse and Describe are of topics; Consume and ManageGroup of topics and groups; "
        "Admin is of the whole cluster, in a rule of its own. Any of a topic includes its Describe.",
        json_schema_extra=ATOMIC,
    )
    topic: TopicMatch | None = Field(None, description="Which topics; every rule but Admin's says it.")
    group: GroupMatch | None = Field(None, description="Which groups; rules for Consume and ManageGroup say it.")


class UserQuotasModel(Model):
    """What each of its principals may send to each node, and have there; absent: no limit of its own."""

    enqueue_per_second: Int | None = Field(None, ge=1, le=MAX_QUOTA, description="Messages a second.")
    enqueue_bytes_per_second: Quantity | None = Field(None, description="Bytes a second, such as 10Mi.")
    connections: Int | None = Field(
        None,
        ge=1,
        le=MAX_QUOTA,
        description="Connections by which it calls. A client has one to each node, and two "
        "while its certificates change.",
    )


class DelayUserSpec(Model):
    """Who it is and what it may do."""

    model_config = ConfigDict(json_schema_extra=rules(FIXED_CLUSTER))

    cluster: ClusterReference = Field(
        description="The DelayCluster. Where it is in another namespace, this user can only be ServiceAccounts of its "
        "own namespace, and its rules count for topics of its own namespace's DelayTopics. Can't be changed."
    )
    service_accounts: list[ServiceAccountIdentity] | None = Field(
        None, max_length=MAX_IDENTITIES, description="It is these ServiceAccounts.", json_schema_extra=ATOMIC
    )
    oidc: list[OidcIdentity] | None = Field(
        None, max_length=MAX_IDENTITIES, description="It is these users of OIDC providers.", json_schema_extra=ATOMIC
    )
    certificates: list[Annotated[StrictStr, Field(pattern=CERTIFICATE, max_length=512)]] | None = Field(
        None,
        max_length=MAX_IDENTITIES,
        description="It has client certificates with these principals: the first spiffe:// URI of a certificate, else "
        "dns: and its first DNS name.",
        json_schema_extra=ATOMIC,
    )
    tokens: list[TokenIdentity] | None = Field(
        None,
        max_length=MAX_IDENTITIES,
        description="It has these static tokens; its principal is token:NAME, by the DelayUser's name.",
        json_schema_extra=ATOMIC,
    )
    rules: list[UserRule] | None = Field(
        None, max_length=MAX_USER_RULES, description="What it may do; nothing else.", json_schema_extra=ATOMIC
    )
    quotas: UserQuotasModel | None = Field(
        None, description="What each of its principals may send to each node, and how many connections it may have."
    )


class DelayUserStatus(Model):
    """What became of it."""

    observed_generation: Int | None = Field(None, ge=0, description="The metadata.generation that this is about.")
    conditions: list[ConditionModel] | None = Field(
        None,
        max_length=32,
        description="Ready: the cluster's nodes are told of it. Its rights count within a second from then on.",
        json_schema_extra=list_map("type"),
    )
    principals: list[Text] | None = Field(
        None, max_length=4 * MAX_IDENTITIES, description="Who it is, as logs and refusals say it.",
        json_schema_extra=ATOMIC,
    )  # fmt: skip


class DelayUser(Model):
    """Who may do what with a DelayCluster's topics and groups. Rules only allow, and add up to nothing else: they are
    asked for where the cluster's authorization says so.
    """

    spec: DelayUserSpec = Field(description="Who it is and what it may do.")
    status: DelayUserStatus | None = Field(None, description="What became of it.")
