"""MessageService over HTTP, by the Connect protocol: POST /delay.v1.MessageService/METHOD with JSON or proto.

The protocol is at https://connectrpc.com/docs/protocol. Served are unary calls, and ReceiveStream as a stream of
envelopes. JSON is proto3's, and more strict: an unknown or repeated field is an error, so that a misspelt `delay` is
none that was not there. `bodyJson` stands for `bodyText` with what it holds.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import struct
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from importlib import resources
from typing import Any, Final

import grpc
from aiohttp import ClientConnectionResetError, web
from cryptography import x509
from delayapi.certificates import names_of
from delayapi.errors import CODES
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.units import format_bytes
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from delaynode.auth.identity import ANONYMOUS, Identity
from delaynode.limits.budget import Hold
from delaynode.node.node import Node
from delaynode.server.callers import Caller, Callers, Said, ends_ms
from delaynode.server.doors.core import as_refused
from delaynode.server.doors.json_names import check_names
from delaynode.server.doors.rows import MESSAGE_SERVICE
from delaynode.server.edge import Body, Methods, Serve, ServeStream, bodies_of
from delaynode.server.forward import ForwardedError
from delaynode.server.listeners import Listener
from delaynode.server.rpc import DOMAIN
from delaynode.store.errors import Refused

PATH: Final = f"/{MESSAGE_SERVICE}/"
MAX_REQUEST_BYTES = 12 << 20  # as gRPC's
MAX_CALLS = 2_000  # at once
BODY_SECONDS = 30.0  # for a request to come
FIRST_BYTES = 64 << 10  # of a body that does not say its length, before its room is asked for
MAX_JSON_VALUES = 100_000
MAX_JSON_FIELDS = 30_000  # of them, beside those of bodyJson: they take the longest
MAX_TIMEOUT_DIGITS = 10
ENVELOPE = struct.Struct(">BI")
END_STREAM = 2
CODE = "connect-code"  # in a response: how the call has ended, unless it is well
HTTP_STATUS: Final = {
    "canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404,
    "already_exists": 409, "permission_denied": 403, "resource_exhausted": 429, "failed_precondition": 400,
    "aborted": 409, "out_of_range": 400, "unimplemented": 501, "internal": 500, "unavailable": 503, "data_loss": 500,
    "unauthenticated": 401,
}  # fmt: skip
KINDS: Final[dict[str, tuple[type[Message], type[Message]]]] = {
    method.name: (getattr(rows, method.input_type.name), getattr(rows, method.output_type.name))
    for method in rows.DESCRIPTOR.services_by_name["MessageService"].methods
}


class HttpCall:
    """One call. Owned by the event loop."""

    def __init__(self, request: web.Request, listener: str, identity: Identity, first: Body) -> None:
        self._peer = peer_of(request.get_extra_info("peername"))
        self._listener, self._identity, self._first = listener, identity, first
        timeout = _timeout_seconds(request)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._done: list[Callable[[], None]] = []
        self._given = False

    def peer(self) -> str:
        return self._peer

    def listener(self) -> str:
        return self._listener

    def forwarded(self) -> bool:
        return False

    def identity(self) -> Identity:
        return self._identity

    def metadata(self, name: str) -> str | None:
        return None

    def time_remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def on_done(self, done: Callable[[], None]) -> None:
        self._done.append(done)

    def on_next(self, told: Callable[[Body], None]) -> None:
        """Never: a call over HTTP has one request."""

    def over(self) -> None:
        for done in self._done:
            done()

    async def read(self) -> Body | None:
        if self._given:
            return None
        self._given = True
        return self._first


class HttpDoor:
    """What serves HTTP for one port. listener: of a port by TLS; None: a port for everybody."""

    def __init__(self, node: Node, listener: Listener | None = None, callers: Callers | None = None) -> None:
        self._node, self._listener, self._callers = node, listener, callers
        self._unary: Mapping[str, Serve] = {}
        self._streams: Mapping[str, ServeStream] = {}
        self._open, self._calls = False, 0

    def open(self, methods: Methods) -> None:
        """Serve from now on."""
        self._unary, self._streams, self._open = {**methods.unary, **methods.batches}, methods.streams, True

    def routes(self) -> list[web.RouteDef]:
        return [web.post(PATH + "{method}", self._handle), web.get("/openapi.json", _openapi)]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a call, and count it by how it ends."""
        metrics, began = self._node.metrics, time.monotonic()
        method = request.match_info["method"]
        kind = method if method in KINDS else "other"  # as many as anybody likes to ask for
        code = "canceled"  # the client is gone
        self._calls += 1
        metrics.http_calls += 1
        try:
            response = await self._answered(request, method)
            code = response.get(CODE, "ok")
            return response
        finally:
            self._calls -= 1
            metrics.http_calls -= 1
            metrics.http_requests[kind, code] += 1
            if kind in self._unary:
                metrics.http_latency[kind].add_one((time.monotonic() - began) * 1_000)

    async def _answered(self, request: web.Request, method: str) -> web.StreamResponse:
        try:
            return await self._serve(request, method)
        except Refused as error:
            return _refusal(error)
        except ForwardedError as error:
            return _refusal(as_refused(error))
        except _TimeOver:
            return _error("deadline_exceeded", "connect-timeout-ms is over", 504)
        except ClientConnectionResetError:
            raise  # the client has gone while it was answered: aiohttp knows
        except Exception as error:
            context = {"message": "a call over HTTP has failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return _refusal(Refused("INTERNAL", f"{type(error).__name__}: {error}"))

    async def _serve(self, request: web.Request, method: str) -> web.StreamResponse:
        if not self._open:
            raise Refused("NOT_SERVING", "the node is starting")
        if self._calls > MAX_CALLS:
            raise Refused("BUSY", f"{MAX_CALLS:,} calls over HTTP are under way, the limit", retry_after_ms=100)
        if method not in KINDS:
            return _error("unimplemented", f"MessageService has no method {method[:100]!r}: {', '.join(KINDS)}", 404)
        if "origin" in request.headers and not self._identifies():
            # A page whose name was pointed at this address afterwards (DNS rebinding): its browser lets it ask.
            text = "origin: pages in browsers are not served by a port that does not ask who calls"
            return _error("permission_denied", text, 403)
        streams = method in self._streams
        kind = request.content_type
        accepted = ("application/connect+json", "application/connect+proto") if streams else (
            "application/json", "application/proto")  # fmt: skip
        if kind not in accepted:
            text = f"content-type: {kind[:100]!r}; {method} takes {' or '.join(accepted)}"
            return _error("invalid_argument", text, 415, {"Accept-Post": ", ".join(accepted)})
        if (version := request.headers.get("connect-protocol-version", "1")) != "1":
            raise Refused("BAD_REQUEST", f"connect-protocol-version: {version[:20]!r}; this server speaks 1")
        encoding = request.headers.get("connect-content-encoding" if streams else "content-encoding", "identity")
        if encoding not in (("identity",) if streams else ("identity", "gzip")):  # which aiohttp has unpacked
            return _error("unimplemented", f"content-encoding: {encoding[:40]!r}; this server takes identity", 501)
        caller = await self._caller(request)
        holds: list[Hold] = []
        try:
            body = await self._body(request, holds)
            if streams:
                return await self._serve_stream(request, method, kind.endswith("json"), body, caller)
            return await self._serve_unary(request, method, kind.endswith("json"), body, caller.identity)
        finally:
            self._node.flow.release(holds)

    # ------------------------------------------------------------ who, and what
    async def _caller(self, request: web.Request) -> Caller:
        """Raises Refused."""
        if not self._identifies():
            return Caller(ANONYMOUS)
        assert self._callers is not None
        assert self._listener is not None
        secured: ssl.SSLObject | None = request.get_extra_info("ssl_object")
        shown = None if secured is None else secured.getpeercert(binary_form=True)
        names = () if shown is None else names_of(x509.load_der_x509_certificate(shown))
        ends = None if shown is None else ends_ms(shown)
        said = Said(names, request.headers.get("authorization"), None, ends)
        peer = peer_of(request.get_extra_info("peername"))
        caller = await self._callers.find_kept(self._listener.name, peer, said)
        await self._callers.admit(caller, self._listener.name, peer)
        return caller

    def _identifies(self) -> bool:
        return self._callers is not None and self._listener is not None and self._listener.identifies

    def left(self, peername: Any) -> None:
        """That connection has ended."""
        if self._listener is not None and self._callers is not None:
            self._callers.left(self._listener.name, peer_of(peername))

    async def _body(self, request: web.Request, holds: list[Hold]) -> Body:
        """The request's body, which counts in the budget for what comes in. Raises Refused."""
        flow, peer = self._node.flow, f"ipv4:{request.remote}:0"
        size = request.content_length
        if size is not None and size > MAX_REQUEST_BYTES:
            raise _too_large(size)
        if size:
            holds.append(await flow.coming_in.acquire_soon(peer, size))
        parts, received, room = [], 0, size if size is not None else FIRST_BYTES
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.content.iter_any():
                    received += len(part)
                    if received > MAX_REQUEST_BYTES:
                        raise _too_large(received)
                    while received > room:
                        holds.append(await flow.coming_in.acquire_soon(peer, room))
                        room *= 2
                    parts.append(part)
        except TimeoutError:
            raise Refused(
                "BUSY", f"{received:,} bytes of the request were here after {BODY_SECONDS:.0f} s", retry_after_ms=1_000
            ) from None
        except web.RequestPayloadError as error:
            raise Refused("BAD_REQUEST", f"the body can't be read: {error}") from error
        return b"".join(parts)

    # ------------------------------------------------------------ calls
    async def _serve_unary(
        self, request: web.Request, method: str, in_json: bool, body: Body, identity: Identity
    ) -> web.StreamResponse:
        asked, answered = KINDS[method]
        data = from_json(asked, body).SerializeToString() if in_json else body
        as_json_values = in_json and _wants_json(asked, data)
        call = HttpCall(request, self._name(), identity, data)
        answers = self._node.flow.answers(call)
        try:
            answer = await _within(call, self._unary[method](data, call, answers))
            if in_json:
                answer = to_json(answered.FromString(answer), as_json_values)
            kind = "application/json" if in_json else "application/proto"
            response = web.Response(body=answer, content_type=kind)
            await response.prepare(request)
            await response.write_eof()
            answers.sent()
            return response
        finally:
            answers.dropped()
            call.over()

    async def _serve_stream(
        self, request: web.Request, method: str, in_json: bool, body: Body, caller: Caller
    ) -> web.StreamResponse:
        asked, answered = KINDS[method]
        flags, size = ENVELOPE.unpack_from(body) if len(body) >= ENVELOPE.size else (0, -1)
        if flags or size != len(body) - ENVELOPE.size:
            raise Refused("BAD_REQUEST", f"{method} takes one envelope: a byte 0, its length in 4 bytes, the message")
        data = body[ENVELOPE.size :]
        data = from_json(asked, data).SerializeToString() if in_json else data
        as_json_values = in_json and _wants_json(asked, data)
        call = HttpCall(request, self._name(), caller.identity, data)
        response = web.StreamResponse(headers={"Content-Type": request.content_type})
        await response.prepare(request)
        end: dict[str, dict[str, object]] = {}
        try:
            ends = min((one for one in (call.time_remaining(), caller.seconds_left()) if one is not None), default=None)
            async with asyncio.timeout(ends), aclosing(self._streams[method](call)) as bodies:
                async for yielded in bodies:
                    for answer in bodies_of(yielded):
                        if in_json:
                            answer = to_json(answered.FromString(answer), as_json_values)
                        await response.write(ENVELOPE.pack(0, len(answer)) + answer)
        except TimeoutError:
            end = {"error": {"code": "deadline_exceeded", "message": "connect-timeout-ms is over"}}
            if call.time_remaining() != 0:
                expired = Refused("UNAUTHENTICATED", "what the caller was known by has expired")
                end = {"error": _described(expired)}
        except Refused as error:
            end = {"error": _described(error)}
        except ForwardedError as error:
            end = {"error": _described(as_refused(error))}
        finally:
            call.over()
        if "error" in end:
            response[CODE] = end["error"]["code"]
        last = json.dumps(end).encode()
        await response.write(ENVELOPE.pack(END_STREAM, len(last)) + last)
        await response.write_eof()
        return response

    def _name(self) -> str:
        return "plain" if self._listener is None else self._listener.name


def peer_of(peername: Any) -> str:
    """A connection as gRPC names it. peername: as sockets have it."""
    host, port = (peername or ("", 0))[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


async def _within(call: HttpCall, serving: Any) -> Body:
    """The answer, unless the client's time is over before. Raises Refused."""
    try:
        async with asyncio.timeout(call.time_remaining()):
            answer: Body = await serving
            return answer
    except TimeoutError:
        raise _TimeOver from None


class _TimeOver(Exception):
    """connect-timeout-ms is over."""


# ---------------------------------------------------------------- JSON
def from_json(kind: type[Message], text: bytes) -> Message:
    """A message of JSON. Raises Refused BAD_REQUEST, which says where it is wrong."""
    try:
        _check_count(text)
        decoded = text.decode()  # json would take UTF-16 as well, and half of a surrogate pair
        given = json.loads(decoded, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
        if "\\u" in decoded:  # half of one, escaped, is no text, and no name of a field or a value of an enum either
            json.dumps(given, ensure_ascii=False).encode()
        if not isinstance(given, dict):
            raise ValueError("it is not an object")
        messages = given.get("messages")
        for one in messages if isinstance(messages, list) else ():
            if isinstance(one, dict):
                _prepare_body(one)
        if isinstance(given.get("schedule"), dict):
            _prepare_body(given["schedule"])
        if _is_more(given, MAX_JSON_FIELDS):
            raise Refused("BATCH_TOO_LARGE", f"the body has over {MAX_JSON_FIELDS:,} values beside those of bodyJson")
        check_names(kind, given)
        found: Message = json_format.ParseDict(given, kind())
        return found
    except (ValueError, OverflowError, RecursionError, json_format.Error, TypeError, AttributeError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refused("BAD_REQUEST", f"the body is no {kind.DESCRIPTOR.name} in JSON: {said[:500]}") from None


def _check_count(text: bytes) -> None:
    """Each value takes some us of the event loop, and far more memory than its text. Raises Refused."""
    if _marks(text) <= MAX_JSON_VALUES:  # most texts need no closer look
        return
    strings = 2 * MAX_JSON_VALUES  # a name and a text for each
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * strings)
    if len(parts) > 2 * strings or _marks(b"".join(parts[::2])) > MAX_JSON_VALUES:
        raise Refused("BATCH_TOO_LARGE", f"the body has over {MAX_JSON_VALUES:,} values in JSON, the limit")


def _marks(text: bytes) -> int:
    """Of which each value but the first follows one."""
    return len(text) - len(text.translate(None, b",[{"))


def _is_more(given: object, most: int) -> bool:
    """Whether there are more values than that within."""
    found, waiting = 0, [given]
    while waiting and found <= most:
        one = waiting.pop()
        if isinstance(one, (dict, list)):
            found += len(one)
            waiting.extend(one.values() if isinstance(one, dict) else one)
    return found > most


def _prepare_body(message: dict[str, Any]) -> None:
    """Raises ValueError."""
    if isinstance(message.get("body"), str):
        b64decode(message["body"], validate=True)  # which the library does not
    if "bodyJson" in message:
        if "bodyText" in message or "body" in message:
            raise ValueError("a message has one of body, bodyText and bodyJson")
        message["bodyText"] = json.dumps(message.pop("bodyJson"), ensure_ascii=False, separators=(",", ":"))


def to_json(message: Message, as_json_values: bool) -> bytes:
    """as_json_values: bodies that are JSON are written as they are, as far as every reader takes them."""
    found = json_format.MessageToDict(message)
    if as_json_values:
        left = 10 * MAX_JSON_VALUES
        for one in (*found.get("deliveries", ()), *found.get("messages", ())):
            text = one.get("bodyText")
            values = 0 if text is None else _marks(text.encode())
            if text is None or values > min(left, MAX_JSON_VALUES):
                continue
            left -= values
            try:
                value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
                _written([[[value]]])  # as deep as it will be
            except (ValueError, RecursionError):
                continue
            one["bodyJson"] = value
            del one["bodyText"]
    return _written(found)


def _written(value: object) -> bytes:
    """Raises ValueError for half of a surrogate pair, RecursionError."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _wants_json(kind: type[Message], data: Body) -> bool:
    return getattr(kind.FromString(data), "body_format", 0) == rows.BODY_FORMAT_JSON


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:100]!r} is there twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is more than a number of 64 bits holds")
    return number


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number in JSON")


# ---------------------------------------------------------------- errors
def _code(refused: Refused) -> str:
    code = CODES[refused.reason]
    return "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower()


def _described(refused: Refused) -> dict[str, object]:
    info = error_details_pb2.ErrorInfo(reason=refused.reason, domain=DOMAIN, metadata=refused.metadata)
    value = b64encode(info.SerializeToString()).rstrip(b"=").decode()
    debug = {"reason": refused.reason, "domain": DOMAIN, "metadata": refused.metadata}
    detail = {"type": "google.rpc.ErrorInfo", "value": value, "debug": debug}
    return {"code": _code(refused), "message": refused.message[:1_000], "details": [detail]}


def _refusal(refused: Refused) -> web.Response:
    headers = {}
    if refused.reason == "UNAUTHENTICATED":
        headers["WWW-Authenticate"] = "Bearer"
    if (retry := refused.metadata.get("retry_after_ms")) is not None:
        headers["Retry-After"] = str(-(-int(float(retry)) // 1_000))
    return _answer(_described(refused), HTTP_STATUS[_code(refused)], headers)


def _error(code: str, message: str, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return _answer({"code": code, "message": message}, status, headers)


def _answer(error: dict[str, object], status: int, headers: Mapping[str, str] | None) -> web.Response:
    text = json.dumps(error, ensure_ascii=False)
    response = web.Response(status=status, text=text, content_type="application/json", headers=headers)
    response[CODE] = error["code"]
    response.force_close()  # what is left of its body is thrown away, for 10 s at most
    return response


def _too_large(size: int) -> Refused:
    return Refused(
        "BATCH_TOO_LARGE", f"the body has {size:,} bytes or more, the limit is {format_bytes(MAX_REQUEST_BYTES)}"
    )


def _timeout_seconds(request: web.Request) -> float | None:
    """Raises Refused."""
    text = request.headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMEOUT_DIGITS):
        raise Refused("BAD_REQUEST", f"connect-timeout-ms: {text[:20]!r} is no number of at most 10 digits")
    return int(text) / 1_000


async def _openapi(_: web.Request) -> web.Response:
    text = resources.files("delaynode.server.doors").joinpath("openapi.json").read_text()
    return web.Response(text=text, content_type="application/json")
