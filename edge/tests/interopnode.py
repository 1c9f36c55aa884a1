"""grpc.testing.TestService behind an edge: what gRPC's interop clients call.

Its messages are those of grpc-proto's grpc/testing/messages.proto, with the fields that the cases use.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fakenode import FakeNode
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from delayedge import Event

PACKAGE = "grpc.testing"
SERVER_ID = "edge"
KINDS = {"bool": 8, "int32": 5, "string": 9, "bytes": 12}  # the others are messages
OPTIONAL, REPEATED = 1, 3
FIELDS = {
    "Payload": ["body = 2 bytes"],
    "EchoStatus": ["code = 1 int32", "message = 2 string"],
    "SimpleRequest": ["response_size = 2 int32", "response_status = 7 EchoStatus", "fill_server_id = 9 bool"],
    "SimpleResponse": ["payload = 1 Payload", "server_id = 4 string"],
    "StreamingInputCallRequest": ["payload = 1 Payload"],
    "StreamingInputCallResponse": ["aggregated_payload_size = 1 int32"],
    "ResponseParameters": ["size = 1 int32"],
    "StreamingOutputCallRequest": ["response_parameters = 2 ResponseParameters*", "response_status = 7 EchoStatus"],
    "StreamingOutputCallResponse": ["payload = 1 Payload"],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="interop.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for text in fields:
            field, _, number, kind = text.split()
            one = message.field.add(name=field, number=int(number), label=REPEATED if kind[-1] == "*" else OPTIONAL)
            if kind in KINDS:
                one.type = KINDS[kind]
            else:
                one.type_name = f".{PACKAGE}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


MESSAGES = _messages()


class InteropNode(FakeNode):
    service = f"{PACKAGE}.TestService"
    unary = ("EmptyCall", "UnaryCall")
    streams = ("StreamingInputCall", "StreamingOutputCall", "FullDuplexCall")

    def __init__(self, **limits: int) -> None:
        self._summed: defaultdict[int, int] = defaultdict(int)
        super().__init__(**limits)

    def _call_EmptyCall(self, event: Event) -> None:
        self.edge.respond(event.token, b"")

    def _call_UnaryCall(self, event: Event) -> None:
        request = MESSAGES["SimpleRequest"].FromString(event.body)
        if request.response_status.code:
            self.edge.end(event.token, request.response_status.code, request.response_status.message)
            return
        response = MESSAGES["SimpleResponse"](payload=_payload(request.response_size))
        if request.fill_server_id:
            response.server_id = SERVER_ID
        self.edge.respond(event.token, response.SerializeToString())

    def _message_StreamingInputCall(self, event: Event) -> None:
        request = MESSAGES["StreamingInputCallRequest"].FromString(event.body)
        self._summed[event.token] += len(request.payload.body)
        self.edge.more(event.token)

    def _half_closed_StreamingInputCall(self, event: Event) -> None:
        size = self._summed.pop(event.token, 0)
        answer = MESSAGES["StreamingInputCallResponse"](aggregated_payload_size=size)
        self.edge.write(event.token, answer.SerializeToString())
        self.edge.end(event.token)

    def _message_FullDuplexCall(self, event: Event) -> None:
        """All answers of a case are within `write_bytes`, so none has to wait."""
        request = MESSAGES["StreamingOutputCallRequest"].FromString(event.body)
        for parameters in request.response_parameters:
            answer = MESSAGES["StreamingOutputCallResponse"](payload=_payload(parameters.size))
            self.edge.write(event.token, answer.SerializeToString())
        self.edge.more(event.token)
        if request.response_status.code:
            self.edge.end(event.token, request.response_status.code, request.response_status.message)

    def _half_closed_FullDuplexCall(self, event: Event) -> None:
        self.edge.end(event.token)

    _message_StreamingOutputCall = _message_FullDuplexCall
    _half_closed_StreamingOutputCall = _half_closed_FullDuplexCall


def _payload(size: int) -> Any:
    return MESSAGES["Payload"](body=bytes(size))
