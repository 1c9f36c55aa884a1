"""Starts a program that dies with the process that started it: `python -I -S launch.py PARENT_PID PROGRAM [ARG...]`.

The kernel kills it when its parent goes, however the parent goes (PR_SET_PDEATHSIG survives exec). Asking for that in
a `preexec_fn` would run Python between fork and exec of a process with threads, which can deadlock on a lock that
another thread held; a pipe would need the node's help, and a frozen node gives none. Linux only: elsewhere the
program is just started.

The signal comes when the *thread* that started the program ends, so that has to be one that lives as long.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it went before we asked
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
