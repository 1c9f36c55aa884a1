"""Deletes the shards of DelayTopics that were deleted with deletionPolicy Delete, a step in each round.

    finalizer     on each DelayTopic that is accepted with Delete, so that its deletion waits; no other one has it
    deleted       nodes are told of no such topic any more: its shards are Surplus, and take nothing new from its users
    empty         or a person has said how many messages are to go: its DelayShards are deleted, then the copies that
                  the nodes have
    done          the finalizer goes

Of a cluster that is gone the finalizers are taken off elsewhere (topic_release.py): nobody can delete messages there.

A copy goes only while its log is as long as it was when nothing was found to wait in it. An operator that is another
one by then does not know that: the DelayTopic waits until a person has looked (`delayctl nodes orphans`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc
from delayapi.proto.delay.v1 import delay_pb2
from delayregistry.model import ClusterSpec, NodeLease, ShardObject
from delayregistry.port import Conflict, OutcomeUnknown, Registry

from delayoperator.cluster.annotations import annotations_of
from delayoperator.cluster.shard_summary import some
from delayoperator.cluster.topic_deletion import CONFIRM, FINALIZER, LeftShard, why_kept
from delayoperator.control_loop.probe import GrpcProber, NodeAnswer
from delayoperator.crds.topic import DeletionPolicy
from delayoperator.crds.topic_merge import MergedTopics
from delayoperator.kube.api import Api, Json
from delayoperator.kube.caches import referred_cluster
from delayoperator.kube.kinds import DELAY_TOPIC
from delayoperator.plan import CopyView, ObservedRole

CALL_S = 2.0


@dataclass(frozen=True, slots=True)
class DeletionStep:
    """waits_for: "": it is over. under_way: it is looked at again soon."""

    waits_for: str = ""
    under_way: bool = False


OVER = DeletionStep(under_way=True)


class TopicDeletions:
    """For one DelayCluster."""

    def __init__(self, api: Api, registry: Registry) -> None:
        self._api, self._registry = api, registry
        self._going: dict[int, int] = {}  # uid of what was found to be done with -> the log's end then

    def hold(self, body: Json, merged: MergedTopics) -> bool:
        """Puts the finalizer on it where it has to be, and takes it away elsewhere. Returns whether it did. Raises
        ApiError."""
        told = merged.told.get(_key(body))
        asked = (body.get("spec") or {}).get("deletionPolicy") == DeletionPolicy.DELETE
        has = FINALIZER in _finalizers(body)
        wrong = asked != has and (has or (told is not None and told.spec is not None))
        if wrong:
            write_finalizer(self._api, body, wanted=asked)
        return wrong

    def advance(
        self,
        body: Json,
        merged: MergedTopics,
        told: ClusterSpec | None,
        shards: Sequence[ShardObject],
        prober: GrpcProber,
    ) -> DeletionStep:
        """body: a DelayTopic that is leaving. told: what nodes have. Raises ApiError, and RegistryUnavailable."""
        name = topic_of(body)
        owner = merged.owners.get(name)
        its_own = owner is not None and owner.namespace == _key(body)[0] and not owner.delay_topic
        if (body.get("spec") or {}).get("deletionPolicy") != DeletionPolicy.DELETE:
            return OVER  # hold() has let it go
        if not its_own or name in merged.own:  # what is left is another one's
            write_finalizer(self._api, body, wanted=False)
            return OVER
        if told is None or told.topic(name) is not None:
            return DeletionStep("the cluster's nodes are told that the topic is gone", under_way=True)
        leases = {it.node: it for it in self._registry.list_leases()}
        answers = prober.query([leases[node] for node in told.node_ids if node in leases])
        silent = [node for node in told.node_ids if node not in answers or not answers[node].listed]
        if silent:
            return DeletionStep(f"{', '.join(silent)} {'gives' if len(silent) == 1 else 'give'} no answer: all have to")
        left = [it for it in shards if it.spec.topic == name]
        if left:
            why = why_kept(
                [_look(it, answers, leases, prober) for it in left],
                annotations_of(body).get(CONFIRM, ""),
                f"delayctl --kube {'/'.join(referred_cluster(body))} shards retire --topic {name}",
            )
            return DeletionStep(why) if why else self._delete(left, answers)
        known = {it.spec.uid for it in shards}
        copies = [
            (node, copy_uid, copy)
            for node, answer in answers.items()
            for copy_uid, copy in answer.copies.items()
            if copy.topic == name and copy_uid not in known
        ]
        if not copies:
            write_finalizer(self._api, body, wanted=False)
            return OVER
        return self._purge(copies, leases, prober)

    def _delete(self, left: Sequence[ShardObject], answers: Mapping[str, NodeAnswer]) -> DeletionStep:
        for shard in left:
            uid = shard.spec.uid
            # Counted before the groups were asked: what was sent since makes the log longer, and its copies stay.
            ends = [answer.copies[uid].log_end for answer in answers.values() if uid in answer.copies]
            self._going[uid] = max(ends, default=0)
            with suppress(Conflict, OutcomeUnknown):  # its master and the operator write it too: the next round
                self._registry.delete_shard(shard.name, shard.version)
        return DeletionStep("its shards are deleted", under_way=True)

    def _purge(
        self, copies: Sequence[tuple[str, int, CopyView]], leases: Mapping[str, NodeLease], prober: GrpcProber
    ) -> DeletionStep:
        kept = []
        for node, uid, copy in copies:
            if copy.log_end > self._going.get(uid, -1):
                kept.append(f"{copy.shard} on {node}")
                continue
            with prober.client(leases[node]) as client, suppress(grpc.RpcError):
                # A node that does not know yet that it is nobody's refuses: the next round asks again.
                client.purge_copy(delay_pb2.PurgeCopyRequest(uid=uid, pending=copy.pending), timeout=CALL_S)
        if kept:
            said = f"copies of which nobody knows that they are done with are left: {some(kept)}"
            return DeletionStep(f"{said}. Look at `delayctl nodes orphans`, and purge them")
        return DeletionStep("the copies that nodes have are deleted", under_way=True)


def _look(
    shard: ShardObject, answers: Mapping[str, NodeAnswer], leases: Mapping[str, NodeLease], prober: GrpcProber
) -> LeftShard:
    copies = [it for answer in answers.values() if (it := answer.copies.get(shard.spec.uid)) is not None]
    if bad := [it for it in copies if it.damaged or it.role is ObservedRole.OPENING]:
        return LeftShard(shard.name, unknown=bad[0].damaged or "a copy is being opened")
    pending = max((it.pending for it in copies), default=0)
    lease = leases.get(shard.spec.master or "")
    if lease is None:
        return LeftShard(shard.name, pending, unknown="it has no master")
    topic, queue = shard.spec.topic, shard.spec.queue
    with prober.client(lease) as client:
        try:
            all_groups = delay_pb2.DescribeGroupRequest(topic=topic, queue=queue)
            groups = client.describe_group(all_groups, timeout=CALL_S).groups
            no_slots = delay_pb2.GetWheelRequest(topic=topic, queue=queue, from_ms=1, to_ms=2)
            wheel = client.get_wheel(no_slots, timeout=CALL_S)
        except grpc.RpcError as error:
            return LeftShard(shard.name, pending, unknown=f"its master gives no answer: {error.code().name}")
    if not groups:
        return LeftShard(shard.name, pending, sum(it.released for it in wheel.shards))
    unfinished = (it.available + it.in_flight + it.waiting_retry + it.dead for it in groups)
    return LeftShard(shard.name, pending, sum(unfinished))


def topic_of(body: Json) -> str:
    return str((body.get("spec") or {}).get("name") or body["metadata"]["name"])


def is_leaving(body: Json) -> bool:
    """It was deleted, and waits with its messages."""
    return "deletionTimestamp" in body["metadata"] and FINALIZER in _finalizers(body)


def write_finalizer(api: Api, body: Json, *, wanted: bool) -> None:
    """On condition that the DelayTopic is as in `body`. Raises ApiError."""
    meta = body["metadata"]
    names = [it for it in _finalizers(body) if it != FINALIZER] + ([FINALIZER] if wanted else [])
    patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": names}}
    api.merge(DELAY_TOPIC, meta["namespace"], meta["name"], patch)


def _finalizers(body: Json) -> list[str]:
    return [str(it) for it in body["metadata"].get("finalizers") or ()]


def _key(body: Json) -> tuple[str, str]:
    return str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
