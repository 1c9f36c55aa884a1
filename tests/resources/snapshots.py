"""The objects of a minimal and of a production cluster as files, so that a change of them is seen in review.

python -m tests.resources.snapshots      # write them anew
"""

from __future__ import annotations

from pathlib import Path

import yaml
from delayoperator.resources import ClusterView, build

from tests.resources.clusters import MINIMAL, PRODUCTION

PLACE = Path(__file__).parent / "snapshots"
CLUSTERS = {"minimal": MINIMAL, "production": PRODUCTION}


def rendered(view: ClusterView) -> str:
    return yaml.safe_dump_all(build(view), sort_keys=True, explicit_start=True, width=120)


def path(name: str) -> Path:
    return PLACE / f"{name}.yaml"


def main() -> None:
    for name, view in CLUSTERS.items():
        path(name).write_text(rendered(view), encoding="utf-8")
        print(f"{path(name).name} written")


if __name__ == "__main__":
    main()
