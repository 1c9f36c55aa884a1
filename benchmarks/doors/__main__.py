"""The official RocketMQ client in Java, on DelayCluster and on RocketMQ itself: `python -m benchmarks.doors`.

One system after the other: a broker with SYNC_FLUSH, its timer at the finest precision, and a proxy in the same
process, as RocketMQ's quick start has it; a node of DelayCluster, which syncs too. The client sends one message a call
from some threads, receives them by a push consumer, looks how late messages are that were due at set times, and drains
a backlog. node_us: the server's processor time, of all its threads, for a message that is sent while nobody receives,
and for one of the backlog that is received and acknowledged. With --rounds by turns: medians, and their ranges.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from delaylocal import LocalCluster, ports
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec

from benchmarks.peers.processes import Failed, Missing, answer, await_ready, build, program, running
from benchmarks.peers.rocketmq import HEAP, OPENED

JAVA = Path(__file__).parent / "java"
NORMAL, DELAYED, BACKLOG = "normal", "delayed", "backlog"
GROUPS = "bench", "bench-late", "bench-backlog"
TICKS = os.sysconf("SC_CLK_TCK")  # a second, in which the kernel counts processor time


def class_path(scratch: Path, profile: str) -> str:
    maven = program(lambda: shutil.which("mvn"), "maven")
    out = scratch / f"{profile}.classpath"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={out}", f"-P{profile}"]
    build([maven, "--batch-mode", "--quiet", "--file", JAVA / "pom.xml", *goal], f"Maven can't fetch the {profile}")
    return out.read_text().strip()


@contextmanager
def rocketmq(scratch: Path, data: Path) -> Iterator[tuple[str, int]]:
    """RocketMQ with the topics; its proxy's address, and its process."""
    free, path = ports.choose(0, 3), class_path(scratch, "server")
    names = f"{ports.HOST}:{free.grpc[0]}"
    settings = {
        "brokerClusterName": "doors", "brokerName": "doors", "brokerIP1": ports.HOST, "listenPort": free.http[0],
        "haListenPort": free.http[1], "storePathRootDir": data / "store", "flushDiskType": "SYNC_FLUSH",
        "timerWheelEnable": "true", "timerPrecisionMs": 100, "namesrvAddr": names,
    }  # fmt: skip
    (data / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    proxy = {
        "rocketMQClusterName": "doors", "grpcServerPort": free.grpc[1], "remotingListenPort": free.http[2],
        "namesrvAddr": names, "useEndpointPortFromRequest": True,
    }  # fmt: skip
    (data / "proxy.json").write_text(json.dumps(proxy))
    java = ["java", *HEAP, *OPENED, f"-Duser.home={data}", "-cp", path]
    home = {"ROCKETMQ_HOME": str(data), "RMQ_PROXY_HOME": str(data), "NAMESRV_ADDR": names}
    (data / "names.conf").write_text(f"listenPort={free.grpc[0]}\n")
    name_server = ["java", "-Xmx256m", f"-Duser.home={data}", "-cp", path, "org.apache.rocketmq.namesrv.NamesrvStartup"]
    admin = ["java", "-Xmx256m", f"-Duser.home={data}", "-cp", path, "org.apache.rocketmq.tools.command.MQAdminStartup"]
    broker = [*java, "org.apache.rocketmq.proxy.ProxyStartup", "-n", names, "-pm", "local"]
    broker += ["-bc", str(data / "broker.conf"), "-pc", str(data / "proxy.json")]
    log = data / "log"

    def has_topics() -> bool:
        try:
            for topic, kind in ((NORMAL, "NORMAL"), (DELAYED, "DELAY"), (BACKLOG, "NORMAL")):
                command = ["updateTopic", "-n", names, "-c", "doors", "-t", topic, "-r", "4", "-w", "4"]
                if "success" not in answer([*admin, *command, "-a", f"+message.type={kind}"]):
                    return False
            for group in GROUPS:  # a proxy refuses one that is not there
                if "success" not in answer([*admin, "updateSubGroup", "-n", names, "-c", "doors", "-g", group]):
                    return False
        except Failed:
            return False
        return True

    names_running = running([*name_server, "-c", str(data / "names.conf")], log, env=home)
    with names_running, running(broker, log, env=home) as process:
        await_ready(process, log, has_topics)
        yield f"{ports.HOST}:{free.grpc[1]}", process.pid


@contextmanager
def delaycluster(data: Path, edge: str) -> Iterator[tuple[str, int]]:
    """A node with the topics; its address, and its process."""
    os.environ[EDGE_VARIABLE] = edge
    with LocalCluster(data, nodes=1, topics=[TopicSpec(name, 4) for name in (NORMAL, DELAYED, BACKLOG)]) as cluster:
        cluster.wait_ready()
        yield cluster.endpoints[0], cluster.pids["n0"]


def summary(runs: Sequence[dict[str, float]]) -> dict[str, str]:
    """Of each figure its median, and from where to where it went."""
    return {
        name: f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
        for name in runs[0]
        for values in [[float(one[name]) for one in runs]]
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--late", type=int, default=5_000, help="messages that are due at set times")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1, help="of all systems, one after the other in each")
    parser.add_argument("--systems", nargs="*", default=["compiled", "grpcio", "rocketmq"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        try:
            client = class_path(scratch, "client")
            build(["javac", "-cp", client, "-d", scratch, JAVA / "Bench.java"], "javac can't compile the client")
        except Missing as error:
            print(error, file=sys.stderr)
            return 1
        found: dict[str, list[dict[str, float]]] = {name: [] for name in args.systems}
        for number, name in ((number, name) for number in range(args.rounds) for name in args.systems):
            data = scratch / f"{name}-{number}"
            data.mkdir()
            with rocketmq(scratch, data) if name == "rocketmq" else delaycluster(data, name) as (endpoint, pid):
                command = ["java", "-Xmx512m", f"-Duser.home={data}", "-cp", f"{scratch}:{client}", "Bench", endpoint]
                numbers = [str(one) for one in (args.messages, args.late, args.threads)]
                server = [BACKLOG, str(pid), str(TICKS)]
                said = answer([*command, NORMAL, DELAYED, *numbers, *server], seconds=600)
                found[name].append(json.loads(said.splitlines()[-1]))
                print(json.dumps({"system": name, "round": number + 1, **found[name][-1]}), flush=True)
        for name, runs in found.items() if args.rounds > 1 else ():
            print(json.dumps({"system": name, "rounds": len(runs), **summary(runs)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
