"""Every call, by callers of every kind, at a running node through both edges: who may, and how others are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from delayapi.errors import error_info
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayclient.errors import NotAllowed, from_rpc
from delayctl.main import main as delayctl
from delaynode.server.doors.rows import MESSAGE_SERVICE
from delaynode.server.operations import STREAMED
from delayregistry.security import AuthorizationMode, SecuritySpec

from tests.auth import test_message_rights as message_rights
from tests.auth.test_operations import MAY, request_of
from tests.serve.support.asking import DENIED, DOCUMENT, TOPIC, UNKNOWN, Asking, among, callers, secret
from tests.serve.support.client import Msg, Shard, poll
from tests.serve.support.secured import NAME, Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("rights")
    with Secured(directory, "permissive", nodes=1, document=DOCUMENT).run() as running:
        yield running


@pytest.fixture(scope="module")
def who(secured: Secured) -> Iterator[dict[str, Asking]]:
    with callers(secured) as found:
        yield found


def test_every_call_is_made_by_those_who_may_and_by_no_other(who: dict[str, Asking]) -> None:
    for method, expected in MAY.items():
        found = {name for name, caller in who.items() if caller.may(method)}
        assert found == {name for name in who if among(name, expected)}, method


def test_every_call_of_message_service_likewise(who: dict[str, Asking]) -> None:
    def may(caller: Asking, method: str, seconds: float) -> bool:
        """seconds: a stream that nothing has ended by then is let."""
        request = message_rights.request_of(method, TOPIC)
        if method == "Send":
            request.messages[0].delay.FromSeconds(3_600)  # other tests' consumers wait for none
        data = request.SerializeToString()
        code = None
        try:
            if method == "ReceiveStream":
                caller.stream(method, data, service=MESSAGE_SERVICE, seconds=seconds)
            else:
                caller.unary(method, data, service=MESSAGE_SERVICE)
        except grpc.RpcError as error:
            code = error.code()
        assert code is not UNKNOWN, method
        return code is not DENIED

    for method, expected in message_rights.MAY.items():
        let = {name for name in who if among(name, expected)}
        found = {name for name, caller in who.items() if may(caller, method, 0.3 if name in let else 20.0)}
        assert found == let, method


def test_a_call_stream_asks_for_each_of_its_calls(who: dict[str, Asking]) -> None:
    for name in ("consume", "cancel", "none", "super", "mail"):
        calls = [pb.Call(id=number, method=method, request=request_of(method, TOPIC).SerializeToString(), wait_ms=9_000)
                 for number, method in enumerate(STREAMED)]  # fmt: skip
        bodies = who[name].stream("CallStream", pb.Calls(call=calls).SerializeToString())
        answers = [one for body in bodies for one in pb.Answers.FromString(body).answer]
        assert len(answers) == len(STREAMED)
        let = {STREAMED[one.id] for one in answers if one.error.reason != "PERMISSION_DENIED"}
        assert let == {method for method in STREAMED if among(name, MAY[method])}, name


def test_a_refusal_says_who_what_and_why(who: dict[str, Asking]) -> None:
    ended = who["consume"].ask("Enqueue")
    assert ended is not None
    assert ended.code() is DENIED
    assert dict(error_info(ended).metadata) == {
        "principal": "token:consume", "operation": "Produce", "resource": "topic 't'", "why": "NoRule",
    }  # fmt: skip
    error = from_rpc(ended)
    assert type(error) is NotAllowed
    sentence = "'token:consume' may not Produce on topic 't': none of its rules allows that"
    assert str(error) == f"{sentence} (PERMISSION_DENIED)"
    assert not error.retryable


def test_answers_about_all_topics_leave_out_what_the_caller_may_not_see(who: dict[str, Asking]) -> None:
    for name, caller in who.items():
        told = {one.topic for one in pb.QueryRouteResponse.FromString(caller.unary("QueryRoute")).topics}
        assert told == ({TOPIC} if among(name, MAY["QueryRoute"]) else set()), name


def test_nobody_but_a_node_says_whose_call_it_is(who: dict[str, Asking]) -> None:
    forged = (("x-delay-forwarded", "1"), ("x-delay-principal", "token:super"))
    data = request_of("Enqueue", TOPIC).SerializeToString()
    ends = {
        "none": DENIED,
        "stranger": DENIED,
        "anonymous": DENIED,
        "mail": DENIED,
        "operator": UNKNOWN,
        "rebalance": UNKNOWN,
    }
    for name, code in ends.items():
        with pytest.raises(grpc.RpcError) as refused:
            who[name].unary("Enqueue", data, forged)
        assert refused.value.code() is code, name


def test_a_right_is_given_and_taken_while_connections_last(secured: Secured, who: dict[str, Asking]) -> None:
    registry = secured.running.registry
    assert not who["none"].may("Enqueue")
    version = registry.put_security(SecuritySpec(AuthorizationMode.OFF), registry.read_security().version)
    try:
        poll("all may", lambda: who["none"].may("Enqueue"))
    finally:
        registry.put_security(DOCUMENT, version)
    poll("it may not", lambda: not who["none"].may("Enqueue"))


def test_a_static_token_that_is_withdrawn_counts_no_more(secured: Secured, who: dict[str, Asking]) -> None:
    registry = secured.running.registry
    assert who["produce"].may("Enqueue")
    left = replace(DOCUMENT, tokens=tuple(one for one in DOCUMENT.tokens if one.name != "produce"))
    version = registry.put_security(left, registry.read_security().version)
    try:
        poll("it is refused", lambda: who["produce"].code("Enqueue") is UNKNOWN)
    finally:
        registry.put_security(DOCUMENT, version)
    poll("it is taken again", lambda: who["produce"].code("Enqueue") is not UNKNOWN)


@pytest.mark.parametrize(("method", "queue"), [("Receive", 0), ("Fetch", 1)])
def test_what_waits_for_messages_gets_none_once_the_right_is_taken(
    secured: Secured, who: dict[str, Asking], method: str, queue: int
) -> None:
    """And what it would have had is the next one's, as the first attempt."""
    registry = secured.running.registry
    asked, received = request_of(method, TOPIC), request_of("Receive", TOPIC)
    asked.queue = received.queue = queue
    who["consume"].unary("Receive", received.SerializeToString())  # there is a group from now on
    asked.wait_ms = received.wait_ms = 18_000
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(who["consume"].ask, method, asked)
        time.sleep(1.0)
        assert not waiting.done()
        left = replace(DOCUMENT, users=tuple(one for one in DOCUMENT.users if one.principal != "token:consume"))
        version = registry.put_security(left, registry.read_security().version)
        try:
            poll("the right is taken", lambda: not who["consume"].may("Ack"))
            with secured.dial("tokens") as client:
                data = Shard(client, TOPIC, queue).request(Msg(b"secret", delay_ms=0)).SerializeToString()
            who["produce"].unary("Enqueue", data)
            ended = waiting.result(60)
        finally:
            registry.put_security(DOCUMENT, version)
    assert ended is not None, "it has the message"
    assert ended.code() is DENIED
    poll("the right is back", lambda: who["consume"].may("Ack"))
    found = pb.MessageBatch.FromString(who["consume"].unary("Receive", received.SerializeToString()))
    assert (found.count, found.attempt) == (1, b"")


def test_a_caller_asks_what_it_may_do(secured: Secured, tmp_path: Path) -> None:
    """As `delayctl auth can-i`, by the SDK."""
    (tmp_path / "ca.crt").write_bytes(secured.ca.pem)
    (tmp_path / "token").write_text(secret("produce"))
    place = ["--endpoint", secured.endpoint("tokens"), "--ca", str(tmp_path / "ca.crt"), "--server-name", NAME]
    for asked, code, says in (
        (["produce", TOPIC], 0, f"yes - token:produce: a rule of 'token:produce' allows Produce on topic '{TOPIC}'"),
        (["Consume", TOPIC, "--group", "mail"], 1, "no - token:produce: none of its rules allows that"),
        (["admin"], 1, "no - token:produce: "),
        (["produce", TOPIC, "--as", "token:super"], 1, "may not Admin on the cluster"),
        (["consume", TOPIC], 1, "Consume is of a group"),
        (["fly", TOPIC], 2, "'fly' is not one of"),
    ):
        result = CliRunner().invoke(
            delayctl, ["auth", "can-i", *asked, *place, "--token-file", str(tmp_path / "token")]
        )
        assert (result.exit_code, says in result.output) == (code, True), result.output


def test_reflection_is_off_where_callers_are_asked(who: dict[str, Asking]) -> None:
    for name in ("super", "operator", "mail"):
        with pytest.raises(grpc.RpcError) as refused:
            who[name].stream("ServerReflectionInfo", b"\x3a\x00", service="grpc.reflection.v1alpha.ServerReflection")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, name


def test_refusals_are_in_the_audit_log(secured: Secured, who: dict[str, Asking]) -> None:
    who["browse"].ask("Cancel")
    found = secured.events("audit-refused")
    assert all(line["log"] == "audit" for line in found)
    assert ("token:browse", "Cancel", "topic 't'", "NoRule") in [
        (line["principal"], line["operation"], line["resource"], line["why"]) for line in found
    ]
