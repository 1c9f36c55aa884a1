"""`delaycluster.slots`: the load to come as rows, a PySpark data source over the nodes' wheels.

    register(spark)
    slots = spark.read.format("delaycluster.slots").option("endpoints", "n0:7070,n1:7070,n2:7070").load()

A row is a shard's slot of time that holds messages. One partition a node, in Arrow batches. A range of time is the
nodes' to answer, so that a narrow one costs them and the network little: by the options from and to, or, with the
option pushdown, by what a query says of slot_start.

    option       meaning
    endpoints    host:port of every node, with commas
    registry     instead: sqlite:PATH or kube:NAMESPACE/CLUSTER; the nodes are those with a lease there
    from, to     only slots that begin in [from, to): such as 2026-11-21T13:00:00Z, or milliseconds since 1970
    pushdown     true: comparisons of slot_start with constants narrow the range too. One query a DataFrame: Spark (4.3)
                 keeps the range with the DataFrame, and a later query without such a filter would miss rows
    silent       of a node that does not answer: fail (the read ends with its name) or skip (a line on stderr)
    slot         seconds: the wheels' slots (minutes for a day or two, then hours) as slots of this length, on its
                 multiples; an hour's messages are spread evenly over it
    timeout      seconds that a node has for each answer (30)
    tokenFile    nodes are asked by TLS, with the token in this file, which executors need too
    serverName   with tokenFile: what the nodes' certificates are for
    roots        with tokenFile: PEM of who may have issued them; left out: the public CAs. With `registry` the nodes
                 say both themselves
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from delayapi.durations import parse_instant_ms
from delayregistry import open_registry
from delayregistry.port import RegistryError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from delayrebalance.forecast.wheels import (
    LAST_MS,
    WIDEST_SLOT_MS,
    NodeUnanswered,
    ShardSlots,
    TokenAccess,
    read_wheel,
    resampled,
)
from delayrebalance.maps import listener_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "delaycluster.slots"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = (
    "shard string, node string, slot_start timestamp, slot_ms bigint, messages bigint, bytes bigint, "
    "epoch bigint, pending bigint, pending_bytes bigint, taken_at timestamp"
)
BATCH_ROWS = 65_536

_TIME = pa.timestamp("us", tz="UTC")
_ARROW = pa.schema(
    [
        ("shard", pa.string()), ("node", pa.string()), ("slot_start", _TIME), ("slot_ms", pa.int64()),
        ("messages", pa.int64()), ("bytes", pa.int64()), ("epoch", pa.int64()), ("pending", pa.int64()),
        ("pending_bytes", pa.int64()), ("taken_at", _TIME),
    ]
)  # fmt: skip


class BadOption(ValueError):
    """An option that can't be meant; says which, and what is allowed."""


def register(spark: SparkSession) -> None:
    """Makes the format known to a session, and lets it push filters down. session.spark_session() has done so."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(SlotsSource)


class SlotsSource(DataSource):
    """The format. Its options are checked where the read is planned, so that no task starts in vain."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        given = {name.lower(): value for name, value in self.options.items()}
        pushing = _one_of(given, "pushdown", "false", ("false", "true")) == "true"
        return PushingReader(given) if pushing else SlotsReader(given)


@dataclass
class NodePartition(InputPartition):
    """One node, and the slots that are wanted of it: those that begin in [from_ms, to_ms). slot_ms: 0 as they are.
    access: None: without TLS."""

    endpoint: str
    from_ms: int
    to_ms: int
    slot_ms: int
    access: TokenAccess | None = None

    def __post_init__(self) -> None:
        super().__init__(self.endpoint)


class SlotsReader(DataSourceReader):
    """given: the options, their names in small letters."""

    def __init__(self, given: dict[str, str]) -> None:
        self.endpoints = tuple(it.strip() for it in given.get("endpoints", "").split(",") if it.strip())
        self.registry = given.get("registry", "")
        if bool(self.endpoints) == bool(self.registry):
            raise BadOption(f"{NAME}: give one of the options endpoints (host:port,host:port) and registry")
        self.skip = _one_of(given, "silent", "fail", ("fail", "skip")) == "skip"
        self.timeout_s = _seconds(given, "timeout", "30", 0.1, 600)
        self.slot_ms = int(_seconds(given, "slot", "0", 1, 86_400) * 1000)
        self.token_file = given.get("tokenfile", "")
        server_name = given.get("servername", "")
        if bool(self.endpoints and self.token_file) != bool(server_name):
            raise BadOption(f"{NAME}: the options serverName and tokenFile go together, with endpoints")
        self.access = TokenAccess(server_name, given.get("roots", ""), self.token_file) if server_name else None
        self.from_ms, self.to_ms = _instant(given, "from", 0), _instant(given, "to", LAST_MS)

    def partitions(self) -> Sequence[InputPartition]:
        if self.from_ms >= self.to_ms:
            return []
        nodes = dict.fromkeys(self.endpoints, self.access) or leased(self.registry, self.token_file)
        return [NodePartition(it, self.from_ms, self.to_ms, self.slot_ms, access) for it, access in nodes.items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, NodePartition):  # Spark's own, where there is none: an empty range
            return
        waiting: list[pa.RecordBatch] = []
        rows = 0
        try:
            for shard in _slots(partition, self.timeout_s):
                if len(shard.slot_start):
                    waiting.append(_batch(shard))
                    rows += len(shard.slot_start)
                if rows >= BATCH_ROWS:
                    yield pa.concat_batches(waiting)
                    waiting, rows = [], 0
        except NodeUnanswered as error:
            if not self.skip:
                raise
            print(f"{NAME}: left out, silent=skip: {error}", file=sys.stderr, flush=True)
        if waiting:
            yield pa.concat_batches(waiting)


class PushingReader(SlotsReader):
    """One that Spark tells of a query's filters. Spark calls it for queries that have some, and for others uses what
    the same DataFrame's last query has left: hence the option."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # Spark names it so
        """Narrows the range by each comparison of slot_start; gives back what Spark is to look at itself."""
        for it in filters:
            bounds = _range_of(it)
            if bounds is None:
                yield it
            else:
                self.from_ms, self.to_ms = max(self.from_ms, bounds[0]), min(self.to_ms, bounds[1])
                if isinstance(it, In):
                    yield it


def _slots(wanted: NodePartition, timeout_s: float) -> Iterator[ShardSlots]:
    if not wanted.slot_ms:
        yield from read_wheel(wanted.endpoint, wanted.from_ms, wanted.to_ms, timeout_s, wanted.access)
        return
    # An earlier slot that reaches into the range has a part in it.
    from_ms = wanted.from_ms - WIDEST_SLOT_MS
    for shard in read_wheel(wanted.endpoint, from_ms, wanted.to_ms, timeout_s, wanted.access):
        yield resampled(shard, wanted.slot_ms, wanted.from_ms, wanted.to_ms)


def leased(registry: str, token_file: str = "") -> dict[str, TokenAccess | None]:
    """The gRPC addresses of the nodes that have a lease in the registry, in the order of their ids, and how they are
    reached. Raises BadOption."""
    try:
        opened = open_registry(registry)
        try:
            leases = opened.list_leases()
        finally:
            opened.close()
    except (RegistryError, ValueError) as error:
        raise BadOption(f"{NAME}: option registry: {error}") from error
    if not leases:
        raise BadOption(f"{NAME}: no node has registered in {registry}")
    found = (listener_of(lease, by_token=bool(token_file)) for lease in leases)
    return {
        endpoint: None if trust is None else TokenAccess(trust.server_name, trust.roots, token_file)
        for endpoint, trust in found
    }


def _one_of(given: dict[str, str], option: str, default: str, allowed: tuple[str, ...]) -> str:
    value = given.get(option, default).lower()
    if value not in allowed:
        raise BadOption(f"{NAME}: option {option} is {value!r}; allowed: {', '.join(allowed)}")
    return value


def _seconds(given: dict[str, str], option: str, default: str, low: float, high: float) -> float:
    text = given.get(option, default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high and text != default:
        raise BadOption(f"{NAME}: option {option} is {text!r}; allowed: {low:g} to {high:g} seconds")
    return value


def _instant(given: dict[str, str], option: str, default: int) -> int:
    if option not in given:
        return default
    try:
        return parse_instant_ms(given[option])
    except ValueError as error:
        raise BadOption(f"{NAME}: option {option}: {error}") from error


def _range_of(it: Filter) -> tuple[int, int] | None:
    """[low, high) in ms of the slot_start that the filter lets through; None for one about something else."""
    if getattr(it, "attribute", None) != ("slot_start",):
        return None
    match it:
        case GreaterThanOrEqual(value=datetime() as at):
            return _ceil_ms(at), LAST_MS
        case GreaterThan(value=datetime() as at):
            return _floor_ms(at) + 1, LAST_MS
        case LessThan(value=datetime() as at):
            return 0, _ceil_ms(at)
        case LessThanOrEqual(value=datetime() as at):
            return 0, _floor_ms(at) + 1
        case EqualTo(value=datetime() as at):
            return _ceil_ms(at), _floor_ms(at) + 1
        case In(value=values) if values and all(isinstance(at, datetime) for at in values):
            return min(map(_ceil_ms, values)), max(map(_floor_ms, values)) + 1
        case _:
            return None


def _micros(at: datetime) -> int:
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _floor_ms(at: datetime) -> int:
    return _micros(at) // 1000


def _ceil_ms(at: datetime) -> int:
    return -(-_micros(at) // 1000)


def _batch(shard: ShardSlots) -> pa.RecordBatch:
    count = len(shard.slot_start)

    def same(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    columns = [
        same(shard.shard, pa.string()), same(shard.node, pa.string()), _times(shard.slot_start),
        pa.array(shard.slot_ms), pa.array(shard.messages), pa.array(shard.bytes), same(shard.epoch, pa.int64()),
        same(shard.pending, pa.int64()), same(shard.pending_bytes, pa.int64()),
        _times(np.full(count, shard.taken_at_ms)),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _times(ms: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(ms * 1000, type=pa.int64()).cast(_TIME)
