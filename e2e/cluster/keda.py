"""KEDA's operator and its metrics adapter, for the scenario in which they scale workers.

They are built from KEDA's module, its code as it is, without what needs the libraries of every cloud: all scalers but
the external one, the vaults that a TriggerAuthentication may name, and one target of events.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.build import alone, build_packages, module_directory, timed
from e2e.cluster.settings import PLACES
from e2e.cluster.shell import fail

VERSION = "2.17.2"
MODULE = f"github.com/kedacore/keda/v2@v{VERSION}"
PROGRAMS = ("operator", "adapter")
PARTS = ("apis", "cmd/operator", "cmd/adapter", "controllers", "pkg", "version")
SCALERS = ("scaler.go", "external_scaler.go", "externalscaler", "scalersconfig", "authentication")
CLOUDS = ("pkg/scaling/resolver/*_handler.go", "pkg/eventemitter/azure_*.go")
EXTERNAL = """\
    switch triggerType {
    case "external":
        return scalers.NewExternalScaler(config)
    case "external-push":
        return scalers.NewExternalPushScaler(config)
"""
CUTS = (  # file, from, up to, what comes in its place
    ("pkg/scaling/scalers_builder.go", "\tswitch triggerType {", "\tdefault:", EXTERNAL),
    (
        "pkg/scaling/resolver/scale_resolvers.go",
        *("\t\t\tif triggerAuthSpec.HashiCorpVault != nil", "\t\t\tif triggerAuthSpec.BoundServiceAccountToken", ""),
    ),
    (
        "pkg/eventemitter/eventemitter.go",
        *("\tif spec.Destination.AzureEventGridTopic != nil", "\te.log.Info(", "\t_, _ = authParams, podIdentity\n"),
    ),
)
REST = 'package scalers\n\nconst externalMetricType = "External"\n'  # of one of those that are left out
BINARIES = PLACES.bin / f"keda-{VERSION}"


def keda(step: str) -> None:
    """build: some 5 minutes the first time on 2 cores."""
    assert step == "build"
    with alone():
        if not all((BINARIES / name).exists() for name in PROGRAMS):
            with timed(f"building KEDA {VERSION}"):
                _build(module_directory(MODULE), PLACES.cache / "src" / "keda")


def definitions() -> Path:
    """Of its custom resources."""
    return module_directory(MODULE) / "config" / "crd" / "bases"


def _build(whole: Path, source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    for part in PARTS:
        left_out = shutil.ignore_patterns("*_test.go", "mock")
        shutil.copytree(whole / part, source / part, ignore=left_out, copy_function=_writable)
    for name in ("go.mod", "go.sum"):
        _writable(whole / name, source / name)
    for directory in (source, *(it for it in source.rglob("*") if it.is_dir())):
        directory.chmod(0o755)  # the module cache's are read-only
    for found in (source / "pkg" / "scalers").iterdir():
        if found.name not in SCALERS:
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    (source / "pkg" / "scalers" / "rest.go").write_text(REST)
    for file in (it for pattern in CLOUDS for it in source.glob(pattern)):
        file.unlink()
    for name, begins, ends, instead in CUTS:
        text = (source / name).read_text()
        begin = text.find(begins)
        end = text.find(ends, begin)
        if min(begin, end) < 0:
            fail(f"{MODULE}: {name} has another shape than the one that is known here")
        (source / name).write_text(text[:begin] + instead + text[end:])
    build_packages(source, [f"./cmd/{name}" for name in PROGRAMS], BINARIES)


def _writable(source: str | Path, target: str | Path) -> None:
    Path(target).write_bytes(Path(source).read_bytes())
