"""scripts/setup with stand-ins for python3, apt-get and id: when it builds, when it leaves alone, what it says."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"

# Answers what setup asks of an interpreter; `venv` makes a directory whose python "installs" the two commands.
PYTHON = """#!/bin/bash
case "$*" in
  *'sys.exit(sys.version_info'*) [ ! -e "$STATE/old" ] ;;
  *ensurepip*) [ -e "$STATE/ensurepip" ] ;;
  *'print("python'*) echo python3.11-venv ;;
  --version) echo Python 3.11.2 ;;
  '-m venv'*) echo venv >>"$STATE/log"; rm -rf .venv; mkdir -p .venv/bin; cp "$STATE/bin/python3" .venv/bin/python ;;
  *'maturin build'*) echo 'build edge' >>"$STATE/log"; [ ! -e "$STATE/no-crates" ] && touch "${*: -1}/edge.whl" ;;
  *'pip uninstall'*) echo 'remove edge' >>"$STATE/log" ;;
  *.whl) echo 'pip edge' >>"$STATE/log" ;;
  '-m pip'*) echo "pip ${*: -1}" >>"$STATE/log"; [ ! -e "$STATE/offline" ] && touch .venv/bin/delay{ctl,node} \\
    && chmod +x .venv/bin/delay* ;;
esac
"""
APT = """#!/bin/bash
echo "apt $*" >>"$STATE/log"
[ ! -e "$STATE/no-debian" ] || exit 100
[[ "$*" != *rustc-web* ]] || echo 1.85.0 >"$STATE/rust"
[ "$1" != install ] || touch "$STATE/ensurepip"
"""
DPKG = """#!/bin/bash
[ -e "$STATE/$2" ]
"""
JAVA = """#!/bin/bash
[ ! -e "$STATE/no-java" ]
"""
RUSTC = """#!/bin/bash
echo "rustc $(cat "$STATE/rust")"
"""
FITS = """#!/bin/bash
[ -s "$STATE/rust" ]
"""
ID = """#!/bin/bash
cat "$STATE/uid"
"""
HAS_PROMTOOL = "#!/bin/bash\n"
COMMANDS = {
    "python3": PYTHON, "apt-get": APT, "dpkg-query": DPKG, "id": ID, "java": JAVA, "rustc": RUSTC, "cargo": FITS,
    "cc": FITS, "promtool": HAS_PROMTOOL,
}  # fmt: skip
EDGE = ["Cargo.toml", "Cargo.lock", "pyproject.toml", "delayedge.pyi", "src/lib.rs", "src/connection/mod.rs"]

INSTALLED = ["pip locks/build.txt", "pip locks/dev.txt", "pip ."]


@dataclass(frozen=True)
class Machine:
    """A clone in `clone`, and a machine whose facts are files in `state`. The compiled edge is left out unless told."""

    clone: Path
    state: Path

    def fact(self, name: str, text: str = "") -> None:
        (self.state / name).write_text(text)

    def command(self, name: str, text: str) -> None:
        path = self.state / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def setup(self, edge: str = "no") -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.state / 'bin'}:/usr/bin:/bin", "STATE": str(self.state), "DELAY_EDGE_BUILD": edge}
        env["XDG_CACHE_HOME"] = str(self.state / "cache")
        return subprocess.run(
            [self.clone / "scripts" / "setup"], env=env, capture_output=True, text=True, check=False, timeout=60
        )

    def log(self) -> list[str]:
        """The commands that ran since the last call."""
        path = self.state / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Root, with Python 3.11 and its venv package; a fresh clone."""
    made = Machine(tmp_path / "clone", tmp_path / "state")
    (made.clone / "scripts").mkdir(parents=True)
    shutil.copy(SETUP, made.clone / "scripts" / "setup")
    (made.clone / "locks").mkdir()
    (made.clone / "edge/src/connection").mkdir(parents=True)
    for name in ("pyproject.toml", "locks/build.txt", "locks/dev.txt"):
        (made.clone / name).write_text("")
    for name in EDGE:
        (made.clone / "edge" / name).write_text('rust-version = "1.85"\n')
    (made.state / "bin").mkdir(parents=True)
    for name, text in COMMANDS.items():
        made.command(name, text)
    made.fact("ensurepip")
    made.fact("libfaketime")
    made.fact("chromium")
    made.fact("uid", "0")
    return made


def test_a_fresh_clone_gets_both_commands(machine: Machine) -> None:
    assert machine.setup().returncode == 0
    assert machine.log() == ["venv", *INSTALLED]
    assert (machine.clone / ".venv/bin/delayctl").exists()
    assert (machine.clone / ".venv/bin/delaynode").exists()


def test_a_good_venv_is_left_alone(machine: Machine) -> None:
    machine.setup()
    machine.log()
    assert machine.setup().returncode == 0
    assert machine.log() == []


@pytest.mark.parametrize("file", ["pyproject.toml", "locks/build.txt", "locks/dev.txt"])
def test_a_newer_pyproject_or_lock_installs_again(machine: Machine, file: str) -> None:
    machine.setup()
    machine.log()
    stamp = (machine.clone / ".venv/.stamp").stat().st_mtime
    os.utime(machine.clone / file, (stamp + 10, stamp + 10))
    machine.setup()
    assert machine.log() == INSTALLED


def test_only_locked_packages_with_their_hashes_are_installed() -> None:
    text = SETUP.read_text()
    assert "--no-deps --no-build-isolation" in text, "nothing is looked up, and nothing fetched to build with"
    (fetching,) = re.findall(r"^for lock in .*$", text, re.MULTILINE)
    assert "--require-hashes" in fetching


def test_a_lost_command_is_installed_again(machine: Machine) -> None:
    machine.setup()
    machine.log()
    (machine.clone / ".venv/bin/delaynode").unlink()
    machine.setup()
    assert machine.log() == INSTALLED


def test_a_moved_clone_gets_a_new_venv(machine: Machine) -> None:
    machine.setup()
    machine.log()
    moved = Machine(machine.clone.rename(machine.clone.parent / "elsewhere"), machine.state)
    moved.setup()
    assert moved.log() == ["venv", *INSTALLED]


def test_a_lost_interpreter_gets_a_new_venv(machine: Machine) -> None:
    machine.setup()
    machine.log()
    (machine.clone / ".venv/bin/python").unlink()
    machine.setup()
    assert machine.log() == ["venv", *INSTALLED]


def test_a_failed_install_is_tried_again_next_time(machine: Machine) -> None:
    machine.fact("offline")
    assert machine.setup().returncode != 0
    (machine.state / "offline").unlink()
    assert machine.setup().returncode == 0
    assert (machine.clone / ".venv/bin/delayctl").exists()


def test_root_gets_the_missing_venv_package_installed(machine: Machine) -> None:
    (machine.state / "ensurepip").unlink()
    assert machine.setup().returncode == 0
    done = machine.log()
    assert done[0].startswith("apt update")
    assert done[1].startswith("apt install")
    assert done[1].endswith("python3.11-venv")
    assert done[2:] == ["venv", *INSTALLED]


def test_a_user_is_told_which_package_is_missing(machine: Machine) -> None:
    (machine.state / "ensurepip").unlink()
    machine.fact("uid", "1000")
    ended = machine.setup()
    assert ended.returncode == 1
    assert "apt-get install python3.11-venv" in ended.stderr
    assert machine.log() == []


def test_root_gets_what_only_some_tests_need(machine: Machine) -> None:
    (machine.state / "libfaketime").unlink()
    assert machine.setup().returncode == 0
    done = machine.log()
    assert done[:4] == ["venv", *INSTALLED]
    assert done[5].startswith("apt install")
    assert done[5].endswith("libfaketime")


@pytest.mark.parametrize("hindrance", ["a user", "no network"])
def test_a_setup_without_what_only_some_tests_need_is_good_and_says_so(machine: Machine, hindrance: str) -> None:
    (machine.state / "libfaketime").unlink()
    if hindrance == "a user":
        machine.fact("uid", "1000")
    else:
        machine.fact("no-debian")
    ended = machine.setup()
    assert ended.returncode == 0
    assert "the tests that step a node's clock will be skipped" in ended.stderr
    assert (machine.clone / ".venv/bin/delaynode").exists()


@pytest.mark.parametrize("hindrance", ["", "a user", "no network"])
def test_java_is_installed_or_named(machine: Machine, hindrance: str) -> None:
    machine.fact("no-java")
    if hindrance == "a user":
        machine.fact("uid", "1000")
    elif hindrance:
        machine.fact("no-debian")
    ended = machine.setup()
    assert ended.returncode == 0
    if hindrance:
        assert "apt-get install openjdk-17-jre-headless" in ended.stderr
    else:
        assert machine.log()[-1].endswith("openjdk-17-jre-headless")


@pytest.mark.parametrize("hindrance", ["", "no network"])
def test_promtool_is_taken_out_of_debians_package_or_its_lack_is_told(machine: Machine, hindrance: str) -> None:
    (machine.state / "bin/promtool").unlink()
    package = machine.state / "package/usr/bin"
    package.mkdir(parents=True)
    (package / "promtool").write_text("taken out")
    if hindrance:
        machine.fact("no-debian")
    else:
        machine.command("dpkg-deb", f'#!/bin/bash\nexec tar -c -C "{machine.state}/package" ./usr/bin/promtool\n')
    ended = machine.setup()
    assert ended.returncode == 0
    assert machine.log()[-1] == "apt download -qq prometheus"
    assert ("the tests of alerts will be skipped" in ended.stderr) == bool(hindrance)
    assert (machine.clone / ".venv/bin/promtool").exists() == (not hindrance)


def test_an_old_python_is_refused_in_words(machine: Machine) -> None:
    machine.fact("old")
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        shutil.copy(machine.state / "bin/python3", machine.state / "bin" / name)
    ended = machine.setup()
    assert ended.returncode == 1
    assert "Python 3.11 or newer is needed" in ended.stderr


def test_the_compiled_edge_is_built_once_for_all_clones(machine: Machine) -> None:
    machine.fact("rust", "1.100.0")
    assert machine.setup("").returncode == 0
    assert machine.log() == ["venv", *INSTALLED, "build edge", "pip edge"]
    assert machine.setup("").returncode == machine.setup("yes").returncode == 0
    assert machine.log() == []
    second = Machine(Path(shutil.copytree(machine.clone, machine.clone.with_name("second"))), machine.state)
    assert second.setup("").returncode == 0
    assert second.log() == ["venv", *INSTALLED, "pip edge"]


@pytest.mark.parametrize("file", EDGE)
def test_a_changed_source_builds_the_compiled_edge_anew(machine: Machine, file: str) -> None:
    machine.fact("rust", "1.85.1")
    machine.setup("")
    machine.log()
    path = machine.clone / "edge" / file
    path.write_text(path.read_text() + "# changed\n")
    stamp = (machine.clone / ".venv/.stamp").stat().st_mtime
    os.utime(path, (stamp + 10, stamp + 10))
    machine.setup("")
    assert machine.log() == [*INSTALLED, "build edge", "pip edge"]


def test_another_compiler_builds_the_compiled_edge_anew(machine: Machine) -> None:
    machine.fact("rust", "1.85.1")
    machine.setup("")
    machine.fact("rust", "1.86.0")
    os.utime(machine.clone / "pyproject.toml")
    machine.log()
    machine.setup("")
    assert machine.log() == [*INSTALLED, "build edge", "pip edge"]


@pytest.mark.parametrize("rust", ["", "1.63.0"])
def test_root_gets_rust_for_the_compiled_edge(machine: Machine, rust: str) -> None:
    machine.fact("rust", rust)
    assert machine.setup("").returncode == 0
    done = machine.log()
    assert done[5].endswith("rustc-web cargo-web")
    assert done[6:] == ["build edge", "pip edge"]


@pytest.mark.parametrize("hindrance", ["a user", "no Debian", "no crates"])
def test_without_the_compiled_edge_set_up_is_good_and_says_so(machine: Machine, hindrance: str) -> None:
    match hindrance:
        case "a user":
            machine.fact("uid", "1000")
        case "no Debian":
            machine.fact("no-debian")
        case _:
            machine.fact("rust", "1.85.0")
            machine.fact("no-crates")
    ended = machine.setup("")
    assert ended.returncode == 0
    assert ended.stderr.count("nodes serve by grpcio") == 1
    assert (".venv/edge.log" if hindrance == "no crates" else "apt-get install rustc-web cargo-web") in ended.stderr
    assert machine.setup("yes").returncode == 1, "CI asks for it"


def test_a_compiled_edge_of_other_sources_does_not_stay(machine: Machine) -> None:
    machine.fact("rust", "1.85.0")
    machine.setup("")
    machine.fact("no-crates")
    path = machine.clone / "edge/src/lib.rs"
    path.write_text("// changed\n")
    stamp = (machine.clone / ".venv/.stamp").stat().st_mtime
    os.utime(path, (stamp + 10, stamp + 10))
    machine.log()
    assert machine.setup("").returncode == 0
    assert machine.log() == [*INSTALLED, "build edge", "remove edge"]


def test_the_compiled_edge_can_be_left_out(machine: Machine) -> None:
    machine.fact("rust", "1.85.0")
    machine.setup("")
    machine.log()
    assert machine.setup("no").returncode == 0
    assert machine.log() == [*INSTALLED, "remove edge"]
