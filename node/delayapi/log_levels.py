"""How grave each event in a log is: one table for all our programs.

    error     messages are at risk or a part of the program has failed: look at it now
    warning   something did not go as it should and is tried again or worked around: look at it when it stays
    info      what a person wants to know who asks later what happened
    debug     each step of what goes well

An event whose gravity depends on how it came out carries `level` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_RANK: Final = {level: rank for rank, level in enumerate(LogLevel)}

_ENDED: Final = "-over"  # a condition of a node has ended

_EVENTS: Final[Mapping[LogLevel, str]] = {
    LogLevel.ERROR: """
        bad-frames clock-behind clock-differs clock-disbelieved clock-out-voted control-loop-failed copy-damaged
        copy-newer damage-not-marked disk-nearly-full fault-not-said heartbeat-failed impossible internal-error
        listener-failed look-failed object-unreadable operator-error operator-failed peer-handler-failed
        peer-no-common-version
        rebalancer-failed release-too-old round-failed security-document-bad shard-damaged shard-stopped stop-failed
        clusters-stuck vital-part-ended sink-failed
    """,
    LogLevel.WARNING: """
        api-error bad-message certificate-unusable claim-dropped clock-not-kept cluster-not-noted connections-cut
        copies-not-listed copy-kept copy-not-discarded disk-slow end-not-told epoch-not-taken-up event-not-written
        frames-out-of-order handover-taken-back heartbeat-not-received heartbeat-not-sent
        heartbeat-unauthenticated lead-not-given-up lead-unknown
        lease-not-lowered lease-not-renewed log-not-read no-credentials node-killed node-not-started
        operator-lost-the-lead peer-bad-input peer-not-accepted peer-silent peer-stranger peer-too-slow
        rebalance-held-up registry-awaited registry-behind registry-unavailable registry-unreachable registry-went-back
        restart-given-up security-not-kept security-not-read security-refused shard-not-found snapshot-failed
        snapshot-not-read spare-file-damaged status-not-written status-written-again term-refused token-keys-not-fetched
        transfer-failed transfer-stuck watch-interrupted watching-failed metrics-port-refuses metrics-refused
        http-port-refuses schedule-paused schedules-stopped sink-dead-letter sink-dead-letter-not-sent
    """,
    LogLevel.INFO: """
        certificate-usable clock-accepted clock-agreed cluster-awaited cluster-found cluster-gone container-ended
        copy-discarded
        copy-found copy-offered copy-opened copy-opened-again copy-purged copy-replaced edge fetching follower-refuses
        handed-over handshake-failed in-sync lead-given-up left link-down link-failed link-up node-back node-restarted
        node-started nodes-version-raised operator-leads operator-stands-by peer-heard ready registry-answered
        security-applied shard-labelled-again started stopped stopping term-over term-started time-jumped watch-resumed
        watching clusters-stuck-over not-ready not-ready-over schedules-resumed sink-started sink-state sink-stopped
        console-listening audit-console
    """,
    LogLevel.DEBUG: "follower-streams late-start replica-joins scrubbed",
}

LEVELS: Final[Mapping[str, LogLevel]] = {name: level for level, names in _EVENTS.items() for name in names.split()}


def level_of(event: Mapping[str, object]) -> LogLevel:
    """What the event says itself, else the table's; INFO for one that is not in it."""
    said = event.get("level")
    return LogLevel(str(said)) if said is not None else LEVELS.get(str(event.get("event")), LogLevel.INFO)


def is_logged(level: LogLevel, least: LogLevel) -> bool:
    return _RANK[level] >= _RANK[least]
