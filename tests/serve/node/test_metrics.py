"""What a node's metrics say of groups, and how many of them."""

from __future__ import annotations

from delaynode.metrics import MAX_GROUP_LABELS, GroupLoad, NodeCollector, NodeMetrics, TopicLoad


def series(loads: dict[str, TopicLoad]) -> dict[str, dict[tuple[str, str], float]]:
    """By metric: values by topic and group."""
    collector = NodeCollector(NodeMetrics())
    collector.loads = loads
    return {
        family.name: {(sample.labels["topic"], sample.labels["group"]): sample.value for sample in family.samples}
        for family in collector.collect()
        if family.name.startswith("delay_group_")
    }


def test_a_groups_shards_are_summed_and_the_oldest_of_them_counts() -> None:
    assert GroupLoad(1, 2, 3, 4.0) + GroupLoad(10, 20, 30, 1.0) == GroupLoad(11, 22, 33, 4.0)


def test_groups_beyond_the_limit_are_counted_together() -> None:
    groups = {f"g{number:04}": GroupLoad(1, 2, 3, float(number)) for number in range(MAX_GROUP_LABELS + 5)}
    found = series({"orders": TopicLoad(0, (0, 0, 0, 0), groups=groups)})
    assert {name: len(values) for name, values in found.items()} == {
        "delay_group_available": MAX_GROUP_LABELS + 1,
        "delay_group_in_flight": MAX_GROUP_LABELS + 1,
        "delay_group_waiting_retry": MAX_GROUP_LABELS + 1,
        "delay_group_oldest_seconds": MAX_GROUP_LABELS + 1,
    }
    assert found["delay_group_available"]["orders", "g0000"] == 1
    other = {name.removeprefix("delay_group_"): values["", "other"] for name, values in found.items()}
    assert other == {"available": 5, "in_flight": 10, "waiting_retry": 15, "oldest_seconds": MAX_GROUP_LABELS + 4}
