"""Lets DelayTopics go that were deleted with deletionPolicy Delete and whose DelayCluster is gone.

    shop/shared deleted, then shop/orders   -> orders has the finalizer, and no cluster takes a step for it any more
    here                                    -> the finalizer goes, its messages stay on the volumes, an Event says so

Without the cluster nobody can ever count or delete the messages, and until then the namespace and the definition of
DelayTopics could not be deleted either. A cluster of this name that is applied again finds the shards on its volumes,
as it finds those of a topic that was removed. So a release loses nothing, also where the cluster comes back meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from delayregistry.kube.cluster_watches import ClusterKey

from delayoperator.cluster.reasons import Reason
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_TOPIC
from delayoperator.kube.referring import ReferringObjects
from delayoperator.kube.topic_deletion import is_leaving, topic_of, write_finalizer


class TopicRelease:
    """For one DelayCluster by its name. namespaces: where the operator looks; "" is everywhere."""

    def __init__(self, api: Api, events: EventRecorder, cluster: ClusterKey, namespaces: Sequence[str]) -> None:
        self._api, self._events, self._cluster = api, events, cluster
        self._objects = ReferringObjects(api, DELAY_TOPIC, cluster, namespaces)

    def leaving(self, held: HeldObjects) -> list[Json]:
        """The DelayTopics that wait. Raises ApiError."""
        try:
            return [it for it in self._objects.held(held) if is_leaving(it)]
        except ApiError as error:
            if error.forbidden:  # an operator whose rights are of an earlier release, which puts no finalizer on any
                return []
            raise

    def release(self, leaving: Sequence[Json]) -> None:
        """Raises the first ApiError once all were tried."""
        errors: list[ApiError] = []
        for body in leaving:
            try:
                write_finalizer(self._api, body, wanted=False)
            except ApiError as error:
                if not error.not_found:
                    errors.append(error)
                continue
            said = (
                f"DelayCluster {'/'.join(self._cluster)} is gone, so the messages of topic {topic_of(body)} were not "
                "deleted: they stay on its volumes, and a cluster of this name that is applied again finds them"
            )
            self._events.record(body["metadata"], Reason.MESSAGES_KEPT, said, warning=True, kind=DELAY_TOPIC)
        if errors:
            raise errors[0]
