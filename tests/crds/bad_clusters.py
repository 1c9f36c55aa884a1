"""DelayClusters that must be refused, the part that refuses them, and its words.

One table for the unit tests (a stand-in for the API server, `apiserver.py`; the operator's own check) and for e2e (a
real API server, kubectl's output). Plain data: e2e imports it without the operator's packages.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

GOOD: Json = {
    "apiVersion": "delaycluster.io/v1alpha1",
    "kind": "DelayCluster",
    "metadata": {"name": "shop", "namespace": "default"},
    "spec": {
        "nodes": 3,
        "replicas": 2,
        "horizonDays": 40,
        "topics": [
            {"name": "orders", "queues": 16, "type": "Delay", "maxDelay": "30d"},
            {"name": "mails", "queues": 4},
        ],
        "storage": {"size": "10Gi", "storageClassName": "standard"},
    },
}


class By(StrEnum):
    """The part that refuses: the CRD's schema or CEL rules (kubectl apply fails), or the operator (InvalidSpec)."""

    SCHEMA = "schema"
    CEL = "CEL"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class BadCluster:
    """change: a JSON merge patch of GOOD. An update goes from GOOD to the changed one, else the changed one is created.

    path and says: parts of the API server's words (for By.OPERATOR, of the condition's message).
    operator: parts of the operator's own words, should the API server not have refused it; empty: it can't see it.
    """

    name: str
    change: Json
    by: By
    path: str
    says: str
    operator: str
    update: bool = False

    @property
    def body(self) -> Json:
        return merged(GOOD, self.change)


def merged(body: Mapping[str, Any], change: Mapping[str, Any]) -> Json:
    """RFC 7386: null deletes, lists are replaced."""
    out = copy.deepcopy(dict(body))
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            here = out.get(key)
            out[key] = merged(here if isinstance(here, dict) else {}, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}


def _spec(**change: Any) -> Json:
    return {"spec": change}


def _topic(**change: Any) -> Json:
    """The topic orders changed; mails stays."""
    orders, mails = GOOD["spec"]["topics"]
    return _spec(topics=[merged(orders, change), mails])


ORDERS = "spec.topics[0]"

SCHEMA = (
    BadCluster("no nodes", _spec(nodes=0), By.SCHEMA, "spec.nodes", "greater than or equal to 1",
               "spec.nodes: is 0; allowed: at least 1"),
    BadCluster("1,001 nodes", _spec(nodes=1_001), By.SCHEMA, "spec.nodes", "less than or equal to 1000",
               "spec.nodes: is 1001; allowed: at most 1000"),
    BadCluster("nodes in words", _spec(nodes="three"), By.SCHEMA, "spec.nodes", "must be of type integer",
               "spec.nodes: is 'three'; a whole number is wanted"),
    BadCluster("half a node", _spec(nodes=2.5), By.SCHEMA, "spec.nodes", "must be of type integer",
               "spec.nodes: is 2.5; a whole number is wanted"),
    BadCluster("eight copies", _spec(nodes=9, replicas=8), By.SCHEMA, "spec.replicas", "less than or equal to 7",
               "spec.replicas: is 8; allowed: at most 7"),
    BadCluster("horizon of eleven years", _spec(horizonDays=4_000), By.SCHEMA, "spec.horizonDays",
               "less than or equal to 3660", "spec.horizonDays: is 4000; allowed: at most 3660"),
    BadCluster("unknown delivery", _spec(delivery="Everybody"), By.SCHEMA,
               "spec.delivery", 'supported values: "Master"',
               "spec.delivery: is 'Everybody'; allowed: 'Master' or 'MasterAndSlave'"),
    BadCluster("unknown durability", _spec(durability="fsync"), By.SCHEMA,
               "spec.durability", 'supported values: "Fsync"',
               "spec.durability: is 'fsync'; allowed: 'Fsync' or 'Async'"),
    BadCluster("paused in words", _spec(paused="yes"), By.SCHEMA, "spec.paused", "must be of type boolean",
               "spec.paused: is 'yes'; true or false is wanted"),
    BadCluster("image with a space", _spec(image="delaycluster: 1.0"), By.SCHEMA, "spec.image", "should match",
               "spec.image: is 'delaycluster: 1.0'; wanted: an image's name, without spaces"),
    BadCluster("topic without a name", _spec(topics=[{"queues": 4}]), By.SCHEMA,
               "spec.topics[0].name", "Required value",
               "spec.topics[0].name: is required"),
    BadCluster("topic in capitals", _topic(name="Orders"), By.SCHEMA, f"{ORDERS}.name", "should match",
               "spec.topics[Orders].name: is 'Orders'; wanted: 1 to 50 of a-z, 0-9 and '-'"),
    BadCluster("topic of 51 letters", _topic(name="o" * 51), By.SCHEMA, f"{ORDERS}.name", "Too long",
               "allowed: at most 50 characters"),
    BadCluster("a topic named twice", _spec(topics=[{"name": "orders"}, {"name": "orders"}]), By.SCHEMA,
               "spec.topics[1]",
               "Duplicate value", "spec.topics[orders]: is named twice; a topic is there once"),
    BadCluster("no queues", _topic(queues=0), By.SCHEMA, f"{ORDERS}.queues", "greater than or equal to 1",
               "spec.topics[orders].queues: is 0; allowed: at least 1"),
    BadCluster("10,001 queues", _topic(queues=10_001), By.SCHEMA, f"{ORDERS}.queues", "less than or equal to 10000",
               "spec.topics[orders].queues: is 10001; allowed: at most 10000"),
    BadCluster("unknown type", _topic(type="Fifo"), By.SCHEMA, f"{ORDERS}.type", 'supported values: "Delay"',
               "spec.topics[orders].type: is 'Fifo'; allowed: 'Delay', 'Normal' or 'Mixed'"),
    BadCluster("retention without a unit", _topic(retention="30"), By.SCHEMA, f"{ORDERS}.retention", "should match",
               "spec.topics[orders].retention: is '30'; wanted: a duration such as 500ms, 30m, 2h30m or 3d"),
    BadCluster("a delay with its units in disorder", _topic(maxDelay="30m2h"), By.SCHEMA, f"{ORDERS}.maxDelay",
               "should match", "spec.topics[orders].maxDelay: is '30m2h'; wanted: a duration"),
    BadCluster("a negative delay", _topic(maxDelay="-1d"), By.SCHEMA, f"{ORDERS}.maxDelay", "should match",
               "spec.topics[orders].maxDelay: is '-1d'; wanted: a duration"),
    BadCluster("no attempts", _topic(maxAttempts=0), By.SCHEMA, f"{ORDERS}.maxAttempts", "greater than or equal to 1",
               "spec.topics[orders].maxAttempts: is 0; allowed: at least 1"),
    BadCluster("releases none", _topic(maxReleasePerSecond=0), By.SCHEMA, f"{ORDERS}.maxReleasePerSecond",
               "greater than or equal to 1", "spec.topics[orders].maxReleasePerSecond: is 0; allowed: at least 1"),
    BadCluster("a quota of none", _topic(quotas={"pendingMessages": 0}), By.SCHEMA, f"{ORDERS}.quotas.pendingMessages",
               "greater than or equal to 1", "spec.topics[orders].quotas.pendingMessages: is 0; allowed: at least 1"),
    BadCluster("no lease", _spec(failover={"leaseSeconds": 0}), By.SCHEMA, "spec.failover.leaseSeconds",
               "greater than or equal to 2", "spec.failover.leaseSeconds: is 0; allowed: at least 2"),
    BadCluster("a lease as short as its renewals", _spec(failover={"leaseSeconds": 1}), By.SCHEMA,
               "spec.failover.leaseSeconds", "greater than or equal to 2",
               "spec.failover.leaseSeconds: is 1; allowed: at least 2"),
    BadCluster("drains a pod's name", _spec(drained=["shop-1"]), By.SCHEMA, "spec.drained[0]", "should match",
               "spec.drained[0]: is 'shop-1'; wanted: a node's id such as n0"),
    BadCluster("drains a node twice", _spec(drained=["n1", "n1"]), By.SCHEMA, "spec.drained[1]", "Duplicate value", ""),
    BadCluster("size that is none", _spec(storage={"size": "ten"}), By.SCHEMA, "spec.storage.size", "should match",
               "spec.storage.size: is 'ten'; wanted: a size such as 10Gi"),
    BadCluster("requests that are none", _spec(resources={"requests": {"cpu": "much"}}), By.SCHEMA,
               "spec.resources.requests.cpu", "should match",
               "spec.resources.requests.cpu: is 'much'; wanted: a quantity such as 500m, 2 or 1Gi"),
    BadCluster("unknown taint effect", _spec(podTemplate={"tolerations": [{"effect": "Never"}]}), By.SCHEMA,
               "spec.podTemplate.tolerations[0].effect", "supported values", "allowed: 'NoSchedule'"),
    BadCluster("hardly any time to end", _spec(podTemplate={"terminationGracePeriodSeconds": 1}), By.SCHEMA,
               "spec.podTemplate.terminationGracePeriodSeconds", "greater than or equal to 5", "allowed: at least 5"),
    BadCluster("schedule in words", _spec(rebalance={"schedule": "at night"}), By.SCHEMA, "spec.rebalance.schedule",
               "should match", "spec.rebalance.schedule: is 'at night'; wanted: a CronJob's schedule"),
    BadCluster("a volume in capitals", _spec(podTemplate={"volumes": [{"name": "Keys"}]}), By.SCHEMA,
               "spec.podTemplate.volumes[0].name", "should match",
               "spec.podTemplate.volumes[Keys].name: is 'Keys'; wanted: 1 to 63 of a-z, 0-9 and '-'"),
    BadCluster("a volume named twice", _spec(podTemplate={"volumes": [{"name": "a"}, {"name": "a"}]}), By.SCHEMA,
               "spec.podTemplate.volumes[1]", "Duplicate value", ""),
    BadCluster("a mount nowhere", _spec(podTemplate={"volumeMounts": [{"name": "a"}]}), By.SCHEMA,
               "spec.podTemplate.volumeMounts[0].mountPath", "Required value",
               "spec.podTemplate.volumeMounts[a].mountPath: is required"),
    BadCluster("a sidecar without a name", _spec(podTemplate={"sidecars": [{"image": "x"}]}), By.SCHEMA,
               "spec.podTemplate.sidecars[0].name", "Required value",
               "spec.podTemplate.sidecars[0].name: is required"),
    BadCluster("an unknown type of Service", _spec(service={"type": "ExternalName"}), By.SCHEMA, "spec.service.type",
               'supported values: "ClusterIP"', "spec.service.type: is 'ExternalName'; allowed: 'ClusterIP'"),
    BadCluster("no connections", _spec(settings={"maxConnections": 0}), By.SCHEMA, "spec.settings.maxConnections",
               "greater than or equal to 1", "spec.settings.maxConnections: is 0; allowed: at least 1"),
    BadCluster("topics as a map", _spec(topics={"orders": {"queues": 8}}), By.SCHEMA, "spec.topics",
               "must be of type array", "spec.topics: is an object; a list is wanted"),
    BadCluster("1,001 topics", _spec(topics=[{"name": f"t{number}", "queues": 1} for number in range(1_001)]),
               By.SCHEMA, "spec.topics", "must have at most 1000 items",
               "spec.topics: has 1001 entries; allowed: at most 1000"),
    BadCluster("retention of no length", _topic(retention=""), By.SCHEMA, f"{ORDERS}.retention",
               "should be at least 2 chars long",
               "spec.topics[orders].retention: is ''; allowed: at least 2 characters"),
    BadCluster("a number as the image", _spec(image=7), By.SCHEMA, "spec.image", "must be of type string",
               "spec.image: is 7; text is wanted"),
    BadCluster("storage in words", _spec(storage="much"), By.SCHEMA, "spec.storage", "must be of type object",
               "spec.storage: is 'much'; an object is wanted"),
    BadCluster("labels as a list", _spec(podTemplate={"labels": ["team"]}), By.SCHEMA, "spec.podTemplate.labels",
               "must be of type object", "spec.podTemplate.labels: is a list; an object is wanted"),
    BadCluster("threshold in words", _spec(rebalance={"threshold": "low"}), By.SCHEMA, "spec.rebalance.threshold",
               "must be of type number", "spec.rebalance.threshold: is 'low'; a number is wanted"),
)  # fmt: skip

CEL = (
    BadCluster("a name of 41 letters", _named("s" * 41), By.CEL,
               "", "name is at most 40", "metadata.name: a DelayCluster's"),
    BadCluster("a name that starts with a digit", _named("7-eleven"), By.CEL, "", "starts with a letter",
               "starts with a letter"),
    BadCluster("a name with a dot", _named("shop.eu"), By.CEL, "", "of a-z, 0-9 and '-'", "of a-z, 0-9 and '-'"),
    BadCluster("another cluster's service's name", _named("shop-nodes"), By.CEL, "", "may not end with '-nodes'",
               "may not end with '-nodes'"),
    BadCluster("more copies than nodes", _spec(nodes=2, replicas=3), By.CEL,
               "spec.replicas", "replicas must be at most nodes",
               "spec.replicas: is 3, but nodes is 2; replicas must be at most nodes"),
    BadCluster("one node, and two copies by default", _spec(nodes=1, replicas=None), By.CEL, "spec.replicas",
               "replicas must be at most nodes", "spec.replicas: is 2, but nodes is 1"),
    BadCluster("more in sync than copies", _spec(minInSync=3), By.CEL,
               "spec.minInSync", "minInSync must be at most replicas",
               "spec.minInSync: is 3, but replicas is 2; minInSync must be at most replicas"),
    BadCluster("drains too many", _spec(drained=["n0", "n2"]), By.CEL,
               "spec.drained", "drained must leave at least as many",
               "spec.drained: leaves 1 of 3 nodes, but replicas is 2"),
    BadCluster("replaces before it is lost", _spec(failover={"leaseSeconds": 600}), By.CEL,
               "spec.failover.replaceAfterSeconds", "must be more than leaseSeconds",
               "spec.failover.replaceAfterSeconds: is 600, but leaseSeconds is 600"),
    BadCluster("a delay beyond the horizon", _topic(maxDelay="41d"), By.CEL,
               "spec.topics", "maxDelay must be at most the cluster's horizonDays",
               "spec.topics[orders].maxDelay: is 41d; allowed: 1ms to 40d, the cluster's horizonDays"),
    BadCluster("a delay in parts beyond the horizon", _topic(maxDelay="5w5d0.5s"), By.CEL, "spec.topics",
               "maxDelay must be at most the cluster's horizonDays", "spec.topics[orders].maxDelay: is 5w5d0.5s"),
    BadCluster("no delay at all", _topic(maxDelay="0s"), By.CEL,
               ORDERS, "topic orders: maxDelay is 0s; allowed: 1ms to 3660d",
               "spec.topics[orders].maxDelay: is 0s; allowed: 1ms"),
    BadCluster("kept for eleven years", _topic(retention="4000d"), By.CEL, ORDERS,
               "topic orders: retention is 4000d; allowed: 1ms to 3660d",
               "spec.topics[orders].retention: is 4000d; allowed: 1ms to 3660d"),
    BadCluster("kept for half a millisecond", _topic(retention="0.5ms"), By.CEL,
               ORDERS, "retention is 0.5ms; allowed: 1ms",
               "spec.topics[orders].retention: is 0.5ms; allowed: 1ms"),
    BadCluster("dead letters for ever", _topic(dlqRetention="999999999999w"), By.CEL, ORDERS,
               "dlqRetention is 999999999999w; allowed: 1ms to 3660d",
               "spec.topics[orders].dlqRetention: is 999999999999w"),
    BadCluster("a small volume", _spec(storage={"size": "500Mi"}), By.CEL, "spec.storage.size", "at least 1Gi",
               "spec.storage.size: is 500Mi; allowed: at least 1Gi"),
    BadCluster("little memory", _spec(resources={"limits": {"memory": "128Mi"}}), By.CEL, "spec.resources",
               "memory limit must be at least 384Mi", "spec.resources.limits[memory]: is 128Mi"),
    BadCluster("little memory, as a number", _spec(resources={"limits": {"memory": 1_000}}), By.CEL, "spec.resources",
               "memory limit must be at least 384Mi", "spec.resources.limits[memory]: is 1000"),
    BadCluster("the operator's label", _spec(podTemplate={"labels": {"delaycluster.io/cluster": "x"}}), By.CEL,
               "spec.podTemplate.labels", "are the operator's own", "spec.podTemplate.labels[delaycluster.io/cluster]"),
    BadCluster("the operator's annotation", _spec(podTemplate={"annotations": {"delaycluster.io/read-at-start": "x"}}),
               By.CEL, "spec.podTemplate.annotations", "are the operator's own", "spec.podTemplate.annotations"),
    BadCluster("the operator's label of the PodMonitor", _spec(monitoring={"labels": {"app.kubernetes.io/name": "x"}}),
               By.CEL, "spec.monitoring.labels", "are the operator's own",
               "spec.monitoring.labels[app.kubernetes.io/name]"),
    BadCluster("the operator's variable", _spec(podTemplate={"env": [{"name": "POD_IP", "value": "1.2.3.4"}]}), By.CEL,
               "spec.podTemplate.env", "are the operator's own", "spec.podTemplate.env[POD_IP]"),
    BadCluster("the operator's annotation of the ServiceAccount",
               _spec(podTemplate={"serviceAccountAnnotations": {"delaycluster.io/a": "x"}}), By.CEL,
               "spec.podTemplate.serviceAccountAnnotations", "are the operator's own",
               "spec.podTemplate.serviceAccountAnnotations[delaycluster.io/a]"),
    *(
        BadCluster(f"the operator's volume {name}", _spec(podTemplate={"volumes": [{"name": name, "emptyDir": {}}]}),
                   By.CEL, "spec.podTemplate.volumes", "are the operator's own: choose another name",
                   f"spec.podTemplate.volumes[{name}]: the volumes data, tmp")
        for name in ("data", "tmp", "certificates", "peer-certificates", "client-ca")
    ),
    *(
        BadCluster(f"a mount at {path}", _spec(podTemplate={"volumeMounts": [{"name": "v", "mountPath": path}]}),
                   By.CEL, "spec.podTemplate.volumeMounts", "a mountPath starts with / and is not / itself",
                   f"spec.podTemplate.volumeMounts[{path}]: a mountPath starts with /")
        for path in ("/", "relative", "/data", "/data/shards", "/data/", "/tmp", "/tmp/x", "/etc/delaycluster/tls")
    ),
    BadCluster("a sidecar called node", _spec(podTemplate={"sidecars": [{"name": "node", "image": "x"}]}), By.CEL,
               "spec.podTemplate.sidecars", "the container node is the operator's own",
               "spec.podTemplate.sidecars[node]: the container node is the operator's own"),
    BadCluster("an init container called node", _spec(podTemplate={"initContainers": [{"name": "node"}]}), By.CEL,
               "spec.podTemplate.initContainers", "the container node is the operator's own",
               "spec.podTemplate.initContainers[node]: the container node is the operator's own"),
    BadCluster("the operator's label of the Service", _spec(service={"labels": {"delaycluster.io/cluster": "x"}}),
               By.CEL, "spec.service.labels", "are the operator's own", "spec.service.labels[delaycluster.io/cluster]"),
    BadCluster("the operator's annotation of the Service", _spec(service={"annotations": {"delaycluster.io/a": "x"}}),
               By.CEL, "spec.service.annotations", "are the operator's own",
               "spec.service.annotations[delaycluster.io/a]"),
    BadCluster("external traffic of a ClusterIP", _spec(service={"externalTrafficPolicy": "Local"}), By.CEL,
               "spec.service.externalTrafficPolicy", "needs type NodePort or LoadBalancer",
               "spec.service.externalTrafficPolicy: externalTrafficPolicy needs type NodePort or LoadBalancer"),
    BadCluster("a balancer's class of a NodePort", _spec(service={"type": "NodePort", "loadBalancerClass": "x"}),
               By.CEL, "spec.service.loadBalancerClass", "needs type LoadBalancer",
               "spec.service.loadBalancerClass: loadBalancerClass needs type LoadBalancer"),
    BadCluster("sources of a ClusterIP", _spec(service={"loadBalancerSourceRanges": ["10.0.0.0/8"]}), By.CEL,
               "spec.service.loadBalancerSourceRanges", "needs type LoadBalancer",
               "spec.service.loadBalancerSourceRanges: loadBalancerSourceRanges needs type LoadBalancer"),
    BadCluster("no disk left free", _spec(settings={"minFree": "1Mi"}), By.CEL, "spec.settings.minFree",
               "settings.minFree is 1Mi; allowed: 64Mi to 1Pi", "spec.settings.minFree: is 1Mi; allowed: 64Mi to 1Pi"),
    BadCluster("a file of 2 GiB", _spec(settings={"logSegment": "2Gi"}), By.CEL, "spec.settings.logSegment",
               "settings.logSegment is 2Gi; allowed: 16Mi to 1Gi", "spec.settings.logSegment: is 2Gi; allowed: 16Mi"),
    BadCluster("hardly anything unread", _spec(settings={"unread": "1000"}), By.CEL, "spec.settings.unread",
               "settings.unread is 1000; allowed: 16Mi to 64Gi", "spec.settings.unread: is 1000; allowed: 16Mi"),
    BadCluster("connections of a second", _spec(settings={"connectionAge": "1s"}), By.CEL,
               "spec.settings.connectionAge", "settings.connectionAge is 1s; allowed: 1m to 30d",
               "spec.settings.connectionAge: is 1s; allowed: 1m to 30d"),
    BadCluster("pods at an address", _spec(networkPolicy={"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"},
               "podSelector": {"matchLabels": {"a": "b"}}}]}), By.CEL, "spec.networkPolicy.clients[0]",
               "a peer is an ipBlock, or has", "spec.networkPolicy.clients[0]: a peer is an ipBlock, or has"),
    BadCluster("a peer that is nobody", _spec(networkPolicy={"monitoring": [{}]}), By.CEL,
               "spec.networkPolicy.monitoring[0]", "a peer is an ipBlock, or has",
               "spec.networkPolicy.monitoring[0]: a peer is an ipBlock, or has"),
    BadCluster("a console of a cluster that asks nobody", _spec(console={}, security={"mode": "Off"}), By.CEL,
               "spec.console", "needs security.mode Permissive or Required",
               "spec.console: a console in the cluster needs security.mode"),
    BadCluster("a provider that the nodes don't know", _spec(console={"oidc": {"issuer": "https://a.example"}}), By.CEL,
               "spec.console", "must be one of security.tokens.oidc",
               "spec.console.oidc.issuer: is 'https://a.example'; console.oidc.issuer must be one of"),
    BadCluster("a console by an address", _spec(console={"hosts": ["https://a.example"]}), By.SCHEMA,
               "spec.console.hosts[0]", "should match", "spec.console.hosts[0]"),
    BadCluster("a key that leaves its Secret", _spec(console={"oidc": {"issuer": "https://a.example", "clientSecret":
               {"name": "a", "key": "../b"}}}), By.SCHEMA, "spec.console.oidc.clientSecret.key", "should match",
               "spec.console.oidc.clientSecret.key"),
    BadCluster("TLS without keys", _spec(security={"mode": "Required"}), By.CEL, "spec.security.certificates",
               "Permissive and Required need certificates", "spec.security.certificates: Permissive and Required need"),
    BadCluster("keys from nowhere", _spec(security={"mode": "Off", "certificates": {}}), By.CEL,
               "spec.security.certificates", "one of certManager, secrets, ownCA",
               "spec.security.certificates: certificates are of cert-manager, in Secrets, or of"),
    BadCluster("keys from two places", _spec(security={"mode": "Off", "certificates": {
               "certManager": {}, "secrets": {"server": "a"}}}), By.CEL, "spec.security.certificates",
               "one of certManager, secrets, ownCA", "spec.security.certificates: certificates are of"),
    BadCluster("an issuer whose keys nobody knows", _spec(security={"mode": "Off", "tokens": {"oidc": [
               {"issuer": "login", "audience": "delay"}]}}), By.CEL, "spec.security.tokens.oidc[0]",
               "needs jwksURL", "spec.security.tokens.oidc[login]: an issuer that is no https URL needs jwksURL"),
    BadCluster("namespaces by no selector", _spec(allowedNamespaces={"from": "Selector"}), By.CEL,
               "spec.allowedNamespaces", "from: Selector needs a selector",
               "spec.allowedNamespaces: from: Selector needs a selector"),
    BadCluster("all namespaces, and some", _spec(allowedNamespaces={"from": "All", "selector": {}}), By.CEL,
               "spec.allowedNamespaces", "nothing else has one", "spec.allowedNamespaces: from: Selector needs"),
    BadCluster("a label in no values", _spec(allowedNamespaces={"from": "Selector", "selector": {"matchExpressions": [
               {"key": "team", "operator": "In", "values": []}]}}), By.CEL,
               "spec.allowedNamespaces.selector.matchExpressions[0]", "In and NotIn need values",
               "spec.allowedNamespaces.selector.matchExpressions[0]: In and NotIn need values"),
    BadCluster("nodes that can do nothing", _spec(autoscaling={"messagesPerSecond": 0}), By.SCHEMA,
               "spec.autoscaling.messagesPerSecond", "greater than or equal to 1",
               "spec.autoscaling.messagesPerSecond: is 0; allowed: at least 1"),
    BadCluster("nodes that nobody has measured", _spec(autoscaling={}), By.SCHEMA,
               "spec.autoscaling.messagesPerSecond", "Required value",
               "spec.autoscaling.messagesPerSecond: is required"),
    BadCluster("scales by the next minute", _spec(autoscaling={"messagesPerSecond": 9, "horizon": "1m"}), By.CEL,
               "spec.autoscaling.horizon", "autoscaling.horizon is 1m; allowed: 10m to 12h",
               "spec.autoscaling.horizon: is 1m; allowed: 10m to 12h"),
    BadCluster("scales back at once", _spec(autoscaling={"messagesPerSecond": 9, "settle": "30s"}), By.CEL,
               "spec.autoscaling.settle", "autoscaling.settle is 30s; allowed: 1m to 24h",
               "spec.autoscaling.settle: is 30s; allowed: 1m to 24h"),
    BadCluster("pods that start at once", _spec(autoscaling={"messagesPerSecond": 9, "podStart": "0s"}), By.CEL,
               "spec.autoscaling.podStart", "autoscaling.podStart is 0s; allowed: 1s to 1h",
               "spec.autoscaling.podStart: is 0s; allowed: 1s to 1h"),
    BadCluster("herds that may be late for an hour",
               _spec(autoscaling={"messagesPerSecond": 9, "maxLateness": "1h"}), By.CEL,
               "spec.autoscaling.maxLateness", "autoscaling.maxLateness is 1h; allowed: 1s to 1m",
               "spec.autoscaling.maxLateness: is 1h; allowed: 1s to 1m"),
    BadCluster("automatic below nothing", _spec(rebalance={"approval": "AutomaticBelow"}), By.CEL, "spec.rebalance",
               "needs automaticBelow", "spec.rebalance.automaticBelow: approval AutomaticBelow needs"),
    BadCluster("loads counted by the second", _spec(rebalance={"slot": "1s"}), By.CEL, "spec.rebalance.slot",
               "rebalance.slot is 1s; allowed: 1m to 24h", "spec.rebalance.slot: is 1s; allowed: 1m to 24h"),
    BadCluster("loads counted by two days", _spec(rebalance={"slot": "2d", "horizon": "2w"}), By.CEL,
               "spec.rebalance.slot", "rebalance.slot is 2d; allowed: 1m to 24h",
               "spec.rebalance.slot: is 2d; allowed: 1m to 24h"),
    BadCluster("looks less far than a slot", _spec(rebalance={"slot": "2h", "horizon": "1h30m"}), By.CEL,
               "spec.rebalance.horizon", "rebalance.horizon is 1h30m, slot is 2h; allowed: one slot to 366d",
               "spec.rebalance.horizon: is 1h30m, and slot is 2h; allowed: one slot to 366d"),
    BadCluster("looks ahead for years", _spec(rebalance={"horizon": "366d1m"}), By.CEL,
               "spec.rebalance.horizon", "rebalance.horizon is 366d1m, slot is 5m; allowed: one slot to 366d",
               "spec.rebalance.horizon: is 366d1m, and slot is 5m; allowed: one slot to 366d"),
)  # fmt: skip

UPDATES = (
    BadCluster("fewer queues", _topic(queues=4), By.CEL, ORDERS, "topic orders: queues may grow but not shrink",
               "spec.topics[orders].queues: is 4, but was 16; queues may grow but not shrink", update=True),
    BadCluster("fewer queues, by leaving them out", _topic(queues=None), By.CEL, ORDERS,
               "topic orders: queues may grow but not shrink", "is 8, but was 16; queues may grow", update=True),
    BadCluster("another type", _topic(type="Normal"), By.CEL,
               ORDERS, "topic orders: type can't be changed, it is Delay",
               "spec.topics[orders].type: is Normal, but was Delay", update=True),
    BadCluster("a shorter horizon", _spec(horizonDays=39), By.CEL,
               "spec.horizonDays", "horizonDays may grow but not shrink",
               "spec.horizonDays: is 39, but was 40; horizonDays may grow but not shrink", update=True),
    BadCluster("a smaller volume", _spec(storage={"size": "9Gi"}), By.CEL, "spec.storage.size",
               "storage.size may grow but not shrink, 10Gi to 9Gi was asked for", "", update=True),
    BadCluster("a smaller volume in other units", _spec(storage={"size": "10G"}), By.CEL, "spec.storage.size",
               "storage.size may grow but not shrink", "", update=True),
    BadCluster("another storage class", _spec(storage={"storageClassName": "fast"}), By.CEL,
               "spec.storage.storageClassName",
               "storageClassName can't be changed", "", update=True),
    BadCluster("the default storage class instead", _spec(storage={"storageClassName": None}), By.CEL,
               "spec.storage.storageClassName", "storageClassName can't be changed", "", update=True),
    BadCluster("scaled to one", _spec(nodes=1), By.CEL, "spec.replicas", "replicas must be at most nodes",
               "spec.replicas: is 2, but nodes is 1", update=True),
    BadCluster("scaled to none", _spec(nodes=0), By.SCHEMA, "spec.nodes", "greater than or equal to 1",
               "spec.nodes: is 0", update=True),
)  # fmt: skip

# The API server takes these; the condition InvalidSpec refuses them.
UNSEEN = (
    BadCluster("10,001 queues in all", _spec(topics=[{"name": "a", "queues": 10_000}, {"name": "b", "queues": 1}]),
               By.OPERATOR, "spec.topics", "have 10001 queues together; allowed: at most 10000",
               "spec.topics: have 10001 queues together; allowed: at most 10000"),
)  # fmt: skip

BAD_CLUSTERS = (*SCHEMA, *CEL, *UPDATES)
