"""The official RocketMQ client in Java, on DelayCluster and on RocketMQ itself: `python -m benchmarks.doors`.

One system after the other: a broker with SYNC_FLUSH, its timer at the finest precision, and a proxy in the same
process, as RocketMQ's quick start has it; a node of DelayCluster, which syncs too. The client sends one message a call
from some threads, receives them by a push consumer, and looks how late messages are that were due at set times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delaylocal import LocalCluster, ports
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec

from benchmarks.peers.processes import Failed, Missing, answer, await_ready, build, program, running
from benchmarks.peers.rocketmq import HEAP, OPENED

JAVA = Path(__file__).parent / "java"
NORMAL, DELAYED = "normal", "delayed"
GROUPS = "bench", "bench-late"


def class_path(scratch: Path, profile: str) -> str:
    maven = program(lambda: shutil.which("mvn"), "maven")
    out = scratch / f"{profile}.classpath"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={out}", f"-P{profile}"]
    build([maven, "--batch-mode", "--quiet", "--file", JAVA / "pom.xml", *goal], f"Maven can't fetch the {profile}")
    return out.read_text().strip()


@contextmanager
def rocketmq(scratch: Path, data: Path) -> Iterator[str]:
    """RocketMQ with both topics; its proxy's address."""
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
            for topic, kind in ((NORMAL, "NORMAL"), (DELAYED, "DELAY")):
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
        yield f"{ports.HOST}:{free.grpc[1]}"


@contextmanager
def delaycluster(data: Path, edge: str) -> Iterator[str]:
    os.environ[EDGE_VARIABLE] = edge
    with LocalCluster(data, nodes=1, topics=[TopicSpec(NORMAL, 4), TopicSpec(DELAYED, 4)]) as cluster:
        cluster.wait_ready()
        yield cluster.endpoints[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--late", type=int, default=5_000, help="messages that are due at set times")
    parser.add_argument("--threads", type=int, default=32)
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
        for name in args.systems:
            data = scratch / name
            data.mkdir()
            with rocketmq(scratch, data) if name == "rocketmq" else delaycluster(data, name) as endpoint:
                command = ["java", "-Xmx512m", f"-Duser.home={data}", "-cp", f"{scratch}:{client}", "Bench", endpoint]
                numbers = [str(one) for one in (args.messages, args.late, args.threads)]
                said = answer([*command, NORMAL, DELAYED, *numbers], seconds=300)
                print(json.dumps({"system": name, **json.loads(said.splitlines()[-1])}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
