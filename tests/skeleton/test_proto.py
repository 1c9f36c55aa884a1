"""`make lint` tells stale generated code from fresh."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "proto.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def copy_sources(to: Path) -> Path:
    """The script, a .proto and the one that it imports in a tree of their own; answers the .proto."""
    protos = "node/delayapi/proto/delay/v1"
    for name in ("scripts/proto.py", f"{protos}/delay.proto", f"{protos}/schedules.proto"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to / "node/delayapi/proto/delay/v1/delay.proto"


def test_the_checked_in_code_is_fresh() -> None:
    ended = check(ROOT)
    assert ended.returncode == 0, ended.stderr


def test_a_new_field_makes_it_stale(tmp_path: Path) -> None:
    source = copy_sources(tmp_path)
    source.write_text(source.read_text() + "message AddedLater { int32 field = 1; }\n")
    ended = check(tmp_path)
    assert ended.returncode == 1
    assert "make proto" in ended.stderr


def test_a_reworded_comment_does_not(tmp_path: Path) -> None:
    source = copy_sources(tmp_path)
    source.write_text("// another comment\n" + source.read_text())
    assert check(tmp_path).returncode == 0
