"""`delayctl report`: what is in the archive, and that secrets and messages are not."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from delayapi.credentials import Tls
from delayclient import sync
from delayctl.main import main
from delayctl.report.archive import FOLDER, Archive
from delayctl.report.kubernetes import collect
from delayctl.report.nodes import ask_metrics
from delayctl.report.scrub import LEFT_OUT, scrub_log, scrub_object, scrub_text
from delayctl.targets.kube import KubeAccess
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME
from delayregistry.kube.client import ApiRejected
from delayregistry.model import NodeLease, TopicSpec

from tests.client.support.kubeworld import NAME, kube_world

SECRET = "hunter2-Zq8vXw"
JWT = f"eyJhbGciOiJSUzI1NiJ9.{base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip('=')}.c2lnbmF0dXJl"


def content_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix(f"{FOLDER}/")] = file.read().decode()
    index = json.loads(found["index.json"])
    assert {one["file"] for one in index["files"]} == found.keys() - {"index.json", "README.txt"}
    return found


def assert_nowhere(found: Mapping[str, str], *planted: str) -> None:
    for secret in planted:
        for form in (secret, base64.b64encode(secret.encode()).decode(), json.dumps(secret)[1:-1]):
            assert [name for name, text in found.items() if form in text] == [], form


# ------------------------------------------------------------------------------------------------- scrub

PLANTED: list[Any] = [
    {"env": [{"name": "LOOKS_HARMLESS", "value": SECRET}]},
    {"env": {"LOOKS_HARMLESS": SECRET}},
    {"kind": "Secret", "data": {"x": SECRET}, "stringData": {"y": SECRET}},
    {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}},
    {"metadata": {"managedFields": [{"fieldsV1": {"f:x": SECRET}}]}},
    {"http": {"headers": {"X-Anything": SECRET}, "url": f"https://u:{SECRET}@host/path?key={SECRET}"}},
    {"spec": {"message": {"body": SECRET, "bodyText": SECRET, "key": SECRET, "properties": {"a": SECRET}}}},
    {"password": SECRET, "apiKey": SECRET, "clientSecret": SECRET, "tokens": [SECRET], "Authorization": SECRET},
    {"containers": [{"args": ["--password", SECRET, f"--api-key={SECRET}"], "command": ["x", "--token", SECRET]}]},
    {"event": "sink-dead-letter", "answer": SECRET, "why": f"Bearer {SECRET}"},
    {"deep": [[{"down": {"env": [{"name": "A", "value": SECRET}]}}]]},
    {"event": "x", "error": f"GET https://h/p?sig={SECRET} failed: token={SECRET}"},
    {"event": "x", "error": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"},
    {"event": "x", "header": JWT, "more": f"whsec_{SECRET}"},
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: ",".join(one))
def test_planted_secret_is_left_out_of_objects_and_of_log_lines(planted: Any) -> None:
    for text in (json.dumps(scrub_object(planted)), scrub_log(json.dumps(planted) + "\n")):
        assert SECRET not in text
        assert JWT not in text
        assert LEFT_OUT in text or "managedFields" in planted.get("metadata", {})


@pytest.mark.parametrize(
    "text",
    [
        f"Traceback\n  ValueError: password='{SECRET}'", f"authorization: Bearer {SECRET}", f"POST https://a:{SECRET}@h/",
        f"see https://h/p?x={SECRET}#y", JWT, f"{{broken json, api_key: {SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\nand it is cut off", f"secret={SECRET}&x=1",
    ],
)  # fmt: skip
def test_planted_secret_is_left_out_of_texts(text: str) -> None:
    assert SECRET not in scrub_log(text)
    assert JWT not in scrub_text(text)


def test_what_helps_stays() -> None:
    helps = {
        "metadata": {"name": "orders", "annotations": {"delaycluster.io/drain.n0": "kim@laptop"}, "generation": 3},
        "spec": {"nodes": 3, "tokenFile": "/var/run/token", "secretName": "tls", "automountServiceAccountToken": False},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "ShardsNotServed", "message": "t-0"}]},
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        "url": "https://hooks.example.com/orders",
    }
    assert scrub_object(helps) == helps
    line = '{"event": "became-master", "shard": "t-0", "epoch": 4, "ts": "2026-11-27T04:00:00Z"}\n'
    assert scrub_log(line) == line
    metrics = 'delay_release_lateness_seconds_bucket{le="0.001",topic="orders"} 12.0\n# HELP x y\n'
    assert scrub_text(metrics) == metrics


def test_secret_at_hand_is_found_wherever_it_stands(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a.tar.gz", "c", known=["letmein"])
    archive.add_json("a", "", {"reason": "it said letmein twice"})
    archive.add_log("b", "", "letmein, it said\n")
    archive.lacks("c", "no letmein")
    archive.close()
    assert_nowhere(content_of(tmp_path / "a.tar.gz"), "letmein")


# -------------------------------------------------------------------------------------------- Kubernetes


class Api:
    """Answers with what was planted, and refuses the rest."""

    def __init__(self, lists: Mapping[str, list[Any]]) -> None:
        self.lists, self.asked = lists, list[str]()

    def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append(path)
        if path.endswith("delayclusters/orders"):
            return {"metadata": {"name": "orders"}, "spec": {"pod": {"env": [{"name": "A", "value": SECRET}]}}}
        plural = path.rpartition("/")[2]
        if plural not in self.lists or ("namespaces" not in path and plural != "pods"):
            raise ApiRejected(403, "Forbidden", f"may not list {plural}, token={SECRET}")
        return {"items": self.lists[plural] if "namespaces" in path else []}

    def text(self, path: str, query: Mapping[str, str]) -> str:
        self.asked.append(path)
        if "previous" in query:
            raise ApiRejected(400, "BadRequest", "previous terminated container not found")
        return f'{{"event": "started", "password": "{SECRET}"}}\nplain {JWT}\n'


def test_archive_of_kubernetes_has_objects_events_logs_and_no_secrets(tmp_path: Path) -> None:
    labels = {"delaycluster.io/cluster": "orders"}
    pod = {
        "metadata": {"name": "orders-0", "namespace": "shop", "labels": labels},
        "spec": {"containers": [{"name": "node", "env": [{"name": "B", "value": SECRET}]}, {"name": "sidecar"}]},
        "status": {"containerStatuses": [{"name": "node", "restartCount": 2}]},
    }
    sink = {"http": {"headers": {"X": SECRET}}}
    lists = {
        "pods": [pod],
        "delayshards": [{"metadata": {"name": "orders.t-0"}}, {"metadata": {"name": "others.t-0"}}],
        "delaysinks": [
            {"metadata": {"name": "mine"}, "spec": {"cluster": {"name": "orders"}, **sink}},
            {"metadata": {"name": "theirs"}, "spec": {"cluster": {"name": "others"}}},
        ],
        "configmaps": [{"metadata": {"name": "orders-settings"}, "data": {"security.json": SECRET}}],
        "events": [
            {"involvedObject": {"name": "orders-0"}, "message": "Back-off"},
            {"involvedObject": {"name": "their-pod"}, "message": "not ours"},
        ],
    }
    api, path = Api(lists), tmp_path / "report.tar.gz"
    archive = Archive(path, "orders")
    collect(archive, api, "shop", "orders")
    archive.close()
    found = content_of(path)
    assert_nowhere(found, SECRET, JWT, "theirs", "their-pod", "others.t-0")
    assert {"objects/delaycluster.json", "objects/pods.json", "objects/delaysinks.json", "events.json"} < found.keys()
    assert "Back-off" in found["events.json"]
    assert '"event": "started"' in found["logs/orders-0-node.log"]
    missing = {one["what"]: one["why"] for one in json.loads(found["index.json"])["missing"]}
    assert "previous terminated" in missing["logs/orders-0-node-previous.log"]
    assert "may not list statefulsets" in missing["statefulsets"]
    assert not [path for path in api.asked if "secrets" in path or "sidecar" in path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"  # NATS' own example
KEY_PEM = f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}-pem\n-----END EC PRIVATE KEY-----\n"


def planted(kind: str) -> str:
    return f"{SECRET}-{kind}"


def specs() -> dict[str, list[Any]]:
    """Objects of one's own in which somebody has put secrets, where they belong and where they do not."""
    of, value = {"cluster": {"name": "orders"}}, planted
    message = {"body": value("body"), "key": value("key"), "properties": {"p": value("property")}}
    http = {
        "url": f"https://u:{value('url-user')}@hooks.example/x?sig={value('url-query')}",
        "headers": {"X-Api": value("header")}, "authorization": value("authorization"),
        "signing": {"secret": {"name": "s", "key": "k"}},
    }  # fmt: skip
    nats = {"servers": [f"nats://u:{value('nats-user')}@nats:4222"], "credentials": SEED}
    kafka = {"sasl": {"username": "u", "password": value("kafka")}}
    sinks = [{"metadata": {"name": kind}, "spec": {**of, kind: spec}}
             for kind, spec in (("http", http), ("nats", nats), ("kafka", kafka))]  # fmt: skip
    user = {**of, "tokens": [{"sha256": value("hash")}], "token": value("user-token"), "password": value("user")}
    pod = {
        "metadata": {
            "name": "orders-0", "namespace": "shop", "labels": {"delaycluster.io/cluster": "orders"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value("annotation")},
        },
        "spec": {"containers": [
            {"name": "sink", "env": [{"name": "PLAIN", "value": value("env")}], "args": ["--token", value("argument")]},
        ]},
    }  # fmt: skip
    return {
        "delaysinks": sinks, "delayusers": [{"metadata": {"name": "u"}, "spec": user}], "pods": [pod],
        "delayschedules": [{"metadata": {"name": "nightly"}, "spec": {**of, "message": message}}],
        "configmaps": [{"metadata": {"name": "c"}, "data": {"tls.key": KEY_PEM}, "binaryData": {"b": value("binary")}}],
        "events": [{"involvedObject": {"name": "orders-0"}, "message": f"MountVolume: password={value('event')}"}],
    }  # fmt: skip


LOG = f"""\
{json.dumps({"event": "sink-dead-letter", "key": planted("log-key"), "answer": planted("log-answer")})}
{json.dumps({"event": "x", "error": KEY_PEM})}
{json.dumps({"event": "x", "environment": {"env": {"A": planted("log-env")}}, "why": f"creds {SEED}"})}
Traceback: sasl_plain_password='{planted("log-kafka")}'
{KEY_PEM}
"""


def test_no_file_has_what_was_planted_in_sinks_schedules_users_and_their_logs(tmp_path: Path) -> None:
    class Logging(Api):
        def text(self, path: str, query: Mapping[str, str]) -> str:
            return LOG

    path = tmp_path / "report.tar.gz"
    archive = Archive(path, "orders")
    collect(archive, Logging(specs()), "shop", "orders")
    archive.close()
    found = content_of(path)
    files = {f"objects/{kind}.json" for kind in specs() if kind != "events"} | {"logs/orders-0-sink.log", "events.json"}
    assert files <= found.keys()
    assert_nowhere(found, SECRET, SEED)
    assert {"http", "nats", "kafka"} == {
        one["metadata"]["name"] for one in json.loads(found["objects/delaysinks.json"])
    }


def test_what_a_kubeconfig_shows_the_api_server_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an object repeats it; nor is anything of one's own environment."""
    kubeconfig, path = tmp_path / "kubeconfig", tmp_path / "r.tar.gz"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.setenv("MY_OWN", planted("environment"))
    secret = planted("kubeconfig")
    with kube_world(kubeconfig) as world:
        config = json.loads(kubeconfig.read_text())
        config["users"][0]["user"] = {"token": secret}
        kubeconfig.write_text(json.dumps(config))
        world.request(paused=f"who asks is {secret}")
        report("--kube", NAME, "-o", str(path))
    found = content_of(path)
    assert "who asks is" in found["objects/delaycluster.json"]
    assert_nowhere(found, SECRET)


def test_the_token_and_the_key_of_a_kubeconfig_are_known(tmp_path: Path) -> None:
    access = KubeAccess.with_token("https://127.0.0.1:1", "", "letmein", "shop", NAME)
    (tmp_path / "key").write_text(KEY_PEM)
    access.configuration.key_file = str(tmp_path / "key")
    assert {"letmein", KEY_PEM.strip()} <= set(access.secrets())


def report(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["report", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def test_report_of_a_cluster_in_kubernetes_comes_with_what_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig, path = tmp_path / "kubeconfig", tmp_path / "r.tar.gz"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    with kube_world(kubeconfig):
        said = report("--kube", NAME, "-o", str(path))
    found = content_of(path)
    assert json.loads(found["objects/delayshards.json"])[0]["metadata"]["name"] == f"{NAME}.t-0"
    assert len(json.loads(found["objects/leases.json"])) == 2
    assert json.loads(found["topics.json"])[0]["topic"] == "t"
    assert {"metrics/n0.txt", "metrics/n1.txt"} <= {one["what"] for one in said["missing"]}  # no HTTP there


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ({"token": "letmein"}, ""),
        ({"token": "another"}, "status 403: PERMISSION_DENIED: no Describe"),
        ({}, "by TLS alone, for who may Describe all topics: give a token"),
    ],
)
def test_metrics_with_a_port_of_their_own_are_asked_for_with_the_token(
    tmp_path: Path, shown: dict[str, str], told: str
) -> None:
    """Whole: they come in many pieces. As the node has it: 404 at the port for health, TLS at the other."""
    text = "".join(f'delay_pending{{topic="t{number}"}} 1.0\n' for number in range(20_000))
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("nodes.example").configure_cert(context)

    async def metrics(request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") != "Bearer letmein":
            return web.Response(status=403, text="PERMISSION_DENIED: no Describe\n")
        return web.Response(text=text)

    async def asked() -> None:
        health, secured = TestServer(web.Application()), TestServer(web.Application())
        secured.app.router.add_get("/metrics", metrics)
        await health.start_server()
        await secured.start_server(ssl=context)
        ways = {"10.0.0.7:7170": f"127.0.0.1:{health.port}", "10.0.0.7:7171": f"127.0.0.1:{secured.port}"}
        access: Any = {**shown, "tls": Tls(tmp_path / "ca.crt", server_name="nodes.example")} if shown else {}
        await ask_metrics(archive, [NodeLease("n0", "i", "10.0.0.7:7070", "10.0.0.7:7170")], access, ways.__getitem__)
        await health.close()
        await secured.close()

    archive = Archive(tmp_path / "a.tar.gz", "c")
    asyncio.run(asked())
    archive.close()
    found = content_of(tmp_path / "a.tar.gz")
    if told:
        (missing,) = archive.missing
        assert told in missing["why"]
    else:
        assert found["metrics/n0.txt"] == text


# ------------------------------------------------------------------------------------------ a local cluster


def test_report_of_a_local_cluster_has_its_nodes_and_none_of_its_messages(tmp_path: Path) -> None:
    data, path = tmp_path / "c", tmp_path / "r.tar.gz"
    with LocalCluster(data, nodes=2, replicas=2, topics=[TopicSpec("orders", 2)], secure=True) as cluster:
        cluster.wait_ready()
        assert cluster.keys is not None
        tls, token = Tls(cluster.keys.ca, server_name=SERVER_NAME), cluster.keys.token_file
        with sync.Producer(cluster.endpoints[0], tls=tls, token_file=str(token)) as producer:
            for _ in range(20):
                producer.send("orders", f"body {SECRET}", delay="1h", key=f"k{SECRET}", properties={"p": SECRET})
        with (data / "logs" / "n0.log").open("a") as log:
            log.write(f'{{"event": "planted", "why": "{token.read_text().strip()}"}}\n')
        said = report("--data", str(data), "-o", str(path))
        again = CliRunner().invoke(main, ["report", "--data", str(data), "-o", str(path)])
    assert (again.exit_code, again.stderr) == (1, f"delayctl: {path}: File exists\n")
    assert said["missing"] == []
    found = content_of(path)
    assert_nowhere(found, SECRET, token.read_text().strip())
    assert {node["node"] for node in json.loads(found["nodes.json"])} == {"n0", "n1"}
    assert json.loads(found["load.json"])[0]["pending"] == 20
    assert len(json.loads(found["copies.json"])) == 4
    assert len(json.loads(found["objects/shards.json"])) == 2
    for node in ("n0", "n1"):
        assert "delay_" in found[f"metrics/{node}.txt"]
        assert '"event"' in found[f"logs/{node}.log"]
    assert "planted" in found["logs/n0.log"]


def test_report_of_no_cluster_at_all_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.tar.gz"
    result = CliRunner().invoke(main, ["report", "--data", str(tmp_path / "none"), "-o", str(path)])
    assert not path.exists()
    assert result.exit_code == 3
    assert "name the cluster's directory, --data DIR" in result.stderr
