"""A node's program with further options: `secured_node.py JSON OPTION...`, JSON: node id -> more options, in which
LISTEN stands for the port of --listen. `@FILE` in its place: what that has when the node starts."""

import json
import sys
from pathlib import Path

from delaynode.main import main

if __name__ == "__main__":
    more, *options = sys.argv[1:]
    if more.startswith("@"):
        more = Path(more[1:]).read_text()
    node = options[options.index("--node-id") + 1]
    port = options[options.index("--listen") + 1].rpartition(":")[2]
    sys.argv[1:] = [*options, *(one.replace("LISTEN", port) for one in json.loads(more)[node])]
    main()
