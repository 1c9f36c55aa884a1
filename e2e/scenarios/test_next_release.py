"""The nodes' way to a release with another wire version and another format of files, and back, under load.

That release is e2e/nextversion.py's, in an image of its own: `make e2e ARGS="--next -k next_release"`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from delaynode.store.formats import NEWEST as THIS

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import next_image
from e2e.harness.kubectl import Kubectl, wait_until
from e2e.harness.load import CALM_SECONDS, Load, Result
from e2e.harness.machines import Machines

ROLL_SECONDS = 300
CHECKPOINT_SECONDS = 60
FORMATS = """
import json, pathlib
for path in pathlib.Path("/data").glob("shards/*/checkpoint"):
    data = path.read_bytes()
    print(json.loads(data[16 : 16 + int.from_bytes(data[8:12], "little")])["version"])
"""


@pytest.fixture
def newer(machines: Machines, kube: Kubectl) -> str:
    """The next release's image, on every machine."""
    image = next_image()
    for machine in kube.workers():
        if image not in machines.ctr(machine, "images", "list", "-q"):
            pytest.skip(f"{image} is not on {machine}: `make e2e ARGS=--next` builds it")
    return image


@pytest.fixture
def expendable(cluster: ClusterUnderTest) -> Iterator[ClusterUnderTest]:
    """Nobody else may have it afterwards: its files are of a release that does not exist."""
    yield cluster
    cluster.delete()
    cluster.kube("delete", "pvc", "--all", "--namespace", cluster.namespace, "--timeout=120s", seconds=130)


def formats(cluster: ClusterUnderTest) -> set[int]:
    """Of the checkpoints that lie on the volumes."""
    found: set[int] = set()
    for pod in cluster.pods().values():
        name = ("exec", pod["metadata"]["name"], "--namespace", cluster.namespace)
        found |= {int(line) for line in cluster.kube(*name, "--", "python", "-c", FORMATS).split()}
    return found


def spoken(cluster: ClusterUnderTest) -> set[int]:
    """The wire versions of the links that the processes of now have made."""
    found: set[int] = set()
    for pod in cluster.pods().values():
        lines = cluster.kube("logs", pod["metadata"]["name"], "--namespace", cluster.namespace).splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        found |= {one["version"] for one in events if one["event"] == "link-up"}
    return found


def rolled(cluster: ClusterUnderTest, image: str | None, reason: str, version: int) -> float:
    """Give the nodes this image, None: the operator's. Seconds until all have it and all is whole."""
    cluster.edit(image=image)
    began = time.monotonic()

    def left() -> list[str]:
        status = cluster.object.get("status", {})
        progress, upgrading = cluster.condition("Progressing"), cluster.condition("Upgrading")
        faults = cluster.unwhole()
        if progress.get("reason") != "Settled":
            faults.append(f"Progressing: {progress}")
        if (upgrading.get("reason"), status.get("nodesVersion")) != (reason, version):
            faults.append(f"nodesVersion {status.get('nodesVersion')}, Upgrading: {upgrading}")
        images = {pod["spec"]["containers"][0]["image"] for pod in cluster.pods().values()}
        if images != {status.get("image")} or image not in (None, status.get("image")):
            faults.append(f"images {images}, status.image {status.get('image')}")
        return faults

    wait_until(f"nodes run {image}", left, ROLL_SECONDS)
    return time.monotonic() - began


@pytest.mark.machines
def test_next_release_is_come_to_and_gone_back_from_under_load_until_it_is_final(
    expendable: ClusterUnderTest,
    newer: str,
    load: Load,
    kept: Callable[..., Result],
    figure: Callable[..., None],
) -> None:
    cluster = expendable
    time.sleep(CALM_SECONDS)
    cluster.edit(upgrade={"finalize": "Manual"})
    up = rolled(cluster, newer, "UpgradeNotFinalized", THIS)
    assert THIS + 1 not in formats(cluster), "the release before could not read it"
    assert spoken(cluster) == {1, 2}, "links of a mixed cluster, and of nodes that both have the next release"
    back = rolled(cluster, None, "UpToDate", THIS)
    again = rolled(cluster, newer, "UpgradeNotFinalized", THIS)
    cluster.edit(upgrade={"finalize": "Automatic"})
    final = rolled(cluster, newer, "UpToDate", THIS + 1)
    time.sleep(CALM_SECONDS)
    wait_until(
        "checkpoints have the new format", lambda: [] if THIS + 1 in formats(cluster) else ["none"], CHECKPOINT_SECONDS
    )
    result = kept(up_s=up, back_s=back, again_s=again, final_s=final)
    queues = range(result.queues)
    figure(
        pauses_of_sends_s=[result.longest("acknowledged", [queue]) for queue in queues],
        pauses_of_deliveries_s=[result.longest("delivered", [queue]) for queue in queues],
    )
    assert "VersionsMixed" in {event["reason"] for event in cluster.events()}

    cluster.edit(image=None)  # no way back
    words = f"this release reads up to {THIS}: the upgrade is final"
    wait_until(
        "the way back is refused",
        lambda: [] if words in str(cluster.condition("Degraded")) else [str(cluster.condition("Degraded"))],
        ROLL_SECONDS,
    )
    assert sum(pod["spec"]["containers"][0]["image"] != newer for pod in cluster.pods().values()) == 1
    rolled(cluster, newer, "UpToDate", THIS + 1)
