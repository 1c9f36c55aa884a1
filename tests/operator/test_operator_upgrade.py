"""A cluster's way to a release with a newer format of files, and back: as docs/upgrade.md and the runbook say it."""

from __future__ import annotations

import json
from functools import partial

import pytest
from delayregistry.model import VersionRange

from tests.operator.runbook import commands, section
from tests.operator.stage import Stage

ORDERS = {"name": "orders", "queues": 4}
OLD, NEW = "node:1", "node:2"


def written(stage: Stage) -> tuple[int, int]:
    """The format as the status has it, and as the nodes read it."""
    settings = json.loads(stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    return stage.there("delayclusters", "shop")["status"]["nodesVersion"], settings["nodesVersion"]


def images(stage: Stage) -> set[str]:
    return {str(pod["spec"]["containers"][0]["image"]) for pod in stage.server.list("pods", "default")}


def rolled(stage: Stage, image: str, reason: str) -> None:
    """All nodes have the image, and the cluster is whole. VersionsMixed was said meanwhile."""
    stage.edit(image=image)
    stage.until(lambda: stage.reason("Upgrading") == "VersionsMixed")
    assert "1 (n" in stage.condition("Upgrading")["message"]
    stage.until(lambda: images(stage) == {image} and stage.is_settled() and stage.reason("Upgrading") == reason)


@pytest.fixture
def upgradable(stage: Stage) -> Stage:
    stage.kubelet.versions[NEW] = VersionRange(1, 2)
    stage.operator()
    stage.create(topics=[ORDERS], image=OLD)
    stage.settled()
    assert (stage.reason("Upgrading"), written(stage)) == ("UpToDate", (1, 1))
    return stage


def test_an_upgrade_is_final_by_a_persons_word_and_until_then_there_is_a_way_back(upgradable: Stage) -> None:
    stage = upgradable
    stage.edit(upgrade={"finalize": "Manual"})
    rolled(stage, NEW, "UpgradeNotFinalized")
    assert written(stage) == (1, 1)
    rolled(stage, OLD, "UpToDate")
    rolled(stage, NEW, "UpgradeNotFinalized")
    (finalized,) = commands("UpgradeNotFinalized", "kubectl")
    stage.follow(finalized, NAME="shop")
    stage.until(lambda: written(stage) == (2, 2) and stage.reason("Upgrading") == "UpToDate")
    assert stage.is_settled(), "no node was restarted for it"


def test_whoever_puts_the_former_manifest_in_place_goes_back_though_it_holds_nothing_back(upgradable: Stage) -> None:
    stage = upgradable
    stage.edit(upgrade={"finalize": "Manual"})
    rolled(stage, NEW, "UpgradeNotFinalized")
    stage.edit(image=OLD, upgrade={"finalize": "Automatic"})
    stage.until(lambda: images(stage) == {OLD} and stage.is_settled() and stage.reason("Upgrading") == "UpToDate")
    assert written(stage) == (1, 1)


def test_after_it_is_final_the_way_back_is_refused_at_the_first_node_and_says_why(upgradable: Stage) -> None:
    stage = upgradable
    rolled(stage, NEW, "UpToDate")
    stage.until(lambda: written(stage) == (2, 2))
    stage.kubelet.restarts.clear()
    stage.edit(image=OLD)
    stage.until(lambda: stage.reason("Degraded") == "RolloutStuck")
    assert "this release reads up to 1: the upgrade is final" in stage.condition("Degraded")["message"]
    assert len(stage.kubelet.restarts) == 1, "all others are untouched"
    assert written(stage) == (2, 2)
    stage.edit(image=NEW)
    stage.until(lambda: images(stage) == {NEW} and stage.is_settled())


def test_where_no_restart_is_under_way_the_command_shows_which_nodes_have_another_image(upgradable: Stage) -> None:
    stage = upgradable
    stage.edit(paused=True)
    stage.until(lambda: stage.reason("Progressing") == "Paused")
    template = stage.there("statefulsets", "shop")["spec"]["template"]
    template["spec"]["containers"][0]["image"] = NEW
    stage.patch("statefulsets", "shop", {"spec": {"template": template}})
    stage.delete("pods", "shop-1")
    stage.until(lambda: "1 (n0, n2), 1 to 2 (n1)" in stage.condition("Upgrading")["message"])
    assert stage.reason("Upgrading") == "VersionsMixed"
    (shown,) = commands("VersionsMixed", "kubectl")
    assert sorted(stage.follow(shown, NAME="shop")) == [["shop-0", OLD], ["shop-1", NEW], ["shop-2", OLD]]
    assert "put the former image in place" in " ".join(section("VersionsMixed").split())
    stage.edit(paused=False)
    stage.until(lambda: images(stage) == {OLD} and stage.is_settled() and stage.reason("Upgrading") == "UpToDate")


def test_nodes_that_can_not_talk_are_named_and_go_by_way_of_a_release_between(upgradable: Stage) -> None:
    stage = upgradable
    far = "node:9"
    stage.kubelet.versions[far] = VersionRange(2, 3)
    stage.edit(image=far)
    stage.until(lambda: "VersionsIncompatible" in str(stage.condition("Degraded")))
    assert "wire versions 1 and 2 to 3" in stage.condition("Degraded")["message"]
    shown, patch, described = commands("VersionsIncompatible", "kubectl")
    assert {image for _, image in stage.follow(shown, NAME="shop")} == {OLD, far}

    def settled_on(image: str) -> bool:
        conditions = stage.follow(described, NAME="shop")["status"]["conditions"]
        up_to_date = ("Upgrading", "UpToDate") in {(it["type"], it["reason"]) for it in conditions}
        return up_to_date and images(stage) == {image} and stage.is_settled()

    for version, image in enumerate((OLD, NEW, far), 1):
        stage.follow(patch, NAME="shop", IMAGE=image)
        stage.until(partial(settled_on, image))
        assert written(stage) == (version, version)


def test_with_the_role_of_a_release_before_what_is_there_goes_on_and_what_is_new_is_named(stage: Stage) -> None:
    """docs/upgrade.md: "An operator with the Role of an older release"."""
    newer = "delaytopics|delayusers|networkpolicies|issuers|certificates|certificaterequests|podmonitors|cronjobs"
    fault = stage.server.fault(path=f"/({newer})([/?]|$)", code=403, times=None)
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    assert fault.met > 0, "the control"
    with stage.kubelet.lock:
        stage.kubelet.kill(stage.there("delayshards", "shop.orders-0")["spec"]["master"].replace("n", "shop-"))
    stage.until(lambda: stage.there("delayshards", "shop.orders-0")["spec"]["epoch"] > 1, timeout_s=60)
    stage.settled()
    stage.edit(networkPolicy={})
    stage.until(lambda: stage.reason("Degraded") == "Forbidden")
    assert "NetworkPolicy shop-nodes" in stage.condition("Degraded")["message"]
    fault.times = 0
    stage.settled()
