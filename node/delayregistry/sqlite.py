"""The Registry in one SQLite file, shared by the processes of one machine.

    cluster(id = 1, version, spec)                     JSON, at most one row
    security(id = 1, version, document)                JSON, likewise
    shards(name, topic, queue, version, spec, status, conditions)
    leases(node, lease)                                JSON
    meta(id = 1, version)                              the last version given; every write but a lease's takes the next

A compare-and-swap is one short IMMEDIATE transaction, which those of other threads of the process may share. A process
that is stopped inside one holds the file's write lock: for the others that is a registry that does not answer, bounded
by the busy timeout. Readers are not held up (WAL). No other code may open the file in a process that uses it: closing
it would drop SQLite's POSIX locks.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from delayregistry.codec import dumps, loads, loads_tuple
from delayregistry.group_commit import GroupCommit, Write
from delayregistry.model import (
    ClusterObject,
    ClusterSpec,
    Condition,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, RegistryError, RegistryUnavailable
from delayregistry.security import SecurityObject, SecuritySpec, write_document

SCHEMA_VERSION = 2
BUSY_TIMEOUT_MS = 2_000

_SCHEMA = """
CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL);
INSERT INTO meta VALUES (1, 0);
CREATE TABLE cluster (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, spec TEXT NOT NULL);
CREATE TABLE shards (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, queue INTEGER NOT NULL, version INTEGER NOT NULL,
    spec TEXT NOT NULL, status TEXT, conditions TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE leases (node TEXT PRIMARY KEY, lease TEXT NOT NULL) WITHOUT ROWID;
"""
# Not part of the schema's version: an earlier release, which does not look for it, goes on with the file.
_SECURITY_SCHEMA = """
CREATE TABLE IF NOT EXISTS security (
    id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, document TEXT NOT NULL
)
"""
_SHARD_COLUMNS = "name, version, spec, status, conditions"

T = TypeVar("T")
_ShardRow = tuple[str, int, str, str | None, str]


class SqliteRegistry:
    """See the module. `create` makes the file when it is missing; otherwise its absence is an error.

    Raises RegistryError when the file is missing, is not a registry, or was made by a newer release.
    """

    def __init__(self, path: Path, *, create: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        if not create and not path.exists():
            raise RegistryError(f"no registry at {path}")
        try:
            # Reads, writes and renewals each have their own connection, so that a write that waits for another
            # process's lock holds up neither reads nor the lease.
            self._reads = _Connection(path, busy_timeout_ms, "FULL")
            self._writes = _Connection(path, busy_timeout_ms, "FULL")
            self._group_commit = GroupCommit(self._writes.transaction, busy_timeout_ms / 1000)
            # A lease says "alive now": it need not survive a power cut, so it costs no fsync.
            self._renewals = _Connection(path, busy_timeout_ms, "NORMAL")
            self._known: dict[str, ShardObject] = {}  # as last listed; guarded by the reading lane
            self._known_list: tuple[ShardObject, ...] = ()
            self._known_version = 0
            self._prepare(path)
        except sqlite3.Error as error:
            raise RegistryError(f"cannot open the registry {path}: {error}") from error

    def _prepare(self, path: Path) -> None:
        with self._reads.connection() as db:
            found = _schema_version(db)
        if found > SCHEMA_VERSION:
            raise RegistryError(f"{path} was made by a newer release (schema {found}; known: {SCHEMA_VERSION})")
        if 0 < found < SCHEMA_VERSION:
            raise RegistryError(f"{path} was made by an older release (schema {found}; known: {SCHEMA_VERSION})")
        if found == SCHEMA_VERSION:
            return
        with self._writes.transaction() as db:
            if _schema_version(db) == 0:  # else another process was faster
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def version(self) -> int:
        return self._read(lambda db: int(db.execute("SELECT version FROM meta").fetchone()[0]))

    def read_cluster(self) -> ClusterObject | None:
        row = self._read(lambda db: db.execute("SELECT version, spec FROM cluster").fetchone())
        return None if row is None else ClusterObject(Version(str(row[0])), loads(ClusterSpec, row[1]))

    def read_advice(self) -> None:
        """Nothing scales a local cluster."""

    def put_cluster(self, spec: ClusterSpec, version: Version | None) -> Version:
        text = dumps(spec)

        def write(db: sqlite3.Connection, new: int) -> int:
            if version is None:
                return db.execute("INSERT OR IGNORE INTO cluster VALUES (1, ?, ?)", (new, text)).rowcount
            update = "UPDATE cluster SET version = ?, spec = ? WHERE version = ?"
            return db.execute(update, (new, text, version)).rowcount

        return self._write("the cluster", version, write)

    def read_security(self) -> SecurityObject | None:
        def read(db: sqlite3.Connection) -> tuple[int, str] | None:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'security'").fetchone() is None:
                return None
            row: tuple[int, str] | None = db.execute("SELECT version, document FROM security").fetchone()
            return row

        found = self._read(read)
        return None if found is None else SecurityObject(Version(str(found[0])), found[1])

    def put_security(self, spec: SecuritySpec, version: Version | None) -> Version:
        """Replaces the document at `version` (None: there is none yet). Raises Conflict, OutcomeUnknown, BadSpec."""
        text = write_document(spec)

        def write(db: sqlite3.Connection, new: int) -> int:
            db.execute(_SECURITY_SCHEMA)
            if version is None:
                return db.execute("INSERT OR IGNORE INTO security VALUES (1, ?, ?)", (new, text)).rowcount
            update = "UPDATE security SET version = ?, document = ? WHERE version = ?"
            return db.execute(update, (new, text, version)).rowcount

        return self._write("the security document", version, write)

    def list_shards(self, node: str | None = None) -> tuple[ShardObject, ...]:
        shards = self._read(self._listed)
        return shards if node is None else tuple(shard for shard in shards if node in shard.spec.replicas)

    def _listed(self, db: sqlite3.Connection) -> tuple[ShardObject, ...]:
        # Only what has changed is read and parsed: with thousands of shards everybody lists them after each write of
        # anybody. Versions are given inside the write lock, so that a later commit never has a lower one.
        query = f"SELECT {_SHARD_COLUMNS} FROM shards WHERE version > ?"
        rows: list[_ShardRow] = db.execute(query, (self._known_version,)).fetchall()
        self._known.update((row[0], _shard(row)) for row in rows)
        deleted = len(self._known) != db.execute("SELECT count(*) FROM shards").fetchone()[0]
        if deleted:
            names = {row[0] for row in db.execute("SELECT name FROM shards")}
            self._known = {name: shard for name, shard in self._known.items() if name in names}
        if rows:
            self._known_version = max(row[1] for row in rows)
        if rows or deleted:
            self._known_list = tuple(sorted(self._known.values(), key=lambda it: (it.spec.topic, it.spec.queue)))
        return self._known_list

    def get_shard(self, name: str) -> ShardObject | None:
        query = f"SELECT {_SHARD_COLUMNS} FROM shards WHERE name = ?"
        row: _ShardRow | None = self._read(lambda db: db.execute(query, (name,)).fetchone())
        return None if row is None else _shard(row)

    def create_shard(self, spec: ShardSpec) -> Version:
        text = dumps(spec)

        def write(db: sqlite3.Connection, new: int) -> int:
            row = (spec.name, spec.topic, spec.queue, new, text)
            return db.execute("INSERT OR IGNORE INTO shards VALUES (?, ?, ?, ?, ?, NULL, '[]')", row).rowcount

        return self._write(spec.name, None, write)

    def write_spec(self, name: str, spec: ShardSpec, version: Version) -> Version:
        return self._swap(name, "spec", dumps(spec), version)

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        return self._swap(name, "status", dumps(status), version)

    def write_conditions(self, name: str, conditions: tuple[Condition, ...], version: Version) -> Version:
        return self._swap(name, "conditions", dumps(conditions), version)

    def delete_shard(self, name: str, version: Version) -> None:
        statement = "DELETE FROM shards WHERE name = ? AND version = ?"
        self._write(name, version, lambda db, new: db.execute(statement, (name, version)).rowcount)

    def renew_lease(self, lease: NodeLease) -> None:
        row = (lease.node, dumps(lease))
        try:
            with self._renewals.transaction() as db:
                db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?)", row)
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"lease of {lease.node} not renewed: {error}") from error

    def probe(self) -> None:
        try:
            with self._renewals.transaction():
                pass  # having got the write lock is the proof
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"registry takes no writes: {error}") from error

    def list_leases(self) -> tuple[NodeLease, ...]:
        rows = self._read(lambda db: db.execute("SELECT lease FROM leases ORDER BY node").fetchall())
        return tuple(loads(NodeLease, row[0]) for row in rows)

    def close(self) -> None:
        for connection in (self._reads, self._writes, self._renewals):
            connection.close()

    def _swap(self, name: str, column: str, text: str, version: Version) -> Version:
        statement = f"UPDATE shards SET version = ?, {column} = ? WHERE name = ? AND version = ?"
        return self._write(name, version, lambda db, new: db.execute(statement, (new, text, name, version)).rowcount)

    def _write(self, what: str, version: Version | None, write: Write) -> Version:
        try:
            new = self._group_commit.write(write)
        except sqlite3.Error as error:
            # SQLite often knows that nothing was written. Callers must live without that (Kubernetes does not), so
            # they are not told.
            raise OutcomeUnknown(f"write of {what}: {error}") from error
        if new is None:
            fault = "exists already" if version is None else f"is not at version {version}"
            raise Conflict(f"{what} {fault}")
        return Version(str(new))

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._reads.connection() as db:
                return query(db)
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"registry not readable: {error}") from error


class _Connection:
    """One connection, used by one thread at a time. Every wait is bounded by the busy timeout."""

    def __init__(self, path: Path, busy_timeout_ms: int, synchronous: str) -> None:
        self._path = path
        self._timeout_s = busy_timeout_ms / 1000
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = self._open()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise sqlite3.OperationalError(f"not answered within {self._timeout_s} s: another thread is waiting")
        try:
            if self._db is None:
                self._db = self._open()
            yield self._db
        finally:
            self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self.connection() as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                self._abandon(db)
                raise

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()

    def _abandon(self, db: sqlite3.Connection) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection that can't roll back may hold the lock for ever; a closed one can't.
            db.close()
            self._db = None

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
        self._set_wal(db)
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        return db

    def _set_wal(self, db: sqlite3.Connection) -> None:
        # The first switch to WAL needs the file alone, and SQLite does not wait for that: processes that open a new
        # file at the same moment have to.
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _shard(row: _ShardRow) -> ShardObject:
    name, version, spec, status, conditions = row
    return ShardObject(
        name=name,
        version=Version(str(version)),
        spec=loads(ShardSpec, spec),
        status=None if status is None else loads(ShardStatus, status),
        conditions=loads_tuple(Condition, conditions),
    )
