"""`--peers` raised step by step under load, node after node, and taken back: nothing lost, callers see no error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from delaylocal import ports
from delayregistry.model import TopicSpec

from tests.faults.support.failover import FaultCluster
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.test_handover import PAUSE_SECONDS, through
from tests.security.authority import Authority, Mount
from tests.serve.support import secured_node
from tests.serve.support.secured import CLUSTER, NAME

WORK = Work(rate=400, queues=4)
STEPS = ("preferred", "required", "preferred", "off")  # after `off`


def test_peers_are_secured_step_by_step_under_load_and_back(tmp_path: Path) -> None:
    ca, options = Authority("peers"), tmp_path / "options.json"
    keys = Mount(tmp_path / "peers", ca.issue(CLUSTER + "node", NAME), ca.pem)
    internal = ports.choose(0, 2).grpc

    def choose(mode: str) -> None:
        """Of each node from its next start on."""
        own = [f"--peers={mode}", f"--peer-certificates={keys.path}", "--listener=plain=LISTEN,plain,none"]
        more = {f"n{number}": [*own, f"--internal-port={port}"] for number, port in enumerate(internal)}
        options.write_text(json.dumps(more if mode != "off" else dict.fromkeys(more, own[:1])))

    choose("off")
    command = (sys.executable, "-P", secured_node.__file__, f"@{options}")
    topics = [TopicSpec("t", WORK.queues)]
    with FaultCluster(tmp_path / "own", topics=topics, nodes=2, node_command=command) as cluster:
        by_tls: list[set[bool]] = []

        def every_step(load: SdkLoad) -> None:
            for mode in STEPS:
                choose(mode)
                before = len(cluster.logged("link-up"))
                cluster.restart_each()
                by_tls.append({one["tls"] for one in cluster.logged("link-up")[before:]})

        _, pause = through(cluster, every_step, work=WORK)
        assert pause < PAUSE_SECONDS
        assert by_tls[1] == {True}, "all nodes dial by TLS from `preferred` on"
        assert by_tls[3] >= {False}
        assert by_tls[0] >= {False, True}, "the first node finds none that offers it"
