"""A node that starts with a bad certificate, and connections that come to their age."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.security.authority import Authority, write
from tests.serve.support.client import Client, Failure, poll
from tests.serve.support.secured import NAME, Secured

SPIFFE = "spiffe://example.org/shop"


@pytest.mark.usefixtures("edge")
def test_a_bad_certificate_keeps_no_node_from_serving_and_a_good_one_needs_no_restart(tmp_path: Path) -> None:
    secured = Secured(tmp_path, "permissive", "--connection-age-seconds=2", nodes=1)
    secured.server.swap(Authority("other").issue(NAME), secured.ca.pem)
    with secured.run():
        assert "ca.crt does not verify it" in secured.events("certificate-unusable")[0]["reason"]
        client = secured.client_ca.issue(SPIFFE)
        with secured.dial("mtls", client) as waiting, pytest.raises(Failure):
            waiting.raw("QueryRoute", b"", 1.0)
        with Client(secured.endpoint("plain")) as plain:
            plain.call("QueryRoute")
        secured.server.swap(secured.ca.issue(NAME), secured.ca.pem)

        def is_served() -> bool:
            with secured.dial("mtls", client) as dialled:
                try:
                    dialled.raw("QueryRoute", b"", 2.0)
                except Failure:
                    return False
            return True

        poll("it is served by TLS", is_served, 30.0)
        connections_end_at_their_age(secured)


def connections_end_at_their_age(secured: Secured) -> None:
    """So that a CA that was taken away stops counting, and no call fails of a client whose CA stays."""
    newer = Authority("newer")
    write(secured.clients, None, secured.client_ca.pem + newer.pem)
    old, new = (secured.dial("mtls", ca.issue(SPIFFE)) for ca in (secured.client_ca, newer))
    with old, new:

        def both_are_served() -> bool:
            for client in (old, new):
                try:
                    client.raw("QueryRoute", b"", 2.0)
                except Failure:
                    return False
            return True

        poll("both CAs count", both_are_served, 30.0)
        write(secured.clients, None, newer.pem)
        deadline = time.monotonic() + 60
        while True:
            new.call("QueryRoute")
            try:
                old.raw("QueryRoute", b"", 2.0)
            except Failure:
                break
            assert time.monotonic() < deadline, "the older CA counts for ever"
            time.sleep(0.02)
        for _ in range(200):
            new.call("QueryRoute")
            time.sleep(0.02)
