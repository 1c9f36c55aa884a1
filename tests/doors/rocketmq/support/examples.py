"""The example programs of the official clients, as their authors publish them: changed are the address, the token and
the names of topics, which have small letters here.

Java's are in the sources that Maven has, Rust's in the crate. Python's and Node.js's are in no package:
DELAY_ROCKETMQ_CLIENTS names a checkout of apache/rocketmq-clients that has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.processes import Missing, build, program
from tests.doors.rocketmq.support.judges import PROGRAMS, command_of, kept_directory

JAVA_VERSION = "5.2.0"
CHECKOUT = "DELAY_ROCKETMQ_CLIENTS"


@dataclass(frozen=True, slots=True)
class Examples:
    """Programs that are ready to run."""

    commands: Mapping[str, Sequence[str | Path]]

    @contextmanager
    def running(self, name: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
        """It is killed in the end."""
        home.mkdir(exist_ok=True)
        command = [str(part).replace("HOME", str(home)) for part in self.commands[name]]
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=home,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def said(home: Path) -> str:
    """What the program there has printed, and written to its client's log."""
    logs = (home / "log", home / "logs/rocketmq/rocketmq-client.log")
    return "".join(path.read_text(errors="replace") for path in logs if path.exists())


def changed(text: str, words: Mapping[str, str]) -> str:
    """words: what stands for each."""
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def java(names: Sequence[str], words: Mapping[str, str], made: Path) -> Examples:
    """Raises Missing."""
    _, _, _, path, _ = command_of("java")
    maven = program(lambda: shutil.which("mvn"), "maven")
    kept = kept_directory("java", "pom.xml")
    sources = kept / f"rocketmq-client-java-{JAVA_VERSION}-sources.jar"
    if not sources.exists():
        of = f"org.apache.rocketmq:rocketmq-client-java:{JAVA_VERSION}:jar:sources"
        goal = ["dependency:copy", f"-Dartifact={of}", f"-DoutputDirectory={kept}"]
        build([maven, "--batch-mode", "--quiet", *goal], "Maven can't fetch the sources of Java's client")
    package = "org/apache/rocketmq/client/java/example"
    with zipfile.ZipFile(sources) as jar:
        for name in [*names, "ProducerSingleton"]:
            text = changed(jar.read(f"{package}/{name}.java").decode(), words)
            (made / f"{name}.java").write_text(text)
    build(["javac", "-cp", str(path), "-d", made, *made.glob("*.java")], "javac can't compile the examples")
    run = ["java", "-Xmx128m", "-Duser.home=HOME", "-cp", f"{made}:{path}"]
    return Examples({name: [*run, f"{package.replace('/', '.')}.{name}"] for name in names})


def rust(names: Sequence[str], words: Mapping[str, str], made: Path) -> Examples:
    """Builds the crate: minutes, the first time. Raises Missing."""
    cargo = program(lambda: shutil.which("cargo"), "cargo")
    manifest = PROGRAMS / "rust" / "Cargo.toml"
    kept = kept_directory("rust", "Cargo.toml")
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(manifest, kept)
    where = [cargo, "metadata", "--format-version=1", "--quiet"]
    (kept / "src").mkdir(exist_ok=True)
    (kept / "src/lib.rs").touch()
    found = subprocess.run(where, cwd=kept, capture_output=True, text=True, check=False)
    crate = re.search(r'"manifest_path":"([^"]*/rocketmq-[\d.]+)/Cargo.toml"', found.stdout)
    if crate is None:
        raise Missing(f"cargo can't fetch Rust's client: {found.stderr[-300:]}")
    (kept / "examples").mkdir(exist_ok=True)
    for name in names:
        text = changed((Path(crate[1]) / "examples" / f"{name}.rs").read_text(), words)
        (kept / "examples" / f"{name}.rs").write_text(text)
    build([cargo, "build", "--quiet", "--examples"], "cargo can't build Rust's client", cwd=kept)
    return Examples({name: [shutil.copy(kept / "target/debug/examples" / name, made)] for name in names})


def python(names: Sequence[str], words: Mapping[str, str], made: Path) -> Examples:
    """Raises Missing."""
    interpreter = command_of("python")[0]
    for name in names:
        (made / f"{name}.py").write_text(changed((_checkout() / "python/example" / f"{name}.py").read_text(), words))
    return Examples({name: [interpreter, "-u", made / f"{name}.py"] for name in names})


def node(names: Sequence[str], words: Mapping[str, str], made: Path) -> Examples:
    """Raises Missing."""
    kept = Path(command_of("node")[2])
    (made / "examples").mkdir()
    # They import the client from the folder above: the package is what is built from it.
    (made / "src").symlink_to(kept / "node_modules/rocketmq-client-nodejs")
    (made / "node_modules").symlink_to(kept / "node_modules")
    for name in [*names, "ProducerSingleton"]:
        text = changed((_checkout() / "nodejs/examples" / f"{name}.ts").read_text(), words)
        (made / "examples" / f"{name}.ts").write_text(text)
    run: list[str | Path] = ["node", kept / "node_modules/tsx/dist/cli.mjs"]
    return Examples({name: [*run, made / "examples" / f"{name}.ts"] for name in names})


def _checkout() -> Path:
    """Raises Missing."""
    if (found := os.environ.get(CHECKOUT)) is None:
        raise Missing(f"{CHECKOUT} is not set: a checkout of apache/rocketmq-clients has the examples")
    return Path(found)
