"""An apply is asked for when something would change by it, and never otherwise: an idle cluster causes no writes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from delayoperator.resources import ClusterView, build, differences
from delayoperator.resources.view import Json

from tests.resources.clusters import MINIMAL, PRODUCTION, one, stateful_set
from tests.resources.effects import restarting
from tests.resources.server import as_listed, served


def changed(before: ClusterView, after: ClusterView) -> list[str]:
    """The paths that differ when `before` is live and `after` is wanted."""
    live = served(stateful_set(before))
    return [found.path for found in differences(stateful_set(after, live), live)]


def drifted(edit: Callable[[Any], object], view: ClusterView = MINIMAL) -> list[str]:
    """The paths that differ when somebody has edited the StatefulSet's spec."""
    live = served(stateful_set(view))
    edit(live["spec"])
    return [str(found) for found in differences(stateful_set(view, live), live)]


@pytest.mark.parametrize("view", [MINIMAL, PRODUCTION], ids=["minimal", "production"])
def test_nothing_differs_from_what_the_api_server_made_of_it(view: ClusterView) -> None:
    lives = {(item["kind"], item["metadata"]["name"]): served(item) for item in build(view)}
    again = build(view, lives["StatefulSet", view.name])
    assert [
        *map(str, (d for item in again for d in differences(item, lives[item["kind"], item["metadata"]["name"]])))
    ] == []
    assert [
        d for item in again for d in differences(item, as_listed(lives[item["kind"], item["metadata"]["name"]]))
    ] == []


def test_an_object_that_is_not_there_differs_as_a_whole() -> None:
    assert [str(found) for found in differences(stateful_set(MINIMAL), None)] == ["the object: (none) -> StatefulSet"]


@pytest.mark.parametrize("amount", [{"cpu": "2000m", "memory": "1024Mi"}, {"cpu": 0.5, "memory": "1024Mi"}, {"cpu": 2}])
def test_a_quantity_in_another_form_is_the_same(amount: dict[str, str | int | float]) -> None:
    view = replace(MINIMAL, resources={"limits": amount})
    assert changed(view, view) == []


def test_another_quantity_differs() -> None:
    assert "requests.cpu: 100m -> 200m" in drifted(
        lambda spec: spec["template"]["spec"]["containers"][0]["resources"]["requests"].update(cpu="100m"),
        replace(MINIMAL, resources={"requests": {"cpu": "200m"}}),
    )[0]  # fmt: skip


def test_the_path_names_the_item_of_a_list() -> None:
    after = replace(MINIMAL, image="other:2")
    assert [path for path in changed(MINIMAL, after) if "containers" in path] == [
        "spec.template.spec.containers[node].image"
    ]


def test_an_edit_by_hand_is_seen() -> None:
    assert drifted(lambda spec: spec.update(replicas=1)) == ["spec.replicas: 1 -> 3"]
    assert drifted(lambda spec: spec["template"]["spec"].pop("securityContext"))[0].startswith(
        "spec.template.spec.securityContext: (none)"
    )
    assert drifted(lambda spec: spec["template"]["spec"].update(enableServiceLinks=True)) == [
        "spec.template.spec.enableServiceLinks: true -> false"
    ]
    assert drifted(lambda spec: spec["template"]["spec"]["containers"][0]["args"].append("--accept-clock-step"))
    assert drifted(lambda spec: spec["updateStrategy"].update(type="RollingUpdate")) == [
        "spec.updateStrategy.type: RollingUpdate -> OnDelete"
    ]


def test_what_others_add_is_theirs() -> None:
    def injected(spec: Any) -> None:
        spec["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "2026-01-01"
        spec["template"]["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})
        spec["template"]["spec"]["volumes"].insert(0, {"name": "proxy", "emptyDir": {}})
        spec["template"]["spec"]["containers"][0]["env"].insert(0, {"name": "PROXY", "value": "1"})

    assert drifted(injected) == []


def test_ports_of_one_number_are_told_apart_by_protocol() -> None:
    live = served(one(build(MINIMAL), "Service", "orders-nodes"))
    live["spec"]["ports"].reverse()
    wanted = one(build(MINIMAL), "Service", "orders-nodes")
    assert differences(wanted, live) == ()
    live["spec"]["ports"] = [port for port in live["spec"]["ports"] if port["protocol"] != "UDP"]
    assert [found.path for found in differences(wanted, live)] == ["spec.ports[7270/UDP]"]


def test_true_is_not_one() -> None:
    wanted: Json = {"kind": "X", "spec": {"a": True, "b": 1}}
    assert [found.path for found in differences(wanted, {"spec": {"a": 1, "b": True}})] == ["spec.a", "spec.b"]


TAKEN_AWAY: dict[str, Callable[[ClusterView], ClusterView]] = {
    "a node selector": lambda view: replace(view, pod=replace(view.pod, node_selector={})),
    "a toleration": lambda view: replace(view, pod=replace(view.pod, tolerations=())),
    "a toleration's effect": lambda view: replace(
        view, pod=replace(view.pod, tolerations=({"key": "dedicated", "operator": "Equal", "value": "storage"},))
    ),
    "a variable": lambda view: replace(view, pod=replace(view.pod, env=())),
    "a label": lambda view: replace(view, pod=replace(view.pod, labels={})),
    "the priority": lambda view: replace(view, pod=replace(view.pod, priority_class=None)),
    "a limit": lambda view: replace(view, resources={"requests": {"cpu": 2, "memory": "4Gi"}}),
}


@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_what_is_not_wanted_any_more_is_applied_though_all_that_is_wanted_is_there(what: str) -> None:
    assert changed(PRODUCTION, TAKEN_AWAY[what](PRODUCTION))


def test_only_what_is_in_the_template_restarts_pods() -> None:
    before = MINIMAL
    after = replace(MINIMAL, image="other:2", cluster=replace(MINIMAL.cluster, nodes=4))
    live = served(stateful_set(before))
    found = differences(stateful_set(after, live), live)
    assert [one.path for one in restarting(found)] == ["spec.template.spec.containers[node].image"]
    assert "spec.replicas" in {one.path for one in found}


def test_comparing_changes_neither_side() -> None:
    wanted = stateful_set(PRODUCTION)
    live = served(wanted)
    copies = deepcopy((wanted, live))
    differences(wanted, live)
    assert (wanted, live) == copies
