"""Lists the packages in an image's OCI archive as CycloneDX JSON: Python's by their metadata, Debian's by dpkg's list,
what is compiled into Python's (the crates of the compiled edge) by the lists that wheels bring (PEP 770).

    python scripts/sbom.py NAME VERSION ARCHIVE >NAME.cdx.json

The same archive makes the same bytes.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

DPKG: Final = "var/lib/dpkg/status"
LISTS: Final = re.compile(rf".*\.dist-info/(METADATA|sboms/.*\.json)|{DPKG}")
HIDDEN: Final = ".wh."  # before the name of what a layer deletes
OPAQUE: Final = ".wh..wh..opq"


def installed(archive: Path) -> dict[str, str]:
    """Path -> text of the files that say what is installed, as the layers leave them."""
    found: dict[str, str] = {}
    with tarfile.open(archive) as image:
        for layer in _layers(image):
            found = _after(found, layer)
    return found


def _layers(image: tarfile.TarFile) -> Iterator[tarfile.TarFile]:
    def read(name: str) -> bytes:
        file = image.extractfile(name)
        assert file is not None, name
        return file.read()

    def blob(digest: str) -> bytes:
        return read(f"blobs/{digest.replace(':', '/')}")

    (manifest,) = json.loads(read("index.json"))["manifests"]
    for layer in json.loads(blob(manifest["digest"]))["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(layer["digest"]))) as opened:
            yield opened


def _after(found: dict[str, str], layer: tarfile.TarFile) -> dict[str, str]:
    gone, added = [], {}
    for member in layer:
        path = PurePosixPath(member.name.removeprefix("./"))
        if path.name == OPAQUE:
            gone.append(path.parent)
        elif path.name.startswith(HIDDEN):
            gone.append(path.with_name(path.name.removeprefix(HIDDEN)))
        elif member.isfile() and LISTS.fullmatch(str(path)):
            file = layer.extractfile(member)
            assert file is not None
            added[str(path)] = file.read().decode()

    def is_left(path: str) -> bool:
        return not any(PurePosixPath(path).is_relative_to(it) for it in gone)

    return {path: text for path, text in found.items() if is_left(path)} | added


def packages(files: dict[str, str]) -> Iterator[PackageURL]:
    for path, text in files.items():
        if path.endswith(".json"):
            yield from (PackageURL.from_string(it["purl"]) for it in json.loads(text)["components"] if "purl" in it)
            continue
        if path != DPKG:
            told = HeaderParser().parsestr(text)
            yield PackageURL("pypi", name=re.sub(r"[-_.]+", "-", told["Name"]).lower(), version=told["Version"])
            continue
        for entry in text.split("\n\n"):
            told = HeaderParser().parsestr(entry.lstrip("\n"))
            if told["Status"] == "install ok installed":
                qualifiers = {"arch": told["Architecture"]}
                yield PackageURL("deb", "debian", told["Package"], told["Version"], qualifiers)


def bill(name: str, version: str, found: set[PackageURL]) -> str:
    def component(url: PackageURL, kind: ComponentType = ComponentType.LIBRARY) -> Component:
        return Component(name=url.name, version=url.version, purl=url, bom_ref=str(url), type=kind)

    text = "\n".join(sorted(map(str, found)))
    whole = component(PackageURL("oci", name=name, version=version), ComponentType.CONTAINER)
    made = Bom(components=map(component, found), serial_number=uuid5(NAMESPACE_URL, f"{name}:{version}\n{text}"))
    made.metadata.component = whole
    made.register_dependency(whole, made.components)
    told: dict[str, Any] = json.loads(JsonV1Dot6(made).output_as_string())
    del told["metadata"]["timestamp"]
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    name, version, archive = sys.argv[1:]
    sys.stdout.write(bill(name, version, set(packages(installed(Path(archive))))))
