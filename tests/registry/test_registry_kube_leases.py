"""Leases in Kubernetes: made by the operator, renewed by their nodes, and what all that costs the API server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Self

import pytest
from delayoperator.control_loop.liveness import LeaseWatch
from delayoperator.kube.shards import REFRESH_MS
from delayoperator.plan import Liveness
from delayregistry.kube import KubeRegistry
from delayregistry.model import (
    MIN_LEASE_SECONDS,
    ClusterSpec,
    ListenerEndpoint,
    ListenerTrust,
    NodeLease,
    ShardSpec,
    VersionRange,
    renewal_s,
)
from delayregistry.port import RegistryUnavailable

from tests.kube.desired import WritingRegistry
from tests.kube.fakekinds import find
from tests.registry.worlds import CLUSTER, NAMESPACE, NODES, KubeWorld, until

LEASE = NodeLease("n0", "a", "10.0.0.1:7070", "10.0.0.1:7170", 1, peer="10.0.0.1:7270", zone="east")
LEASE = replace(LEASE, formats=VersionRange(1, 2), wire=VersionRange(1, 3))
LEASES = find("leases")


@pytest.fixture
def world() -> Iterator[KubeWorld]:
    world = KubeWorld()
    yield world
    world.close()


@pytest.fixture
def operator(world: KubeWorld) -> WritingRegistry:
    return world.open()


@pytest.fixture
def node(world: KubeWorld) -> KubeRegistry:
    return world.open(owner=None, pod_uid="pod-1")


def test_a_lease_that_nobody_holds_yet_is_not_listed(world: KubeWorld, operator: WritingRegistry) -> None:
    assert [it["metadata"]["name"] for it in world.server.list("leases")] == ["c.n0", "c.n1", "c.n2"]
    assert operator.list_leases() == ()


def test_a_renewed_lease_is_one_of_kubernetes_too(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    operator.put_cluster(ClusterSpec(CLUSTER, 3, lease_seconds=7), None)
    assert node.read_cluster() is not None
    node.renew_lease(replace(LEASE, stopping=True))
    found = world.server.get("leases", "c.n0")
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == ("a", 7)
    assert found["spec"]["renewTime"].endswith("Z")
    said = {key.removeprefix("delaycluster.io/"): value for key, value in found["metadata"]["annotations"].items()}
    assert said == {
        "endpoint": "10.0.0.1:7070",
        "http": "10.0.0.1:7170",
        "peer": "10.0.0.1:7270",
        "renewals": "1",
        "stopping": "true",
        "zone": "east",
        "versions": "formats 1-2, wire 1-3, of a",
        "pod-uid": "pod-1",
    }
    assert operator.list_leases() == (replace(LEASE, stopping=True),)


def test_a_lease_says_where_each_listener_of_its_own_process_is(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    listeners = (ListenerEndpoint("plain", "10.0.0.1:7070"), ListenerEndpoint("tls", "[fd::1]:7071"))
    lease = replace(LEASE, listeners=listeners)
    node.renew_lease(lease)
    annotations = world.server.get("leases", "c.n0")["metadata"]["annotations"]
    assert annotations["delaycluster.io/listeners"] == "plain=10.0.0.1:7070 tls=[fd::1]:7071, of a"
    assert operator.list_leases() == (lease,)
    later = replace(LEASE, incarnation="b")  # of one that has none, or knows of none
    node.renew_lease(later)
    assert operator.list_leases() == (later,)


def test_a_lease_says_of_its_own_process_alone_that_it_offers_tls(
    operator: WritingRegistry, node: KubeRegistry
) -> None:
    for lease in (replace(LEASE, peer_tls=True), replace(LEASE, incarnation="b")):
        node.renew_lease(lease)
        assert operator.list_leases() == (lease,)


def test_a_lease_says_whom_to_trust_with_its_own_processs_certificate(
    operator: WritingRegistry, node: KubeRegistry
) -> None:
    listeners = (ListenerEndpoint("tokens", "10.0.0.1:7071"),)
    trust = ListenerTrust("c-client.ns.svc", "-----BEGIN CERTIFICATE-----\nof one, of another\n-----END\n")
    secured = replace(LEASE, listeners=listeners, peer_tls=True, trust=trust)
    for lease in (
        secured,
        replace(secured, trust=None, peer_tls=False, certificate_problem="server: tls.crt expired on Monday, of ca"),
        replace(secured, trust=ListenerTrust("c-client.ns.svc", "")),  # by a public CA
        replace(LEASE, incarnation="b"),  # of one that has none, or knows of none
    ):
        node.renew_lease(lease)
        assert operator.list_leases() == (lease,)


def test_a_lease_of_before_there_were_zones_is_read_and_a_process_in_none_takes_its_predecessors_back(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    node.renew_lease(replace(LEASE, incarnation="b", zone=""))
    assert operator.list_leases() == (replace(LEASE, incarnation="b", zone=""),)
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", {"metadata": {"annotations": {"delaycluster.io/zone": None}}})
    assert [lease.zone for lease in operator.list_leases()] == [""]


def test_a_process_of_release_0_1_is_not_taken_for_its_successor_after_a_downgrade(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    """It writes the annotations that it knows, and no others go."""
    node.renew_lease(LEASE)
    said = {"delaycluster.io/renewals": "1"}
    older = {"metadata": {"annotations": said}, "spec": {"holderIdentity": "b"}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", older)
    assert operator.list_leases() == (replace(LEASE, incarnation="b", formats=None, wire=None),)


def test_a_lease_that_is_missing_is_not_made_by_its_node(world: KubeWorld, node: KubeRegistry) -> None:
    with pytest.raises(RegistryUnavailable, match=r"n9 not renewed: 404 .*the operator creates it"):
        node.renew_lease(replace(LEASE, node="n9"))
    assert world.server.requests("POST", since_s=time.monotonic() - 1)[3:] == []  # the world's three


def test_a_renewal_costs_one_request_and_is_done_whatever_was_there(world: KubeWorld, node: KubeRegistry) -> None:
    node.renew_lease(LEASE)
    until(node._followed.returns)  # its watch has begun
    began_s = time.monotonic()
    node.renew_lease(replace(LEASE, renewals=2))
    assert [it.method for it in world.server.requests(since_s=began_s)] == ["PATCH"]
    patch = {"metadata": {"annotations": {"delaycluster.io/renewals": "999"}}, "spec": {"holderIdentity": "another"}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", patch)
    node.renew_lease(replace(LEASE, renewals=3))
    found = world.server.get("leases", "c.n0")
    assert found["spec"]["holderIdentity"] == "a"
    assert found["metadata"]["annotations"]["delaycluster.io/renewals"] == "3"


@pytest.mark.parametrize("how", [{"drop": "before"}, {"drop": "after"}, {"hold": True}])
def test_one_renewal_that_is_lost_does_not_cost_the_lease(
    world: KubeWorld, node: KubeRegistry, how: dict[str, object]
) -> None:
    node.renew_lease(LEASE)
    world.server.fault(method="PATCH", path="/leases/", **how)
    began_s = time.monotonic()
    node.renew_lease(replace(LEASE, renewals=2))
    assert time.monotonic() - began_s < 2.5
    assert world.server.get("leases", "c.n0")["metadata"]["annotations"]["delaycluster.io/renewals"] == "2"


def test_a_late_renewal_of_a_process_that_is_gone_does_not_look_like_it(world: KubeWorld, node: KubeRegistry) -> None:
    node.renew_lease(LEASE)
    late = world.server.fault(method="PATCH", path="/leases/", delay_s=1.6)
    thread = threading.Thread(target=node.renew_lease, args=(replace(LEASE, renewals=2),))
    thread.start()
    until(lambda: late.met == 1)
    thread.join()  # it went on with another request
    after = world.open(owner=None)
    after.renew_lease(replace(LEASE, incarnation="b"))
    until(lambda: [it.status for it in world.server.requests("PATCH")].count(409) == 1)
    assert world.server.get("leases", "c.n0")["spec"]["holderIdentity"] == "b"


class Nodes:
    """Renew their leases as often as is right for the shortest lease, from a thread."""

    def __init__(self, registry: KubeRegistry, names: Iterable[str]) -> None:
        self._registry = registry
        self.alive = set(names)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count(1):
            for name in sorted(self.alive):
                self._registry.renew_lease(replace(LEASE, node=name, renewals=number))
            if self._stop.wait(renewal_s(MIN_LEASE_SECONDS) * 0.7):  # a busy machine makes it a little later
                return


class Operator:
    """Looks at the leases as its control loop does."""

    def __init__(self, registry: KubeRegistry) -> None:
        self._registry = registry
        lease_ms = MIN_LEASE_SECONDS * 1_000
        self._watch = LeaseWatch(lease_ms, lease_ms // 2)
        self.seen: dict[str, list[Liveness]] = {name: [] for name in NODES}

    def look(self, for_s: float, until: Callable[[], bool] = bool) -> float:
        """Until it is so, or for so long. Returns when the last look began, time.monotonic()."""
        end_s = time.monotonic() + for_s
        while True:
            began_s = time.monotonic()
            self._registry.probe()
            asked_ms = time.monotonic_ns() // 1_000_000
            leases = self._registry.list_leases()
            views = self._watch.update(leases, asked_ms, time.monotonic_ns() // 1_000_000)
            for node, view in views.items():
                self.seen[node].append(view.liveness)
            if until() or time.monotonic() > end_s:
                return began_s
            time.sleep(REFRESH_MS / 1_000)

    def all_live(self) -> bool:
        return all(seen[-1:] == [Liveness.ALIVE] for seen in self.seen.values())


@pytest.fixture
def short_lease(operator: WritingRegistry) -> None:
    operator.put_cluster(ClusterSpec(CLUSTER, len(NODES), lease_seconds=MIN_LEASE_SECONDS), None)


@pytest.mark.usefixtures("short_lease")
def test_nodes_that_renew_in_time_cost_the_operator_no_request(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    with Nodes(node, NODES):
        looking = Operator(operator)
        looking.look(20, looking.all_live)
        until(operator._all_nodes_live)
        began_s = time.monotonic()
        looking.look(4)
        asked = [it for it in world.server.requests(since_s=began_s) if it.method in ("LIST", "GET")]
    assert len(asked) <= 3, "one late renewal is a list and a read; each look would have cost two requests: 16"
    assert Liveness.DEAD not in itertools.chain(*looking.seen.values())


@pytest.mark.usefixtures("short_lease")
def test_a_lease_that_is_not_renewed_is_read_consistently_before_its_node_is_dead(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    with Nodes(node, NODES) as nodes:
        looking = Operator(operator)
        looking.look(20, looking.all_live)
        nodes.alive.remove("n1")
        silent_s = time.monotonic()
        died_s = looking.look(20, lambda: looking.seen["n1"][-1] is Liveness.DEAD)
        lists = world.server.requests("LIST", "/leases", silent_s)
        assert all("resourceVersion" not in it.query for it in lists)
        assert any(died_s <= it.at_s for it in lists), "the look that found it dead was a request"
        assert sum(it.at_s < died_s for it in lists) >= 1, "and so was one before it"
    assert all(Liveness.DEAD not in looking.seen[name] for name in ("n0", "n2"))


@pytest.mark.usefixtures("short_lease")
def test_a_silent_watch_makes_no_living_node_look_dead_and_no_dead_one_alive(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    with Nodes(node, NODES) as nodes:
        looking = Operator(operator)
        looking.look(20, looking.all_live)
        world.server.silence_watches()
        looking.look(2.5 * MIN_LEASE_SECONDS)
        assert Liveness.DEAD not in itertools.chain(*looking.seen.values())
        nodes.alive.remove("n1")
        looking.look(2.5 * MIN_LEASE_SECONDS)
        assert looking.seen["n1"][-1] is Liveness.DEAD
        assert all(looking.seen[name][-1] is Liveness.ALIVE for name in ("n0", "n2"))


def test_what_a_late_watch_tells_is_no_sign_of_life(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    assert [it.renewals for it in operator.list_leases()] == [1]
    until(operator._followed.returns)
    world.server.watching.lag_s = 1.0
    node.renew_lease(replace(LEASE, renewals=2))
    node.renew_lease(replace(LEASE, renewals=3))
    assert [it.renewals for it in operator.list_leases()] == [3]
    moved_s = operator._followed._last["c.n0"].moved_s
    world.server.watching.lag_s = 0.0
    node.renew_lease(replace(LEASE, node="n1"))
    until(lambda: len(operator._followed.leases()) == 2)  # what was told before has been heard by now
    assert operator._followed._last["c.n0"].moved_s == moved_s


def test_a_node_hears_of_its_peers_leases_without_asking_and_asks_when_its_watch_is_silent(
    world: KubeWorld, node: KubeRegistry
) -> None:
    peer = world.open(owner=None)
    node.renew_lease(LEASE)
    peer.renew_lease(replace(LEASE, node="n1"))
    until(lambda: node._followed.returns() and peer._followed.returns())
    began_s = time.monotonic()
    for renewals in range(2, 12):
        peer.renew_lease(replace(LEASE, node="n1", renewals=renewals))
        until(lambda renewals=renewals: [it.renewals for it in node.list_leases()] == [1, renewals])  # type: ignore[misc]
    assert world.server.requests("LIST", "/leases", began_s) == []
    world.server.silence_watches()
    node.renew_lease(replace(LEASE, renewals=2))
    peer.renew_lease(replace(LEASE, node="n1", renewals=99))
    until(lambda: [it.renewals for it in node.list_leases()] == [2, 99])
    assert {it.query["resourceVersion"] for it in world.server.requests("LIST", "/leases", began_s)} == {"0"}


def test_a_node_that_may_not_watch_leases_lists_them(world: KubeWorld, node: KubeRegistry) -> None:
    world.server.fault(method="WATCH", path="/leases", code=403, times=None)
    node.renew_lease(LEASE)
    until(lambda: [it.renewals for it in node.list_leases()] == [1])
    node.renew_lease(replace(LEASE, renewals=2))
    until(lambda: [it.renewals for it in node.list_leases()] == [2])


def test_a_lease_that_somebody_broke_is_said_once_and_hides_no_other(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    node.renew_lease(LEASE)
    node.renew_lease(replace(LEASE, node="n1"))
    patch = {"metadata": {"annotations": {"delaycluster.io/renewals": "many"}}}
    world.server.store.patch(LEASES, NAMESPACE, "c.n0", patch)
    for _ in range(3):
        assert [lease.node for lease in operator.list_leases()] == ["n1"]
    said = [event for event in world.events if event["event"] == "object-unreadable"]
    assert 1 <= len(said) <= 2, "by each of the two registries once"
    assert all("c.n0" in str(event["reason"]) for event in said)


def test_probing_needs_no_object_and_writes_nothing(world: KubeWorld, operator: WritingRegistry) -> None:
    before = world.server.store.version
    operator.probe()
    world.server.store.delete(LEASES, NAMESPACE, "c.n0")
    operator.probe()
    assert world.server.store.version == before + 1


def test_an_idle_cluster_causes_no_writes_but_its_leases_and_few_requests(
    world: KubeWorld, operator: WritingRegistry, node: KubeRegistry
) -> None:
    operator.put_cluster(ClusterSpec(CLUSTER, 1), None)
    operator.create_shard(ShardSpec(1, "orders", 0, ("n0",)))
    for registry in (operator, node):
        assert registry.list_shards()
    node.renew_lease(LEASE)
    until(node._followed.returns)
    began_s = time.monotonic()
    for second in range(4):
        node.renew_lease(replace(LEASE, renewals=second))
        for _ in range(20):  # a node looks 20 times a second
            assert node.version() > 0
            node.list_leases()
            assert len(node.list_shards()) == 1
            assert node.read_cluster() is not None
            time.sleep(0.05)
    assert world.server.writes(began_s, but=["/leases/"]) == 0
    came = world.server.requests(since_s=began_s)
    # In four seconds: four renewals, and at most one watch anew of each kind and registry.
    assert len(came) <= 4 + 2 * 2
