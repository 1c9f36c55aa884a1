"""The fake API server does what the project's tests rely on, as the kubernetes package's own client sees it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client as k8s
from kubernetes import config, watch

from tests.kube.fakeapi import FakeApiServer
from tests.kube.fakekinds import find

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
SHARDS = "/apis/delaycluster.io/v1alpha1/namespaces/default/delayshards"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer(bookmark_s=0.1) as server:
        yield server


@pytest.fixture
def core(server: FakeApiServer, tmp_path: Path) -> k8s.CoreV1Api:
    return k8s.CoreV1Api(config.new_client_from_config(str(server.write_kubeconfig(tmp_path / "config"))))


def send(server: FakeApiServer, method: str, path: str, body: Any = None, content: str = MERGE) -> tuple[int, Any]:
    pool = urllib3.PoolManager(retries=False, timeout=5.0)
    data = None if body is None else json.dumps(body)
    answer = pool.request(method, server.url + path, body=data, headers={"Content-Type": content})
    return answer.status, answer.json()


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def test_objects_are_created_listed_by_label_and_deleted(core: k8s.CoreV1Api) -> None:
    core.create_namespaced_config_map("default", config_map("one", app="x"))
    core.create_namespaced_config_map("default", config_map("two", app="y"))
    core.create_namespaced_config_map("other", config_map("three", app="x"))
    names = [it.metadata.name for it in core.list_namespaced_config_map("default", label_selector="app=x").items]
    everywhere = core.list_config_map_for_all_namespaces(label_selector="app in (x, z)").items
    by_name = core.list_namespaced_config_map("default", field_selector="metadata.name=two").items
    assert (names, len(everywhere), [it.metadata.name for it in by_name]) == (["one"], 2, ["two"])
    core.delete_namespaced_config_map("one", "default")
    with pytest.raises(k8s.ApiException, match="not found") as error:
        core.read_namespaced_config_map("one", "default")
    assert error.value.status == 404


def test_a_write_at_an_old_version_is_a_conflict_and_one_that_changes_nothing_keeps_it(server: FakeApiServer) -> None:
    created = send(server, "POST", MAPS, config_map("one"))[1]["metadata"]["resourceVersion"]
    at = {"metadata": {"resourceVersion": created}}
    same = send(server, "PATCH", f"{MAPS}/one", {**at, "data": {"a": "1"}})[1]["metadata"]["resourceVersion"]
    assert same == created
    assert send(server, "PATCH", f"{MAPS}/one", {**at, "data": {"a": "2"}})[0] == 200
    status, said = send(server, "PATCH", f"{MAPS}/one", {**at, "data": {"a": "3"}})
    assert (status, said["reason"]) == (409, "Conflict")
    assert server.get("configmaps", "one")["data"] == {"a": "2"}


def test_status_and_the_rest_are_written_apart(server: FakeApiServer) -> None:
    body = {"metadata": {"name": "a.t-0"}, "spec": {"uid": "1"}, "status": {"ignored": True}}
    assert "status" not in send(server, "POST", SHARDS, body)[1]
    send(server, "PATCH", f"{SHARDS}/a.t-0/status?fieldManager=node", {"status": {"epoch": 1}, "spec": {"uid": "2"}})
    send(server, "PATCH", f"{SHARDS}/a.t-0?fieldManager=operator", {"spec": {"epoch": 3}, "status": {"epoch": 9}})
    found = server.get("delayshards", "a.t-0")
    assert (found["spec"], found["status"]) == ({"uid": "1", "epoch": 3}, {"epoch": 1})
    assert found["metadata"]["generation"] == 2
    owned = server.store.managers(find("delayshards"), "default", "a.t-0")
    assert (owned["node"], owned["operator"]) == ({"status.epoch"}, {"spec.epoch"})


def test_apply_removes_what_it_no_longer_says_and_two_owners_share_a_keyed_list(server: FakeApiServer) -> None:
    path = "/apis/delaycluster.io/v1alpha1/namespaces/default/delayclusters/c"

    def apply(manager: str, *topics: dict[str, Any], force: str = "") -> int:
        body = {"spec": {"topics": list(topics)}}
        return send(server, "PATCH", f"{path}?fieldManager={manager}{force}", body, APPLY)[0]

    assert apply("one", {"name": "a", "queues": 1}, {"name": "b", "queues": 1}) == 201
    assert apply("two", {"name": "c", "queues": 2}) == 200
    assert apply("one", {"name": "a", "queues": 4}) == 200
    topics = server.get("delayclusters", "c")["spec"]["topics"]
    assert topics == [{"name": "a", "queues": 4}, {"name": "c", "queues": 2}]
    assert apply("two", {"name": "c", "queues": 2}, {"name": "a", "queues": 5}) == 409
    assert apply("two", {"name": "c", "queues": 2}, {"name": "a", "queues": 5}, force="&force=true") == 200
    assert server.get("delayclusters", "c")["spec"]["topics"][0] == {"name": "a", "queues": 5}


def test_what_only_a_deleted_object_owned_goes_with_it(server: FakeApiServer) -> None:
    owner = send(server, "POST", MAPS, config_map("owner"))[1]["metadata"]["uid"]
    for name, uids in (("mine", [owner]), ("shared", [owner, "another"]), ("free", [])):
        body = config_map(name)
        body["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": it, "uid": it} for it in uids
        ]
        send(server, "POST", MAPS, body)
    send(server, "DELETE", f"{MAPS}/owner")
    assert [it["metadata"]["name"] for it in server.list("configmaps")] == ["free", "shared"]


def test_an_object_with_finalizers_goes_when_the_last_one_is_taken_off(server: FakeApiServer) -> None:
    body = config_map("one")
    body["metadata"]["finalizers"] = ["a/b"]
    send(server, "POST", MAPS, body)
    send(server, "DELETE", f"{MAPS}/one")
    assert "deletionTimestamp" in server.get("configmaps", "one")["metadata"]
    send(server, "PATCH", f"{MAPS}/one", {"metadata": {"finalizers": None}})
    assert server.list("configmaps") == []


def test_a_watch_tells_each_change_and_what_leaves_its_selection(server: FakeApiServer, core: k8s.CoreV1Api) -> None:
    core.create_namespaced_config_map("default", config_map("old", app="x"))
    seen: list[tuple[str, str]] = []

    def follow() -> None:
        stream = watch.Watch().stream(core.list_namespaced_config_map, "default", label_selector="app=x")
        for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    while not seen:
        time.sleep(0.01)
    core.create_namespaced_config_map("default", config_map("strange", app="y"))
    core.patch_namespaced_config_map("old", "default", {"data": {"b": "2"}})
    core.patch_namespaced_config_map("old", "default", {"metadata": {"labels": {"app": "y"}}})
    thread.join(10)
    assert seen == [("ADDED", "old"), ("MODIFIED", "old"), ("DELETED", "old")]


def watch_lines(server: FakeApiServer, query: str, **options: Any) -> Iterator[dict[str, Any]]:
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=2, read=2))
    answer = pool.request("GET", f"{server.url}{MAPS}?watch=1&{query}", preload_content=False, **options)
    return (json.loads(line) for line in answer)


def test_a_watch_from_before_the_history_is_gone_and_bookmarks_tell_the_version(server: FakeApiServer) -> None:
    send(server, "POST", MAPS, config_map("one"))
    told = watch_lines(server, "resourceVersion=1&allowWatchBookmarks=true&timeoutSeconds=0.15")
    assert {(it["type"], it["object"]["metadata"]["resourceVersion"]) for it in told} == {("BOOKMARK", "1")}
    send(server, "POST", MAPS, config_map("two"))
    server.expire_watches()
    (error,) = watch_lines(server, "resourceVersion=1")
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)


def test_a_silenced_watch_says_nothing_and_a_cut_one_ends(server: FakeApiServer) -> None:
    lines = watch_lines(server, "")
    while server.open_watches < 1:
        time.sleep(0.01)
    server.silence_watches()
    time.sleep(0.05)
    send(server, "POST", MAPS, config_map("one"))
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        next(lines)
    server.break_watches()


def test_faults_fall_on_what_they_name_and_so_often(server: FakeApiServer) -> None:
    server.fault(method="PATCH", path="/leases/", code=429, times=2)
    send(server, "POST", LEASES, {"metadata": {"name": "l"}})
    answers = [send(server, "PATCH", f"{LEASES}/l", {"spec": {"holderIdentity": "a"}})[0] for _ in range(3)]
    assert answers == [429, 429, 200]
    server.fault(method="PATCH", path="/leases/l", drop="after")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        send(server, "PATCH", f"{LEASES}/l", {"spec": {"holderIdentity": "b"}})
    assert server.get("leases", "l")["spec"] == {"holderIdentity": "b"}
    server.fault(method="PATCH", path="/leases/l", drop="before")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        send(server, "PATCH", f"{LEASES}/l", {"spec": {"holderIdentity": "c"}})
    assert server.get("leases", "l")["spec"] == {"holderIdentity": "b"}
    assert server.writes() == 6


def test_a_frozen_server_answers_when_it_goes_on(server: FakeApiServer) -> None:
    server.freeze()
    answered = threading.Event()
    thread = threading.Thread(target=lambda: (send(server, "GET", MAPS), answered.set()))
    thread.start()
    assert not answered.wait(0.3)
    server.thaw()
    assert answered.wait(5)
    thread.join()


def test_a_token_that_is_not_known_is_refused(server: FakeApiServer) -> None:
    server.tokens = {"right"}
    assert send(server, "GET", MAPS)[0] == 401


def test_clients_that_look_around_find_every_resource(server: FakeApiServer) -> None:
    groups = {it["name"] for it in send(server, "GET", "/apis")[1]["groups"]}
    assert {"delaycluster.io", "apps", "coordination.k8s.io"} <= groups
    found = {it["name"] for it in send(server, "GET", "/apis/delaycluster.io/v1alpha1")[1]["resources"]}
    assert {"delayshards", "delayshards/status", "delayclusters"} <= found
    assert send(server, "GET", "/apis/nothing.io/v1")[0] == 404
