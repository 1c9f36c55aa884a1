"""`python release_of_node.py DIRECTORY ...`: a delaynode out of the tree that the file DIRECTORY/NODE names.

An empty or missing file: this very tree's. So a test upgrades a node of a local cluster as a package manager would: the
file is changed, and the process started again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    directory, options = Path(sys.argv[1]), sys.argv[2:]
    chosen = directory / options[options.index("--node-id") + 1]
    tree = chosen.read_text() if chosen.exists() else ""
    path = {"PYTHONPATH": str(Path(tree) / "node")} if tree else {}
    # PYTHONPATH comes before the packages that are installed.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "delaynode.main", *options], {**os.environ, **path})
