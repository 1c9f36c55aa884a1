"""Files that are only read: what is written stays in memory."""

from __future__ import annotations

import random

import pytest
from delaynode.store.verify import Overlay

from tests.store.support.damaging import content_of, disk_of
from tests.store.support.walks import times


def test_an_overlay_does_what_files_do_and_leaves_those_below_alone() -> None:
    """The same random calls on both."""
    for seed in range(times(50)):
        rng = random.Random(seed)
        below = disk_of({f"/d/{name}": rng.randbytes(rng.randrange(30)) for name in "abc"}, seed)
        kept = content_of(below)
        plain, overlay = below.copy(), Overlay(below)
        for _ in range(40):
            path, size = f"/d/{rng.choice('abcd')}", rng.randrange(40)
            match rng.randrange(5):
                case 0:
                    data = rng.randbytes(size)
                    plain.append(path, [data])
                    overlay.append(path, [data])
                case 1 if path in plain.files and size <= plain.size(path):
                    plain.truncate(path, size)
                    overlay.truncate(path, size)
                case 2:
                    plain.remove(path)
                    overlay.remove(path)
                case 3:
                    plain.replace(path, b"x" * size)
                    overlay.replace(path, b"x" * size)
            assert overlay.list("/d") == plain.list("/d")
            assert overlay.size(path) == plain.size(path)
            offset, length = rng.randrange(40), rng.randrange(40)
            if path in plain.files:
                assert overlay.read(path, offset, length) == plain.read(path, offset, length)
            else:
                with pytest.raises(FileNotFoundError):
                    overlay.read(path, offset, length)
        assert content_of(below) == kept
