"""Commands, progress, waiting."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from e2e.cluster.settings import PLACES

POLL_SECONDS = 0.5
PROGRAM = Path(sys.argv[0]).name  # kubelab or kind

Word = str | Path


def say(*words: object) -> None:
    print(f"{PROGRAM}:", *words, file=sys.stderr, flush=True)


def fail(message: str) -> NoReturn:
    sys.exit(f"{PROGRAM}: {message}")


def sh(
    *argv: Word,
    check: bool = True,
    quiet: bool = False,
    capture: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. With `quiet` its output is shown only when it fails, and then as the error."""
    done = subprocess.run(
        [str(word) for word in argv],
        text=True,
        env=env,
        cwd=cwd,
        input=stdin,
        stdout=subprocess.PIPE if capture or quiet else None,
        stderr=subprocess.PIPE if quiet else None,
    )
    if check and done.returncode:
        told = f": {done.stderr[-2_000:].strip()}" if quiet else ""
        fail(f"{' '.join(map(str, argv))[:300]} ended with {done.returncode}{told}")
    return done


def out(*argv: Word, check: bool = True) -> str:
    return sh(*argv, check=check, capture=True).stdout


def succeeds(*argv: Word) -> bool:
    return sh(*argv, check=False, quiet=True).returncode == 0


def wait_for(what: str, probe: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if probe():
            return
        time.sleep(POLL_SECONDS)
    fail(f"{what} is not ready after {seconds:g} s; logs: {PLACES.home}/logs")
