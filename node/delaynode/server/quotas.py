"""Quotas asked of Enqueue requests, before anything else is done with them: the topic's, by the part of the shard that
is served here, and the caller's at this node.

A user's count here wherever the call has come in: of one that another node has passed on, that node says whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from delayregistry.security import MAX_USERS, UserQuotas

from delaynode.auth.identity import Identity
from delaynode.auth.rights import Rights
from delaynode.clock import monotonic_ms
from delaynode.metrics import NodeMetrics
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.quotas import NOTHING, Cost, PendingQuota, Quota, QuotaLabel, RateQuota, admit
from delaynode.store.columns import offsets_from
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.types import U32, Array


class Charge:
    """What requests have taken of quotas: given back for those that are not stored, or were stored before."""

    __slots__ = ("_costs", "_quotas")

    def __init__(self, quotas: Sequence[Quota], costs: Sequence[Cost]) -> None:
        self._quotas, self._costs = quotas, costs

    def give_back(self, first: int, end: int) -> None:
        for cost in self._costs[first:end]:
            for quota in self._quotas:
                quota.give_back(cost)

    def settle(self, answer: Any) -> None:
        """answer: of the only request, to which this is the future's callback."""
        if answer.cancelled() or answer.exception() is not None or answer.result().duplicate:
            self.give_back(0, 1)


class EnqueueQuotas:
    """One for a node. Owned by the event loop."""

    def __init__(self, rights: Rights, metrics: NodeMetrics, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._rights, self._metrics, self._now_ms = rights, metrics, now_ms
        self._users: dict[str, tuple[UserQuotas, tuple[Quota, ...]]] = {}

    def of(self, host: ShardHost, caller: Identity) -> tuple[Quota, ...]:
        """Those that a request of that caller for that shard must keep; mostly none."""
        user = self._rights.quotas(caller)
        return host.topic_quotas if user is None else host.topic_quotas + self._of_user(caller.principal, user)

    def _of_user(self, principal: str, spec: UserQuotas) -> tuple[Quota, ...]:
        known = self._users.get(principal)
        if known is None or known[0] != spec:
            if len(self._users) >= MAX_USERS:  # of former documents: these had begun anew as well
                self._users.clear()
            known = self._users[principal] = spec, _user_quotas(principal, spec)
        return known[1]

    def admit(
        self, host: ShardHost, quotas: Sequence[Quota], runs: Sequence[BatchRun], costs: Sequence[Cost]
    ) -> tuple[list[bool], Refused | None, Charge]:
        """Which of these requests are let in, why the others are not, and what the former have taken."""
        has = host.shard.producers.has
        stored = [run.producer != 0 and has(run.producer, run.number) for run in runs]
        taken, refused = admit(quotas, costs, stored, self._now_ms())
        if refused is not None:
            said = refused.metadata
            of = (said["name"], "") if said["scope"] == "topic" else ("", said["name"])
            self._metrics.count_quota_refused(*of, said["quota"], taken.count(False))
        spent = [NOTHING if again else cost for cost, again in zip(costs, stored, strict=True)]
        return taken, refused, Charge(quotas, spent)

    def admit_waiting(
        self, host: ShardHost, runs: Sequence[BatchRun], costs: Sequence[Cost]
    ) -> tuple[list[bool], Refused | None, Charge]:
        """The same for requests that were let in and had to wait: what is pending by now is looked at again."""
        return self.admit(host, [quota for quota in host.topic_quotas if isinstance(quota, PendingQuota)], runs, costs)

    def charge(self, host: ShardHost, caller: Identity, run: BatchRun, record_bytes: int) -> Charge | None:
        """Let one request in. Returns what it has taken; None: no quota is asked. Raises Refused QUOTA."""
        quotas = self.of(host, caller)
        if not quotas:
            return None
        _, refused, charge = self.admit(host, quotas, (run,), (Cost(run.messages, record_bytes),))
        if refused is not None:
            raise refused
        return charge

    def charge_rate(self, host: ShardHost, caller: Identity, count: int, record_bytes: int) -> None:
        """Let in what writes to the log and adds nothing to what is pending. Raises Refused QUOTA."""
        quotas = [quota for quota in self.of(host, caller) if isinstance(quota, RateQuota)]
        _, refused, _ = self.admit(host, quotas, (BatchRun(0, 0, count),), (Cost(count, record_bytes),))
        if refused is not None:
            raise refused

    def check_waiting(self, host: ShardHost, run: BatchRun, record_bytes: int) -> None:
        """The same as admit_waiting(), of one request. Raises Refused QUOTA."""
        _, refused, _ = self.admit_waiting(host, (run,), (Cost(run.messages, record_bytes),))
        if refused is not None:
            raise refused


def costs_of(runs: Sequence[BatchRun], size: U32) -> list[Cost]:
    """What each request takes. size: of the records of all messages."""
    messages = np.array([run.messages for run in runs], np.int64)
    ends: Array = np.minimum(np.cumsum(messages), len(size))
    byte = np.append(offsets_from(size, 0), np.sum(size, dtype=np.int64))[[0, *ends]].tolist()
    return [Cost(run.messages, end - start) for run, (start, end) in zip(runs, pairwise(byte), strict=True)]


def _user_quotas(principal: str, spec: UserQuotas) -> tuple[Quota, ...]:
    of, found = f"user {principal!r}, at this node,", list[Quota]()
    if spec.enqueue_per_second is not None:
        label = QuotaLabel("enqueuePerSecond", principal=principal)
        found.append(RateQuota(label, of, spec.enqueue_per_second))
    if spec.enqueue_bytes_per_second is not None:
        label = QuotaLabel("enqueueBytesPerSecond", principal=principal)
        found.append(RateQuota(label, of, spec.enqueue_bytes_per_second, of_bytes=True))
    return tuple(found)
