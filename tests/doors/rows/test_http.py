"""MessageService over HTTP as people and strangers speak it: JSON by hand, bad JSON, and bytes that are no HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest
from delayapi.proto.delay.v1 import messages_pb2 as rows
from prometheus_client.parser import text_string_to_metric_families

from tests.doors.support.asking import SERVICE, Asking, CallFailed, Node

Ask = Callable[..., Asking]


def test_a_message_in_json_from_hand_to_hand(ask: Ask, topic: str) -> None:
    client = ask(0, "json")
    value = {"a": [1, 2.5, 12345678901234567890, None, True], "ä": "ö\n"}
    due = time.time() + 0.3
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f".{int(due % 1 * 1_000):03}Z"
    sent = client.json("Send", {"topic": topic, "messages": [
        {"delay": "0.2s", "bodyJson": value, "key": "k"}, {"at": at, "bodyText": "text"}, {"body": "AAEC/w=="},
    ]})  # fmt: skip
    assert all(one["handle"] for one in sent["results"])
    found: list[dict[str, Any]] = []
    while len(found) < 3:
        asked = {"topic": topic, "group": "g", "wait": "5s", "bodyFormat": "BODY_FORMAT_JSON"}
        found += client.json("Receive", asked)["deliveries"]
    by_kind = {name: one[name] for one in found for name in ("bodyJson", "bodyText", "body") if name in one}
    assert by_kind == {"bodyJson": value, "bodyText": "text", "body": "AAEC/w=="}
    done = client.json("Ack", {"receipts": [one["receipt"] for one in found]})
    assert done == {"results": [{"settled": True}] * 3}


def test_a_number_is_itself_however_large(ask: Ask, topic: str) -> None:
    client = ask(0, "json")
    client.json("Send", {"topic": topic, "messages": [{"bodyJson": 12345678901234567890123}, {"bodyJson": "NaN"}]})
    found: list[Any] = []
    while len(found) < 2:
        asked = {"topic": topic, "group": "g", "wait": "5s", "bodyFormat": "BODY_FORMAT_JSON"}
        found += client.json("Receive", asked)["deliveries"]
    assert sorted((one["bodyJson"] for one in found), key=str) == [12345678901234567890123, "NaN"]


BAD_JSON = [
    ("", "Expecting value"),
    ("[]", "an object"),
    ("1", "an object"),
    ('{"topic":"aside","topic":"aside"}', "'topic' is there twice"),
    (
        '{"topic":"aside","messages":[{"messageId":"a","message_id":"b"}]}',
        "'messageId' is there twice, as",
    ),
    (
        '{"topic":"aside","messages":[{"message_id":"b","messageId":"a"}]}',
        "'messageId' is there twice, as",
    ),
    ('{"topic":"aside","messages":[{"bodyText":"a","body_text":"b"}]}', "'bodyText' is there twice, as 'body_text'"),
    ('{"topic":"aside","messages":[{"dealy":"1s"}]}', "dealy"),
    ('{"topic":"aside","messages":[{"delay":"1"}]}', "delay"),
    ('{"topic":"aside","messages":[{"delay":1}]}', "delay"),
    ('{"topic":"aside","messages":[{"delay":"1s","at":"2030-01-01T00:00:00Z"}]}', "when"),
    ('{"topic":"aside","messages":[{"at":"tomorrow"}]}', "at"),
    ('{"topic":"aside","messages":[{"body":"not base64"}]}', "SendRequest"),
    ('{"topic":"aside","messages":[{"body":"%%%%"}]}', "SendRequest"),
    ('{"topic":"aside","messages":[{"bodyText":1}]}', "bodyText"),
    ('{"topic":"aside","messages":[{"bodyText":"a","bodyJson":1}]}', "one of body"),
    ('{"topic":"aside","messages":[{"bodyJson":NaN}]}', "NaN"),
    ('{"topic":"aside","messages":[{"bodyJson":1' + "0" * 5_000 + "}]}", "SendRequest"),
    ('{"topic":"aside","messages":[{"bodyJson":' + "[" * 90_000, "nested"),
    ('{"topic":"aside","messages":{"a":1}}', "messages"),
    ('{"topic":"aside","messages":[null]}', "messages"),
    ('{"topic":"aside","messages":[{"bodyJson":1e999}]}', "1e999"),
    ('{"topic":"aside","group":1e999}', "1e999"),
    ('{"topic":"aside","\\ud800":1}', "SendRequest"),
    ('{"topic":1}', "topic"),
    ('{"topic":"aside","messages":[{"properties":{"a":1}}]}', "properties"),
    ('{"topic":"\\ud800"}', "SendRequest"),
]


def test_bad_json_is_told_where_it_is_wrong(ask: Ask) -> None:
    client = ask(0, "json")
    for text, said in BAD_JSON:
        with pytest.raises(CallFailed) as refused:
            client.post("Send", text.encode())
        assert (refused.value.status, refused.value.code) == (400, "invalid_argument"), text[:60]
        assert said in refused.value.message, (text[:60], refused.value.message)
    for data in (b"\xff\xfe", b'{"topic":"\xc3\x28"}', b"\x00" * 100):
        with pytest.raises(CallFailed) as refused:
            client.post("Send", data)
        assert refused.value.status == 400


def test_what_is_no_call_is_refused_by_its_status(ask: Ask) -> None:
    client = ask(0, "json")
    good = b'{"topic":"aside","group":"g"}'
    for method, kind, headers, status, code in (
        ("Nothing", "application/json", {}, 404, "unimplemented"),
        ("Receive", "text/plain", {}, 415, "invalid_argument"),
        ("Receive", "application/connect+json", {}, 415, "invalid_argument"),
        ("ReceiveStream", "application/json", {}, 415, "invalid_argument"),
        ("Receive", "application/json", {"connect-protocol-version": "2"}, 400, "invalid_argument"),
        ("Receive", "application/json", {"connect-timeout-ms": "soon"}, 400, "invalid_argument"),
        ("Receive", "application/json", {"connect-timeout-ms": "12345678901"}, 400, "invalid_argument"),
        ("Receive", "application/json", {"content-encoding": "compress"}, 501, "unimplemented"),
        ("Receive", "application/json", {"origin": "http://localhost:3000"}, 403, "permission_denied"),
        ("Send", "application/proto", {"origin": "null"}, 403, "permission_denied"),
        ("ReceiveStream", "application/connect+json", {"origin": ""}, 403, "permission_denied"),
    ):
        with pytest.raises(CallFailed) as refused:
            client.post(method, good, kind, **headers)
        assert (refused.value.status, refused.value.code) == (status, code), (method, kind, headers)


def test_a_time_that_is_over_is_said(ask: Ask) -> None:
    began = time.monotonic()
    answer = ask(0, "json").post("Receive", b'{"topic":"aside","group":"nobody","wait":"10s"}',
                                 **{"connect-timeout-ms": "2000"})  # fmt: skip
    assert json.loads(answer) == {}, "an answer with nothing, before the client gives up"
    assert time.monotonic() - began < 2


def test_a_body_that_is_too_large_is_not_read(ask: Ask, nodes: list[Node]) -> None:
    host, _, port = nodes[0].http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(
            f"POST {SERVICE}Send HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "content-length: 99999999999\r\n\r\n".encode()
        )
        answer = raw.recv(65_536)
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"the limit is 12 MiB" in answer


SMUGGLED = [
    "content-length: 5\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: 5",
    "content-length: 5\r\ncontent-length: 6",
    "transfer-encoding: chunked, identity",
    "transfer-encoding: xchunked",
    "content-length: +5",
    "content-length: 5 5",
    "content-length : 5",
]


@pytest.mark.parametrize("headers", SMUGGLED)
def test_a_request_of_two_lengths_is_one_at_most(nodes: list[Node], headers: str) -> None:
    """What a proxy and the node could cut differently is refused, and what comes behind it is not served."""
    host, _, port = nodes[0].http.rpartition(":")
    inner = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(
            f"POST {SERVICE}Send HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
            f"0\r\n\r\n{inner}".encode()
        )
        raw.settimeout(5)
        received = b""
        try:
            while part := raw.recv(65_536):
                received += part
        except TimeoutError:
            pass
    assert b"ok\n" not in received, received
    assert received.split(b"\r\n")[0].split(b" ")[1:2] in ([b"400"], []), received


def test_strangers_who_hang_keep_nobody_waiting(ask: Ask, nodes: list[Node], topic: str) -> None:
    """Heads and bodies that do not end, and connections that say nothing, 200 of them."""
    host, _, port = nodes[0].http.rpartition(":")
    held: list[socket.socket] = []
    head = f"POST {SERVICE}Send HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    try:
        for at in range(200):
            one = socket.create_connection((host, int(port)), timeout=5)
            held.append(one)
            one.sendall((b"", b"POST ", head.encode(), (head + "content-length: 100\r\n\r\n{").encode())[at % 4])
        began = time.monotonic()
        client = ask(0, "json")
        for _ in range(5):
            client.json("Send", {"topic": topic, "messages": [{"bodyText": "x"}]})
        assert time.monotonic() - began < 5
    finally:
        for one in held:
            one.close()


def test_the_openapi_page_is_served_and_names_every_call(nodes: list[Node]) -> None:
    import http.client

    host, _, port = nodes[0].http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/openapi.json")
    response = connection.getresponse()
    page = json.loads(response.read())
    assert response.status == 200
    methods = {method.name for method in rows.DESCRIPTOR.services_by_name["MessageService"].methods}
    assert {path.rpartition("/")[2] for path in page["paths"]} == methods
    refs = {text for text in json.dumps(page).split('"') if text.startswith("#/components/schemas/")}
    assert {ref.rpartition("/")[2] for ref in refs} <= page["components"]["schemas"].keys()


def test_calls_over_http_are_counted_by_how_they_end(ask: Ask, nodes: list[Node], topic: str) -> None:
    def counted(name: str, **labels: str) -> float:
        text = urlopen(f"http://{nodes[0].http}/metrics", timeout=10).read().decode()
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return sum(one.value for one in samples if one.name == name and one.labels == labels)

    def ended(method: str, code: str) -> float:
        return counted("delay_http_requests_total", method=method, code=code)

    asked = (("Send", "ok"), ("Send", "invalid_argument"), ("other", "unimplemented"), ("ReceiveStream", "not_found"))
    before = {one: ended(*one) for one in asked}
    took = counted("delay_http_request_seconds_count", method="Send")
    client = ask(0, "json")
    client.json("Send", {"topic": topic, "messages": [{"bodyText": "x"}]})
    for method, request in (("Send", {"topic": 1}), ("Nothing", {}), ("Nothing-else", {})):
        with pytest.raises(CallFailed):
            client.json(method, request)
    with pytest.raises(CallFailed):
        list(ask(0, "proto").stream(topic="nowhere", group="g"))
    assert {one: ended(*one) - count for one, count in before.items()} == dict(zip(asked, (1, 1, 2, 1), strict=True))
    assert counted("delay_http_request_seconds_count", method="Send") == took + 2

    host, _, port = nodes[0].http.rpartition(":")
    gone = ended("Receive", "canceled")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        body = json.dumps({"topic": topic, "group": "empty", "fromEnd": True, "wait": "20s"})
        head = f"POST {SERVICE}Receive HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: counted("delay_http_calls") == 1)
    until(lambda: ended("Receive", "canceled") == gone + 1)
    assert counted("delay_http_calls") == 0


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
