"""`python cut_off_node.py MARK ...`: a delaynode that can't reach the registry while the file MARK exists.

A test can't cut one process off from a registry in a file; this module takes the answers away at the port instead.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from delaynode import main as program
from delayregistry.port import OutcomeUnknown, RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry

SECONDS = 1.0  # a call waits so long for an answer that does not come
WRITES = {"put_cluster", "create_shard", "write_spec", "write_status", "write_conditions"}
READS = {"version", "read_cluster", "list_shards", "get_shard", "renew_lease", "probe", "list_leases"}


def cut_off(method: str, mark: Path) -> None:
    call = getattr(SqliteRegistry, method)

    def unless_cut(self: SqliteRegistry, *args: Any, **options: Any) -> Any:
        if mark.exists():
            time.sleep(SECONDS)
            raise (OutcomeUnknown if method in WRITES else RegistryUnavailable)(f"{method}: {mark} exists")
        return call(self, *args, **options)

    setattr(SqliteRegistry, method, unless_cut)


if __name__ == "__main__":
    mark = Path(sys.argv.pop(1))
    for name in sorted(WRITES | READS):
        cut_off(name, mark.parent / f"{mark.name}-{sys.argv[sys.argv.index('--node-id') + 1]}")
    program.main()
