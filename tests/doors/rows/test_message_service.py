"""MessageService of three real nodes, over gRPC and over HTTP: any node answers for every shard."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import grpc
import pytest
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.receipt import Receipt
from google.protobuf.timestamp_pb2 import Timestamp

from tests.doors.support.asking import SERVICE, Asking, CallFailed, Node, Wire, seconds

Ask = Callable[..., Asking]
WIRES: list[Wire] = ["grpc", "json", "proto"]


def message(text: str = "x", delay: float | None = None, **fields: Any) -> rows.OutgoingMessage:
    return rows.OutgoingMessage(body_text=text, delay=None if delay is None else seconds(delay), **fields)


def send(client: Asking, topic: str, *messages: rows.OutgoingMessage) -> list[str]:
    """Their handles."""
    results = client.call("Send", topic=topic, messages=messages).results
    assert all(one.handle and not one.HasField("error") for one in results), results
    return [one.handle for one in results]


def receive(client: Asking, topic: str, count: int, group: str = "g", **fields: Any) -> list[rows.Delivery]:
    """So many, asked for again and again; none twice."""
    found: list[rows.Delivery] = []
    ends = time.monotonic() + 15
    while len(found) < count and time.monotonic() < ends:
        asked = {"wait": seconds(2), "body_format": rows.BODY_FORMAT_TEXT, **fields}
        found += client.call("Receive", topic=topic, group=group, **asked).deliveries
    assert len(found) == count == len({one.receipt for one in found})
    return found


def texts(found: list[rows.Delivery]) -> list[str]:
    return sorted(one.body_text for one in found)


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_sent_to_one_node_is_received_and_settled_at_others(ask: Ask, topic: str, wire: Wire) -> None:
    names = [f"m{at}" for at in range(20)]
    properties = {"a": "1", "ä": "ö"}
    due = time.time() + 0.2
    at = Timestamp()
    at.FromMilliseconds(int(due * 1_000))
    sent = [rows.OutgoingMessage(body_text=name, at=at, key=name, tag="t", properties=properties, message_id=name)
            for name in names]  # fmt: skip
    send(ask(0, wire), topic, *sent)
    found = receive(ask(1, wire), topic, len(names))
    assert time.time() >= due
    assert texts(found) == sorted(names)
    for one in found:
        assert (one.key, one.tag, dict(one.properties), one.message_id) == (one.body_text, "t", properties, one.key)
        assert one.attempt == 1
        assert one.due.ToMilliseconds() == at.ToMilliseconds()
        assert abs(one.lease_ends.ToMilliseconds() / 1_000 - time.time() - 30) < 5
    settled = ask(2, wire).call("Ack", receipts=[one.receipt for one in found]).results
    assert all(one.settled for one in settled)
    (group,) = ask(0, wire).call("ListGroups", topic=topic).groups
    assert (group.available, group.in_flight, group.waiting_retry, group.dead) == (0, 0, 0, 0)
    assert not ask(0, wire).call("Receive", topic=topic, group="g").deliveries


@pytest.mark.parametrize("wire", WIRES)
def test_one_that_waits_is_woken_wherever_the_message_comes(ask: Ask, topic: str, wire: Wire) -> None:
    for node in range(3):
        waiting, sender = ask(node, wire), ask((node + 1) % 3)
        for key in ("a", "b", "c", "d", "e"):
            timer = threading.Timer(0.15, send, (sender, topic, message(key, key=key)))
            began = time.monotonic()
            timer.start()
            (one,) = waiting.call("Receive", topic=topic, group="g", wait=seconds(10)).deliveries
            assert 0.1 < time.monotonic() - began < 5, "it was waited for, and not for the end of the wait"
            waiting.call("Ack", receipts=[one.receipt])
            timer.join()


def test_what_a_consumer_did_not_take_is_nobodys_for_long(ask: Ask, topic: str) -> None:
    """Calls that were left on other nodes bring messages that nobody waits for: these go to whoever comes next."""
    client = ask(0)
    client.call("Receive", topic=topic, group="g", wait=seconds(0.1))
    send(ask(1), topic, *(message(f"m{at}", key=f"k{at}") for at in range(50)))
    time.sleep(0.3)
    found: list[rows.Delivery] = []
    began = time.monotonic()
    while len(found) < 50 and time.monotonic() - began < 15:
        found += ask(2).call("Receive", topic=topic, group="g", max_messages=1, wait=seconds(1)).deliveries
    assert len({one.receipt for one in found}) == 50
    assert {one.attempt for one in found} == {1}, "what was given back is the same attempt"
    assert time.monotonic() - began < 10, "before their leases have ended"


def test_a_lease_ends_is_extended_or_given_back(ask: Ask, topic: str) -> None:
    client, other = ask(0), ask(1)
    send(client, topic, *(message(name, key=name) for name in ("kept", "lost", "given")))
    found = {one.body_text: one.receipt for one in receive(client, topic, 3, lease=seconds(5))}
    assert other.call("Extend", receipts=[found["kept"]], lease=seconds(30)).results[0].settled
    assert other.call("Extend", receipts=[found["given"]], lease=seconds(0)).results[0].settled
    (given,) = receive(client, topic, 1)
    assert (given.body_text, given.attempt) == ("given", 1)
    (lost,) = receive(client, topic, 1)
    assert (lost.body_text, lost.attempt) == ("lost", 2)
    late, kept = client.call("Ack", receipts=[found["lost"], found["kept"]]).results
    assert (late.settled, late.error.reason, late.error.code) == (False, "LEASE_OVER", "failed_precondition")
    assert kept.settled
    assert client.call("Ack", receipts=[lost.receipt]).results[0].settled, "the one that has it now"
    with pytest.raises(CallFailed) as refused:
        client.call("Ack", receipts=[found["kept"]])
    assert refused.value.reason == "LEASE_OVER", "it is done"


@pytest.mark.parametrize("wire", WIRES)
def test_a_dead_letter_says_why(ask: Ask, topic: str, wire: Wire) -> None:
    client, ends = ask(0, wire), time.monotonic() + 120
    while True:
        send(client, topic, message("a", key="a"))
        (one,) = receive(client, topic, 1)
        with pytest.raises(CallFailed, match="reason: 1,026 bytes of UTF-8 are more than the limit, 1,024"):
            client.call("Nack", receipts=[one.receipt], dead=True, reason="ä" * 513)
        assert client.call("Nack", receipts=[one.receipt], dead=True, reason="status 400: nö").results[0].settled
        (dead,) = client.call("ListDeadLetters", topic=topic, group="g").deliveries
        if dead.dead_reason:
            break
        assert time.monotonic() < ends, "reasons are kept once all nodes write format 5"
        client.call("DropDeadLetters", topic=topic, group="g")
        time.sleep(0.5)
    assert dead.dead_reason == "status 400: nö"


def test_a_message_dies_by_attempts_or_at_once_and_is_redriven_or_dropped(ask: Ask, topic: str) -> None:
    client = ask(1)
    send(client, topic, *(message(name, key=name) for name in ("often", "once")))
    for _ in range(3):
        found = receive(client, topic, 2 if _ == 0 else 1)
        for one in found:
            client.call("Nack", receipts=[one.receipt], backoff=seconds(0), dead=one.body_text == "once")
    listed = client.call("ListDeadLetters", topic=topic, group="g", body_format=rows.BODY_FORMAT_TEXT)
    assert texts(listed.deliveries) == ["often", "once"]
    by_text = {one.body_text: one.receipt for one in listed.deliveries}
    receipt = Receipt.decode(by_text["often"])
    of_a_deleted_topic = replace(receipt, uid=receipt.uid ^ 1).encode()
    for method in ("RedriveDeadLetters", "DropDeadLetters"):
        with pytest.raises(CallFailed) as refused:
            client.call(method, topic=topic, group="g", receipts=[of_a_deleted_topic])
        assert refused.value.reason == "FOREIGN_HANDLE"
    pages = [client.call("ListDeadLetters", topic=topic, group="g", page_size=1)]
    while pages[-1].next_page_token:
        token = pages[-1].next_page_token
        pages.append(client.call("ListDeadLetters", topic=topic, group="g", page_size=1, page_token=token))
    assert sum(len(page.deliveries) for page in pages) == 2
    assert client.call("RedriveDeadLetters", topic=topic, group="g", receipts=[by_text["often"]]).count == 1
    (again,) = receive(client, topic, 1)
    assert (again.body_text, again.attempt) == ("often", 1)
    client.call("Ack", receipts=[again.receipt])
    assert client.call("DropDeadLetters", topic=topic, group="g").count == 1
    assert not client.call("ListDeadLetters", topic=topic, group="g").deliveries
    assert client.call("DeleteGroup", topic=topic, group="g").dead == 0
    with pytest.raises(CallFailed) as refused:
        client.call("DeleteGroup", topic=topic, group="g")
    assert refused.value.reason == "UNKNOWN_GROUP"


@pytest.mark.parametrize("wire", WIRES)
def test_pending_messages_are_listed_moved_and_taken_back(ask: Ask, topic: str, wire: Wire) -> None:
    client = ask(0, wire)
    handles = send(client, topic, *(message(f"m{at:02}", 100 + at, key=f"k{at % 5}") for at in range(23)))
    listed: list[rows.PendingMessage] = []
    token, first = "", True
    while first or token:
        page = client.call("ListPending", topic=topic, page_size=4, page_token=token, with_content=True,
                           body_format=rows.BODY_FORMAT_TEXT)  # fmt: skip
        assert 0 < len(page.messages) <= 4
        listed += page.messages
        token, first = page.next_page_token, False
    assert [one.body_text for one in listed] == [f"m{at:02}" for at in range(23)], "by due time over all shards"
    assert sorted(one.handle for one in listed) == sorted(handles)
    moved, bad = client.call("Reschedule", handles=[handles[0], "nonsense"], delay=seconds(500)).results
    assert moved.outcome == "RESCHEDULED"
    assert moved.handle != handles[0]
    assert (bad.error.reason, bad.outcome) == ("BAD_REQUEST", "")
    outcomes = client.call("Cancel", handles=[handles[0], moved.handle, handles[1], handles[1]]).results
    assert [one.outcome for one in outcomes] == ["REPLACED", "CANCELLED", "CANCELLED", "ALREADY_CANCELLED"]
    assert len(client.call("Cancel", topic=topic, key="k2").results) == 5
    assert not client.call("Cancel", topic=topic, key="k2").results
    left = client.call("ListPending", topic=topic, page_size=1000).messages
    assert len(left) == 23 - 2 - 5


def test_rows_of_one_due_time_are_each_on_one_page(ask: Ask, topic: str) -> None:
    client, at = ask(0), Timestamp()
    at.FromSeconds(int(time.time()) + 1_000)
    for _ in range(3):
        send(client, topic, *(rows.OutgoingMessage(body_text=f"{_}", at=at, key=f"k{key}") for key in range(11)))
    for size in (1, 2, 5, 7):
        found, token = [], ""
        while True:
            page = client.call("ListPending", topic=topic, page_size=size, page_token=token)
            found += [one.handle for one in page.messages]
            token = page.next_page_token
            if not token:
                break
        assert len(found) == len(set(found)) == 33, size


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_gives_what_comes_and_waits_for_what_is_not_settled(ask: Ask, topic: str, wire: Wire) -> None:
    client, settling = ask(0, wire), ask(0, wire)
    send(ask(1), topic, *(message(f"m{at}", key=f"k{at}") for at in range(30)))
    stream = client.stream(topic=topic, group="g", max_in_flight=10, max_messages=5, body_format=1, seconds=15)
    found: list[rows.Delivery] = []
    while len(found) < 10:
        found += next(stream).deliveries
    came: list[Any] = []
    reader = threading.Thread(target=lambda: came.extend(islice(stream, 1)))
    reader.start()
    reader.join(0.6)
    assert not came, "no more than 10 and a batch"
    assert len(found) < 20
    for _ in range(5):
        settling.call("Ack", receipts=[one.receipt for one in found])
        reader.join(10)
        assert came
        found = [one for answer in came for one in answer.deliveries]
        came.clear()
        if _ == 1:
            break
        reader = threading.Thread(target=lambda: came.extend(islice(stream, 1)))
        reader.start()


@pytest.mark.parametrize("size", [2, 100_000])
def test_a_client_that_goes_keeps_nothing(ask: Ask, nodes: list[Node], topic: str, size: int) -> None:
    """A stream that is ended, and calls that are cancelled, hold no message that others wait for. Large answers need
    room, which is counted by the client's address: by then its call is over."""
    stream = ask(0).stream(topic=topic, group="g", seconds=0.3)
    with pytest.raises(CallFailed) as over:
        list(stream)
    assert over.value.code == "deadline_exceeded"
    with grpc.insecure_channel(nodes[0].grpc) as channel:
        asked = rows.ReceiveMessagesRequest(topic=topic, group="g", wait=seconds(30)).SerializeToString()
        streamed = channel.unary_stream(SERVICE + "ReceiveStream")(asked)
        send(ask(1), topic, message("first"))
        (first,) = rows.ReceiveMessagesResponse.FromString(next(streamed)).deliveries
        assert ask(1).call("Ack", receipts=[first.receipt]).results[0].settled
        waiting = [channel.unary_unary(SERVICE + "Receive").future(asked) for _ in range(5)]
        asked = rows.ListGroupsRequest(topic=topic).SerializeToString()
        channel.unary_unary(SERVICE + "ListGroups")(asked, timeout=20)  # the node has those before it
        for call in (*waiting, streamed):
            assert call.cancel()
            assert call.code() is grpc.StatusCode.CANCELLED
    send(ask(1), topic, *(message(f"{at:02}".ljust(size), key=f"k{at}") for at in range(20)))
    began = time.monotonic()
    found = receive(ask(2), topic, 20)
    assert time.monotonic() - began < 8
    assert {one.attempt for one in found} == {1}


@pytest.mark.parametrize("wire", WIRES)
def test_each_message_of_a_send_is_answered_by_itself(ask: Ask, topic: str, wire: Wire) -> None:
    client, asked_ms = ask(0, wire), time.time() * 1_000
    results = client.call("Send", topic=topic, messages=[
        message("good", 1), message("far", 41 * 86_400), message("good", key="k"), message("", message_id="x" * 257),
    ]).results  # fmt: skip
    assert [bool(one.handle) for one in results] == [True, False, True, False]
    assert results[1].error.reason == "DELAY_TOO_LONG"
    assert "40 days" in results[1].error.message
    assert results[3].error.reason == "BAD_REQUEST"
    assert "256" in results[3].error.message
    assert results[0].due.ToMilliseconds() >= int(asked_ms) + 1_000
    assert not results[2].HasField("due")


@pytest.mark.parametrize("wire", WIRES)
def test_the_largest_message_goes_in_and_out_and_a_larger_one_is_refused(ask: Ask, topic: str, wire: Wire) -> None:
    client, most = ask(0, wire), 4 << 20  # of the record, in which a body has a few bytes of its own
    body = random.Random(1).randbytes(most - (1_024 if wire == "grpc" else 64))  # the answer has a receipt too
    (result,) = client.call("Send", topic=topic, messages=[rows.OutgoingMessage(body=body)]).results
    assert result.handle
    (found,) = receive(ask(1, wire), topic, 1, body_format=rows.BODY_FORMAT_BYTES)
    assert found.body == body
    with pytest.raises(CallFailed, match="the limit is 4 MiB") as refused:
        client.call("Send", topic=topic, messages=[rows.OutgoingMessage(body=bytes(most))])
    assert refused.value.reason == "MESSAGE_TOO_LARGE"


def test_answers_are_no_larger_than_clients_of_grpc_take_by_default(ask: Ask, topic: str) -> None:
    """Else what a consumer can't read would lose its attempts, and die."""
    client, large = ask(0), "x" * (1 << 20)
    for _ in range(8):  # a new connection is given little at first
        send(client, topic, message())
        client.call("Ack", receipts=[receive(client, topic, 1)[0].receipt])
    for at in range(12):
        send(client, topic, message(f"{at:02}{large}", key=f"k{at}"))
    found: list[rows.Delivery] = []
    while len(found) < 12:
        found += client.call("Receive", topic=topic, group="g", wait=seconds(5), lease=seconds(600)).deliveries
    assert {one.attempt for one in found} == {1}
    client.call("Nack", receipts=[one.receipt for one in found], dead=True)
    dead = pages(client, "ListDeadLetters", "deliveries", topic=topic, group="g")
    assert sorted(one.receipt for one in dead) == sorted({one.receipt for one in dead})
    assert len(dead) == 12
    for at in range(9):
        send(client, topic, message(f"{at:02}{large}", delay=600, key="k"))
    assert len(pages(client, "ListPending", "messages", topic=topic, with_content=True)) == 9


def pages(client: Asking, method: str, rows_in: str, **fields: Any) -> list[Any]:
    """All rows of a list, page by page."""
    found: list[Any] = []
    token = ""
    while True:
        page = client.call(method, page_token=token, **fields)
        found += getattr(page, rows_in)
        if not (token := page.next_page_token):
            return found


@pytest.mark.parametrize("wire", WIRES)
def test_a_message_id_is_stored_once_whichever_node_it_is_sent_to(ask: Ask, wire: Wire) -> None:
    names = [f"{wire}-{at}" for at in range(10)]
    sent = [message("x", 300, message_id=name) for name in names] + [message("without", 300)]
    first = ask(0, wire).call("Send", topic="unique", messages=sent).results
    again = ask(1, wire).call("Send", topic="unique", messages=sent).results
    assert [one.duplicate for one in first] == [False] * 11
    assert [one.duplicate for one in again] == [True] * 10 + [False]
    assert [one.handle for one in again[:10]] == [one.handle for one in first[:10]]
    assert [one.due for one in again[:10]] == [one.due for one in first[:10]]


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("Send", {"topic": "aside"}, "BATCH_TOO_LARGE", "1 to 1,000"),
    ("Send", {"topic": "aside", "messages": [message()] * 1_001}, "BATCH_TOO_LARGE", "1,001"),
    ("Send", {"topic": "none", "messages": [message()]}, "UNKNOWN_TOPIC", "'none'"),
    ("Send", {"topic": "delayed", "messages": [message()]}, "WRONG_TOPIC_TYPE", "Delay"),
    ("Send", {"topic": "aside", "messages": [rows.OutgoingMessage(body=bytes(5 << 20))]}, "MESSAGE_TOO_LARGE", "4 MiB"),
    ("Receive", {"topic": "aside", "group": ""}, "BAD_GROUP", "1 to 255"),
    ("Receive", {"topic": "aside", "group": "g" * 256}, "BAD_GROUP", "256"),
    ("Receive", {"topic": "aside", "group": "g", "max_messages": 1_001}, "BAD_REQUEST", "1,000"),
    ("Receive", {"topic": "aside", "group": "g", "wait": seconds(61)}, "BAD_REQUEST", "wait: 1 m 1 s"),
    ("Receive", {"topic": "aside", "group": "g", "lease": seconds(0)}, "BAD_REQUEST", "lease"),
    ("Receive", {"topic": "aside", "group": "g", "lease": seconds(43_201)}, "BAD_REQUEST", "12 h"),
    ("Receive", {"topic": "none", "group": "g"}, "UNKNOWN_TOPIC", "'none'"),
    ("Ack", {}, "BATCH_TOO_LARGE", "receipts"),
    ("Ack", {"receipts": [""]}, "BAD_REQUEST", "receipt"),
    ("Ack", {"receipts": ["x" * 10_000]}, "BAD_REQUEST", "10,000 characters"),
    ("Cancel", {}, "BAD_REQUEST", "handles, or a topic and a key"),
    ("Reschedule", {"handles": ["a"]}, "BAD_REQUEST", "at, or delay"),
    ("ListPending", {"topic": "aside", "page_token": "bm8"}, "BAD_REQUEST", "page_token"),
    ("ListPending", {"topic": "aside", "page_size": 1_001}, "BAD_REQUEST", "page_size"),
    ("ListGroups", {"topic": "aside", "group": "unknown"}, "UNKNOWN_GROUP", "unknown"),
]


@pytest.mark.parametrize("wire", WIRES)
def test_bad_requests_are_told_what_is_wrong(ask: Ask, wire: Wire) -> None:
    client = ask(1, wire)
    for method, fields, reason, said in BAD:
        with pytest.raises(CallFailed) as refused:
            client.call(method, **fields)
        assert refused.value.reason == reason, (method, str(refused.value))
        assert said in refused.value.message, (method, refused.value.message)


def test_receipts_and_handles_of_others_grant_nothing(ask: Ask, topic: str) -> None:
    client = ask(0)
    (handle,) = send(client, topic, message("x", 100))
    send(client, topic, message("y"))
    (one,) = receive(client, topic, 1)
    for text in (
        one.receipt[:9] + ("A" if one.receipt[9] != "A" else "B") + one.receipt[10:],
        one.receipt + "AAAA",
        handle,
    ):
        with pytest.raises(CallFailed) as refused:
            client.call("Ack", receipts=[text])
        assert refused.value.reason == "BAD_REQUEST"
    with pytest.raises(CallFailed) as refused:
        client.call("Cancel", handles=[one.receipt])
    assert refused.value.reason == "BAD_REQUEST"
    assert client.call("Ack", receipts=[one.receipt]).results[0].settled


def test_many_consumers_share_a_group(ask: Ask, topic: str) -> None:
    """Each message goes to one of 12 consumers at three nodes, and is acknowledged once."""
    total, ends = 300, time.monotonic() + 20
    found: list[rows.Delivery] = []

    def consume(number: int) -> None:
        client = ask(number % 3, WIRES[number % 2])
        while len(found) < total and time.monotonic() < ends:
            got = client.call("Receive", topic=topic, group="g", max_messages=7, wait=seconds(0.5)).deliveries
            if got:
                assert all(one.settled for one in client.call("Ack", receipts=[it.receipt for it in got]).results)
            found.extend(got)

    with ThreadPoolExecutor(12) as pool:
        consumers = [pool.submit(consume, number) for number in range(12)]
        sender = ask(0)
        for at in range(0, total, 20):
            send(sender, topic, *(message(str(at + it), 0.2, key=str(it)) for it in range(20)))
    for one in consumers:
        one.result()
    assert sorted(int(one.body) for one in found) == list(range(total))
    assert {one.attempt for one in found} == {1}
