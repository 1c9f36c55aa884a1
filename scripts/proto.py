"""Generates the _pb2.py and _pb2.pyi of each .proto; with --check, says whether the checked-in ones are stale.

Stale is decided by meaning (the compiled descriptors are compared), so a newer protoc that words the same file
differently does not fail the check.
"""

import argparse
import importlib
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "node" / "delayapi" / "proto"
SOURCES = [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*.proto"))]


def run_protoc(*options: str) -> None:
    """Runs protoc; raises SystemExit with its status when it refuses a file."""
    well_known = resources.files("grpc_tools") / "_proto"
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *options])
    if status:
        raise SystemExit(status)


def compiled(source: str) -> FileDescriptorProto:
    """The descriptor of the .proto as it is now."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        run_protoc(f"--descriptor_set_out={out}", source)
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def checked_in(source: str) -> FileDescriptorProto:
    """The descriptor inside the checked-in _pb2.py."""
    module = importlib.import_module("delayapi.proto." + source.removesuffix(".proto").replace("/", ".") + "_pb2")
    descriptor = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(descriptor)
    return descriptor


def comparable(descriptor: FileDescriptorProto) -> bytes:
    """Without what differs between compilers but means nothing (json names are derived from the names)."""
    plain = FileDescriptorProto()
    plain.CopyFrom(descriptor)
    for message in plain.message_type:
        for part in (message, *message.nested_type):
            for field in part.field:
                field.ClearField("json_name")
    return plain.SerializeToString(deterministic=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the _pb2 modules")
    parser.add_argument("--check", action="store_true", help="only say whether the generated files are stale")
    if not parser.parse_args().check:
        run_protoc(f"--python_out={ROOT}", f"--pyi_out={ROOT}", *SOURCES)
        for generated in ROOT.rglob("*_pb2.py*"):  # protoc names Python modules by the files' paths, from the root on
            text = generated.read_text()
            generated.write_text(text.replace("\nfrom delay.v1", "\nfrom delayapi.proto.delay.v1"))
        return 0
    stale = [source for source in SOURCES if comparable(compiled(source)) != comparable(checked_in(source))]
    for source in stale:
        print(f"what was generated is older than {source}: run `make proto` and commit the result", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
