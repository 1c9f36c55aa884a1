"""Listeners for edges that a test makes itself."""

from delaynode.auth.identity import NoIdentities
from delaynode.listener_options import ListenerConfig, Security
from delaynode.node_certificates import NodeCertificates
from delaynode.server.callers import Callers
from delaynode.server.listeners import Listener

NOTHING = Security("", "", "", "off", 3_600)


def plain(listen: str = "127.0.0.1:0") -> Listener:
    """For everybody."""
    config = ListenerConfig("plain", listen, listen, False, "none")
    return Listener(config, NodeCertificates(NOTHING), forwards=True, max_age_ms=None)


def anybody() -> Callers:
    return Callers(NoIdentities(), [plain()])
