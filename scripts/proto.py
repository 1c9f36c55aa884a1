"""Generates delay_pb2.py and delay_pb2.pyi from delay.proto; with --check, says whether the checked-in ones are stale.

Stale is decided by meaning (the compiled descriptors are compared), so a newer protoc that words the same file
differently does not fail the check.
"""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "node" / "delayapi" / "proto"
SOURCE = "delay/v1/delay.proto"


def run_protoc(*options: str) -> None:
    """Runs protoc on the one source file; raises SystemExit with its status when it refuses the file."""
    well_known = resources.files("grpc_tools") / "_proto"
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *options, SOURCE])
    if status:
        raise SystemExit(status)


def compiled() -> FileDescriptorProto:
    """The descriptor of the .proto as it is now."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        run_protoc(f"--descriptor_set_out={out}")
        return FileDescriptorSet.FromString(out.read_bytes()).file[0]


def checked_in() -> FileDescriptorProto:
    """The descriptor inside the checked-in delay_pb2.py."""
    from delayapi.proto.delay.v1 import delay_pb2

    descriptor = FileDescriptorProto()
    delay_pb2.DESCRIPTOR.CopyToProto(descriptor)
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
    parser = argparse.ArgumentParser(description="generate delay_pb2 from delay.proto")
    parser.add_argument("--check", action="store_true", help="only say whether the generated files are stale")
    if not parser.parse_args().check:
        run_protoc(f"--python_out={ROOT}", f"--pyi_out={ROOT}")
        return 0
    if comparable(compiled()) == comparable(checked_in()):
        return 0
    print("delay_pb2.py is older than delay.proto: run `make proto` and commit the result", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
