"""Quotas on a clock of the test's own: what they let in, for how long they refuse, and what they forget."""

from __future__ import annotations

from itertools import accumulate

import pytest
from delaynode.replica.hosts.quotas import (
    BURST_S,
    Cost,
    PendingQuota,
    Quota,
    QuotaLabel,
    RateQuota,
    admit,
    shard_quotas,
)
from delaynode.store.errors import Refused
from delayregistry.model import TopicQuotas
from hypothesis import given
from hypothesis import strategies as st

LABEL = QuotaLabel("enqueuePerSecond", "orders")


def rate(limit: int, *, of_bytes: bool = False) -> RateQuota:
    return RateQuota(LABEL, "queue 0", limit, of_bytes=of_bytes)


def ask(quota: Quota, now_ms: int, messages: int = 1, record_bytes: int = 1) -> Refused | None:
    """Offer a request, which is taken where nothing is said against it."""
    _, refused = admit([quota], [Cost(messages, record_bytes)], [False], now_ms)
    return refused


OFFERS = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 3_000)), min_size=1, max_size=60)


@given(st.integers(1, 5_000), OFFERS)
def test_no_window_has_more_than_the_rate_a_burst_and_one_request(limit: int, offers: list[tuple[int, int]]) -> None:
    quota, taken = rate(limit), list[tuple[int, int]]()
    for now_ms, (_, messages) in zip(accumulate(step for step, _ in offers), offers, strict=True):
        if ask(quota, now_ms, messages) is None:
            taken.append((now_ms, messages))
    assert taken, "the first request always goes"
    for first in range(len(taken)):
        messages = 0
        for now_ms, more in taken[first:]:  # what was taken before `more` is within rate and burst
            assert messages <= limit * (now_ms - taken[first][0]) / 1_000 + limit * BURST_S
            messages += more


@given(st.integers(1, 5_000), OFFERS)
def test_the_time_that_is_said_is_exact(limit: int, offers: list[tuple[int, int]]) -> None:
    quota, now_ms = rate(limit), 0
    for step, messages in offers:
        now_ms += step
        refused = ask(quota, now_ms, messages)
        if refused is not None:
            wait_ms = int(refused.metadata["retry_after_ms"])
            assert wait_ms > 0
            assert ask(quota, now_ms + wait_ms - 1) is not None
            assert ask(quota, now_ms + wait_ms, messages) is None
            now_ms += wait_ms


def test_a_steady_flood_gets_exactly_its_rate() -> None:
    quota = rate(50)
    taken = sum(7 for now_ms in range(60_000) if ask(quota, now_ms, 7) is None)
    assert 50 * 60 - 7 <= taken <= 50 * 60 + 7


def test_a_request_larger_than_a_second_is_taken_and_paid_for() -> None:
    quota = rate(10)
    assert ask(quota, 0, 65_536) is None
    refused = ask(quota, 1)
    assert refused is not None
    assert refused.metadata["retry_after_ms"] == str(6_553_600 - 1)
    assert refused.metadata["current"] == "65536"


def test_a_new_quota_has_no_burst_and_an_unused_one_has_a_second() -> None:
    quota = rate(100)
    assert [ask(quota, 0) is None for _ in range(3)] == [True, False, False]
    assert [ask(quota, 3_600_000) is None for _ in range(102)] == [True] * 101 + [False]


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    quota = rate(100)
    assert ask(quota, 5_000, 100) is None
    assert ask(quota, 4_000) is not None
    assert ask(quota, 5_999) is not None
    assert ask(quota, 6_000) is None


def test_what_was_not_stored_is_given_back() -> None:
    quota = rate(100)
    assert ask(quota, 0, 100) is None
    quota.give_back(Cost(100, 0))
    assert ask(quota, 0, 100) is None
    assert ask(quota, 0) is not None


def test_bytes_are_counted_where_the_quota_is_of_bytes() -> None:
    quota = rate(1_000, of_bytes=True)
    assert ask(quota, 0, messages=1, record_bytes=500) is None
    refused = ask(quota, 0, messages=1, record_bytes=1)
    assert refused is not None
    assert refused.metadata["retry_after_ms"] == "500"
    assert "1,000 bytes a second" in refused.message


def pending(limit: int, present: list[int]) -> PendingQuota:
    return PendingQuota(QuotaLabel("pendingMessages", "orders"), "queue 0", limit, lambda: present[0])


@given(st.integers(1, 100), st.integers(0, 120), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_pending_is_never_above_its_limit_by_what_is_taken(limit: int, there: int, offers: list[int]) -> None:
    costs = [Cost(messages, 0) for messages in offers]
    taken, refused = admit([pending(limit, [there])], costs, [False] * len(costs), 0)
    total = sum(messages for messages, its in zip(offers, taken, strict=True) if its)
    assert not total or there + total <= limit
    if refused is not None:
        first = taken.index(False)
        assert there + sum(offers[: first + 1]) > limit, "the first one that is refused did not fit"
        assert not any(taken[first:]), "one behind it may be of its producer"
        assert "retry_after_ms" not in refused.metadata
        assert refused.metadata["limit"] == str(limit)
        assert refused.metadata["current"] == str(there + total)


def test_a_retry_of_what_is_stored_is_taken_whatever_the_quotas_say() -> None:
    quotas = [pending(1, [1]), rate(1)]
    assert ask(quotas[1], 0, 1_000) is None
    taken, refused = admit(quotas, [Cost(1, 1)] * 4, [False, True, False, True], 0)
    assert taken == [False, True, False, True]
    assert refused is not None
    wait = rate(1)
    admit([wait], [Cost(1_000, 1)] * 2, [True, True], 0)
    assert ask(wait, 0) is None, "retries have cost nothing"


def test_what_one_quota_refuses_costs_nothing_of_the_others() -> None:
    full, paced = pending(1, [1]), rate(10)
    for _ in range(100):
        admit([paced, full], [Cost(1_000, 0)], [False], 0)
    assert ask(paced, 0) is None


@pytest.mark.parametrize(
    ("share", "names"),
    [
        (TopicQuotas(), []),
        (TopicQuotas(pending_messages=1), ["pendingMessages"]),
        (TopicQuotas(1, 1, 1), ["pendingMessages", "pendingBytes", "enqueuePerSecond"]),
    ],
)
def test_a_shard_has_the_quotas_that_its_topic_has(share: TopicQuotas, names: list[str]) -> None:
    made = shard_quotas("orders", 0, share, lambda: 0, lambda: 0)
    assert [quota.label.quota for quota in made] == names
