"""How bugs are planted, one at a time: another method is put in place of a real one, and taken away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Put = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Mutation:
    """plant(put) puts the wrong methods in place. schedule: finds it with one seed or another; None: drawn seeds do.

    caught_by: a regular expression that the violation must match. A failure of another kind does not count.
    """

    name: str
    plant: Callable[[Put], None]
    schedule: str | None
    caught_by: str
    seeds: tuple[int, ...] = ()  # drawn seeds that have found it: tried first
    kinds: tuple[str, ...] = ()  # of troubles that the seeds draw; empty: of all

    @contextmanager
    def planted(self) -> Iterator[None]:
        before: list[tuple[Any, str, Any]] = []

        def put(owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, vars(owner)[name]))
            setattr(owner, name, value)

        self.plant(put)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)


MUTATIONS: dict[str, Mutation] = {}


LACKS = "invariant 1: .* recorded as in sync and has .* are committed"
NOBODY = "invariant 1: .* nobody has copy .* recorded as in sync"
UNCOMMITTED = "invariant 1: .* answers .* from the log up to .* are committed"
DEPOSED = "invariant 3: .* answers .* after epoch .* has begun to serve"
TWO = "two masters of .* may answer too"


def mutation(
    schedule: str | None, caught_by: str, seeds: tuple[int, ...] = (), kinds: tuple[str, ...] = ()
) -> Callable[[Callable[[Put], None]], Callable[[Put], None]]:
    def keep(plant: Callable[[Put], None]) -> Callable[[Put], None]:
        MUTATIONS[plant.__name__] = Mutation(plant.__name__, plant, schedule, caught_by, seeds, kinds)
        return plant

    return keep
