"""What a trigger may ask for: nonsense is refused, with what is wrong and which limit."""

from __future__ import annotations

import pytest
from delaynode.server.doors.keda.metadata import MAX_BUCKETS, Asked, asked
from delaynode.store.errors import Refused
from hypothesis import given
from hypothesis import strategies as st

GOOD = {"topic": "reminders", "group": "mail", "ratePerReplica": "200"}


def test_what_is_left_out_has_its_default_and_what_is_kedas_is_passed_over() -> None:
    own = {"scalerAddress": "x:7072", "enableTLS": "true", "caCert": "PEM", "unsafeSsl": "false"}
    assert asked(GOOD | own) == Asked("reminders", "mail", 200.0, 30.0, 600.0, 5.0)
    full = GOOD | {"leadSeconds": "45.5", "horizonSeconds": "900", "maxLatenessSeconds": "2"}
    assert asked(full) == Asked("reminders", "mail", 200.0, 45.5, 900.0, 2.0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topic": ""}, "topic is missing"),
        ({"group": ""}, "group is missing"),
        ({"leadSecond": "3"}, "'leadSecond' is not known; known are group, horizonSeconds, leadSeconds"),
        ({"ratePerReplica": "0"}, "ratePerReplica is '0': a number from 0.001 to 1,000,000,000"),
        ({"ratePerReplica": "-5"}, "'-5'"),
        ({"ratePerReplica": "nan"}, "'nan'"),
        ({"ratePerReplica": "inf"}, "'inf'"),
        ({"ratePerReplica": "1e3"}, "'1e3'"),
        ({"ratePerReplica": "1_000"}, "'1_000'"),
        ({"ratePerReplica": "٣"}, "'٣'"),
        ({"ratePerReplica": "200/s"}, "'200/s'"),
        ({"ratePerReplica": "9" * 5_000}, "9" * 100 + "': a number"),
        ({"leadSeconds": "3601"}, "leadSeconds is '3601': a number from 0 to 3,600"),
        ({"horizonSeconds": "0.5"}, "horizonSeconds is '0.5': a number from 1 to 86,400"),
        ({"maxLatenessSeconds": "0"}, "maxLatenessSeconds is '0': a number from 1 to 86,400"),
        ({"horizonSeconds": "20"}, "leadSeconds is 30, longer than horizonSeconds, 20"),
        ({"maxLatenessSeconds": "601"}, "maxLatenessSeconds is 601, longer than horizonSeconds, 600"),
    ],
)
def test_nonsense_is_refused(changed: dict[str, str], says: str) -> None:
    with pytest.raises(Refused) as caught:
        asked(GOOD | changed)
    assert caught.value.reason == "BAD_REQUEST"
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_rate_must_be_given() -> None:
    with pytest.raises(Refused, match="ratePerReplica is missing"):
        asked({"topic": "t", "group": "g"})


@given(st.integers(1, 86_400), st.integers(1, 86_400))
def test_buckets_reach_the_horizon_and_are_few(horizon_s: int, late_s: int) -> None:
    if late_s > horizon_s:
        return
    fields = {"horizonSeconds": str(horizon_s), "maxLatenessSeconds": str(late_s), "leadSeconds": "0"}
    found = asked(GOOD | fields)
    assert 1_000 <= found.bucket_ms <= 86_400_000
    assert found.bucket_ms * found.buckets >= 1000 * horizon_s
    assert 1 <= found.buckets <= MAX_BUCKETS


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=8))
def test_whatever_else_is_asked_for_is_refused(metadata: dict[str, str]) -> None:
    if metadata.keys() - GOOD.keys():
        with pytest.raises(Refused, match="is not known"):
            asked({**GOOD, **metadata})
