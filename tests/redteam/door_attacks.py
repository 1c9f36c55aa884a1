"""What a caller without rights tries at the doors: MessageService over gRPC and HTTP, and RocketMQ's clients' calls."""

from __future__ import annotations

import http.client
import ssl
from contextlib import suppress
from typing import Any

import grpc
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delaynode.server.doors.keda.service import SCALER_SERVICE
from delaynode.server.doors.rocketmq.service import MESSAGING_SERVICE
from delaynode.server.doors.rows import MESSAGE_SERVICE

from tests.auth import test_rocketmq_rights as rocketmq_rights
from tests.auth.test_message_rights import MAY, request_of
from tests.doors.support import asking as doors
from tests.redteam.attacks import attack
from tests.redteam.key_flood import flood
from tests.redteam.world import ATTEMPTS, World
from tests.serve.support.asking import DENIED, NAMES, TOPIC, UNKNOWN, Asking, secret

MISSING = "nothing"
RATE, FLOOD_SECONDS = 10_000, 5.0
REFUSED = {401: "unauthenticated", 403: "permission_denied"}
OTHER_PATHS = ("", "healthz", "readyz", "metrics", "security", "debug/pprof/", "delay.v1.DelayService/Enqueue",
               "delay.v1.ReplicationService/ReplicaStatus", "delay.v1.MessageService/../Send", "%2e%2e/etc/passwd",
               "x" * 5_000)  # fmt: skip


@attack(f"{RATE:,} unknown key ids a second")
def unknown_keys_a_second(world: World) -> str:
    asked = world.provider.asked("/keys")
    found, seconds = flood(world, FLOOD_SECONDS, RATE)
    fetches = world.provider.asked("/keys") - asked
    unknown = found.pop(str(UNKNOWN.value[0]), 0)
    # More than the edge takes at once: the compiled one says so, gRPC's own cancels what waits for too long a queue.
    too_many = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
    busy = sum(found.pop(str(code.value[0]), 0) for code in too_many)
    assert not found, f"other answers: {found}"
    assert unknown, "the control: some are looked at"
    assert fetches <= 2 + seconds / 30, f"{fetches} fetches of the issuer's keys in {seconds:.1f} s"
    each = f"{unknown:,} {UNKNOWN.name}, {busy:,} refused before as too many at once"
    return f"{each}, {(busy + unknown) / seconds:,.0f} a second; the issuer was asked {fetches} times"


def callers(world: World) -> dict[str, Asking]:
    """Who may nothing."""
    stranger = world.ca.issue("spiffe://example.org/stranger")
    return {"a token without rights": world.caller("none"),
            "an unknown certificate": Asking(world.channel("mtls", stranger))}  # fmt: skip


def ended(caller: Asking, service: str, method: str, *data: bytes) -> grpc.StatusCode | None:
    """How the call ended; None: it was answered."""
    try:
        caller.stream(method, *data, service=service)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None


@attack("MessageService over gRPC without rights")
def message_service(world: World) -> str:
    nobody = Asking(world.channel("tokens"))
    for method in MAY:
        asked = request_of(method, TOPIC).SerializeToString()
        assert ended(nobody, MESSAGE_SERVICE, method, asked) is UNKNOWN, method
        for who, caller in callers(world).items():
            for topic in (TOPIC, MISSING):
                asked = request_of(method, topic).SerializeToString()
                assert ended(caller, MESSAGE_SERVICE, method, asked) is DENIED, (method, who, topic)
    asked = request_of("Send", TOPIC).SerializeToString()
    assert ended(world.caller("produce"), MESSAGE_SERVICE, "Send", asked) is None, "the control"
    return (
        f"{len(MAY)} methods: {UNKNOWN.name} without a token, {DENIED.name} without rights, whatever topics there are"
    )


def door(world: World, wire: doors.Wire, token: str) -> doors.Asking:
    node = doors.Node("", world.cluster.http_tokens[0])
    return doors.Asking(node, wire, context=ssl.create_default_context(cadata=world.ca.pem.decode()), token=token)


def status(caller: doors.Asking, method: str, request: Any) -> tuple[int, str]:
    """Of HTTP, and Connect's code; (200, "") for a call that was answered. The whole of a stream."""
    fields = {field.name: value for field, value in request.ListFields()}
    try:
        list(caller.stream(method, **fields)) if method == "ReceiveStream" else caller.call(method, **fields)
    except doors.CallFailed as failed:
        return failed.status, failed.code
    finally:
        if method == "ReceiveStream":  # what is after its end is not read
            caller.close()
    return 200, ""


@attack("MessageService over HTTP without rights")
def message_service_by_http(world: World) -> str:
    for wire in ("json", "proto"):
        for expected, token in ((401, ""), (401, "guessed"), (401, secret("none")[:-1]), (403, secret("none"))):
            caller = door(world, wire, token)
            for method in MAY:
                for topic in (TOPIC, MISSING):
                    found = status(caller, method, request_of(method, topic))
                    # A stream's refusal is in its end, as Connect has it: the status is 200.
                    assert found[1] == REFUSED[expected], (wire, method, topic, found)
                    assert found[0] == expected or (method == "ReceiveStream" and found[0] == 200), (method, found)
            caller.close()
        sender = door(world, wire, secret("produce"))
        assert status(sender, "Send", request_of("Send", TOPIC)) == (200, ""), "the control"
        sender.close()
    return f"{len(MAY)} methods in JSON and proto: 401 without a good token, 403 without rights"


@attack("every path of the HTTP door, and others")
def http_paths(world: World) -> str:
    host, _, port = world.cluster.http_tokens[0].rpartition(":")
    context = ssl.create_default_context(cadata=world.ca.pem.decode())

    def asked(verb: str, path: str, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=context)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
        connection.request(verb, f"/{path}", b"{}" if verb == "POST" else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        connection.close()
        return answer.status, text

    for path in OTHER_PATHS:
        for token in ("", secret("super")):
            assert asked("GET", path, token)[0] in (400, 404, 414), path
            assert asked("POST", path, token)[0] in (400, 404, 405, 414), path
    for method in MAY:
        for verb in ("GET", "PUT", "DELETE", "PATCH"):
            assert asked(verb, f"{MESSAGE_SERVICE}/{method}", secret("super"))[0] == 405, (verb, method)
    said, text = asked("GET", "openapi.json")
    assert said == 200
    assert not any(word in text for word in (f'"{TOPIC}"', '"quiet"', secret("super"), str(port))), "the API's alone"
    with suppress(http.client.HTTPException, OSError):
        plain = http.client.HTTPConnection(host, int(port), timeout=20)
        plain.request("POST", f"/{MESSAGE_SERVICE}/Send", b"{}")
        raise AssertionError(f"plain text is answered: {plain.getresponse().status}")
    for path in (f"{MESSAGE_SERVICE}/Send", "openapi.json"):
        at = http.client.HTTPConnection(*world.cluster.http[0].split(":"), timeout=20)
        at.request("POST", f"/{path}", b"{}")
        assert at.getresponse().status == 404, "the port of health serves no messages"
        at.close()
    return "404 and 405; /openapi.json is for all, and names nothing of the cluster"


def codes(caller: Asking, method: str, request: Any) -> set[str]:
    """Of the answers to a call of RocketMQ's."""
    return rocketmq_rights.codes(method, caller.stream(method, request.SerializeToString(), service=MESSAGING_SERVICE))


def attempts(caller: Asking) -> int:
    """That a consumer of the topic is told of in its settings."""
    settings = mq.Settings(client_type=mq.PUSH_CONSUMER)
    settings.subscription.group.name = "mail"
    settings.subscription.subscriptions.add(topic=mq.Resource(name=TOPIC)).expression.expression = "*"
    asked = mq.TelemetryCommand(settings=settings).SerializeToString()
    (answer,) = caller.stream("Telemetry", asked, service=MESSAGING_SERVICE)
    found: int = mq.TelemetryCommand.FromString(answer).settings.backoff_policy.max_attempts
    return found


@attack("KEDA's calls without rights")
def keda_calls(world: World) -> str:
    def requests(topic: str) -> dict[str, Any]:
        """Without a topic it is the cluster's own nodes that are asked about."""
        workers = {"topic": topic, "group": "mail", "ratePerReplica": "1"}
        ref = keda.ScaledObjectRef(scalerMetadata=workers if topic else {"metric": "nodes"})
        metrics = keda.GetMetricsRequest(scaledObjectRef=ref, metricName="replicas" if topic else "nodes")
        return {"IsActive": ref, "StreamIsActive": ref, "GetMetricSpec": ref, "GetMetrics": metrics}

    methods = keda.DESCRIPTOR.services_by_name["ExternalScaler"].methods_by_name
    assert set(methods) == set(requests(TOPIC)), "each call is here"
    nobody = Asking(world.channel("tokens"))
    for topic in (TOPIC, MISSING, ""):
        for method, request in requests(topic).items():
            data = request.SerializeToString()
            assert ended(nobody, SCALER_SERVICE, method, data) is UNKNOWN, method
            for who, caller in callers(world).items():
                assert ended(caller, SCALER_SERVICE, method, data) is DENIED, (method, topic, who)
    data = requests(TOPIC)["GetMetrics"].SerializeToString()
    assert ended(world.caller("describe"), SCALER_SERVICE, "GetMetrics", data) is None, "the control"
    return (
        f"{len(methods)} calls: {UNKNOWN.name} without a token; {DENIED.name} without rights, whatever topics there are"
    )


@attack("RocketMQ's calls without rights")
def rocketmq(world: World) -> str:
    methods = mq.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
    client = ("x-mq-client-id", "c"), ("x-mq-language", "JAVA")
    nobody = Asking(world.channel("tokens"), None, *client)
    for method in methods:
        assert ended(nobody, MESSAGING_SERVICE, method, b"") is UNKNOWN, method
    stranger = world.ca.issue("spiffe://example.org/stranger")
    names = {*NAMES, "super"} - {"admin"}  # which is the local cluster's own there
    named = {name: Asking(world.channel("tokens"), f"Bearer {secret(name)}", *client) for name in names}
    named["stranger"] = Asking(world.channel("mtls", stranger), None, *client)
    tried = 0
    for topic in (TOPIC, MISSING):
        for method, requests in rocketmq_rights.requests_of(topic).items():
            may = rocketmq_rights.MAY[method] & ({"super"} if topic is MISSING else named.keys())
            for request in requests:
                found = {who: codes(caller, method, request) for who, caller in named.items()}
                refused = {who for who, said in found.items() if said == {"FORBIDDEN"}}
                assert refused == named.keys() - may, (method, topic, found)
                tried += len(refused)
    told = {who: attempts(named[who]) for who in ("none", "other", "consume")}
    assert told == {"none": 16, "other": 16, "consume": ATTEMPTS}, "a client's settings say nothing of others' topics"
    assert codes(named["produce"], "SendMessage", rocketmq_rights.requests_of(TOPIC)["SendMessage"][0]) == {"OK"}, (
        "the control"
    )
    return (
        f"{len(methods)} calls: {UNKNOWN.name} without a token; FORBIDDEN {tried} times with one for other rights, "
        "whatever topics there are"
    )
