"""The objects of a minimal, a production and a secured cluster as files, so that a change of them is seen in review.

python -m tests.resources.snapshots      # write them anew
"""

from __future__ import annotations

from pathlib import Path

import yaml
from delayoperator.resources import ClusterView, build

from tests.resources.clusters import MINIMAL, PRODUCTION, SECURED

PLACE = Path(__file__).parent / "snapshots"
CLUSTERS = {"minimal": MINIMAL, "production": PRODUCTION, "secured": SECURED}


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
