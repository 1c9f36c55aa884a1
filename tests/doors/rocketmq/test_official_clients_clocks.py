"""Official clients on machines whose clocks are a day off: due times are the node's, and nothing is early or lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delayapi.units import HOUR_MS
from delaylocal import LocalCluster

from tests.doors.rocketmq.support.judges import Judge
from tests.doors.rocketmq.support.nodes import EVERYTHING, TRIED_EDGES
from tests.doors.rocketmq.support.wire import now_ms

pytestmark = pytest.mark.parametrize("cluster", TRIED_EDGES, indirect=True, scope="session")


@pytest.mark.parametrize("hours", [-26, 26])
@pytest.mark.parametrize("language", ["java", "python", "node"] if EVERYTHING else ["python"])
def test_client_whose_clock_is_a_day_off_sends_recalls_and_receives_in_time(
    cluster: LocalCluster, topic: str, judge: Callable[..., Judge], language: str, hours: int
) -> None:
    one = judge(language, cluster.endpoints[0], clock_hours=hours)
    one.ask("producer")
    one.ask("push", topic, "g", "*")
    due_ms = -(-(now_ms() + 2_500) // 1_000) * 1_000
    later, _ = one.send(topic, "later", at_ms=due_ms)
    never, handle = one.send(topic, "never", at_ms=due_ms)
    assert never in one.ask("recall", topic, handle)[0]
    first, _ = one.send(topic, "fail once")
    found = sorted((one.id, one.attempt) for one in one.until(3, 60))
    assert found == sorted([(first, 1), (first, 2), (later, 1)])
    (its,) = [message for message in one.received if message.id == later]
    assert its.due_ms == due_ms
    assert due_ms <= its.at_ms - hours * HOUR_MS < due_ms + 20_000
    assert abs(its.at_ms - now_ms() - hours * HOUR_MS) < HOUR_MS, "its clock is not the one that was asked for"
