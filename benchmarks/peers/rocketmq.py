"""RocketMQ: one broker from Maven with its timer, SYNC_FLUSH, at the finest precision that it has.

The client speaks to the broker itself: a name server would only tell it the broker's address.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from delaylocal import ports

from benchmarks.peers.client import administer
from benchmarks.peers.processes import Failed, Server, System, await_ready, build, program, running

POM = Path(__file__).parent / "rocketmq" / "pom.xml"
CLASS_PATH = "rocketmq.classpath"
HEAP = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"]
OPENED = [  # its mapped files are unmapped through these
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
]


def prepare(scratch: Path) -> str:
    program(partial(shutil.which, "java"), "default-jre-headless")
    maven = program(partial(shutil.which, "mvn"), "maven")
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={scratch / CLASS_PATH}"]
    build([maven, "--batch-mode", "--quiet", "--file", POM, *goal], "Maven can't fetch RocketMQ")
    found = re.search(r"rocketmq-broker-([\d.]+)\.jar", (scratch / CLASS_PATH).read_text())
    return f"RocketMQ {found[1] if found else 'of an unknown version'}"


def configuration(data: Path, port: int, ha_port: int) -> str:
    settings = {
        "brokerClusterName": "peers",
        "brokerName": "peers",
        "brokerIP1": ports.HOST,
        "listenPort": port,
        "haListenPort": ha_port,
        "storePathRootDir": data / "store",
        "flushDiskType": "SYNC_FLUSH",
        "timerWheelEnable": "true",
        "timerPrecisionMs": 100,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def start(data: Path, scratch: Path) -> Iterator[Server]:
    free = ports.choose(0, 1)
    address, log, settings = f"{ports.HOST}:{free.grpc[0]}", data / "log", data / "broker.conf"
    settings.write_text(configuration(data, free.grpc[0], free.http[0]))
    class_path = (scratch / CLASS_PATH).read_text().strip()
    java = ["java", *HEAP, *OPENED, f"-Duser.home={data}", "-cp", class_path]
    command = [*java, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(settings)]
    ask = partial(administer, scratch / "client", "rocketmq", address)
    with running(command, log, env={"ROCKETMQ_HOME": str(data)}) as process:
        await_ready(process, log, partial(_answers, ask))
        yield Server(process.pid, address, lambda: int(json.loads(ask("count"))["stored"]), keeps_delivered=True)


def _answers(ask: partial[str]) -> bool:
    try:
        ask("topic")
    except Failed:
        return False
    return True


SYSTEM = System("RocketMQ", "rocketmq", prepare, start)
