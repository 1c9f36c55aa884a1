"""Writes crds/*.yaml from the models in operator/delayoperator/crds; with --check, says whether those are stale."""

import argparse
import sys
from pathlib import Path

from delayoperator.crds.definitions import KINDS

ROOT = Path(__file__).resolve().parent.parent / "crds"


def stale() -> list[str]:
    """The files that are not what the models say, and those that no model makes."""
    found = {path.name: path.read_text() for path in ROOT.glob("*.yaml")}
    wanted = {kind.file: kind.text() for kind in KINDS}
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description="generate crds/*.yaml")
    parser.add_argument("--check", action="store_true", help="only say whether the checked-in files are stale")
    names = stale()
    if parser.parse_args().check:
        for name in names:
            print(f"crds/{name} is not what its model says: run `make crds` and commit the result", file=sys.stderr)
        return bool(names)
    ROOT.mkdir(exist_ok=True)
    texts = {kind.file: kind.text() for kind in KINDS}
    for name in names:
        if name in texts:
            (ROOT / name).write_text(texts[name])
        else:
            (ROOT / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
