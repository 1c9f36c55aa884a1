"""Nodes as brokers: each node that serves anything is one, with a single queue, for every topic.

A broker's queue is all that its node serves of a topic. Any node stores and recalls for all of them, so a producer may
go on to any other. Were brokers only those with a shard of the topic, a consumer would learn late of one that has just
become master.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from delayapi.address import split
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayregistry.model import TopicType

from delaynode.node.routes import Routes, endpoint_for

TYPES = {
    TopicType.MIXED: (mq.NORMAL, mq.DELAY),
    TopicType.NORMAL: (mq.NORMAL,),
    TopicType.DELAY: (mq.DELAY,),
}


def message_queues(routes: Routes, topic: str, listener: str, own_node: str) -> list[mq.MessageQueue]:
    """By node. listener: that the client has come by. Raises Refused: there is no such topic."""
    routes.queues(topic)
    masters = {shard.spec.master for shard in routes.objects.values() if routes.endpoint(shard, listener)}
    types = TYPES[routes.topic_type(topic)]
    return [
        mq.MessageQueue(
            topic=mq.Resource(name=topic), id=0, permission=mq.READ_WRITE, accept_message_types=types,
            broker=mq.Broker(name=node, id=0, endpoints=endpoints(endpoint)),
        )
        for node, endpoint in brokers(routes, filter(None, masters or {own_node}), listener)
    ]  # fmt: skip


def brokers(routes: Routes, nodes: Iterable[str], listener: str) -> list[tuple[str, str]]:
    """Nodes and their addresses, in order."""
    leases = ((node, routes.leases.get(node)) for node in sorted(nodes))
    found = ((node, endpoint_for(lease, listener)) for node, lease in leases if lease is not None)
    return [(node, endpoint) for node, endpoint in found if endpoint]


def endpoints(endpoint: str) -> mq.Endpoints:
    host, port = split(endpoint)
    try:
        scheme = mq.IPv6 if ipaddress.ip_address(host).version == 6 else mq.IPv4
    except ValueError:
        scheme = mq.DOMAIN_NAME
    return mq.Endpoints(scheme=scheme, addresses=[mq.Address(host=host, port=port)])
