"""The objects of a DelaySink, with and without TLS, and what never goes into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delayoperator.crds.sink import DelaySinkSpec
from delayoperator.resources.sink import SinkView, sink_objects
from delayoperator.resources.view import ClusterView, SecurityMode, TlsSettings
from delaysink.settings import read_settings

from tests.resources.clusters import MINIMAL

Json = dict[str, Any]
SPEC: Json = {"cluster": {"name": "orders"}, "topic": "t", "http": {"url": "https://example.com"}}
SINK = SinkView("hooks", "77", SPEC, [("b", "k"), ("a", "k2"), ("a", "k1"), ("a", "k1")], 15, 2)


def pod_of(view: ClusterView, sink: SinkView = SINK) -> Json:
    found: Json = sink_objects(view, sink)[-1]["spec"]["template"]["spec"]
    return found


def test_without_tls_the_pod_has_no_token_at_all() -> None:
    pod = pod_of(MINIMAL)
    assert pod["automountServiceAccountToken"] is False
    assert not any("projected" in it for it in pod["volumes"])
    assert f"--endpoint={MINIMAL.name}-client.{MINIMAL.namespace}.svc:7070" in pod["containers"][0]["args"]


def test_with_tls_it_has_a_token_for_the_nodes_alone_and_their_ca_without_the_key() -> None:
    tls = TlsSettings(SecurityMode.REQUIRED, "web", "inner")
    pod = pod_of(replace(MINIMAL, tls=tls))
    volumes = {it["name"]: it for it in pod["volumes"]}
    assert volumes["certificates"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (source,) = volumes["delaycluster-token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == f"delaycluster.io/{MINIMAL.namespace}/{MINIMAL.name}"
    args = pod["containers"][0]["args"]
    assert f"--endpoint={MINIMAL.name}-client.{MINIMAL.namespace}.svc:7071" in args
    assert f"--server-name={MINIMAL.name}-client.{MINIMAL.namespace}.svc" in args
    assert "--ca=/etc/delaycluster/certificates/ca.crt" in args
    assert not any("inner" in str(it) for it in pod["volumes"]), "nothing of the nodes' own certificates"


def test_only_the_keys_that_are_named_are_mounted() -> None:
    pod = pod_of(MINIMAL)
    secrets = [it["secret"] for it in pod["volumes"] if "secret" in it]
    assert [(it["secretName"], [item["key"] for item in it["items"]]) for it in secrets] == [
        ("a", ["k1", "k2"]),
        ("b", ["k"]),
    ]
    mounts = {it["mountPath"]: it["name"] for it in pod["containers"][0]["volumeMounts"]}
    assert mounts["/etc/delaysink/secrets/a"] == "secret-0"


def test_a_change_of_the_spec_makes_the_pods_anew_and_of_the_number_does_not() -> None:
    def template(sink: SinkView) -> Json:
        found: Json = sink_objects(MINIMAL, sink)[-1]["spec"]["template"]
        return found

    changed = replace(SINK, spec={**SPEC, "maxConcurrency": 5})
    assert template(changed) != template(SINK)
    assert template(replace(SINK, stopped=True)) == template(SINK)
    assert template(replace(SINK, replicas=5, spec={**SPEC, "replicas": 5, "paused": False})) == template(SINK)


def test_each_field_of_the_definition_is_one_that_the_process_reads() -> None:
    """With the defaults that the API server fills in."""
    filled = DelaySinkSpec.model_validate(SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert read_settings("s", filled).topic == "t"
    for secret in ("signing", "authorization", "ca"):
        filled["http"][secret] = {"secret": {"name": "a", "key": "b"}}
    filled["http"] |= {
        "headers": {"X": "y"},
        "source": "s",
        "type": "t",
        "allow": ["10.0.0.0/8"],
        "fromMessage": ["Url"],
    }
    filled |= {"group": "g", "tags": ["a"], "deadLetters": {"topic": "dead", "maxAttempts": 3}}
    filled["resources"] = {"limits": {"memory": "1Gi"}}
    assert DelaySinkSpec.model_validate(filled).http.from_message == ["Url"]
    assert len(read_settings("s", filled).secrets) == 3
    assert DelaySinkSpec.model_validate(filled).nats is None
    kafka = {
        "servers": ["k:9092"], "topic": "T", "source": "s", "type": "t", "tls": True, "timeout": "5s",
        "ca": {"secret": {"name": "a", "key": "b"}},
        "sasl": {"mechanism": "Plain", "username": "u", "password": {"secret": {"name": "a", "key": "c"}}},
    }  # fmt: skip
    other = {"cluster": SPEC["cluster"], "topic": "t", "kafka": kafka}
    filled_kafka = DelaySinkSpec.model_validate(other).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert filled_kafka["kafka"] == kafka
    assert len(read_settings("s", filled_kafka).secrets) == 2
    known = {field.alias for field in DelaySinkSpec.model_fields.values()}
    assert known == filled.keys() | {"nats", "kafka"}


def test_a_sink_has_ten_minutes_to_start_and_a_minute_to_answer() -> None:
    """On a busy machine Python alone may take more than a minute, and a pod that is killed then begins anew."""
    (container,) = pod_of(MINIMAL)["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"] == {"path": "/healthz", "port": "status"}
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
