"""The newest of what a container has logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def newest_log(ask: Callable[[Mapping[str, str]], bytes], lines: int, max_bytes: int) -> bytes:
    """At most so many lines, and bytes. ask: with these options of pods/log.

    From the first of the last `tailLines` on, the API server gives `limitBytes` and cuts off the rest, which is the
    newest: then fewer lines are asked for. Of one line that is longer than the limit its beginning is there.
    """
    while True:
        found = ask({"tailLines": str(lines), "limitBytes": str(max_bytes)})
        if len(found) < max_bytes or lines == 1:
            return found
        lines = max(1, lines // 2)
