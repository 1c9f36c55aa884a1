"""A node without messages: leases, reigns and ports as the real one has them, so that `local` is tested by itself.

FAKE_NODE in the environment chooses a fault: `exit` at once, `deaf` to SIGTERM, `mute` = never serves.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from delaynode.registry import open_registry
from delaynode.registry.model import NodeLease, ShardObject, ShardStatus
from delaynode.registry.port import RegistryError


def listen(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    server = socket.create_server((host, int(port)), backlog=16)
    return server


class FakeNode:
    def __init__(self, options: argparse.Namespace) -> None:
        self.node = options.node_id
        self.data = Path(options.data)
        self.data.mkdir(parents=True, exist_ok=True)
        self.registry = open_registry(options.registry)
        self.servers = [listen(options.listen), listen(options.http)]
        self.lease = NodeLease(self.node, secrets.token_hex(8), options.listen, options.http)

    def run(self) -> None:
        renew_at = 0.0
        seen = -1
        while True:
            try:
                if time.monotonic() >= renew_at:
                    self.lease = replace(self.lease, renewals=self.lease.renewals + 1)
                    self.registry.renew_lease(self.lease)
                    renew_at = time.monotonic() + 1.0
                version = self.registry.version()
                if version != seen:
                    for shard in self.registry.list_shards(self.node):
                        self.take_up(shard)
                    seen = version
            except RegistryError as error:
                print(json.dumps({"event": "registry", "error": str(error)}), file=sys.stderr, flush=True)
            time.sleep(0.02)

    def take_up(self, shard: ShardObject) -> None:
        spec = shard.spec
        kept = self.data / f"{spec.name}-{spec.uid}.json"
        fresh: dict[str, Any] = {"copy": secrets.token_hex(8), "epoch": 0}
        state: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else fresh
        mine = (spec.master, spec.incarnation) == (self.node, self.lease.incarnation)
        if not mine or spec.epoch <= state["epoch"] or os.environ.get("FAKE_NODE") == "mute":
            return
        assert shard.status is None or shard.status.in_sync == (state["copy"],), "someone else's data"
        kept.write_text(json.dumps({**state, "epoch": spec.epoch}))
        status = ShardStatus(spec.epoch, self.lease.incarnation, (state["copy"],))
        self.registry.write_status(spec.name, status, shard.version)


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("--node-id", "--data", "--registry", "--listen", "--http", "--durability"):
        parser.add_argument(option, required=True)
    fault = os.environ.get("FAKE_NODE")
    if fault == "exit":
        sys.exit("this node can't start: FAKE_NODE=exit")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if fault == "deaf" else lambda *_: sys.exit(0))
    FakeNode(parser.parse_args()).run()


main()
