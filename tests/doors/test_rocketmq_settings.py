"""What RocketMQ's clients are told, and how their filters and backoffs are read."""

from __future__ import annotations

import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaynode.server.doors.rocketmq import settings
from delaynode.server.doors.rocketmq.routes import endpoints
from delaynode.server.doors.rocketmq.statuses import CODES, Wrong, ok, status_of, together
from delaynode.store.errors import Refused


def tags(expression: str) -> tuple[str, ...]:
    return settings.tags_of(mq.FilterExpression(type=mq.TAG, expression=expression))


def test_tags_are_the_same_in_any_order_and_spacing() -> None:
    assert tags("a||b") == tags(" b || a ") == tags("a||b||a") == ("a", "b")
    assert tags("*") == tags("") == ()


@pytest.mark.parametrize("expression", ["a|b", "||", "a||", "*||a", "a*", "a||" * 1_000_000 + "a"])
def test_what_is_no_list_of_tags_is_refused(expression: str) -> None:
    with pytest.raises(Wrong) as refused:
        tags(expression)
    assert refused.value.code == mq.ILLEGAL_FILTER_EXPRESSION


def test_backoff_of_a_client_that_takes_seconds_for_milliseconds_is_what_it_was_told() -> None:
    assert [settings.backoff_ms(1, attempt) for attempt in (1, 2, 3, 100)] == [1_000, 5_000, 10_000, 7_200_000]
    assert settings.backoff_ms(7_000, 1) == 7_000


def test_settings_that_a_client_sends_come_back_with_what_the_node_says() -> None:
    asked = mq.Settings(client_type=mq.PRODUCER, metric=mq.Metric(on=True))
    asked.publishing.topics.add(name="t")
    told = settings.answer(asked, "JAVA", 16)
    assert told.publishing.topics == asked.publishing.topics
    assert told.publishing.validate_message_type
    assert not told.metric.on


@pytest.mark.parametrize(("address", "scheme", "host"), [
    ("10.0.0.1:7070", mq.IPv4, "10.0.0.1"), ("[::1]:7070", mq.IPv6, "::1"), ("n0.demo:7070", mq.DOMAIN_NAME, "n0.demo"),
])  # fmt: skip
def test_scheme_fits_the_address(address: str, scheme: int, host: str) -> None:
    found = endpoints(address)
    assert (found.scheme, found.addresses[0].host, found.addresses[0].port) == (scheme, host, 7070)


def test_every_reason_has_a_code_that_clients_know_or_is_internal() -> None:
    assert status_of(Refused("SHARD_DAMAGED", "x")).code == mq.INTERNAL_SERVER_ERROR
    assert all(code in mq.Code.values() for code in CODES.values())
    assert len(status_of(Refused("BAD_REQUEST", "x" * 9_999)).message) <= 1_000


def test_status_of_several_is_theirs_or_says_that_they_differ() -> None:
    bad = mq.Status(code=mq.BAD_REQUEST, message="b")
    assert together([ok(), ok()]).code == mq.OK
    assert together([bad, bad]).code == mq.BAD_REQUEST
    assert together([ok(), bad]).code == mq.MULTIPLE_RESULTS
