"""What a sink is to do: the `spec` of a DelaySink, read strictly. Errors name the field and the limit.

The same document is the custom resource and the file of `delayctl sinks run`. Secrets are named, never contained: they
are files NAME/KEY below a directory, as the operator mounts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from delayapi.durations import parse_duration_ms

from delaysink.fence import Fence
from delaysink.url import BadUrl, checked_url, header_problem, method_problem

MAX_CONCURRENCY: Final = 1_000
MAX_ATTEMPTS: Final = 1_000
MAX_TIMEOUT_MS: Final = 10 * 60_000
MAX_HEADERS: Final = 32
MAX_ALLOWED: Final = 64
OPERATORS_FIELDS: Final = frozenset({"cluster", "replicas", "resources"})
"""Of the spec: the process itself has no use for them."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TOPIC: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_SECRET_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_CONTENT_TYPE: Final = re.compile(r"[\w!#$&^.+-]{1,80}/[\w!#$&^.+-]{1,80}( *; *[\w.-]+=[\w.\"-]+){0,4}", re.ASCII)
_KAFKA_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_HOST_PORT: Final = re.compile(r"[!-+\--~]{1,255}:[0-9]{1,5}")
_PLAIN_TEXT: Final = re.compile(r"[!-~]{1,512}")


class BadSink(ValueError):
    """A sink that can't be: says which field, and why."""


class ContentMode(StrEnum):
    """How a message becomes a request."""

    BINARY = "Binary"  # CloudEvents 1.0: attributes are headers, the body is the message's
    STRUCTURED = "Structured"  # CloudEvents 1.0: one JSON object
    PLAIN = "Plain"  # the body alone


class FromMessage(StrEnum):
    """What a message may say itself, in its properties."""

    URL = "Url"
    METHOD = "Method"
    HEADERS = "Headers"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One key of a Secret: the file NAME/KEY below the directory of secrets."""

    name: str
    key: str

    @property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.name, self.key)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """url: ""; each message has its own. source, type: CloudEvents' attributes."""

    url: str
    method: str
    mode: ContentMode
    headers: Mapping[str, str]
    content_type: str
    source: str
    type: str
    timeout_ms: int
    signing: SecretKey | None
    authorization: SecretKey | None
    ca: SecretKey | None
    fence: Fence
    from_message: frozenset[FromMessage]

    @property
    def secrets(self) -> tuple[SecretKey | None, ...]:
        return self.signing, self.authorization, self.ca


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """subject: of JetStream. source, type: CloudEvents' attributes. credentials: a .creds file."""

    servers: tuple[str, ...]
    subject: str
    source: str
    type: str
    credentials: SecretKey | None
    timeout_ms: int

    @property
    def secrets(self) -> tuple[SecretKey | None, ...]:
        return (self.credentials,)


class KafkaMechanism(StrEnum):
    """How the sink proves to Kafka who it is."""

    PLAIN = "Plain"
    SCRAM_SHA_256 = "ScramSha256"
    SCRAM_SHA_512 = "ScramSha512"

    @property
    def sasl_name(self) -> str:
        return {"Plain": "PLAIN", "ScramSha256": "SCRAM-SHA-256", "ScramSha512": "SCRAM-SHA-512"}[self]


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """topic: of Kafka. source, type: CloudEvents' attributes. mechanism: None: it says no user."""

    servers: tuple[str, ...]
    topic: str
    source: str
    type: str
    tls: bool
    ca: SecretKey | None
    mechanism: KafkaMechanism | None
    username: str
    password: SecretKey | None
    timeout_ms: int

    @property
    def secrets(self) -> tuple[SecretKey | None, ...]:
        return self.ca, self.password


TargetSettings: TypeAlias = HttpSettings | NatsSettings | KafkaSettings


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """dead_letter_topic: ""; dead letters stay in the group."""

    name: str
    topic: str
    group: str
    tags: tuple[str, ...]
    target: TargetSettings
    max_concurrency: int
    max_attempts: int
    dead_letter_topic: str
    paused: bool

    @property
    def secrets(self) -> tuple[SecretKey, ...]:
        """All that it needs."""
        return tuple(it for it in self.target.secrets if it is not None)


@dataclass(slots=True)
class _Reader:
    """Reads one object of the document; what was not asked for is unknown."""

    where: str
    found: Mapping[str, Any]
    known: set[str] = field(default_factory=set)

    def path(self, name: str) -> str:
        return f"{self.where}.{name}"

    def bad(self, name: str, why: str) -> BadSink:
        return BadSink(f"{self.path(name)}: {why}")

    def get(self, name: str, kind: type, default: Any) -> Any:
        self.known.add(name)
        value = self.found.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.bad(name, f"it must be {_KINDS[kind]}, not {value!r:.80}")
        return value

    def text(self, name: str, pattern: re.Pattern[str], default: str | None = None, says: str = "") -> str:
        value: str | None = self.get(name, str, default)
        if value is None:
            raise self.bad(name, "it is missing")
        if value and not pattern.fullmatch(value):
            raise self.bad(name, f"{value[:80]!r} is not {says or pattern.pattern}")
        return value

    def number(self, name: str, default: int, highest: int) -> int:
        value: int = self.get(name, int, default)
        if not 1 <= value <= highest:
            raise self.bad(name, f"{value} is not within 1 and the limit, {highest:,}")
        return value

    def duration(self, name: str, default: str, highest_ms: int) -> int:
        try:
            value = parse_duration_ms(self.get(name, str, default))
        except ValueError as error:
            raise self.bad(name, str(error)) from None
        if not 1 <= value <= highest_ms:
            raise self.bad(name, f"{value} ms is not within 1 ms and the limit, {highest_ms:,} ms")
        return value

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        value = self.get(name, list, [])
        if len(value) > most or not all(isinstance(it, str) for it in value):
            raise self.bad(name, f"it must be a list of at most {most} texts")
        return tuple(value)

    def pairs(self, name: str, most: int) -> dict[str, str]:
        value = self.get(name, Mapping, {})
        if len(value) > most or not all(isinstance(it, str) for pair in value.items() for it in pair):
            raise self.bad(name, f"it must have at most {most} texts, each with a name")
        return dict(value)

    def inner(self, name: str) -> _Reader | None:
        value = self.get(name, Mapping, None)
        return None if value is None else _Reader(self.path(name), value)

    def secret(self, name: str) -> SecretKey | None:
        """`NAME: {secret: {name, key}}`."""
        outer = self.inner(name)
        if outer is None:
            return None
        inner = outer.inner("secret")
        outer.end()
        if inner is None:
            raise outer.bad("secret", "it is missing")
        found = SecretKey(inner.text("name", _NAME, says="a Secret's name"), inner.text("key", _SECRET_KEY))
        if not found.name or found.key in ("", ".", ".."):
            raise outer.bad("secret", f"{found.name!r} and {found.key!r} are no name and key of a Secret")
        inner.end()
        return found

    def end(self) -> None:
        unknown = sorted(str(it) for it in self.found.keys() - self.known)
        if unknown:
            raise self.bad(unknown[0], f"there is no such field; there are {', '.join(sorted(self.known))}")


_KINDS: Final[Mapping[type, str]] = {
    str: "a text", int: "a number", bool: "true or false", list: "a list", Mapping: "an object",
}  # fmt: skip


def read_document(document: object) -> SinkSettings:
    """Of a whole DelaySink, as YAML or JSON gives it. Raises BadSink."""
    if not isinstance(document, Mapping):
        raise BadSink("it is not a DelaySink: an object with metadata.name and spec")
    kind = document.get("kind", "DelaySink")
    if kind != "DelaySink":
        raise BadSink(f"kind: it is a {kind!s:.60}, not a DelaySink")
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSink(f"metadata.name: {name!r:.80} is no name: a-z, 0-9, '-' and '.'")
    if not isinstance(spec, Mapping):
        raise BadSink("spec: it is missing")
    return read_settings(name, spec)


def read_settings(name: str, spec: Mapping[str, Any]) -> SinkSettings:
    """Of a DelaySink's spec. Raises BadSink."""
    reader = _Reader("spec", spec, set(OPERATORS_FIELDS))
    cluster = spec.get("cluster")
    cluster_name = str(cluster.get("name", "local")) if isinstance(cluster, Mapping) else "local"
    topic = reader.text("topic", _TOPIC, says="a topic's name: a-z, 0-9 and '-', at most 50")
    if not topic:
        raise reader.bad("topic", "it is empty")
    targets = [it for it in ("http", "nats", "kafka") if spec.get(it) is not None]
    if len(targets) != 1:
        raise BadSink(f"spec: it must have one of http, nats and kafka, and has {' and '.join(targets) or 'none'}")
    read: dict[str, Callable[[_Reader, str, str], TargetSettings]] = {
        "http": _http, "nats": _nats, "kafka": _kafka,
    }  # fmt: skip
    inner = {it: reader.inner(it) for it in read}[targets[0]]
    assert inner is not None
    target = read[targets[0]](inner, cluster_name, topic)
    inner.end()
    dead = reader.inner("deadLetters") or _Reader(reader.path("deadLetters"), {})
    dead_topic = dead.text("topic", _TOPIC, "", says="a topic's name")
    max_attempts = dead.number("maxAttempts", MAX_ATTEMPTS, MAX_ATTEMPTS)
    dead.end()
    if dead_topic == topic:
        raise dead.bad("topic", f"{topic} is the sink's own topic: its dead letters would come again and again")
    settings = SinkSettings(
        name=name,
        topic=topic,
        group=reader.text("group", re.compile(r".{1,255}", re.DOTALL), name) or name,
        tags=reader.texts("tags", 64),
        target=target,
        max_concurrency=reader.number("maxConcurrency", 32, MAX_CONCURRENCY),
        max_attempts=max_attempts,
        dead_letter_topic=dead_topic,
        paused=reader.get("paused", bool, False),
    )
    reader.end()
    return settings


def _choices(reader: _Reader, name: str, kind: type[StrEnum], values: Sequence[str]) -> frozenset[Any]:
    for value in values:
        if value not in list(kind):
            raise reader.bad(name, f"{value!r:.80} is none of {', '.join(kind)}")
    return frozenset(kind(it) for it in values)


def _http(reader: _Reader, cluster: str, topic: str) -> HttpSettings:
    try:
        fence = Fence.of(reader.texts("allow", MAX_ALLOWED))
    except ValueError as error:
        raise reader.bad("allow", str(error)) from None
    url: str = reader.get("url", str, "")
    from_message = _choices(reader, "fromMessage", FromMessage, reader.texts("fromMessage", len(FromMessage)))
    if not url and FromMessage.URL not in from_message:
        raise reader.bad("url", "it is missing, and fromMessage does not have Url")
    if url:
        try:
            fence.check_host(checked_url(url).raw_host or "")
        except (BadUrl, OSError) as error:
            raise reader.bad("url", str(error)) from None
    (mode,) = _choices(reader, "mode", ContentMode, [reader.get("mode", str, ContentMode.BINARY)])
    method: str = reader.get("method", str, "POST")
    if problem := method_problem(method):
        raise reader.bad("method", problem)
    headers = reader.pairs("headers", MAX_HEADERS)
    for name, value in headers.items():
        if problem := header_problem(name, value):
            raise reader.bad("headers", problem)
    return HttpSettings(
        url=url,
        method=method,
        mode=mode,
        headers=headers,
        content_type=reader.text("contentType", _CONTENT_TYPE, "application/octet-stream", "a media type"),
        source=_source(reader, cluster, topic),
        type=_type(reader),
        timeout_ms=reader.duration("timeout", "15s", MAX_TIMEOUT_MS),
        signing=reader.secret("signing"),
        authorization=reader.secret("authorization"),
        ca=reader.secret("ca"),
        fence=fence,
        from_message=from_message,
    )


def _source(reader: _Reader, cluster: str, topic: str) -> str:
    return reader.text("source", _PLAIN_TEXT, f"urn:delaycluster:{cluster}:{topic}", "a URI")


def _type(reader: _Reader) -> str:
    return reader.text("type", _PLAIN_TEXT, "io.delaycluster.message", "a text without spaces, at most 512")


def _nats(reader: _Reader, cluster: str, topic: str) -> NatsSettings:
    servers = reader.texts("servers", 16)
    if not servers or not all(re.fullmatch(r"(nats|tls)://[!-~]{1,255}", it) for it in servers):
        raise reader.bad("servers", "it must have addresses such as nats://nats.example.com:4222, at most 16")
    return NatsSettings(
        servers,
        reader.text("subject", re.compile(r"[!-)+-=?-~]{1,255}"), topic, "a subject without wildcards") or topic,
        _source(reader, cluster, topic),
        _type(reader),
        reader.secret("credentials"),
        reader.duration("timeout", "10s", MAX_TIMEOUT_MS),
    )


def _kafka(reader: _Reader, cluster: str, topic: str) -> KafkaSettings:
    servers = reader.texts("servers", 16)
    if not servers or not all(_HOST_PORT.fullmatch(it) for it in servers):
        raise reader.bad("servers", "it must have addresses such as kafka.example.com:9092, at most 16")
    tls: bool = reader.get("tls", bool, False)
    ca = reader.secret("ca")
    if ca is not None and not tls:
        raise reader.bad("ca", "it is of use with tls: true alone")
    sasl, mechanism, username, password = reader.inner("sasl"), None, "", None
    if sasl is not None:
        (mechanism,) = _choices(sasl, "mechanism", KafkaMechanism, [sasl.get("mechanism", str, "ScramSha512")])
        username, password = sasl.text("username", _PLAIN_TEXT), sasl.secret("password")
        sasl.end()
        if password is None or not username:
            raise sasl.bad("password" if username else "username", "it is missing")
        if mechanism is KafkaMechanism.PLAIN and not tls:
            raise sasl.bad("mechanism", "Plain sends the password itself: it needs tls: true")
    return KafkaSettings(
        servers,
        reader.text("topic", _KAFKA_TOPIC, topic, "a topic's name: letters, digits, '.', '_' and '-', at most 249"),
        _source(reader, cluster, topic),
        _type(reader),
        tls,
        ca,
        mechanism,
        username,
        password,
        reader.duration("timeout", "15s", MAX_TIMEOUT_MS),
    )


def content_type_problem(text: str) -> str:
    """Why it is no content type; "": it is one."""
    return "" if _CONTENT_TYPE.fullmatch(text) else f"{text[:80]!r} is not a media type such as application/json"
