"""Small JSON files of a node, sealed with their own crc32: a flipped digit is another number, not an error.

{"leaseMs": 3000, "crc32": "..."}       of the JSON of the other fields, keys sorted; an older release writes none
"""

from __future__ import annotations

import json
import zlib

CRC = "crc32"


def sealed(fields: dict[str, object]) -> str:
    return json.dumps({**fields, CRC: _crc(fields)})


def opened(text: str | bytes) -> dict[str, object]:
    """The fields. Raises ValueError when they are not what was sealed."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"no JSON object: {content!r}")
    crc = content.pop(CRC, None)
    if crc is not None and crc != _crc(content):
        raise ValueError("crc32 differs")
    return content


def _crc(fields: dict[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
