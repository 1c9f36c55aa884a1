"""A sink's document from a file, in YAML where that can be read, else in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from delaysink.settings import BadSink, SinkSettings, read_document

MAX_BYTES: Final = 1 << 20


def read_file(path: Path) -> SinkSettings:
    """Raises BadSink, which names the file."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise BadSink(f"it has {size:,} bytes; the limit is {MAX_BYTES:,}")
        return read_document(_parse(path.read_text("utf-8"), path))
    except (OSError, UnicodeDecodeError, BadSink) as error:
        raise BadSink(f"{path}: {error}") from None


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if path.suffix == ".json":
            raise BadSink(f"it is not JSON: {error}") from None
    except RecursionError:
        raise BadSink("it is nested too deeply") from None
    try:
        import yaml
    except ModuleNotFoundError:
        raise BadSink("it is not JSON, and YAML needs delaycluster[kubernetes]") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise BadSink(f"it is not YAML: {error}") from None
