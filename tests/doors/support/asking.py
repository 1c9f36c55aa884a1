"""MessageService asked over gRPC, and over HTTP in JSON and in proto: the same calls, the same answers."""

from __future__ import annotations

import http.client
import json
import ssl
import struct
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import grpc
from delayapi.proto.delay.v1 import messages_pb2 as rows
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

SERVICE = "/delay.v1.MessageService/"
METHODS = {
    method.name: (getattr(rows, method.input_type.name), getattr(rows, method.output_type.name))
    for method in rows.DESCRIPTOR.services_by_name["MessageService"].methods
}
Wire = Literal["grpc", "json", "proto"]
SECONDS = 20.0


class CallFailed(Exception):
    """code: as Connect writes it."""

    def __init__(self, code: str, reason: str, message: str, status: int = 0) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.status = code, reason, message, status


@dataclass
class Node:
    """grpc, http: HOST:PORT."""

    grpc: str
    http: str


class Asking:
    """One client of one node."""

    def __init__(self, node: Node, wire: Wire, *, context: ssl.SSLContext | None = None, token: str = "") -> None:
        self._node, self.wire = node, wire
        self._channel = grpc.insecure_channel(node.grpc) if wire == "grpc" else None
        host, _, port = node.http.rpartition(":")
        self._http = (
            http.client.HTTPConnection(host, int(port), timeout=SECONDS) if context is None else
            http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=context)
        )  # fmt: skip
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._http.close()

    def call(self, method: str, **fields: Any) -> Any:
        """Raises CallFailed."""
        asked, answered = METHODS[method]
        return answered.FromString(self._raw(method, asked(**fields)))

    def _raw(self, method: str, request: Any) -> bytes:
        if self._channel is not None:
            try:
                answer: bytes = self._channel.unary_unary(SERVICE + method)(
                    request.SerializeToString(), timeout=SECONDS
                )
                return answer
            except grpc.RpcError as error:
                raise failed(error) from error
        if self.wire == "proto":
            return self.post(method, request.SerializeToString(), "application/proto")
        body = self.post(method, json_format.MessageToJson(request).encode(), "application/json")
        return bytes(json_format.Parse(body, METHODS[method][1]()).SerializeToString())

    def post(self, method: str, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
        """Raises CallFailed."""
        self._http.request("POST", SERVICE + method, body, {"content-type": kind, **self._headers, **headers})
        response = self._http.getresponse()
        data = response.read()
        if response.status != 200:
            raise http_failed(response.status, data)
        return data

    def json(self, method: str, request: Any) -> Any:
        """A call in JSON as a person writes it. Raises CallFailed."""
        return json.loads(self.post(method, json.dumps(request).encode()))

    def stream(self, method: str = "ReceiveStream", seconds: float = SECONDS, **fields: Any) -> Iterator[Any]:
        """The answers; ends, or raises CallFailed, as the stream does."""
        asked, answered = METHODS[method]
        request = asked(**fields)
        if self._channel is not None:
            try:
                yield from map(
                    answered.FromString,
                    self._channel.unary_stream(SERVICE + method)(request.SerializeToString(), timeout=seconds),
                )
            except grpc.RpcError as error:
                raise failed(error) from error
            return
        in_json = self.wire == "json"
        body = json_format.MessageToJson(request).encode() if in_json else request.SerializeToString()
        kind = f"application/connect+{self.wire}"
        headers = {"content-type": kind, "connect-timeout-ms": str(int(seconds * 1_000)), **self._headers}
        self._http.request("POST", SERVICE + method, struct.pack(">BI", 0, len(body)) + body, headers)
        response = self._http.getresponse()
        if response.status != 200:
            raise http_failed(response.status, response.read())
        while head := response.read(5):
            flags, size = struct.unpack(">BI", head)
            part = response.read(size)
            if flags & 2:
                end = json.loads(part)
                if "error" in end:
                    raise described(end["error"], 200)
                return
            yield json_format.Parse(part, answered()) if in_json else answered.FromString(part)
        raise AssertionError("the stream has no end")


def failed(error: grpc.RpcError) -> CallFailed:
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
    code = error.code().name.lower()
    return CallFailed("canceled" if code == "cancelled" else code, info.reason, error.details() or "")


def http_failed(status: int, body: bytes) -> CallFailed:
    return described(json.loads(body), status)


def described(error: Any, status: int) -> CallFailed:
    info = error_details_pb2.ErrorInfo()
    for detail in error.get("details", ()):
        value = detail["value"]
        info.ParseFromString(b64decode(value + "=" * (-len(value) % 4)))
    return CallFailed(error["code"], info.reason, error.get("message", ""), status)


def seconds(value: float) -> Duration:
    found = Duration()
    found.FromMilliseconds(round(value * 1_000))
    return found
