"""Generates openapi.json, of MessageService over HTTP, from messages.proto and what it imports; with --check, says
whether it is stale.

Shapes are those of proto3's JSON: 64-bit numbers are strings, times are RFC 3339, durations are seconds with an `s`.
What a field is for is the comment beside it in the .proto.
"""

import argparse
import json
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "node" / "delayapi" / "proto"
SOURCES = ("delay/v1/messages.proto", "delay/v1/schedules.proto")  # the service is in the first
TARGET = ROOT / "node" / "delaynode" / "server" / "doors" / "openapi.json"
SERVICE = "delay.v1.MessageService"
STREAMED = "ReceiveStream"
Json = dict[str, object]
SCALARS: dict[int, Json] = {
    FieldDescriptorProto.TYPE_STRING: {"type": "string"},
    FieldDescriptorProto.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptorProto.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptorProto.TYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptorProto.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}
KNOWN: dict[str, Json] = {
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Duration": {"type": "string", "pattern": r"^\d+(\.\d+)?s$", "examples": ["1800s"]},
}
BODY_JSON: Json = {"description": "instead of `body` or `bodyText`: any JSON, stored as text without spaces"}


def descriptors() -> list[FileDescriptorProto]:
    """Of each .proto, with its comments."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        known = resources.files("grpc_tools") / "_proto"
        options = [f"-I{PROTOS}", f"-I{known}", "--include_source_info", f"--descriptor_set_out={out}", *SOURCES]
        if protoc.main(["protoc", *options]):
            raise SystemExit(1)
        found = {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}
        return [found[name] for name in SOURCES]


class Comments:
    """By the path of what they are beside, as descriptors have it."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._found = {
            tuple(one.path): one.leading_comments + one.trailing_comments for one in file.source_code_info.location
        }

    def at(self, *path: int) -> Json:
        text = re.sub(r"\s+", " ", self._found.get(path, "")).strip()
        return {"description": text} if text else {}


def schema_of(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> Json:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        if field.type_name in maps:
            return {"type": "object", "additionalProperties": {"type": "string"}}
        one = KNOWN.get(field.type_name) or {"$ref": f"#/components/schemas/{field.type_name.rpartition('.')[2]}"}
    elif field.type == FieldDescriptorProto.TYPE_ENUM:
        one = {"$ref": f"#/components/schemas/{field.type_name.rpartition('.')[2]}"}
    else:
        one = SCALARS[field.type]
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return {"type": "array", "items": one} if repeated else dict(one)


def message_schema(at: int, message: DescriptorProto, comments: Comments) -> Json:
    maps = {f".delay.v1.{message.name}.{nested.name}": nested for nested in message.nested_type}
    properties: dict[str, Json] = {}
    for number, field in enumerate(message.field):
        said = comments.at(4, at, 2, number)
        found = schema_of(field, maps)
        properties[field.json_name] = {"allOf": [found], **said} if "$ref" in found and said else {**found, **said}
        if field.json_name == "bodyText":
            properties["bodyJson"] = BODY_JSON
    return {"type": "object", "properties": properties, "additionalProperties": False, **comments.at(4, at)}


def document() -> Json:
    """The whole of it."""
    schemas: Json = {}
    for file in reversed(descriptors()):
        comments = Comments(file)
        schemas |= {one.name: message_schema(at, one, comments) for at, one in enumerate(file.message_type)}
        schemas |= {one.name: {"type": "string", "enum": [value.name for value in one.value]} for one in file.enum_type}
    schemas["Error"] = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "of Connect: invalid_argument, unavailable, ..."},
            "message": {"type": "string"},
            "details": {"type": "array", "items": {"type": "object"}},
        },
        "description": "details have a google.rpc.ErrorInfo, whose reason docs/errors.md explains; `debug` shows it",
    }
    paths: Json = {}
    for at, method in enumerate(file.service[0].method):
        asked, answered = (name.rpartition(".")[2] for name in (method.input_type, method.output_type))
        streamed = method.name == STREAMED
        kind = "application/connect+json" if streamed else "application/json"
        said = comments.at(6, 0, 2, at)
        if streamed:
            said = {"description": f"{said['description']} Each way in the envelopes of the Connect protocol."}
        ok = {kind: {"schema": {"$ref": f"#/components/schemas/{answered}"}}}
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        paths[f"/{SERVICE}/{method.name}"] = {
            "post": {
                "operationId": method.name,
                **said,
                "requestBody": {
                    "required": True,
                    "content": {kind: {"schema": {"$ref": f"#/components/schemas/{asked}"}}},
                },
                "responses": {
                    "200": {"description": "done; of many, each by itself", "content": ok},
                    "default": {"description": "nothing was done", "content": error},
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DelayCluster MessageService",
            "version": "v1",
            "description": "Delayed messages over HTTP, by the Connect protocol. docs/http.md shows it with curl.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="generate openapi.json")
    parser.add_argument("--check", action="store_true", help="only say whether the generated file is stale")
    text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print("openapi.json is older than messages.proto: run `make proto` and commit the result", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
