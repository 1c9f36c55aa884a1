"""Replication: replica leases, epochs, the in-sync set, log shipping and the transfer of whole copies
(docs/protocol.md).

Nothing here knows of RPCs or of the registry's kind; time comes in from outside, in ms of CLOCK_BOOTTIME.
"""
