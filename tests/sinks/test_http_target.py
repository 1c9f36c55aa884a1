"""One delivery by HTTP: what is sent, as the libraries of others read it, and what each answer means."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from delaysink.events import OutgoingMessage
from delaysink.http_target import HttpTarget
from delaysink.outcome import Attempt, Verdict
from delaysink.secret_file import BadSecret
from delaysink.settings import HttpSettings, read_settings
from standardwebhooks import Webhook, WebhookVerificationError

from tests.sinks.support import receiver as receivers
from tests.sinks.support.receiver import Answer, Receiver, Request, drip, status

NOW_MS = 1_800_000_000_123
SECRETS = ["whsec_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3)]
MESSAGE = OutgoingMessage(
    "AQhvcmRlcnM", NOW_MS, 2, '{"pay": "ä"}'.encode(), key="order 42 ä%\"", tag="late",
    properties={"tenant": "a", "Not-An-Extension": "b", "content-type": "application/json"},
)  # fmt: skip
ALLOW = {"allow": ["127.0.0.0/8"]}


def target_of(url: str, secrets: Path, timeout: str = "5s", **http: Any) -> HttpTarget:
    spec = {"topic": "t", "cluster": {"name": "orders"}, "http": {"url": url, "timeout": timeout, **ALLOW, **http}}
    settings = read_settings("s", spec).target
    assert isinstance(settings, HttpSettings)
    return HttpTarget(settings, secrets, 8)


def deliver(
    answer: Answer, secrets: Path, message: OutgoingMessage = MESSAGE, times: int = 1, **http: Any
) -> tuple[list[Attempt], Receiver]:
    """To a receiver that answers like this; `{url}` in settings is its URL."""

    async def main() -> tuple[list[Attempt], Receiver]:
        async with Receiver(lambda _: answer) as receiver:
            target = target_of(http.pop("url", receiver.url), secrets, **http)
            await target.open()
            try:
                return [await target.deliver(message) for _ in range(times)], receiver
            finally:
                await target.close()

    return asyncio.run(main())


def sent(secrets: Path, message: OutgoingMessage = MESSAGE, **http: Any) -> Request:
    (attempt,), receiver = deliver(status(204), secrets, message, **http)
    assert attempt.verdict is Verdict.DELIVERED, attempt
    (request,) = receiver.requests
    return request


def event_of(request: Request) -> CloudEvent:
    """As the CloudEvents SDK reads it."""
    found = from_http_event(HTTPMessage(dict(request.headers), request.body))
    assert isinstance(found, CloudEvent)
    return found


@pytest.mark.parametrize("mode", ["Binary", "Structured"])
def test_the_cloudevents_sdk_reads_what_was_sent(tmp_path: Path, mode: str) -> None:
    event = event_of(sent(tmp_path, mode=mode))
    assert (event.get_id(), event.get_source(), event.get_type()) == (
        MESSAGE.id, "urn:delaycluster:orders:t", "io.delaycluster.message",
    )  # fmt: skip
    assert event.get_subject() == MESSAGE.key
    assert event.get_time() is not None
    assert int(event.get_time().timestamp() * 1000) == NOW_MS
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == {"pay": "ä"}
    assert event.get_extension("tenant") == "a"
    assert event.get_extension("delaytag") == "late"
    assert str(event.get_extension("delayattempt")) == "2"


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("mode", ["Binary", "Structured", "Plain"])
def test_receiver_gets_the_trace_context_that_its_sender_left(tmp_path: Path, mode: str) -> None:
    message = OutgoingMessage("id", NOW_MS, 1, b"{}", properties={"traceparent": PARENT, "tracestate": "a=b,c=d"})
    request = sent(tmp_path, message, mode=mode)
    assert (request.headers["traceparent"], request.headers["tracestate"]) == (PARENT, "a=b,c=d")
    if mode != "Plain":
        assert event_of(request).get_extension("traceparent") == PARENT


@pytest.mark.parametrize("wrong", ["", "00-1", PARENT.upper(), f"{PARENT}\r\nX-Evil: 1", f" {PARENT}", "ä" * 55])
def test_malformed_trace_context_is_left_out_and_the_message_delivered(tmp_path: Path, wrong: str) -> None:
    for properties in ({"traceparent": wrong, "tracestate": "a=b"}, {"traceparent": PARENT, "tracestate": "a\nb"}):
        headers = sent(tmp_path, OutgoingMessage("id", NOW_MS, 1, properties=properties), mode="Plain").headers
        assert "tracestate" not in headers
        assert headers.get("traceparent", PARENT) == PARENT
        assert "X-Evil" not in headers


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"), (b"\xff\xfe\x00", "application/json"), (b"[" * 100_000, "application/json"),
        (b"NaN", "application/json"), (b"\xff", "text/plain"), ("grün\n".encode(), "text/plain"),
        (bytes(range(256)), "application/octet-stream"), (b'"text"', "application/vnd.x+json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["Binary", "Structured", "Plain"])
def test_any_body_arrives(tmp_path: Path, body: bytes, kind: str, mode: str) -> None:
    message = OutgoingMessage("id", NOW_MS, 1, body, properties={"content-type": kind})
    request = sent(tmp_path, message, mode=mode)
    if mode != "Structured":
        assert (request.body, request.headers["content-type"]) == (body, kind)
        return
    event = JSONFormat().read(CloudEvent, request.body)
    data = event.get_data()
    assert event.get_datacontenttype() == kind
    assert data == (body if isinstance(data, bytes) else data if isinstance(data, dict | list) else body.decode()) or (
        kind.endswith("+json") and data == "text"
    )


def test_signatures_are_verified_by_each_of_two_secrets_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/key").write_text(f"{SECRETS[0]}\n{SECRETS[1]}\n")
    request = sent(tmp_path, signing={"secret": {"name": "hook", "key": "key"}}, mode="Structured")
    headers = {name.lower(): value for name, value in request.headers.items()}
    for secret in SECRETS[:2]:
        assert Webhook(secret).verify(request.body, headers)
    for body, secret in ((request.body, SECRETS[2]), (request.body + b" ", SECRETS[0])):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, headers)
    assert request.headers["webhook-id"] == MESSAGE.id
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is missing"), ("", "is empty"), ("hello", "does not begin with whsec_"), ("whsec_%%%", "not base64"),
        ("whsec_AAAA", "has 3 bytes; it must have 24 to 64"), (" ".join(SECRETS), "has 3 secrets"),
    ],
)  # fmt: skip
def test_a_secret_that_is_missing_or_malformed_is_said_and_never_shown(
    tmp_path: Path, content: str | None, says: str
) -> None:
    (tmp_path / "hook").mkdir()
    if content is not None:
        (tmp_path / "hook/key").write_text(content)
    target = target_of("http://127.0.0.1:9/", tmp_path, signing={"secret": {"name": "hook", "key": "key"}})
    with pytest.raises(BadSecret, match=says) as caught:
        asyncio.run(target.open())
    assert "hook/key" in str(caught.value)
    assert not content or content not in str(caught.value)


def test_a_malformed_secret_replaces_none_that_was_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaysink.secret_file.LOOK_S", 0.0)
    path = tmp_path / "hook" / "key"
    path.parent.mkdir()
    path.write_text(SECRETS[0])

    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver:
            target = target_of(receiver.url, tmp_path, signing={"secret": {"name": "hook", "key": "key"}})
            await target.open()
            for content, valid in ((None, 0), ("rubbish!", 0), (f"{SECRETS[1]} {SECRETS[0]}", 0), (SECRETS[1], 1)):
                if content is not None:
                    path.write_text(content)
                assert (await target.deliver(MESSAGE)).verdict is Verdict.DELIVERED
                request = receiver.requests[-1]
                headers = {name.lower(): value for name, value in request.headers.items()}
                Webhook(SECRETS[valid]).verify(request.body, headers)
                assert bool(target.problem) == (content == "rubbish!")
            await target.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (200, Verdict.DELIVERED), (201, Verdict.DELIVERED), (204, Verdict.DELIVERED), (299, Verdict.DELIVERED),
        (301, Verdict.REJECTED), (302, Verdict.REJECTED), (307, Verdict.REJECTED), (308, Verdict.REJECTED),
        (400, Verdict.REJECTED), (401, Verdict.REJECTED), (404, Verdict.REJECTED), (415, Verdict.REJECTED),
        (408, Verdict.OVERLOADED), (429, Verdict.OVERLOADED), (503, Verdict.OVERLOADED), (504, Verdict.OVERLOADED),
        (500, Verdict.FAILED), (501, Verdict.FAILED), (599, Verdict.FAILED), (999, Verdict.FAILED),
        (410, Verdict.GONE),
    ],
)  # fmt: skip
def test_a_status_is_judged(tmp_path: Path, code: int, verdict: Verdict) -> None:
    body = b"" if code == 204 else b"because \xff"
    (attempt,), receiver = deliver(status(code, body, Location="http://127.0.0.1:1/"), tmp_path)
    assert (attempt.verdict, attempt.status) == (verdict, code)
    assert attempt.answer == body
    assert len(receiver.requests) == 1, "redirects are not followed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7_000), ("0", 0), ("999999999999", 3_600_000), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600_000), ("-5", None), ("soon", None), ("٣", None), ("1" * 500, None),
    ],
)  # fmt: skip
def test_retry_after_is_read_and_bounded(tmp_path: Path, text: str, expected: int | None) -> None:
    answer = status(503, Retry_After=text.encode().decode("latin-1"))
    (attempt,), _ = deliver(answer, tmp_path)
    assert attempt.retry_after_ms == expected


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_chain_of_redirects_is_not_followed(tmp_path: Path, code: int) -> None:
    """Ten thousand, each to the next one; or to another host, to itself, to an address inside, to what is no URL."""

    def next_one(request: Request) -> Answer:
        number = int(request.path.rpartition("/")[2])
        return status(200) if number >= 10_000 else status(code, Location=f"/{number + 1}")

    async def main() -> None:
        async with Receiver(next_one) as receiver, Receiver(lambda _: status(200)) as other:
            target = target_of(f"http://127.0.0.1:{receiver.port}/0", tmp_path)
            await target.open()
            for _ in range(3):
                assert (await target.deliver(MESSAGE)).verdict is Verdict.REJECTED
            for where in (other.url, "/0", "http://169.254.169.254/", "file:///etc/passwd", "http://[", "\xff", ""):
                receiver.choose = lambda _, to=where: status(code, Location=to)
                assert (await target.deliver(MESSAGE)).verdict is Verdict.REJECTED
            await target.close()
            assert [it.path for it in receiver.requests] == ["/0"] * 10
            assert (other.connections, receiver.connections) == (0, 1)

    asyncio.run(main())


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        (receivers.hang, {Verdict.OVERLOADED}),
        (receivers.cut, {Verdict.FAILED}),
        (receivers.garbage, {Verdict.FAILED}),
        (receivers.half, {Verdict.FAILED}),
        (drip(b"", b"H", 0.1), {Verdict.OVERLOADED, Verdict.FAILED}),
        (drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.05), {Verdict.OVERLOADED, Verdict.FAILED}),
        (drip(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 7_000 + b"\r\n", 0), {Verdict.OVERLOADED, Verdict.FAILED}),
        (drip(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 10_000, 0), {Verdict.FAILED}),
        (
            drip(b"HTTP/1.1 500 \xff\xfe\r\nX: \xff\xc0\x80\r\n\r\n", b"\xff\xfe", 0),
            {Verdict.FAILED},
        ),  # no UTF-8 at all
        (drip(b"HTTP/1.1 200 OK\r\n\r\n", b"x", 1), {Verdict.DELIVERED}),  # a byte a second, until it closes
        (drip(b"", b"H", 1), {Verdict.OVERLOADED, Verdict.FAILED}),
        (drip(b"", b"HTTP/1.1 103 Early\r\n\r\n", 0.001), {Verdict.OVERLOADED, Verdict.FAILED}),
        (drip(ENDLESS, b"x" * 100_000, 0), {Verdict.DELIVERED}),  # 1 GB: by its status alone
        (drip(ENDLESS, b"x", 0.2), {Verdict.DELIVERED}),
        (drip(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.2), {Verdict.FAILED}),
        (drip(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"zzz\r\n", 0.2), {Verdict.FAILED}),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"\x1f\x8b" * 50, 0), {Verdict.DELIVERED}),
    ],
)
def test_a_receiver_that_lies_holds_nothing_up(tmp_path: Path, answer: Answer, verdicts: set[Verdict]) -> None:
    began_s = time.monotonic()
    attempts, receiver = deliver(answer, tmp_path, times=2, timeout="1500ms")
    assert {it.verdict for it in attempts} <= verdicts, attempts
    assert all(len(it.answer) <= 512 for it in attempts)
    assert receiver.connections == 2, "a connection that was not left in order is not used again"
    assert time.monotonic() - began_s < 30


def test_a_connection_is_used_again_after_a_body_that_ended(tmp_path: Path) -> None:
    _, receiver = deliver(status(200, b"x" * 1_000), tmp_path, times=5)
    assert receiver.connections == 1


def test_a_message_says_its_own_url_method_and_headers_where_it_may(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/bearer").write_text("Bearer secret\n")

    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver, Receiver(lambda _: status(410)) as other:
            properties = {
                "webhook-url": f"http://127.0.0.1:{other.port}/x?y=z", "webhook-method": "PUT",
                "webhook-header-X-Order": "42",
            }  # fmt: skip
            message = OutgoingMessage("id", NOW_MS, 1, b"", properties=properties)
            authorization = {"secret": {"name": "hook", "key": "bearer"}}
            for allowed in ([], ["Url", "Method", "Headers"]):
                target = target_of(receiver.url, tmp_path, fromMessage=allowed, authorization=authorization)
                await target.open()
                attempt = await target.deliver(message)
                await target.close()
            (first,), (second,) = receiver.requests, other.requests
            assert (first.method, first.path, first.headers.get("X-Order")) == ("POST", "/hook", None)
            assert first.headers["Authorization"] == "Bearer secret"
            assert (second.method, second.path, second.headers["X-Order"]) == ("PUT", "/x?y=z", "42")
            assert "Authorization" not in second.headers, "the sink's secret is for its own URL alone"
            # 410 of one message's receiver does not end the sink.
            assert (attempt.verdict, attempt.status) == (Verdict.IMPOSSIBLE, 410)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"webhook-url": "http://10.0.0.1/"}, "private"),
        ({"webhook-url": "http://169.254.169.254/latest"}, "metadata"),
        ({"webhook-url": "http://127.0.0.1:1/\r\nX: y"}, "which no URL has"),
        ({"webhook-url": "https://user:pw@example.com/"}, "a user name or a password"),
        ({"webhook-url": "http://[fe80::1%25eth0]/"}, "zone"),
        ({"webhook-url": "http://[::1]/"}, "loopback"),
        ({"webhook-url": "https://exa\tmple.com/"}, "which no URL has"),
        ({"webhook-url": "https://exämple.com/"}, "punycode"),
        ({"webhook-url": "http://xn--a.example/"}, "is not a URL"),
        ({"webhook-method": "CONNECT"}, "is none of POST"),
        ({"webhook-method": "GET / HTTP/1.1\r\n"}, "is none of POST"),
        ({"webhook-header-Host": "evil"}, "the sink's own"),
        ({"webhook-header-Content-Length": "5"}, "the sink's own"),
        ({"webhook-header-webhook-signature": "v1,x"}, "the sink's own"),
        ({"webhook-header-X": "a\r\nHost: evil"}, "a character that no header may have"),
        ({"webhook-header-": "a"}, "no header's name"),
        ({"webhook-header-X": "a" * 5_000}, "limit is 4,096"),
        ({f"webhook-header-X{number}": "" for number in range(33)}, "limit is 32"),
        ({"content-type": "text/html\r\nX: y"}, "not a media type"),
    ],
)
def test_a_message_that_can_not_be_sent_is_not_tried(tmp_path: Path, properties: dict[str, str], says: str) -> None:
    message = OutgoingMessage("id", NOW_MS, 1, b"", properties=properties)
    (attempt,), receiver = deliver(status(200), tmp_path, message, fromMessage=["Url", "Method", "Headers"])
    assert attempt.verdict is Verdict.IMPOSSIBLE
    assert says in attempt.says
    assert receiver.connections == 0


def test_nothing_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver, Receiver(lambda _: status(200)) as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            netrc = tmp_path / "netrc"
            netrc.write_text("machine 127.0.0.1 login me password secret\n")
            monkeypatch.setenv("NETRC", str(netrc))
            target = target_of(receiver.url, tmp_path)
            await target.open()
            assert (await target.deliver(MESSAGE)).verdict is Verdict.DELIVERED
            await target.close()
            assert (proxy.connections, receiver.requests[0].headers.get("Authorization")) == (0, None)

    asyncio.run(main())


def test_tls_is_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    (tmp_path / "tls").mkdir()
    authority.cert_pem.write_to_path(tmp_path / "tls/ca.crt")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/", _ok)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        trusts = {"ca": {"secret": {"name": "tls", "key": "ca.crt"}}}
        for more, verdict in (({}, Verdict.FAILED), (trusts, Verdict.DELIVERED)):
            target = target_of(url, tmp_path, **more)
            await target.open()
            attempt = await target.deliver(MESSAGE)
            assert attempt.verdict is verdict, attempt
            await target.close()
        await runner.cleanup()

    asyncio.run(main())


async def _ok(_: web.Request) -> web.Response:
    return web.Response()
