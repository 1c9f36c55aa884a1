"""Quotas at a running node, by both edges: what a caller over one is told, what the SDK does, and who feels it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delayclient import Producer, Tls
from delayclient.errors import QuotaExceeded, RateExceeded, from_rpc, from_stream
from delayclient.producer.results import BatchFailed
from delayregistry.model import TopicQuotas
from delayregistry.security import SecurityUser, StaticToken, UserQuotas

from tests.serve.support.asking import DOCUMENT, TOPIC, Asking, rules, secret
from tests.serve.support.client import Msg, poll, request, wait_served
from tests.serve.support.secured import NAME, Secured

QUIET = "super"  # of the document
FLOODS = ("told", "pours", "retries", "sends", "backfills", "moves")
"""Users with a quota, one for each test: what one owes takes time."""
RATE = 200
HOUR_MS = 3_600_000
LIMITED = dataclasses.replace(
    DOCUMENT,
    tokens=(
        *DOCUMENT.tokens,
        *(StaticToken(name, hashlib.sha256(secret(name).encode()).hexdigest()) for name in FLOODS),
    ),
    users=(
        *DOCUMENT.users,
        *(
            SecurityUser(f"token:{name}", rules("produce") + rules("cancel"), UserQuotas(enqueue_per_second=RATE))
            for name in FLOODS
        ),
    ),
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("quotas"), "permissive", nodes=1, document=LIMITED).run() as running:
        yield running


def by(secured: Secured, name: str) -> Asking:
    return Asking(secured.dial("tokens").channel, f"Bearer {secret(name)}")


def batch(queue: int, count: int, producer: int = 0, number: int = 0) -> bytes:
    messages = [Msg(b"m", delay_ms=HOUR_MS)] * count
    return request(TOPIC, queue, messages, producer, number).SerializeToString()


def set_topic_quotas(secured: Secured, quotas: TopicQuotas | None) -> None:
    registry = secured.running.registry
    found = registry.read_cluster()
    assert found is not None
    topics = tuple(dataclasses.replace(topic, quotas=quotas) for topic in found.spec.topics)
    registry.put_cluster(dataclasses.replace(found.spec, topics=topics), found.version)


def pending(secured: Secured) -> list[int]:
    answer = by(secured, QUIET).unary("GetWheel", pb.GetWheelRequest().SerializeToString())
    return [shard.pending for shard in sorted(pb.GetWheelResponse.FromString(answer).shards, key=lambda one: one.queue)]


def refusal(call: Asking, data: bytes) -> QuotaExceeded:
    with pytest.raises(grpc.RpcError) as raised:
        call.unary("Enqueue", data)
    error = from_rpc(raised.value)
    assert isinstance(error, QuotaExceeded)
    assert error.code == "RESOURCE_EXHAUSTED"
    return error


def test_firings_by_hand_count_as_what_their_caller_sends(secured: Secured) -> None:
    caller, now_s = by(secured, "backfills"), int(time.time())
    schedule = schedules_pb2.Schedule(id="often", topic=TOPIC, body=b"x")
    schedule.every.interval.FromSeconds(1)
    put = schedules_pb2.PutScheduleRequest(topic=TOPIC, schedule=schedule, paused=True)

    def is_put() -> bool:  # a cluster that has just been made writes the newest format after a few seconds
        return caller.ask("PutSchedule", put) is None

    poll("there is a schedule", is_put, 60)
    backfill = schedules_pb2.BackfillScheduleRequest(topic=TOPIC, id="often")
    getattr(backfill, "from").FromSeconds(now_s - 900)
    backfill.to.FromSeconds(now_s)
    trigger = schedules_pb2.TriggerScheduleRequest(topic=TOPIC, id="often")
    for fire, method in ((backfill, "BackfillSchedule"), (trigger, "TriggerSchedule")):
        refusals = [one for _ in range(5) if (one := caller.ask(method, fire)) is not None]
        assert refusals, f"{method} is refused by no quota"
        error = from_rpc(refusals[0])
        assert isinstance(error, RateExceeded), error
        assert "quota enqueuePerSecond" in str(error)


def test_a_reschedule_counts_as_what_its_caller_sends(secured: Secured) -> None:
    caller, count = by(secured, "moves"), 50 * RATE
    due = np.full(count, int(time.time() * 1_000) + HOUR_MS, "<i8").tobytes()
    stored = pb.EnqueueResponse.FromString(caller.unary("Enqueue", batch(0, 1)))
    seq = np.arange(count, dtype="<i8").tobytes()
    request_ = pb.RescheduleRequest(topic=TOPIC, uid=stored.uid, due=due, seq=seq, time=due)
    time.sleep(2 / RATE)  # that message is not owed any more
    assert caller.ask("Reschedule", request_) is None
    refused = caller.ask("Reschedule", request_)
    assert refused is not None
    assert isinstance(from_rpc(refused), RateExceeded)


def test_a_user_over_its_rate_is_told_when_to_come_again(secured: Secured) -> None:
    flood, before = by(secured, "told"), pending(secured)
    sent_at = time.monotonic()
    flood.unary("Enqueue", batch(0, 100 * RATE))
    error = refusal(flood, batch(0, 1))
    assert isinstance(error, RateExceeded)
    said = error.metadata
    assert (said["quota"], said["scope"], said["name"]) == ("enqueuePerSecond", "user", "token:told")
    assert said["limit"] == str(RATE)
    passed_ms = (time.monotonic() - sent_at) * 1_000
    assert 100_000 - passed_ms - 2_000 <= error.retry_after_ms <= 100_000
    (answered,) = flood.stream("EnqueueStream", batch(0, 1))
    inside = from_stream(pb.EnqueueResponse.FromString(answered).error)
    assert isinstance(inside, RateExceeded)
    assert inside.metadata["quota"] == "enqueuePerSecond"
    assert pending(secured)[0] - before[0] == 100 * RATE, "nothing of a refused batch is there"


def test_who_floods_is_refused_and_who_does_not_is_not(secured: Secured) -> None:
    """The flooding user keeps a stream full all the while; both send to the same shard."""
    flood, quiet, stop, answers = by(secured, "pours"), by(secured, QUIET), threading.Event(), list[str]()

    def pour() -> None:
        while not stop.is_set():
            found = flood.stream("EnqueueStream", *[batch(1, RATE)] * 200)
            answers.extend(pb.EnqueueResponse.FromString(one).error.reason for one in found)

    before, thread = pending(secured), threading.Thread(target=pour)
    thread.start()
    try:
        for _ in range(100):
            quiet.unary("Enqueue", batch(1, 1))
    finally:
        stop.set()
        thread.join()
    refused, taken = answers.count("QUOTA"), answers.count("")
    assert refused + taken == len(answers)
    assert refused
    assert pending(secured)[1] - before[1] == 100 + taken * RATE
    text = urllib.request.urlopen(f"http://{secured.running.http[0]}/metrics", timeout=10).read().decode()
    (line,) = [one for one in text.splitlines() if one.startswith("delay_quota_refused_total") and "token:pours" in one]
    assert 'quota="enqueuePerSecond"' in line
    assert float(line.split()[-1]) >= refused


def test_a_retry_of_what_is_stored_is_never_refused(secured: Secured) -> None:
    flood = by(secured, "retries")
    first = pb.EnqueueResponse.FromString(by(secured, QUIET).unary("Enqueue", batch(2, 3, 77, 0)))
    flood.unary("Enqueue", batch(2, 5 * RATE))
    assert isinstance(refusal(flood, batch(2, 3, 77, 1)), RateExceeded)
    again = pb.EnqueueResponse.FromString(flood.unary("Enqueue", batch(2, 3, 77, 0)))
    assert (again.duplicate, again.first_seq) == (True, first.first_seq)


def test_a_topics_pending_quota_holds_when_it_is_set_and_after_a_restart(secured: Secured) -> None:
    quiet = by(secured, QUIET)
    quiet.unary("Enqueue", batch(2, 1))

    def taken() -> bool:
        return quiet.ask("Enqueue", request(TOPIC, 2, [Msg(delay_ms=HOUR_MS)])) is None

    try:
        set_topic_quotas(secured, TopicQuotas(pending_messages=3))
        poll("it is in force", lambda: not taken())
        most = max(pending(secured))
        set_topic_quotas(secured, TopicQuotas(pending_messages=3 * (most + 10)))
        poll("the next one is in force", taken)
        left = most + 10 - pending(secured)[2]
        quiet.unary("Enqueue", batch(2, left))
        error = refusal(quiet, batch(2, 1))
        assert not error.retryable, "waiting may not help"
        assert error.metadata["quota"] == "pendingMessages"
        assert error.metadata["limit"] == error.metadata["current"] == str(most + 10)
        secured.running.kill("n0")
        wait_served(secured.running)
        poll("the node asks for rights again", lambda: _answers(quiet))
        assert refusal(quiet, batch(2, 1)).metadata["current"] == str(most + 10)
    finally:
        set_topic_quotas(secured, None)
    poll("it is in force no more", taken)


def _answers(caller: Asking) -> bool:
    return caller.ask("QueryRoute") is None


def test_the_sdk_waits_for_a_rate_and_raises_what_waiting_does_not_help(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(secured.ca.pem)
    (tmp_path / "token").write_text(secret("sends"))
    tls = Tls(tmp_path / "ca.crt", server_name=NAME)

    async def until_refused(producer: Producer) -> None:
        while True:
            await producer.send_batch(TOPIC, [b"m"] * 3, delay_ms=HOUR_MS)

    async def send() -> None:
        async with Producer(secured.endpoint("tokens"), tls=tls, token_file=tmp_path / "token") as producer:
            before, started = pending(secured), time.monotonic()
            for _ in range(4):
                stored = await producer.send_batch(TOPIC, [b"m"] * RATE, delay_ms=HOUR_MS)
                assert len(stored) == RATE
            # The first second may come at once, and the last batch may be ahead.
            assert time.monotonic() - started >= 1.5
            assert sum(pending(secured)) - sum(before) == 4 * RATE
            set_topic_quotas(secured, TopicQuotas(pending_messages=3))
            async with asyncio.timeout(30):
                with pytest.raises(BatchFailed) as raised:
                    await until_refused(producer)
            errors = [error for _, error in raised.value.failures]
            assert {type(error) for error in errors} == {QuotaExceeded}

    try:
        asyncio.run(send())
    finally:
        set_topic_quotas(secured, None)
