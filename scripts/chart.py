"""Copies crds/ into the Helm chart, as templates; with --check, says whether the copies are stale.

Templates and not the chart's crds/ folder: Helm installs that folder once and never upgrades it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "crds"
COPIES = ROOT / "charts" / "delaycluster-operator" / "templates" / "crds"

HEAD = "{{- /* Generated from crds/ by `make crds`; changes here are overwritten. */}}\n{{- if .Values.crds.create }}\n"
ADDED = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
  labels:
    {{- include "operator.labels" . | nindent 4 }}
"""
TAIL = "{{- end }}\n"
METADATA = re.compile(r"^metadata:\n  name: \S+\n(?=\S)", re.MULTILINE)


def template(definition: str) -> str:
    """The definition with labels and an annotation. Raises ValueError when its metadata is more than a name."""
    plain = "".join(line for line in definition.splitlines(keepends=True) if not line.startswith("#"))
    escaped = re.sub(r"\{\{|\}\}", lambda found: '{{ "' + found[0] + '" }}', plain)
    metadata = METADATA.search(escaped)
    if metadata is None:
        raise ValueError("expected metadata with a name and nothing else")
    return HEAD + escaped[: metadata.end()] + ADDED + escaped[metadata.end() :] + TAIL


def wanted() -> Iterator[tuple[Path, str]]:
    """Every copy with what it should hold."""
    for path in sorted(CRDS.glob("*.yaml")):
        yield COPIES / path.name, template(path.read_text())


def stale() -> list[Path]:
    """Copies that are missing, differ, or are of no definition any more."""
    copies = dict(wanted())
    changed = [path for path, text in copies.items() if not path.exists() or path.read_text() != text]
    return changed + sorted(set(COPIES.glob("*.yaml")) - copies.keys())


def main() -> int:
    parser = argparse.ArgumentParser(description="copy crds/ into the Helm chart")
    parser.add_argument("--check", action="store_true", help="only say whether the copies are stale")
    if parser.parse_args().check:
        found = [str(path.relative_to(ROOT)) for path in stale()]
        if found:
            print(f"{', '.join(found)}: older than crds/: run `make crds` and commit the result", file=sys.stderr)
        return 1 if found else 0
    copies = dict(wanted())
    for path in set(COPIES.glob("*.yaml")) - copies.keys():
        path.unlink()
    COPIES.mkdir(parents=True, exist_ok=True)
    for path, text in copies.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
