"""A disk of a test's own, so small that it can be filled: a tmpfs. Needs to be allowed to mount, as root is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs mounted at `place`. Its ballast stands for the files of other programs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "of-somebody-else"

    @property
    def free_mib(self) -> int:
        disk = os.statvfs(self.place)
        return disk.f_bavail * disk.f_frsize >> 20

    def leave_free(self, mib: int) -> None:
        """Grow or shrink the ballast until so many MiB are free; 0: the disk is full to the last byte."""
        with self._ballast.open("ab") as file:
            disk = os.statvfs(self.place)
            size = file.tell() + disk.f_bavail * disk.f_frsize - (mib << 20)
            if size > file.tell():
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(max(0, size))


@contextmanager
def small_disk(place: Path, mib: int) -> Iterator[SmallDisk]:
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk to fill: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
