"""Ways to damage the files of a shard, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.store.support.memory_files import MemoryFile, MemoryFiles, Names
from tests.store.support.world import ROOT

Content = dict[str, bytes]  # path -> what is in the file


def content_of(disk: MemoryFiles) -> Content:
    return {path: bytes(file.data) for path, file in disk.files.items()}


def disk_of(content: Content, seed: int, page: int = 64) -> MemoryFiles:
    """A disk of its own with these files, all of it durable."""
    disk = MemoryFiles(random.Random(seed), page)
    disk.files = Names({path: MemoryFile(bytearray(data), len(data), True) for path, data in content.items()})
    return disk


@dataclass(frozen=True, slots=True)
class Sources:
    """Files that may be swapped in: those of other shards, and this shard's at earlier times."""

    strangers: tuple[Content, ...]
    earlier: tuple[Content, ...]


Damage = Callable[[Content, random.Random, Sources], str]
"""Changes the content in place; says what it did."""


def part_of(path: str) -> str:
    """`log`, `timerlog`, `queue`, `checkpoint`, `wheels` or `shard.json`: which of a shard's files this is."""
    return path.removeprefix(f"{ROOT}/").split("/", 1)[0]


def _any_file(content: Content, rng: random.Random) -> str:
    """Each part of the shard is as likely as the others, however many files it has."""
    part = rng.choice(sorted({part_of(path) for path in content}))
    return rng.choice(sorted(path for path in content if part_of(path) == part))


def _any_bytes(content: Content, rng: random.Random) -> str:
    path = _any_file(content, rng)
    return path if content[path] else max(content, key=lambda name: len(content[name]))


def flips(content: Content, rng: random.Random, sources: Sources) -> str:
    path = _any_bytes(content, rng)
    data = bytearray(content[path])
    bits = [rng.randrange(8 * len(data)) for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 40)))]
    for bit in bits:
        data[bit // 8] ^= 1 << (bit % 8)
    content[path] = bytes(data)
    return f"{path}: bits {sorted(bits)} flipped"


def cut(content: Content, rng: random.Random, sources: Sources) -> str:
    path = _any_bytes(content, rng)
    size = rng.randrange(len(content[path]))
    content[path] = content[path][:size]
    return f"{path}: cut to {size} bytes"


def _block(content: Content, rng: random.Random) -> tuple[str, int, int]:
    path = _any_bytes(content, rng)
    size = len(content[path])
    low = rng.randrange(size)
    return path, low, min(size, low + rng.choice((1, 4, 8, 30, 52, 64, 512, 4096)))


def garbage(content: Content, rng: random.Random, sources: Sources) -> str:
    path, low, high = _block(content, rng)
    content[path] = content[path][:low] + rng.randbytes(high - low) + content[path][high:]
    return f"{path}: garbage in [{low}, {high})"


def zeros(content: Content, rng: random.Random, sources: Sources) -> str:
    path, low, high = _block(content, rng)
    content[path] = content[path][:low] + bytes(high - low) + content[path][high:]
    return f"{path}: zeros in [{low}, {high})"


def moved_block(content: Content, rng: random.Random, sources: Sources) -> str:
    """A misdirected write: good bytes at a wrong place."""
    path, low, high = _block(content, rng)
    data = content[path]
    source = _any_bytes(content, rng) if rng.random() < 0.3 else path
    step = rng.choice((1, 8, 32, 40, 52))
    at = rng.randrange(len(content[source])) // step * step
    piece = content[source][at : at + high - low]
    content[path] = data[:low] + piece + data[low + len(piece) :]
    return f"{path}: [{low}, {low + len(piece)}) from {source} at {at}"


def grown(content: Content, rng: random.Random, sources: Sources) -> str:
    path = _any_bytes(content, rng)
    size = rng.choice((1, 32, 40, 52, 64, 500))
    tail = rng.choice((rng.randbytes(size), bytes(size), content[path][-size:], content[path][:size]))
    content[path] += tail
    return f"{path}: {len(tail)} bytes more"


def stranger(content: Content, rng: random.Random, sources: Sources) -> str:
    """A file of another shard: the one of the same name, else any of the same part."""
    path = _any_file(content, rng)
    other = rng.choice(sources.strangers)
    same = [name for name in sorted(other) if part_of(name) == part_of(path)]
    source = path if path in other and rng.random() < 0.7 else rng.choice(same or sorted(other))
    content[path] = other[source]
    return f"{path}: another shard's {source}"


def earlier(content: Content, rng: random.Random, sources: Sources) -> str:
    """The file as it was some time ago."""
    past = rng.choice(sources.earlier)
    path = _any_file({name: data for name, data in content.items() if name in past}, rng)
    content[path] = past[path]
    return f"{path}: of an earlier time ({len(past[path])} bytes)"


def brother(content: Content, rng: random.Random, sources: Sources) -> str:
    """Two files of the shard change places, or one is in both."""
    path = _any_file(content, rng)
    names = [name for name in sorted(content) if part_of(name) == part_of(path) and name != path]
    other = rng.choice(names) if names and rng.random() < 0.8 else _any_file(content, rng)
    both = rng.random() < 0.5
    content[path], content[other] = content[other], content[path] if both else content[other]
    return f"{path}: {other}{' and the other way round' if both else ''}"


def missing(content: Content, rng: random.Random, sources: Sources) -> str:
    path = _any_file(content, rng)
    del content[path]
    return f"{path}: missing"


def extra(content: Content, rng: random.Random, sources: Sources) -> str:
    """A file that the shard never wrote: it has a segment's name, or any name."""
    part = rng.choice(("log", "timerlog", "queue"))
    segments = sorted(path for path in content if part_of(path) == part)
    end = int(segments[-1].rsplit("/", 1)[1]) + len(content[segments[-1]]) if segments else 0
    at = rng.choice((end, end + 1, end + 52 * 7, rng.randrange(end + 1), 10**15, 10**19))
    name = rng.choice((f"{at:020d}", f"{at:020d}", f"{at:020d}", str(at), "7", "\u00b2", "lost+found", "0.tmp", "-1"))
    path = f"{ROOT}/{part}/{name}" if rng.random() < 0.9 else f"{ROOT}/{name}"
    if path in content:
        path += ".copy"
    content[path] = rng.choice((b"", rng.randbytes(300), rng.choice(sorted(content.values()))))
    return f"{path}: extra, {len(content[path])} bytes"


def doubled(content: Content, rng: random.Random, sources: Sources) -> str:
    """A segment's bytes under another name too: behind the end, or in a place of its own."""
    part = rng.choice(("log", "timerlog", "queue"))
    segments = sorted(path for path in content if part_of(path) == part)
    if not segments:
        return missing(content, rng, sources)
    source = rng.choice(segments)
    base, size = int(source.rsplit("/", 1)[1]), len(content[source])
    last = int(segments[-1].rsplit("/", 1)[1]) + len(content[segments[-1]])
    at = rng.choice((last, base + size, base + size // 2, base + 1))
    content[f"{ROOT}/{part}/{at:020d}"] = content[source]
    return f"{source}: once more as {at}"


DAMAGES: dict[str, tuple[int, Damage]] = {
    "flips": (6, flips), "cut": (3, cut), "garbage": (2, garbage), "zeros": (2, zeros), "moved block": (2, moved_block),
    "grown": (1, grown), "stranger": (2, stranger), "earlier": (2, earlier), "brother": (2, brother),
    "missing": (1, missing), "extra": (1, extra), "doubled": (1, doubled),
}  # fmt: skip
_NAMES = [name for name, (weight, _) in DAMAGES.items() for _ in range(weight)]


def damage(content: Content, rng: random.Random, sources: Sources) -> tuple[str, str]:
    """Do one thing to the content, in place; returns (which kind of thing, what it was)."""
    name = rng.choice(_NAMES)
    return name, DAMAGES[name][1](content, rng, sources)
