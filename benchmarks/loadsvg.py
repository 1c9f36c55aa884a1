"""A picture of node loads before and after a rebalance, as a small SVG file; no library needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from delayrebalance.model import F64, Study

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 150, 60, 24, 40
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#3d3d3d")


def write(study: Study, path: Path) -> None:
    """Two panels of one scale, a line a node, and the lower bound dashed."""
    most = float(max(study.node_loads.max(), study.bound_messages)) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{2 * (HEIGHT + GAP) + TOP}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row, (title, loads) in enumerate((("before", study.node_loads), ("after", study.node_loads_after))):
        top = TOP + row * (HEIGHT + GAP)
        figure = f"{title}: highest {loads.max():,.0f}, lower bound {study.bound_messages:,.0f}"
        parts.append(f'<text x="{LEFT}" y="{top - 8}">messages due in a slot, by node, {figure}</text>')
        parts.append(f'<path d="M{LEFT} {top}v{HEIGHT}h{WIDTH}" fill="none" stroke="#999"/>')
        for share in (0.5, 1.0):
            y = top + HEIGHT * (1 - share)
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share:,.0f}</text>')
        bound = top + HEIGHT * (1 - study.bound_messages / most)
        parts.append(f'<path d="M{LEFT} {bound:.1f}h{WIDTH}" stroke="#999" stroke-dasharray="4 4"/>')
        for node, load in enumerate(loads):
            colour = COLOURS[node % len(COLOURS)]
            parts.append(f'<path d="{_line(load, top, most)}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
            if not row:
                name = study.node_names[node]
                parts.append(f'<text x="{LEFT + WIDTH - 40 * node}" y="{top - 8}" fill="{colour}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _line(load: F64, top: int, most: float) -> str:
    x = LEFT + WIDTH * (np.arange(len(load)) + 0.5) / len(load)
    y = top + HEIGHT * (1 - load / most)
    return "M" + "L".join(f"{a:.0f} {b:.0f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
