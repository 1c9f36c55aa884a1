"""Where nodes run: read from pods and from their machines' labels, said in the status, and used by the planner."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from delayctl.targets.errors import TargetRefused
from delayctl.targets.kube_registry import KubeRegistryEditor
from delayoperator.cluster.shared_places import shared_places
from delayoperator.control_loop.probe import NodeAnswer
from delayoperator.kube.api import ApiError
from delayoperator.kube.kinds import ObjectKind
from delayoperator.kube.machine_zones import REREAD_S, MachineZones
from delayoperator.kube.views import pod_view
from delayoperator.plan import Liveness, ObservedNode
from delayoperator.resources.names import CONTAINER
from delayoperator.resources.pod import ZONE
from delayregistry.model import ClusterSpec, NodeLease, ShardObject, ShardSpec, TopicSpec, Version
from delayregistry.sqlite import SqliteRegistry

from tests.kube import fakekinds
from tests.operator.stage import Stage

Json = dict[str, Any]


class Machines:
    """An API server's Node objects. fault: what it answers instead."""

    def __init__(self, **zones: str) -> None:
        self.zones = zones
        self.fault: ApiError | None = None
        self.reads = 0
        self.now_s = 0.0
        self.read = MachineZones(self, lambda: self.now_s)  # type: ignore[arg-type]

    def get(self, kind: ObjectKind, namespace: str, name: str) -> Json | None:
        assert (kind.name, namespace) == ("Node", "")
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        return {"metadata": {"labels": {ZONE: self.zones[name]}}} if name in self.zones else None


def test_a_machines_label_is_its_zone_and_is_read_once_in_ten_minutes() -> None:
    machines = Machines(m1="a")
    assert [machines.read.zone(it) for it in ("m1", "m1", "m2", "m2", "")] == ["a", "a", "", "", ""]
    assert machines.reads == 2
    machines.zones["m1"] = "b"
    machines.now_s = REREAD_S - 1
    assert machines.read.zone("m1") == "a"
    machines.now_s = REREAD_S
    assert machines.read.zone("m1") == "b"


def test_without_the_right_to_nodes_no_zone_is_known_and_the_right_is_noticed_later() -> None:
    machines = Machines(m1="a", m2="a")
    machines.fault = ApiError("get Node", 403, "Forbidden", "not yours")
    assert [machines.read.zone(it) for it in ("m1", "m2", "m1")] == ["", "", ""]
    assert machines.reads == 1, "one refusal speaks for all machines"
    machines.fault = None
    machines.now_s = REREAD_S
    assert machines.read.zone("m2") == "a"


def test_an_api_server_that_fails_takes_no_zone_away() -> None:
    machines = Machines(m1="a")
    machines.read.zone("m1")
    machines.fault = ApiError("get Node", 0, "NoAnswer", "timeout")
    machines.now_s = REREAD_S
    assert machines.read.zone("m1") == "a"
    assert machines.read.zone("m2") == ""
    machines.fault = None
    machines.zones = {"m1": "b", "m2": "c"}
    assert (machines.read.zone("m1"), machines.read.zone("m2")) == ("b", "c"), "it is asked again at once"


@pytest.mark.parametrize(
    ("env", "zoneless"),
    [
        ([], False),
        ([{"name": "DELAYNODE_ZONE", "value": "a"}], False),
        ([{"name": "DELAYNODE_ZONE", "valueFrom": {"fieldRef": {}}}], False),
        ([{"name": "DELAYNODE_ZONE", "value": ""}], True),
        ([{"name": "DELAYNODE_ZONE"}], True),  # as the API server stores an empty value
    ],
)
def test_an_empty_zone_in_a_pods_environment_leaves_zones_unknown(env: list[Json], zoneless: bool) -> None:
    containers = [{"name": "sidecar", "env": [{"name": "DELAYNODE_ZONE"}]}, {"name": CONTAINER, "env": env}]
    view = pod_view("shop", {"metadata": {"name": "shop-0"}, "spec": {"containers": containers}})
    assert view is not None
    assert view.zoneless is zoneless


def shard(queue: int, *replicas: str, target: tuple[str, ...] | None = None) -> ShardObject:
    spec = ShardSpec(queue + 1, "t", queue, replicas, target=target)
    return ShardObject(spec.name, Version("1"), spec)


def views(**at: tuple[str, str]) -> dict[str, ObservedNode]:
    """node: (zone, machine)"""
    return {node: ObservedNode(Liveness.ALIVE, "i", zone=it[0], machine=it[1]) for node, it in at.items()}


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (views(n0=("a", "m1"), n1=("b", "m2"), n2=("c", "m3")), ()),
        (views(n0=("", "m1"), n1=("", "m1"), n2=("", "m2")), ("t-0 (n0, n1 on machine m1)",)),
        (views(n0=("a", "m1"), n1=("a", "m2"), n2=("b", "m3")), ("t-0 (n0, n1 in zone a)",)),
        (views(n0=("a", "m1"), n1=("a", "m1"), n2=("b", "m2")), ("t-0 (n0, n1 on machine m1)",)),
        (
            views(n0=("a", "m1"), n1=("a", "m1"), n2=("a", "m2")),
            ("all nodes are in zone a", "t-0 (n0, n1 on machine m1)"),
        ),
        (views(n0=("", "m1"), n1=("", "m1"), n2=("", "m1")), ("all nodes are on machine m1",)),
        ({}, ()),
    ],
)
def test_copies_that_share_a_place_are_named(nodes: dict[str, ObservedNode], said: tuple[str, ...]) -> None:
    parted = shard(2, "n0", "n1", target=("n0", "n2"))
    assert shared_places([shard(0, "n0", "n1"), shard(1, "n1", "n2"), parted], nodes) == said


def placed(stage: Stage, machines: dict[str, str], zones: dict[str, str]) -> None:
    """Each pod runs on its machine, and the machines have these zones."""
    stage.kubelet.machines.update(machines)
    for machine, zone in zones.items():
        body = {"metadata": {"name": machine, "labels": {ZONE: zone}}}
        stage.server.store.create(fakekinds.find("nodes"), "", body)


def together(stage: Stage, at: dict[str, str]) -> list[list[str]]:
    copies = [it["spec"]["replicas"] for it in stage.server.list("delayshards", "default")]
    return [nodes for nodes in copies if max(Counter(at[node] for node in nodes).values()) > 1]


def test_copies_are_in_different_zones_by_the_labels_of_the_machines_alone(stage: Stage) -> None:
    zone = {"n0": "east", "n1": "east", "n2": "west"}
    placed(stage, {f"shop-{n[1]}": f"m-{n}" for n in zone}, {f"m-{node}": it for node, it in zone.items()})
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 6}])
    stage.settled()
    stage.until(lambda: not together(stage, zone), 40)
    assert stage.there("delayclusters", "shop")["status"]["locations"] == [
        {"node": node, "machine": f"m-{node}", "zone": it} for node, it in zone.items()
    ]


def test_copies_are_on_different_machines_and_the_status_names_those_that_cannot_be(stage: Stage) -> None:
    machine = {"n0": "m1", "n1": "m1", "n2": "m2"}
    placed(stage, {f"shop-{n[1]}": it for n, it in machine.items()}, {})
    stage.operator()
    stage.create(topics=[{"name": "orders", "queues": 6}])
    stage.settled()
    stage.until(lambda: not together(stage, machine), 40)
    assert "fail together" not in stage.condition("Ready")["message"]
    stage.edit(nodes=2)
    stage.until(lambda: "all nodes are on machine m1" in stage.condition("Ready")["message"], 60)


class Editor(KubeRegistryEditor):
    """Nodes that all answer."""

    def node_answers(self, nodes: Any = None) -> Any:
        return {node: NodeAnswer("i") for node in nodes}


class Access:
    def delaycluster(self) -> Json:
        said = [{"node": f"n{n}", "machine": machine} for n, machine in enumerate(("m1", "m2", "m1", "m3"))]
        return {"metadata": {}, "spec": {}, "status": {"locations": said}}


def test_delayctl_refuses_a_move_onto_a_machine_that_has_a_copy(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.db", create=True)
    registry.put_cluster(ClusterSpec("shop", 4, (TopicSpec("t", 1),), replicas=2), None)
    registry.create_shard(ShardSpec(1, "t", 0, ("n0", "n1")))
    for node in ("n0", "n1", "n2", "n3"):
        registry.renew_lease(NodeLease(node, "i", f"{node}:1", f"{node}:2"))
    editor: Any = Editor(registry, Access(), str)  # type: ignore[arg-type]
    with pytest.raises(TargetRefused, match=r"n2 is on machine m1, as n0 with another copy.*n3 \(machine m3\)"):
        editor.move("t-0", "n2", "n1")
    assert editor.move("t-0", "n3", "n1") == ("n0", "n3")
    assert editor.move("t-0", "n2", "n0") == ("n2", "n3")
    editor.close()
