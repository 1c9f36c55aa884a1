"""Templates: Jinja2 with everything escaped, and the few filters that they have."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from delayapi.durations import format_instant, format_ms
from markupsafe import Markup

ROOT: Final = Path(str(resources.files("delayconsole")))
NEVER_MS: Final = 1 << 62
VENDOR: Final = ("htmx.min.js", "uplot.min.css", "uplot.min.js")
"""What scripts/assets.py fetches."""


def environment() -> jinja2.Environment:
    """Undefined names are errors. Text of users is escaped everywhere, there is no exception to it."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(instant=instant, minute=minute, duration=format_ms, count=count, size=size, query=query)
    return made


def instant(ms: int | None) -> Markup:
    """A time element in UTC to the millisecond, which the browser may rewrite as local time."""
    return _time(ms, 23)


def minute(ms: int | None) -> Markup:
    """The same to the minute."""
    return _time(ms, 16)


def _time(ms: int | None, chars: int) -> Markup:
    """chars: of 2026-01-31 09:00:00.000 are shown; console.js shows as many."""
    if ms is None or not 0 < ms < NEVER_MS:
        return Markup("–")
    text = format_instant(ms)
    shown = text.replace("T", " ")[:chars] + "Z"
    return Markup('<time datetime="{}" data-ms="{}" data-chars="{}">{}</time>').format(text, ms, chars, shown)


def query(fields: Mapping[str, Any]) -> str:
    """The part of an address after `?`, without what is empty."""
    return urlencode({name: value for name, value in fields.items() if value not in ("", None)})


def count(number: float) -> str:
    return f"{number:,.0f}"


def size(bytes_: float) -> str:
    """B, KiB, MiB, GiB or TiB, with one digit after the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes_ < 1024:
            return f"{bytes_:,.0f} {unit}" if unit == "B" else f"{bytes_:,.1f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:,.1f} TiB"


def missing_assets() -> list[str]:
    return [name for name in VENDOR if not (ROOT / "vendor" / name).is_file()]
