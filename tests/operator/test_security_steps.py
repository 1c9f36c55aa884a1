"""How a cluster comes from one security mode to another (delayoperator.cluster.security)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from delayoperator.cluster.security import next_step, weakest
from delayoperator.resources.view import SecurityMode
from delayregistry.model import ListenerTrust, NodeLease
from hypothesis import given
from hypothesis import strategies as st

OFF, PERMISSIVE, REQUIRED = SecurityMode
MODES = list(SecurityMode)
TRUST = ListenerTrust("orders-client.shop.svc", "PEM")


def lease(number: int, **changed: object) -> NodeLease:
    values: dict[str, object] = {"trust": TRUST, "peer_tls": True, **changed}
    return NodeLease(f"n{number}", "a", f"10.0.0.{number}:7070", "", **values)  # type: ignore[arg-type]


@dataclass
class Rollout:
    """Pods that are made anew one after the other, and those that are gone, which the StatefulSet makes of whatever
    its template is then."""

    template: SecurityMode = OFF
    pods: list[SecurityMode | None] = field(default_factory=lambda: [OFF] * 3)

    def step(self, asked: SecurityMode) -> None:
        there = {self.template, *(pod for pod in self.pods if pod is not None)}
        self.template = next_step(asked, there, []).mode
        self.check()

    def replace(self, number: int) -> None:
        self.pods[number] = self.template
        self.check()

    def check(self) -> None:
        there = {self.template, *(pod for pod in self.pods if pod is not None)}
        assert there != {OFF, PERMISSIVE, REQUIRED}
        assert not there >= {OFF, REQUIRED}, "two pods could not talk to each other"


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(MODES)),
        st.tuples(st.just("replace"), st.integers(0, 2)),
        st.tuples(st.just("lose"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(ACTS)
def test_pods_that_are_there_can_always_talk_to_each_other(acts: list[tuple[str, object]]) -> None:
    rollout, asked = Rollout(), OFF
    for act, what in acts:
        if act == "ask":
            asked = what  # type: ignore[assignment]
        elif act == "lose":
            rollout.pods[what] = None  # type: ignore[call-overload]
        else:
            rollout.replace(what)  # type: ignore[arg-type]
        rollout.step(asked)


@given(ACTS, st.sampled_from(MODES))
def test_what_was_asked_for_last_is_reached(acts: list[tuple[str, object]], last: SecurityMode) -> None:
    rollout, asked = Rollout(), OFF
    for act, what in acts:
        if act == "ask":
            asked = what  # type: ignore[assignment]
        elif act == "replace":
            rollout.replace(what)  # type: ignore[arg-type]
        rollout.step(asked)
    for _ in range(3):
        rollout.step(last)
        for number in range(3):
            rollout.replace(number)
    assert (rollout.template, set(rollout.pods)) == (last, {last})


def test_a_new_cluster_begins_as_it_is_asked_to() -> None:
    assert next_step(REQUIRED, [], []).mode is REQUIRED


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (lease(1, certificate_problem="server: tls.crt expired"), "n1: server: tls.crt expired"),
        (lease(1, peer_tls=False), "n1: it does not offer TLS to other nodes yet"),
        (lease(1, trust=None), "n1: it has no certificate with a DNS name"),
    ],
)
def test_plain_text_goes_only_once_every_node_does_without_it(found: NodeLease, says: str) -> None:
    step = next_step(REQUIRED, {PERMISSIVE}, [lease(0), found])
    assert step.mode is PERMISSIVE
    assert says in step.waits
    assert next_step(REQUIRED, {PERMISSIVE}, [lease(0), lease(1)]).mode is REQUIRED
    # What has begun goes on: the restarts wait for each node themselves.
    assert next_step(REQUIRED, {PERMISSIVE, REQUIRED}, [lease(0), found]).mode is REQUIRED


def test_plain_text_stays_while_the_operator_could_not_come_without() -> None:
    step = next_step(REQUIRED, {PERMISSIVE}, [lease(0)], "no token")
    assert (step.mode, step.waits) == (PERMISSIVE, "without the plain port the operator has no way: no token")


def test_off_is_reached_whatever_is_wrong_with_the_certificates() -> None:
    bad = [lease(0, certificate_problem="server: expired", trust=None, peer_tls=False)]
    assert next_step(OFF, {PERMISSIVE}, bad, "no token").mode is OFF
    assert next_step(OFF, {REQUIRED}, bad, "no token").mode is PERMISSIVE


def test_the_status_has_what_holds_for_every_pod() -> None:
    assert weakest([REQUIRED, PERMISSIVE]) is PERMISSIVE
    assert weakest([]) is OFF
