"""A name for the process's user, where it has none: OpenShift chooses ids that no image knows, and Java's login, which
Spark asks at its start, ends with "Invalid UID, could not determine effective user".

The image has libnss_wrapper, which answers from a file of ours in the place of /etc/passwd.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

LIBRARIES = "lib/*/libnss_wrapper.so"
NAME = "delaycluster"


def name_user(environment: MutableMapping[str, str] = os.environ, system: Path = Path("/usr")) -> None:
    """For the processes that are started with `environment`. Nothing is done where the user has a name, or where the
    library is not there."""
    library = next(iter(sorted(system.glob(LIBRARIES))), None)
    if library is None or _has_name(os.getuid()):
        return
    home = tempfile.mkdtemp(prefix="user-")
    passwd, group = Path(home) / "passwd", Path(home) / "group"
    passwd.write_text(f"{NAME}:x:{os.getuid()}:{os.getgid()}::{tempfile.gettempdir()}:/usr/sbin/nologin\n")
    group.write_text(f"{NAME}:x:{os.getgid()}:\n")
    preload = filter(None, (str(library), environment.get("LD_PRELOAD")))
    environment.update(LD_PRELOAD=":".join(preload), NSS_WRAPPER_PASSWD=str(passwd), NSS_WRAPPER_GROUP=str(group))


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False
