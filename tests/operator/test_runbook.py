"""Sections of docs/operations.md, followed as they are written: their commands end the condition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.chart.places import SNAPSHOTS, documents
from tests.operator.kubelet import PENDING
from tests.operator.runbook import commands, filled, section
from tests.operator.stage import LEASE, Stage

ORDERS = {"name": "orders", "queues": 1}
SHARD = "orders-0"


def make_shop(stage: Stage, **spec: Any) -> Stage:
    """A whole cluster of one shard."""
    stage.operator()
    stage.create(topics=[ORDERS], **spec)
    stage.settled()
    return stage


@pytest.fixture
def shop(stage: Stage) -> Stage:
    return make_shop(stage)


def uid(stage: Stage) -> str:
    return f"{int(stage.there('delayshards', f'shop.{SHARD}')['spec']['uid']):016x}"


@contextmanager
def object_lost(stage: Stage) -> Iterator[str]:
    """The DelayShard is deleted, and what is done meanwhile has happened before anybody sees that."""
    with stage.kubelet.lock:
        found = uid(stage)
        yield str(int(found, 16))
        stage.delete("delayshards", f"shop.{SHARD}")


def degraded(stage: Stage, words: str) -> None:
    """OrphanedCopies says so, in the words by which the page is read."""
    stage.until(
        lambda: stage.reason("Degraded") == "OrphanedCopies" and words in stage.condition("Degraded")["message"]
    )


def test_shards_are_made_at_once_where_volumes_that_nobody_has_read_are_known_to_be_new(stage: Stage) -> None:
    stage.operator()
    stage.kubelet.frozen.add("shop-2")
    stage.create(topics=[ORDERS])
    stage.until(lambda: stage.reason("Progressing") == "VolumesUnread")
    assert "n2" in stage.condition("Progressing")["message"]
    assert stage.names("delayshards") == set()
    (field,) = commands("VolumesUnread", "bootstrap:")
    stage.edit(**yaml.safe_load(field))
    stage.until(lambda: stage.reason("Ready") == "Serving" and stage.reason("Progressing") != "VolumesUnread")


def of_another_cluster(stage: Stage, lost: str) -> None:
    stage.kubelet.names[lost] = "orders", 0, "elsewhere"


def of_an_old_release(stage: Stage, lost: str) -> None:
    stage.kubelet.names[lost] = "orders", 0, ""


def without_the_copy_that_was_in_sync(stage: Stage, lost: str) -> None:
    stage.kubelet.kept[lost] = ("a-copy-whose-volume-is-lost",)


def adopted_by_the_page(stage: Stage, item: str, said: str) -> None:
    degraded(stage, said)
    (adopt,) = commands("OrphanedCopies", "delayctl", item)
    stage.follow(adopt, "y\n", NAME="shop", SHARD=SHARD)
    stage.settled()


# what happened -> words of the page's list item, words of the condition
@pytest.mark.parametrize(
    ("happened", "item", "said"),
    [
        (of_another_cluster, "of another cluster", "of elsewhere, and this is cluster shop"),
        (of_an_old_release, "of a cluster that is not known", "of a cluster that is not known"),
        (without_the_copy_that_was_in_sync, "was not in sync", "was not in sync"),
    ],
)
def test_orphaned_copies_are_adopted_by_the_command_of_what_the_message_says(
    shop: Stage, happened: Callable[[Stage, str], None], item: str, said: str
) -> None:
    before = uid(shop)
    with object_lost(shop) as lost:
        happened(shop, lost)
    adopted_by_the_page(shop, item, said)
    assert uid(shop) == before


def test_copies_that_are_never_taken_up_by_themselves_are_adopted_by_a_person(stage: Stage) -> None:
    shop = make_shop(stage, bootstrap={"volumes": "Refuse"})
    before = uid(shop)
    with object_lost(shop):
        pass
    adopted_by_the_page(shop, "bootstrap.volumes is Refuse", "bootstrap.volumes is Refuse")
    assert uid(shop) == before


def test_a_copy_that_is_mended_is_taken_up_with_the_others(shop: Stage) -> None:
    before = uid(shop)
    with object_lost(shop) as lost:
        first, *_ = shop.there("delayshards", f"shop.{SHARD}")["spec"]["replicas"]
        shop.kubelet.damaged[lost, first] = "log: offset 8560: crc32 differs"
    degraded(shop, "a copy is damaged, and may have had more")
    page = " ".join(section("OrphanedCopies").split())
    assert "mend it ([damage.md](damage.md)); the operator then goes on by itself" in page
    shop.kubelet.damaged.clear()
    shop.settled()
    assert uid(shop) == before


def test_a_lost_node_that_may_have_a_newer_copy_is_given_up_by_a_person_or_comes_back(stage: Stage) -> None:
    shop = make_shop(stage, failover={"leaseSeconds": 2, "replaceAfterSeconds": 3})
    before = uid(shop)
    *_, lost = shop.there("delayshards", f"shop.{SHARD}")["spec"]["replicas"]
    shop.kubelet.frozen.add(f"shop-{lost[1:]}")
    shop.until(lambda: lost not in shop.there("delayshards", f"shop.{SHARD}")["spec"]["replicas"])
    shop.delete("delayshards", f"shop.{SHARD}")
    degraded(shop, f"{lost} may have a newer copy")
    (adopt,) = commands("OrphanedCopies", "delayctl", "may have a newer copy")
    shop.follow(adopt, "y\n", NAME="shop", SHARD=SHARD)
    shop.until(lambda: shop.reason("Ready") == "Serving" and uid(shop) == before)
    shop.delete("delayshards", f"shop.{SHARD}")
    degraded(shop, f"{lost} may have a newer copy")
    assert "bring the missing volume or node back" in " ".join(section("OrphanedCopies").split())
    shop.kubelet.frozen.clear()
    shop.settled()
    assert uid(shop) == before


def test_of_two_histories_one_is_chosen_and_the_other_is_purged(stage: Stage) -> None:
    shop = make_shop(stage, bootstrap={"volumes": "Ignore"})
    first = uid(shop)
    shop.delete("delayshards", f"shop.{SHARD}")
    shop.until(lambda: (shop.get("delayshards", f"shop.{SHARD}") or {}).get("status", {}).get("servingEpoch"))
    second = uid(shop)
    assert second != first
    shop.edit(bootstrap={"volumes": "Adopt"})
    degraded(shop, "beside the shard that has this name now")
    shop.delete("delayshards", f"shop.{SHARD}")
    degraded(shop, "2 histories")
    (adopt,) = commands("OrphanedCopies", "delayctl", "2 histories")
    shop.follow(adopt, "y\n", NAME="shop", SHARD=SHARD, UID=first)
    degraded(shop, "beside the shard that has this name now")
    (listed,) = commands("OrphanedCopies", "delayctl", "lists them")
    assert second in shop.follow(listed, NAME="shop")
    (purge,) = commands("OrphanedCopies", "delayctl", "Not wanted at all")
    shop.follow(purge, f"{PENDING}\n", NAME="shop", UID=second)
    shop.settled()
    assert uid(shop) == first
    assert "every copy on the nodes that answer belongs to a shard" in shop.follow(listed, NAME="shop")


def remove_topic(stage: Stage) -> None:
    stage.edit(topics=[])
    stage.until(lambda: "TopicRemoved" in str(stage.there("delayshards", f"shop.{SHARD}")["status"].get("conditions")))


def test_a_copy_that_no_topic_has_is_taken_up_with_its_topic(shop: Stage) -> None:
    before = uid(shop)
    remove_topic(shop)
    with object_lost(shop):
        pass
    degraded(shop, "no topic has this shard")
    assert "add the topic to `spec.topics` and it is taken up" in section("OrphanedCopies")
    shop.edit(topics=[ORDERS])
    shop.settled()
    assert uid(shop) == before


def test_a_removed_topic_is_retired_by_the_number_of_its_messages(shop: Stage) -> None:
    remove_topic(shop)
    (retire,) = commands("TopicRemoved", "delayctl", "retire")
    shop.follow(retire, f"{PENDING}\n", NAME="shop", TOPIC="orders")
    assert shop.names("delayshards") == set()
    shop.settled()
    assert not any(shop.kubelet.disks.values())


def test_a_drain_that_was_refused_begins_once_another_one_is_ended(shop: Stage) -> None:
    drains = {f"delaycluster.io/drain-n{number}": "kim" for number in (0, 2)}
    shop.patch("delayclusters", "shop", {"metadata": {"annotations": drains}})
    shop.until(lambda: shop.reason("Degraded") == "AnnotationRefused")
    assert "drain-n2" in shop.condition("Degraded")["message"]
    (undo,) = commands("AnnotationRefused", "delayctl")
    shop.follow(undo, NAME="shop", NODE="n0")
    shop.settled()
    assert settings(shop)["drained"] == ["n2"]


def test_a_cluster_whose_nodes_all_have_an_image_that_is_gone_is_ready_with_another(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[])
    stage.settled()
    stage.kubelet.bad_images.add("node:1")
    for pod in stage.pods():
        stage.delete("pods", pod)
    stage.until(lambda: stage.reason("Ready") == "NoNodesReady" and len(stage.pods()) == 3)
    stage.until(lambda: stage.condition("Ready")["message"].count("ImagePullBackOff") == 3)
    (look,) = commands("NoNodesReady", "kubectl")
    assert stage.follow(look, NAME="shop")["spec"]["replicas"] == 3
    assert "[PodNotStarting](#podnotstarting)" in section("NoNodesReady")
    assert "`ImagePullBackOff`: a typing mistake in `spec.image`" in section("PodNotStarting")
    stage.edit(image="node:2")
    stage.settled()


def test_the_level_of_the_nodes_logs_is_what_the_patch_says_until_it_is_taken_away(shop: Stage) -> None:
    (patch,) = commands("Logs", "kubectl -n NS patch")
    shop.follow(patch, NAME="shop")
    shop.until(lambda: settings(shop).get("logLevel") == "debug")
    assert "Taken away again (`null`)" in section("Logs")
    shop.edit(logLevel=None)
    shop.until(lambda: not settings(shop).get("logLevel"))


def test_where_nobody_leads_the_operator_and_its_lease_are_found(shop: Stage) -> None:
    namespace, _, name = LEASE.partition("/")
    listed, lease = commands("Nobody leads", "kubectl")
    words = filled(listed)
    assert words[:-1] == ["kubectl", "get", "deployments,pods", "-A", "-l"]
    everything = (SNAPSHOTS / "everything.yaml").read_text()
    assert listed in everything, "the alert shows the same command"
    (deployment,) = (it for it in documents(everything) if it["kind"] == "Deployment")
    key, _, value = words[-1].partition("=")
    for labelled in (deployment, deployment["spec"]["template"]):
        assert labelled["metadata"]["labels"][key] == value

    def holder() -> str:
        return str(shop.follow(lease, NAMESPACE=namespace, DEPLOYMENT=name)["spec"]["holderIdentity"])

    assert holder() == shop.leader() != ""
    shop.operators[0].close()
    assert holder() == ""


def settings(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    return found
