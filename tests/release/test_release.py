"""scripts/release.py and scripts/sbom.py: the same commit makes the same bytes, and the lists say what is installed.

The images are not made here; docs/release.md has the command that makes all twice.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from packageurl import PackageURL

from tests.chart.places import ROOT, project, script
from tests.chart.test_chart_rendered import HELM

release = script("release")
sbom = script("sbom")
EPOCH = 1_750_000_000
CHANGELOG = "# Changelog\n\nWords.\n\n## Unreleased\n- next\n\n## 0.2.0\n\n**Messages**\n- this\n\n## 0.1.0\n\n- 1st\n"


def test_the_notes_are_the_versions_section() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "# DelayCluster 0.2.0\n\n**Messages**\n- this\n"
    assert release.notes(CHANGELOG, "0.1.0").endswith("\n- 1st\n")


def test_notes_of_a_version_without_a_section_say_that_it_is_not_released() -> None:
    assert release.notes(CHANGELOG, "0.3.0") == "# DelayCluster 0.3.0 (not released)\n\n- next\n"
    with pytest.raises(SystemExit, match=r"neither a section 0\.3\.0"):
        release.notes("# Changelog\n", "0.3.0")


def test_this_versions_notes_can_be_made() -> None:
    assert len(release.notes((ROOT / "CHANGELOG.md").read_text(), project()["project"]["version"])) > 100


def test_a_base_image_without_its_digest_is_refused() -> None:
    named = f"registry.example.com/python@sha256:{'a' * 64}"
    assert release.digest(named) == named
    with pytest.raises(argparse.ArgumentTypeError, match="by digest"):
        release.digest("python:3.11-slim-bookworm")


def test_the_same_commit_makes_the_same_distributions(tmp_path: Path) -> None:
    """In two places, the second one hours later and with another umask."""
    found = []
    for number, umask in enumerate((0o022, 0o077)):
        source, out = tmp_path / f"source-{number}" / ("x" * number), tmp_path / f"out-{number}"
        before = os.umask(umask)
        try:
            source.mkdir(parents=True)
            out.mkdir()
            release.export("HEAD", source, EPOCH)
            if number:
                for path in source.rglob("*.py"):
                    os.utime(path, (EPOCH + 10_000, EPOCH + 10_000))
            release.distributions(source, out, EPOCH)
        finally:
            os.umask(before)
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert {name.partition("-0")[0] for name in found[0]} == {"delaycluster"}
    assert sorted(Path(name).suffix for name in found[0]) == [".gz", ".whl"]
    assert found[0] == found[1]
    (wheel,) = (data for name, data in found[0].items() if name.endswith(".whl"))
    names = zipfile.ZipFile(io.BytesIO(wheel)).namelist()
    assert {"delaynode/main.py", "delayoperator/__main__.py"} <= set(names)


@pytest.mark.skipif(HELM is None, reason="helm is not on PATH")
def test_the_same_commit_makes_the_same_chart_package_and_helm_reads_it(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        source, out = tmp_path / f"source-{number}", tmp_path / f"out-{number}"
        source.mkdir()
        out.mkdir()
        release.export("HEAD", source, EPOCH + number)  # the times of its files
        release.chart(source, out, EPOCH, HELM)
        (package,) = out.iterdir()
        found.append(package.read_bytes())
    assert found[0] == found[1]
    shown = release.run((HELM, "show", "chart", package)).decode()
    assert f"version: {project()['project']['version']}" in shown
    assert "kind: Deployment" in release.run((HELM, "template", "x", package)).decode()


def archived(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def oci(folder: Path, *layers: dict[str, bytes]) -> Path:
    blobs = {f"blobs/sha256/{n}": archived(folder / f"{n}.tar", it).read_bytes() for n, it in enumerate(layers)}
    blobs["blobs/sha256/m"] = json.dumps({"layers": [{"digest": f"sha256:{n}"} for n in range(len(layers))]}).encode()
    blobs["index.json"] = json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode()
    return archived(folder / "image.tar", blobs)


def test_an_images_list_has_what_its_layers_leave(tmp_path: Path) -> None:
    place = "usr/lib/python3/dist-packages"
    status = (
        b"Package: zlib1g\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:1.2\n\n"
        b"Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    crates = b'{"components": [{"purl": "pkg:cargo/h2@0.4.1"}, {"name": "unnamed"}]}'
    image = oci(
        tmp_path,
        {f"{place}/pip-26.dist-info/METADATA": b"Name: pip\nVersion: 26\n", "var/lib/dpkg/status": b""},
        {f"{place}/.wh.pip-26.dist-info": b"", "./var/lib/dpkg/status": status},
        {"opt/x/Foo_Bar-2.dist-info/METADATA": b"Metadata-Version: 2.4\nName: Foo_Bar\nVersion: 2\n\nwords\n"},
        {"opt/x/Foo_Bar-2.dist-info/sboms/foo.cyclonedx.json": crates},
    )
    found = set(sbom.packages(sbom.installed(image)))
    debian, crate, python = "pkg:deb/debian/zlib1g@1:1.2?arch=amd64", "pkg:cargo/h2@0.4.1", "pkg:pypi/foo-bar@2"
    assert found == {PackageURL.from_string(it) for it in (debian, crate, python)}
    told = json.loads(sbom.bill("delaycluster", "0.1.0", found))
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "delaycluster")
    assert {(it["name"], it["version"]) for it in told["components"]} == {
        ("zlib1g", "1:1.2"), ("h2", "0.4.1"), ("foo-bar", "2"),
    }  # fmt: skip
