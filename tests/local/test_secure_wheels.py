"""What the rebalance job reads of nodes that take TLS and tokens alone: with a token's file, by what the leases say."""

from __future__ import annotations

from pathlib import Path

import pytest
from delayclient import Tls
from delayclient.sync import Producer
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME
from delayrebalance.forecast.wheels import NodeUnanswered, TokenAccess, read_wheel, silent
from delayrebalance.maps import read_map
from delayregistry.model import TopicSpec

MESSAGES = 20


def test_the_job_reads_the_wheels_by_tls_with_its_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LocalCluster(data, nodes=2, topics=(TopicSpec("t", 4),), secure=True) as local:
        security = data / "security"
        tls = Tls(security / "ca.crt", server_name=SERVER_NAME)
        with Producer(local.endpoints[0], tls=tls, token_file=security / "admin/token") as producer:
            for number in range(MESSAGES):
                producer.send("t", str(number).encode(), delay="1h")

        place = f"sqlite:{data}/registry.db"
        nodes = read_map(place, by_token=True).nodes
        trusts = [node.trust for node in nodes if node.trust is not None]
        assert len(trusts) == len(nodes) == 2
        access = TokenAccess(trusts[0].server_name, trusts[0].roots, str(security / "admin/token"))
        endpoints = [node.endpoint for node in nodes]
        assert silent(endpoints, 10, access) == {}
        found = [slots for endpoint in endpoints for slots in read_wheel(endpoint, access=access)]
        assert sum(int(slots.messages.sum()) for slots in found) == MESSAGES

        (tmp_path / "token").write_text("guessed")
        stranger = TokenAccess(trusts[0].server_name, trusts[0].roots, str(tmp_path / "token"))
        with pytest.raises(NodeUnanswered, match="UNAUTHENTICATED"):
            list(read_wheel(endpoints[0], access=stranger))
        with pytest.raises(NodeUnanswered):
            list(read_wheel(endpoints[0]))
        assert all(node.trust is None for node in read_map(place).nodes), "nobody asked for TLS"
