"""A DelaySchedule whose messages a DelaySink delivers: no producer, no consumer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from e2e.harness.delaycluster import API_VERSION, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until
from e2e.harness.load import RESTRICTED

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
FIRINGS = 5
SECONDS = 180.0
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
PORT = 8080
BODY = '{"again": true}'  # the library of Standard Webhooks takes JSON alone
# Prints each request, and answers 204; 410 where the path says that it is gone.
RECEIVER = f"""
import base64, http.server, json
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(json.dumps(dict(path=self.path, headers=dict(self.headers), body=body.decode())), flush=True)
        self.send_response(410 if self.path == "/gone" else 204)
        self.end_headers()
http.server.ThreadingHTTPServer(("", {PORT}), Receiver).serve_forever()
"""


class Receiver:
    """A pod that is called, behind a Service."""

    def __init__(self, kube: Kubectl, namespace: str, image: str) -> None:
        self.kube, self.namespace, self.name = kube, namespace, "receiver"
        names = {"name": self.name, "namespace": namespace, "labels": {"app": self.name}}
        container = {
            "name": "receiver", "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", RECEIVER], "securityContext": RESTRICTED,
        }  # fmt: skip
        pod = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
        service = {"selector": {"app": self.name}, "ports": [{"port": PORT}]}
        kube.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": names, "spec": pod},
            {"apiVersion": "v1", "kind": "Service", "metadata": names, "spec": service},
        )

    @property
    def host(self) -> str:
        return f"{self.name}.{self.namespace}.svc"

    def requests(self, path: str) -> list[Object]:
        text = self.kube("logs", self.name, "--namespace", self.namespace, "--tail=-1", check=False)
        found = [json.loads(line) for line in text.splitlines() if line.startswith('{"path"')]
        return [one for one in found if one["path"] == path]


@pytest.fixture
def receiver(cluster: ClusterUnderTest, image: str) -> Iterator[Receiver]:
    made = Receiver(cluster.kube, cluster.namespace, image)
    yield made
    cluster.kube("delete", "pod,service", made.name, "--namespace", made.namespace, "--wait=false")


@pytest.fixture
def hook(cluster: ClusterUnderTest) -> Iterator[str]:
    """A secret, and the name of the schedule and of the sink."""
    kube, name = cluster.kube, "e2e-hook"
    names = {"name": name, "namespace": cluster.namespace}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": names, "stringData": {"key": SECRET}})
    yield name
    for kind in ("delayschedule", "delaysink", "secret"):
        kube.delete(kind, name, cluster.namespace)


def reason(kube: Kubectl, kind: str, name: str, namespace: str) -> str:
    conditions = kube.get(kind, name, namespace).get("status", {}).get("conditions", [])
    return next((f"{one['reason']}: {one['message']}" for one in conditions if one["type"] == "Ready"), "none yet")


@pytest.mark.quick
def test_a_schedules_messages_come_by_http_until_the_receiver_is_gone(
    cluster: ClusterUnderTest, topic: str, receiver: Receiver, hook: str
) -> None:
    kube, namespace = cluster.kube, cluster.namespace
    names, to = {"name": hook, "namespace": namespace}, {"cluster": {"name": cluster.name}, "topic": topic}
    http = {
        "url": f"http://{receiver.host}:{PORT}/hook", "allow": [receiver.host],
        "signing": {"secret": {"name": hook, "key": "key"}},
    }  # fmt: skip
    message = {"key": "k", "body": BODY}
    kube.apply(
        {"apiVersion": API_VERSION, "kind": "DelaySink", "metadata": names, "spec": {**to, "http": http}},
        {
            "apiVersion": API_VERSION, "kind": "DelaySchedule", "metadata": names,
            "spec": {**to, "every": "2s", "maxFirings": FIRINGS, "message": message},
        },
    )  # fmt: skip

    def unlike(kind: str, wanted: str) -> list[str]:
        found = reason(kube, kind, hook, namespace)
        return [] if found.startswith(wanted) else [f"{kind}: {found}"]

    wait_until("the sink delivers", lambda: unlike("delaysink", "Delivering"), SECONDS)
    wait_until("the schedule has fired", lambda: unlike("delayschedule", "Over"), SECONDS)
    assert kube.get("delayschedule", hook, namespace)["status"]["fired"] == FIRINGS
    wait_until("all came", lambda: [] if len(arrived(receiver, "/hook")) == FIRINGS else ["not all"], SECONDS)
    for request in receiver.requests("/hook"):
        headers = {name.lower(): value for name, value in request["headers"].items()}
        Webhook(SECRET).verify(request["body"].encode(), headers)
        assert (request["body"], headers["ce-subject"]) == (BODY, "k")

    before = set(pods(kube, hook, namespace))
    http["url"] = f"http://{receiver.host}:{PORT}/gone"
    kube.patch("delaysink", hook, {"spec": {"http": http}}, namespace)
    wait_until("its pod has given way", lambda: sorted(before & set(pods(kube, hook, namespace))), SECONDS)
    cluster.delayctl("produce", topic, "--body", BODY)
    wait_until("the receiver is gone", lambda: unlike("delaysink", "Gone"), SECONDS)
    wait_until("it has no pods", lambda: pods(kube, hook, namespace), SECONDS)
    http["url"] = f"http://{receiver.host}:{PORT}/moved"
    kube.patch("delaysink", hook, {"spec": {"http": http}}, namespace)
    wait_until("it delivers again", lambda: [] if arrived(receiver, "/moved") else ["nothing came"], SECONDS)
    (moved,) = arrived(receiver, "/moved")
    assert moved == arrived(receiver, "/gone")[0], "the message that 410 was said to"
    attempts = {one["headers"]["ce-delayattempt"] for one in receiver.requests("/moved")}
    assert attempts == {"1"}, "410 costs no attempt"

    kube.delete("delaysink", hook, namespace)
    wait_until("its pods are gone", lambda: pods(kube, hook, namespace), SECONDS)


@pytest.mark.quick
def test_the_webhook_and_nightly_report_examples_work_by_http(
    operator: Release, kube: Kubectl, namespace: str, image: str
) -> None:
    """docs/examples as they stand. Of the sink one thing is changed: the URL, which is a name that nobody has."""
    shop, hello = (ClusterUnderTest(kube, name, namespace) for name in ("orders", "hello"))
    for file in ("order-timeout/cluster.yaml", "minimal.yaml"):
        kube("apply", "--namespace", namespace, "-f", str(EXAMPLES / file))
    kube.patch("delaycluster", "hello", {"spec": {"topics": [{"name": "reports", "queues": 1}]}}, namespace)
    kube("apply", "--namespace", namespace, "-f", str(EXAMPLES / "webhook/sink.yaml"))
    kube("apply", "--namespace", namespace, "-f", str(EXAMPLES / "nightly-report/schedules.yaml"))
    receiver = Receiver(kube, namespace, image)

    def unlike(kind: str, name: str, wanted: str) -> list[str]:
        found = reason(kube, kind, name, namespace)
        return [] if found.startswith(wanted) else [f"{name}: {found}"]

    wait_until("its secret is missing", lambda: unlike("delaysink", "order-timeouts", "SecretUnusable"), SECONDS)
    told = reason(kube, "delaysink", "order-timeouts", namespace)
    assert "is missing: make the key 'key' of the Secret 'order-hook'" in told
    before = pods(kube, "order-timeouts", namespace)
    kube("create", "secret", "generic", "order-hook", "--namespace", namespace, f"--from-literal=key={SECRET}")
    wait_until("it mends itself", lambda: unlike("delaysink", "order-timeouts", "Delivering"), SECONDS)
    assert pods(kube, "order-timeouts", namespace) == before, "by the same pod"
    path = "/hooks/order-timeout"
    url = {"url": f"http://{receiver.host}:{PORT}{path}", "allow": [receiver.host]}
    kube.patch("delaysink", "order-timeouts", {"spec": {"http": url}}, namespace)
    shop.delayctl("produce", "order-timeouts", "--delay", "1s", "--key", "order-42", "--body", BODY)
    wait_until("it came", lambda: [] if arrived(receiver, path) else ["nothing came"], SECONDS)
    (request, *_) = receiver.requests(path)
    headers = {name.lower(): value for name, value in request["headers"].items()}
    Webhook(SECRET).verify(request["body"].encode(), headers)
    assert (request["body"], headers["ce-subject"]) == (BODY, "order-42")
    assert headers["ce-source"] == "urn:delaycluster:orders:order-timeouts"

    offices = {"berlin": "Berlin", "new-york": "New York", "tokyo": "Tokyo"}
    for office in offices:
        name = f"nightly-report-{office}"
        wait_until(f"{name} is armed", partial(unlike, "delayschedule", name, "Armed"), SECONDS)
        hello.delayctl("schedules", "trigger", "reports", f"kubernetes/{namespace}/{name}")
    told = hello.delayctl("consume", "reports", "--group", "reporter", "--count", "3", "--timeout", "60", "--json")
    assert {json.loads(json.loads(line)["body"])["office"] for line in told.splitlines()} == {*offices.values()}


def arrived(receiver: Receiver, path: str) -> list[str]:
    """The messages, each once."""
    return list(dict.fromkeys(one["headers"]["webhook-id"] for one in receiver.requests(path)))


def pods(kube: Kubectl, sink: str, namespace: str) -> list[str]:
    selector = f"delaycluster.io/sink={sink}"
    return kube("get", "pods", "--namespace", namespace, "--selector", selector, "-o", "name").split()
