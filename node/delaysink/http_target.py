"""Deliveries by HTTP: one request for a message, no redirects, no proxies, and only to addresses behind the fence."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from multidict import CIMultiDict
from yarl import URL

from delaysink import events
from delaysink.api_server import api_server_addresses
from delaysink.events import OutgoingMessage, Undeliverable
from delaysink.fence import AddressRefused, socket_maker
from delaysink.outcome import Attempt, Verdict, judge, parse_retry_after_ms
from delaysink.secret_file import BadSecret, ParsedSecret
from delaysink.settings import ContentMode, FromMessage, HttpSettings, SecretKey
from delaysink.signing import parse_secrets, signature
from delaysink.url import BadUrl, checked_url, header_problem, method_problem

URL_PROPERTY: Final = "webhook-url"
METHOD_PROPERTY: Final = "webhook-method"
HEADER_PROPERTY: Final = "webhook-header-"
MAX_MESSAGE_HEADERS: Final = 32
ANSWER_BYTES: Final = 512
"""Of an answer: what dead letters and the log have."""
_DRAINED_BYTES: Final = 16 << 10
_DRAIN_S: Final = 1.0
"""An answer's body beyond this is not waited for: its connection is closed instead."""
_IDLE_S: Final = 15.0

T = TypeVar("T")


class HttpTarget:
    """A SinkTarget."""

    def __init__(self, settings: HttpSettings, secrets: Path, max_concurrency: int) -> None:
        """secrets: the directory with the secrets' files."""
        self._settings = settings
        self._fence = settings.fence
        self._max_concurrency = max_concurrency
        self._url = checked_url(settings.url) if settings.url else None
        self._timeout_s = settings.timeout_ms / 1_000

        def secret(key: SecretKey | None, parse: Callable[[str, str], T]) -> ParsedSecret[T] | None:
            return None if key is None else ParsedSecret(secrets / key.path, parse)

        self._signing = secret(settings.signing, parse_secrets)
        self._authorization = secret(settings.authorization, _authorization)
        self._ca = secret(settings.ca, _trusting)
        self._sessions: dict[bool, ClientSession] = {}  # by whether the allow-list has the host's name

    @property
    def problem(self) -> str:
        read_again: list[ParsedSecret[Any] | None] = [self._signing, self._authorization]
        for secret in read_again:
            if secret is not None and self._sessions:
                secret.value()
                if secret.problem:
                    return secret.problem
        return ""

    def check_secrets(self) -> None:
        for secret in (self._signing, self._authorization, self._ca):
            if secret is not None:
                secret.value()

    async def open(self) -> None:
        self.check_secrets()
        if not self._sessions:
            self._fence = self._settings.fence.knowing(await api_server_addresses())
            for named in (False, True):
                self._sessions[named] = self._new_session(named)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions = {}

    def receiver(self, message: OutgoingMessage) -> str:
        if FromMessage.URL not in self._settings.from_message or not message.properties.get(URL_PROPERTY):
            return ""
        try:
            return str(checked_url(message.properties[URL_PROPERTY]).origin())
        except BadUrl:
            return ""  # it will not be sent

    async def deliver(self, message: OutgoingMessage) -> Attempt:
        try:
            method, url, own_url = self._request_line(message)
            body, headers = self._request(message, own_url)
        except (Undeliverable, BadUrl, AddressRefused) as error:
            return Attempt(Verdict.IMPOSSIBLE, str(error))
        except BadSecret as error:
            return Attempt(Verdict.FAILED, str(error))
        session = self._sessions[self._fence.allows_name(url.raw_host or "")]
        try:
            async with asyncio.timeout(self._timeout_s):
                async with session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
                    attempt = await _judged(response)
        except TimeoutError:
            return Attempt(Verdict.OVERLOADED, f"no answer within {self._timeout_s:g} s")
        except aiohttp.InvalidURL as error:
            return Attempt(Verdict.IMPOSSIBLE, f"{url.host}: {error}"[:500])
        except aiohttp.ClientConnectorError as error:
            return Attempt(Verdict.FAILED, f"{url.host}: {error.os_error}"[:500])
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Attempt(Verdict.FAILED, f"{type(error).__name__}: {error}"[:500])
        if attempt.verdict is Verdict.GONE and not own_url:  # one message's receiver is not the sink's
            return Attempt(Verdict.IMPOSSIBLE, attempt.says, attempt.status, attempt.answer)
        return attempt

    def _request_line(self, message: OutgoingMessage) -> tuple[str, URL, bool]:
        """Method, URL, and whether that is the sink's own. Raises Undeliverable, BadUrl, AddressRefused."""
        may, properties = self._settings.from_message, message.properties
        method = properties.get(METHOD_PROPERTY, "") if FromMessage.METHOD in may else ""
        if method and (problem := method_problem(method)):
            raise Undeliverable(f"property {METHOD_PROPERTY}: {problem}")
        url = properties.get(URL_PROPERTY, "") if FromMessage.URL in may else ""
        if url:
            found = checked_url(url)
            self._fence.check_host(found.raw_host or "")
            return method or self._settings.method, found, False
        if self._url is None:
            raise Undeliverable(f"it has no property {URL_PROPERTY}, and the sink no URL")
        return method or self._settings.method, self._url, True

    def _request(self, message: OutgoingMessage, own_url: bool) -> tuple[bytes, CIMultiDict[str]]:
        """Body and headers. Raises Undeliverable, BadSecret."""
        settings = self._settings
        headers = CIMultiDict(events.trace_context(message))
        headers.update(settings.headers)
        if FromMessage.HEADERS in settings.from_message:
            headers.update(_message_headers(message))
        kind = events.content_type(message, settings.content_type)
        body = message.body
        if settings.mode is not ContentMode.PLAIN:
            found = events.attributes(message, settings.source, settings.type)
            if settings.mode is ContentMode.STRUCTURED:
                body, kind = events.structured(found, body, kind), events.STRUCTURED_TYPE
            else:
                headers.update(events.binary_headers(found))
        headers["Content-Type"] = kind
        now_s = int(time.time())
        headers["webhook-id"], headers["webhook-timestamp"] = message.id, str(now_s)
        if self._signing is not None:
            headers["webhook-signature"] = signature(self._signing.value(), message.id, now_s, body)
        if self._authorization is not None and own_url:  # never shown to a host that a message names
            headers["Authorization"] = self._authorization.value()
        return body, headers

    def _new_session(self, named: bool) -> ClientSession:
        connector = TCPConnector(
            limit=self._max_concurrency,
            use_dns_cache=False,  # each connection resolves anew, and what it gets is checked
            ssl=ssl.create_default_context() if self._ca is None else self._ca.value(),
            keepalive_timeout=_IDLE_S,
            socket_factory=socket_maker(self._fence, named=named),
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),  # deliver() has its own
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
            headers={"User-Agent": "DelayCluster-Sink", "Accept": "*/*"},
        )


def _authorization(text: str, where: str) -> str:
    """Raises BadSecret."""
    text = text.strip()
    if problem := header_problem("Authorization", text):
        raise BadSecret(f"{where}: {problem}")
    return text


def _trusting(text: str, where: str) -> ssl.SSLContext:
    """Raises BadSecret. What is beyond ASCII can be a comment alone."""
    try:
        return ssl.create_default_context(cadata=text.encode("ascii", "ignore").decode())
    except (ssl.SSLError, ValueError) as error:
        raise BadSecret(f"{where} has no certificates in PEM: {error}") from None


async def _judged(response: ClientResponse) -> Attempt:
    """By the status alone: what the body is, and whether it ends, changes nothing."""
    answer = await _first_bytes(response)
    now_ms = int(time.time() * 1_000)
    retry_after_ms = parse_retry_after_ms(response.headers.get("Retry-After"), now_ms)
    return Attempt(judge(response.status), f"status {response.status}", response.status, answer, retry_after_ms)


async def _first_bytes(response: ClientResponse) -> bytes:
    """Leaves the connection to the next request if the body ends soon, else closed."""
    if response.content.at_eof():  # as of a 204
        return b""
    read, size = [], 0
    try:
        async with asyncio.timeout(_DRAIN_S):
            while size < _DRAINED_BYTES and (chunk := await response.content.read(4_096)):
                read.append(chunk)
                size += len(chunk)
    except (TimeoutError, aiohttp.ClientError, OSError):
        response.close()
    if not response.content.at_eof():
        response.close()
    return b"".join(read)[:ANSWER_BYTES]


def _message_headers(message: OutgoingMessage) -> dict[str, str]:
    """Those that the message has itself. Raises Undeliverable."""
    found = {
        name.removeprefix(HEADER_PROPERTY): value
        for name, value in message.properties.items()
        if name.startswith(HEADER_PROPERTY)
    }
    if len(found) > MAX_MESSAGE_HEADERS:
        raise Undeliverable(f"it has {len(found)} headers; the limit is {MAX_MESSAGE_HEADERS}")
    for name, value in found.items():
        if problem := header_problem(name, value):
            raise Undeliverable(f"property {HEADER_PROPERTY}{name[:80]}: {problem}")
    return found
