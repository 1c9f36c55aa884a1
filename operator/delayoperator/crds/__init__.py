"""The custom resources: one source for the models that the operator reads with and for the schemas in crds/.

    base        what every model shares: names in JSON, kinds of values, CEL rules
    cluster     DelayCluster: what people write
    pod, rebalancing, status    its parts
    shard       DelayShard: made by the operator, its status written by the shard's master
    rebalance   DelayRebalance: a plan of moves, approved and carried out
    user        DelayUser: who calls a cluster, and what it may do
    topic       DelayTopic: a topic as an object of the team that owns it
    schedule    DelaySchedule: a message that a topic sends again and again
    tenancy     which namespaces' DelayTopics and DelayUsers a cluster takes
    structural  a pydantic model -> a structural OpenAPI v3 schema
    definitions the CustomResourceDefinitions: names, columns, subresources
    convert     DelayCluster -> registry.model.ClusterSpec, or why not
    security_document    DelayUsers -> registry.security.SecuritySpec, or why not
    schedule_convert    DelaySchedule -> what is put to the topic's shard, or why not
    topic_merge DelayTopics -> the topics that a cluster has beside spec.topics, or why not

`make crds` writes crds/*.yaml.
"""

GROUP = "delaycluster.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# A DelayRebalance's verbs are annotations, which the operator takes away when it has answered them.
APPROVE = f"{GROUP}/approve"  # the hash of the plan
VERB = f"{GROUP}/rebalance"  # stop, refresh
VERBS = {"approve": APPROVE, "verb": VERB}
