"""study_cluster(): runs the whole job on a cluster: starts Spark, reads the wheels, searches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from delayrebalance.forecast import history
from delayrebalance.forecast.wheels import TokenAccess
from delayrebalance.forecast.wheels import silent as silent_nodes
from delayrebalance.job import study
from delayrebalance.model import ClusterMap, RebalanceError, SearchSettings, Study
from delayrebalance.session import require, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_S = 10.0  # that a node has to show that it answers


def study_cluster(
    cluster: ClusterMap,
    settings: SearchSettings,
    *,
    skip_silent: bool = False,
    keep_in: str | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
    token_file: str = "",
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Study:
    """Reads the wheels of the map's nodes and searches. master: Spark's, for a session of its own, unless one
    is given or runs already; its own ends here.

    skip_silent: nodes that do not answer are left out, with the shards that they serve; they get nothing. Else they
    are an error. keep_in: a directory for the history. token_file: for the nodes that the map has a trust of. Raises
    RebalanceError.
    """
    require()
    at = {node.name: node.endpoint for node in cluster.nodes if node.endpoint}
    serving = {shard.master for shard in cluster.shards}
    access = _access(cluster, token_file)
    unreached = silent_nodes([at[name] for name in sorted(at)], ANSWER_S, access)
    silent = [name for name in at if at[name] in unreached] + sorted(serving - set(at))
    if silent and not skip_silent:
        whys = [f"{name}: {unreached.get(at.get(name, ''), 'it has no lease')}" for name in silent]
        raise RebalanceError(
            f"{len(silent)} of {len(cluster.nodes)} nodes do not answer, and a plan without them could be wrong: "
            f"{'; '.join(whys)}. --silent skip leaves them out"
        )
    answering = [at[name] for name in at if name not in silent]
    if not answering:
        raise RebalanceError(f"no node of the cluster {cluster.name} answers")
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    own = session is None
    session = session or spark_session(master)
    try:
        from delayrebalance.forecast.source import NAME

        reader = session.read.format(NAME).option("endpoints", ",".join(answering))
        reader = reader.option("slot", str(settings.slot_ms // 1000))
        if access is not None:
            reader = reader.option("serverName", access.server_name).option("roots", access.roots)
            reader = reader.option("tokenFile", access.token_file)
        moment = now_ms()
        if keep_in is None:
            start_ms = moment // settings.slot_ms * settings.slot_ms
            end_ms = start_ms + settings.slots * settings.slot_ms
            slots = reader.option("from", str(start_ms)).option("to", str(end_ms)).load()
        else:
            slots = reader.load()
            slots = history.load(session, keep_in, history.keep(slots, keep_in, moment))
        return study(session, slots, cluster, settings, now_ms=moment, silent=silent)
    finally:
        if own:
            session.stop()


def _access(cluster: ClusterMap, token_file: str) -> TokenAccess | None:
    """The same for all nodes; while one CA takes over from another, both count."""
    found = [node.trust for node in cluster.nodes if node.trust is not None]
    if not found or not token_file:
        return None
    roots = "\n".join(dict.fromkeys(trust.roots for trust in found))
    return TokenAccess(found[0].server_name, roots, token_file)
