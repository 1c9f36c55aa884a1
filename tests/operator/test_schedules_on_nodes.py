"""What the operator makes of DelaySchedules on real nodes: put once, left alone, changed, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from delayclient import Schedule
from delayclient.errors import DelayError
from delayclient.sync import Admin, Consumer
from delaylocal import LocalCluster
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.crds.topic_merge import MergedTopics
from delayoperator.kube.schedules import ScheduleKeeper
from delayregistry.model import ClusterSpec, TopicSpec

Json = dict[str, Any]


@dataclass
class Objects:
    """The DelaySchedules, as an API server would have them."""

    bodies: dict[str, Json] = field(default_factory=dict)

    def put(self, name: str, **spec: Any) -> None:
        generation = 1 + (self.bodies[name]["metadata"]["generation"] if name in self.bodies else 0)
        meta = {"namespace": "shop", "name": name, "uid": name, "generation": generation, "resourceVersion": "1"}
        self.bodies[name] = {"metadata": meta, "spec": {"cluster": {"name": "c"}, "topic": "orders", **spec}}

    def list(self, kind: object, namespace: str) -> list[Json]:
        return list(self.bodies.values())

    def merge(self, kind: object, namespace: str, name: str, patch: Json, subresource: str) -> None:
        self.bodies[name]["status"] = patch["status"]

    def status(self, name: str) -> tuple[str, Json]:
        found = self.bodies[name]["status"]
        return found["conditions"][0]["reason"], found


def until(step: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not step():
        assert time.monotonic() < ends
        time.sleep(0.2)


def test_schedules_of_objects_are_put_once_and_fire_and_end(tmp_path: Path) -> None:
    objects = Objects()
    with LocalCluster(tmp_path / "c", nodes=2, topics=[TopicSpec("orders", 2)]) as cluster:
        cluster.wait_ready()
        told = ClusterSpec("c", 2, topics=(TopicSpec("orders", 2),))

        def look(keeper: ScheduleKeeper) -> list[Any]:
            """As a new operator, which asks for every topic."""
            return keeper.keep({}, told, MergedTopics(), lambda _: False, GrpcProber)[0]

        def keeper() -> ScheduleKeeper:
            return ScheduleKeeper(objects, cluster.registry, "shop", "c", LoopClock(), ["shop"])  # type: ignore[arg-type]

        def armed(name: str, reason: str = "Armed") -> bool:
            assert look(keeper()) == []
            return objects.status(name)[0] == reason

        with Admin(cluster.endpoints) as admin, Consumer(cluster.endpoints, "orders", "g") as consumer:
            objects.put("yearly", cron=["0 0 1 1 *"], timeZone="Asia/Tokyo", message={"bodyBase64": "/w=="})
            objects.put("soon", every="1s", maxFirings=1, jitter="10ms", skipWhile="g", message={"body": "now"})
            objects.put("bad", cron=["0 0 31 2 *"])
            until(lambda: armed("yearly"))  # until the nodes keep schedules
            message = consumer.receive()
            assert message is not None
            assert (message.body, message.properties["schedule-id"]) == (b"now", "kubernetes/shop/soon")
            consumer.ack(message)
            until(lambda: armed("soon", "Over"))
            assert objects.status("soon")[1]["fired"] == 1
            assert objects.status("soon")[1]["lastTime"]
            assert objects.status("yearly")[1]["nextTime"].endswith("-12-31T15:00:00Z")
            assert objects.status("bad")[0] == "InvalidSpec"
            assert admin.schedules.get("orders", "kubernetes/shop/yearly").version == 1  # looks have changed nothing
            admin.schedules.pause("orders", "kubernetes/shop/yearly", "by hand")
            until(lambda: armed("yearly", "Paused"))
            objects.put("yearly", cron=["0 0 2 1 *"], paused=False)
            until(lambda: armed("yearly"))
            view = admin.schedules.get("orders", "kubernetes/shop/yearly")
            assert (view.schedule.cron, view.paused) == (("0 0 2 1 *",), False)
            objects.bodies.clear()
            assert look(keeper()) == []
            assert list(admin.schedules.each("orders")) == []


def test_a_topic_that_is_taken_out_fires_nothing_until_it_is_back(tmp_path: Path) -> None:
    topics = [TopicSpec("orders", 1), TopicSpec("others", 1)]
    with LocalCluster(tmp_path / "c", nodes=1, topics=topics) as cluster, Admin(cluster.endpoints) as admin:
        cluster.wait_ready()

        def told(topics: list[TopicSpec]) -> None:
            known = cluster.registry.read_cluster()
            assert known is not None
            cluster.registry.put_cluster(replace(known.spec, topics=tuple(topics)), known.version)

        def refusal(id: str) -> str:
            try:
                admin.schedules.put(Schedule("orders", id, b"", every="1s"))
            except DelayError as error:
                return str(error.reason)
            return ""

        until(lambda: refusal("a") == "")  # once the nodes keep schedules
        until(lambda: admin.schedules.get("orders", "a").fired > 0)
        told(topics[1:])
        until(lambda: refusal("b") == "UNKNOWN_TOPIC")
        stopped = admin.schedules.get("orders", "a")
        assert list(stopped.upcoming_ms) == []
        assert [int(sum(it.arrivals)) for it in admin.forecast("orders")] == [0]
        time.sleep(3)
        assert admin.schedules.get("orders", "a").fired == stopped.fired
        told(topics)
        until(lambda: admin.schedules.get("orders", "a").fired > stopped.fired)
        assert refusal("b") == ""
