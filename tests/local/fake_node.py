"""A node without messages: leases, terms, in-sync sets and ports as the real one has them, so that `local` is tested
by itself. A shard's "log" is a number in a file.

FAKE_NODE in the environment chooses a fault: `exit` at once, `deaf` to signals, `mute` = never serves, `unready` by its
/readyz.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if os.environ.get("FAKE_NODE") == "exit":  # at once: what is imported next may take a second
    sys.exit("this node can't start: FAKE_NODE=exit")

import grpc
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayregistry import open_registry
from delayregistry.model import Handover, NodeLease, ShardObject, ShardSpec, ShardStatus
from delayregistry.port import RegistryError

SERVICE = "delay.v1.ReplicationService"


def listen(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_server((host, int(port)), backlog=16)


class Http(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = os.environ.get("FAKE_NODE") != "unready"
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"ok\n" if ready else b"shards-not-served\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class FakeNode:
    def __init__(self, options: argparse.Namespace) -> None:
        self.node = options.node_id
        self.data = Path(options.data)
        self.data.mkdir(parents=True, exist_ok=True)
        self.registry = open_registry(options.registry)
        self.peer = listen(options.peer)
        host, port = options.http.rsplit(":", 1)
        self.http = ThreadingHTTPServer((host, int(port)), Http)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.lease = NodeLease(
            self.node, secrets.token_hex(8), options.listen, options.http, peer=options.peer, zone=options.zone
        )
        self.asked_to_stop = False
        self.grpc = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self.status, pb.ReplicaStatusRequest.FromString, pb.ReplicaStatusResponse.SerializeToString
        )
        self.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ReplicaStatus": handler}),))
        self.grpc.add_insecure_port(options.listen)
        self.grpc.start()

    def run(self) -> None:
        """Run until SIGINT, or until SIGTERM and the handover of the node's shards that follows it."""
        renew_at = 0.0
        leave_at = float("inf")
        while time.monotonic() < leave_at:
            try:
                if self.asked_to_stop and not self.lease.stopping:
                    self.lease = replace(self.lease, stopping=True)
                    renew_at = 0.0
                    leave_at = time.monotonic() + 5.0
                if time.monotonic() >= renew_at:
                    self.lease = replace(self.lease, renewals=self.lease.renewals + 1)
                    self.registry.renew_lease(self.lease)
                    renew_at = time.monotonic() + 1.0
                shards = self.registry.list_shards(self.node)
                for shard in shards:
                    self.act(shard)
                if self.lease.stopping and not any(
                    self.leads(shard) and len(shard.spec.replicas) > 1 for shard in shards
                ):
                    return
            except RegistryError as error:
                print(json.dumps({"event": "registry", "error": str(error)}), file=sys.stderr, flush=True)
            time.sleep(0.02)

    def leads(self, shard: ShardObject) -> bool:
        return (shard.spec.master, shard.spec.incarnation) == (self.node, self.lease.incarnation)

    def file_of(self, spec: ShardSpec, node: str) -> Path:
        return self.data.parent / node / f"{spec.name}-{spec.uid}.json"

    def state(self, spec: ShardSpec, node: str) -> dict[str, Any] | None:
        """The state of the node's copy. Fakes read each other's files where real nodes would use the network."""
        try:
            found: dict[str, Any] = json.loads(self.file_of(spec, node).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found

    def keep(self, spec: ShardSpec, state: dict[str, Any]) -> None:
        path = self.file_of(spec, self.node)
        path.with_suffix(".new").write_text(json.dumps(state))
        path.with_suffix(".new").replace(path)

    def act(self, shard: ShardObject) -> None:
        spec, status = shard.spec, shard.status
        own = self.state(spec, self.node)
        if os.environ.get("FAKE_NODE") == "mute":
            return
        if not self.leads(shard):
            if spec.epoch and status is not None and own is None:
                self.keep(spec, {"copy": secrets.token_hex(8), "epoch": spec.epoch, "log": 1})  # "fetched"
            return
        if status is None or status.serving_epoch < spec.epoch:
            if own is not None and own["epoch"] >= spec.epoch and own.get("by") != self.lease.incarnation:
                return  # the term of another process
            own = own or {"copy": secrets.token_hex(8), "epoch": 0, "log": 0}
            in_sync = status.in_sync if status is not None else (own["copy"],)
            assert own["copy"] in in_sync, "someone else's data"
            self.keep(spec, {**own, "epoch": spec.epoch, "log": 1, "by": self.lease.incarnation})
            served = ShardStatus(spec.epoch, self.lease.incarnation, (own["copy"],))
            self.registry.write_status(spec.name, served, shard.version)
            return
        assert own is not None
        alive = {lease.node for lease in self.registry.list_leases()}
        others = [
            state["copy"]
            for node in spec.replicas
            if node != self.node and node in alive and node not in spec.leaving and (state := self.state(spec, node))
        ]
        wanted = replace(status, in_sync=(own["copy"], *others), handover=None)
        if spec.switchover is not None and (to := self.state(spec, spec.switchover.to)) and to["copy"] in others:
            wanted = replace(wanted, handover=Handover(spec.epoch, 1))
        if wanted != status:
            self.registry.write_status(spec.name, wanted, shard.version)

    def status(self, request: pb.ReplicaStatusRequest, context: Any) -> pb.ReplicaStatusResponse:
        answer = pb.ReplicaStatusResponse(node=self.node, incarnation=self.lease.incarnation, listed=True)
        for shard in self.registry.list_shards():
            spec = shard.spec
            state = self.state(spec, self.node)
            if state is None:
                continue
            serves = self.leads(shard) and shard.status is not None and shard.status.serving_epoch == spec.epoch
            copy = pb.ReplicaState(topic=spec.topic, queue=spec.queue, uid=spec.uid, entry=state["copy"])
            copy.role = pb.ReplicaState.MASTER if serves else pb.ReplicaState.SLAVE
            copy.epoch = copy.log_epoch = state["epoch"]
            copy.log_end = copy.committed = state["log"]
            copy.beacon_age_ms = -1 if serves else 7
            if serves and shard.status is not None:
                copy.serving_epoch = copy.kept_epoch = spec.epoch
                copy.kept_in_sync.extend(shard.status.in_sync)
            answer.copies.append(copy)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("--node-id", "--data", "--registry", "--listen", "--http", "--peer", "--durability"):
        parser.add_argument(option, required=True)
    parser.add_argument("--zone", default="")
    fault = os.environ.get("FAKE_NODE")
    node: list[FakeNode] = []

    def stop(signum: int, _: object) -> None:
        if signum == signal.SIGINT or not node:
            os._exit(0)
        node[0].asked_to_stop = True

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN if fault == "deaf" else stop)
    node.append(FakeNode(parser.parse_args()))
    node[0].run()
    os._exit(0)


main()
