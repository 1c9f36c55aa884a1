"""A DelaySink's spec is read strictly: what is wrong is named with its field and its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delaysink.document import read_file
from delaysink.settings import BadSink, HttpSettings, read_document, read_settings

HTTP = {"url": "https://example.com/hook"}
KAFKA = {"servers": ["kafka:9092"]}
SECRET = {"secret": {"name": "kafka", "key": "password"}}


def test_what_is_not_said_has_a_default() -> None:
    found = read_settings("pay", {"topic": "orders", "http": HTTP})
    assert (found.group, found.max_concurrency, found.dead_letter_topic, found.paused) == ("pay", 32, "", False)
    target = found.target
    assert isinstance(target, HttpSettings)
    assert (target.method, target.mode, target.timeout_ms) == ("POST", "Binary", 15_000)
    assert target.source == "urn:delaycluster:local:orders"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"topic": "Orders"}, "spec.topic: 'Orders' is not a topic's name"),
        ({"topic": 5}, "spec.topic: it must be a text, not 5"),
        ({"topic": None}, "spec.topic: it is missing"),
        ({"htpp": {}}, "spec.htpp: there is no such field"),
        ({"http": None}, "has none"),
        ({"nats": {"servers": ["nats://n:4222"]}}, "has http and nats"),
        ({"http": {}}, "spec.http.url: it is missing"),
        ({"http": {"url": "http://10.0.0.1/"}}, "spec.http.url: 10.0.0.1 is private"),
        ({"http": {"url": "http://localhost@x/"}}, "user name"),
        ({"http": {**HTTP, "mode": "Loud"}}, "spec.http.mode: 'Loud' is none of Binary, Structured, Plain"),
        ({"http": {**HTTP, "fromMessage": ["Body"]}}, "spec.http.fromMessage: 'Body' is none of"),
        ({"http": {**HTTP, "timeout": "soon"}}, "spec.http.timeout: 'soon' is not a duration"),
        ({"http": {**HTTP, "timeout": "1h"}}, "limit, 600,000 ms"),
        ({"http": {**HTTP, "timeout": "0s"}}, "not within 1 ms"),
        ({"http": {**HTTP, "headers": {"Host": "x"}}}, "spec.http.headers: the header Host is the sink's own"),
        ({"http": {**HTTP, "headers": {"X": 5}}}, "spec.http.headers: it must have at most 32 texts"),
        ({"http": {**HTTP, "allow": ["10.0.0.1/8"]}}, "spec.http.allow: 10.0.0.1/8 has host bits set"),
        ({"http": {**HTTP, "signing": {}}}, "spec.http.signing.secret: it is missing"),
        ({"http": {**HTTP, "signing": {"secret": {"name": "../x", "key": "k"}}}}, "is not a Secret's name"),
        ({"http": {**HTTP, "signing": {"secret": {"name": "x", "key": ".."}}}}, "no name and key"),
        ({"http": {**HTTP, "signing": {"secret": {"name": "x", "key": "a/b"}}}}, "spec.http.signing.secret.key"),
        ({"http": {**HTTP, "contentType": "json"}}, "spec.http.contentType: 'json' is not a media type"),
        ({"http": None, "nats": {"servers": []}}, "spec.nats.servers: it must have addresses"),
        ({"http": None, "nats": {"servers": ["http://n"]}}, "spec.nats.servers"),
        ({"http": None, "nats": {"servers": ["nats://n:4222"], "subject": "a.>"}}, "without wildcards"),
        ({"http": None, "kafka": {"servers": ["k"]}}, "spec.kafka.servers: it must have addresses"),
        ({"http": None, "kafka": {"servers": ["k:9092,x:1"]}}, "spec.kafka.servers: it must have addresses"),
        ({"http": None, "kafka": {**KAFKA, "topic": "a/b"}}, "spec.kafka.topic: 'a/b' is not a topic's name"),
        ({"http": None, "kafka": {**KAFKA, "ca": SECRET}}, "spec.kafka.ca: it is of use with tls: true alone"),
        ({"http": None, "kafka": {**KAFKA, "sasl": {"username": "u"}}}, "spec.kafka.sasl.password: it is missing"),
        (
            {"http": None, "kafka": {**KAFKA, "sasl": {"mechanism": "Plain", "username": "u", "password": SECRET}}},
            "spec.kafka.sasl.mechanism: Plain sends the password itself",
        ),
        ({"http": None, "kafka": {**KAFKA, "sasl": {"mechanism": "Kerberos"}}}, "'Kerberos' is none of Plain"),
        ({"maxConcurrency": 0}, "spec.maxConcurrency: 0 is not within 1 and the limit, 1,000"),
        ({"maxConcurrency": True}, "spec.maxConcurrency: it must be a number"),
        ({"deadLetters": {"topic": "orders"}}, "its dead letters would come again and again"),
        ({"deadLetters": {"maxAttempts": 1_001}}, "spec.deadLetters.maxAttempts: 1001 is not within"),
        ({"paused": "yes"}, "spec.paused: it must be true or false, not 'yes'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSink) as caught:
        read_settings("pay", {"topic": "orders", "http": HTTP, **more})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "it is not a DelaySink"),
        ({"kind": "DelayUser"}, "kind: it is a DelayUser"),
        ({"metadata": {"name": "a b"}, "spec": {}}, "metadata.name"),
        ({"metadata": {"name": "a"}}, "spec: it is missing"),
    ],
)
def test_a_document_that_is_no_sink_is_refused(document: Any, says: str) -> None:
    with pytest.raises(BadSink, match=says):
        read_document(document)


def test_a_file_is_yaml_or_json_and_an_error_names_it(tmp_path: Path) -> None:
    path = tmp_path / "sink.yaml"
    path.write_text("metadata: {name: pay}\nspec:\n  topic: orders\n  http: {url: https://example.com}\n")
    assert read_file(path).name == "pay"
    path.write_text('{"metadata": {"name": "pay"}, "spec": {"topic": "orders", "http": {"url": "https://a.com"}}}')
    assert read_file(path).topic == "orders"
    for text, says in (
        ("a: [", "it is not YAML"),
        ("5", "not a DelaySink"),
        ("x" * 2_000_000, "limit is 1,048,576"),
    ):
        path.write_text(text)
        with pytest.raises(BadSink, match=says) as caught:
            read_file(path)
        assert str(path) in str(caught.value)
    with pytest.raises(BadSink, match="No such file"):
        read_file(tmp_path / "none.yaml")
