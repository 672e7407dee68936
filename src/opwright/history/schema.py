"""The history's SQLite file: its tables, how older files are brought up, and how it is opened."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from opwright.spec.errors import MachineError

APPLICATION_ID = 0x4F505752  # "OPWR", so that another program's file is never taken for ours

# How long a writer waits for another; a write here takes milliseconds.
BUSY_SECONDS = 30.0

# MIGRATIONS[n] brings a file from schema version n to n + 1, in one transaction. Steps that have
# been released are never edited: a change is a further step.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE machines (
            fingerprint TEXT PRIMARY KEY,
            facts TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            started TEXT NOT NULL,
            command TEXT NOT NULL,
            machine TEXT NOT NULL REFERENCES machines (fingerprint),
            version TEXT NOT NULL,
            note TEXT NOT NULL
        )
        """,
        "CREATE TABLE sources (hash TEXT PRIMARY KEY, data BLOB NOT NULL)",
        """
        CREATE TABLE source_paths (
            hash TEXT NOT NULL REFERENCES sources (hash),
            path TEXT NOT NULL,
            kept TEXT NOT NULL,
            PRIMARY KEY (hash, path)
        )
        """,
        """
        CREATE TABLE results (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run INTEGER NOT NULL REFERENCES runs (id),
            operator TEXT NOT NULL,
            kernel TEXT NOT NULL,
            backend TEXT NOT NULL,
            dtype TEXT NOT NULL,
            shape TEXT NOT NULL,
            threads INTEGER NOT NULL,
            cache TEXT NOT NULL,
            params TEXT NOT NULL,
            source_hash TEXT REFERENCES sources (hash),
            artifact_key TEXT NOT NULL,
            compiler TEXT NOT NULL,
            flags TEXT NOT NULL,
            isa TEXT NOT NULL,
            fast_math INTEGER NOT NULL,
            verdict TEXT NOT NULL,
            cases INTEGER NOT NULL,
            held INTEGER NOT NULL,
            max_error REAL,
            witness TEXT NOT NULL,
            witness_error REAL,
            first_ns REAL,
            median_ns REAL,
            low_ns REAL,
            high_ns REAL,
            samples BLOB,
            calls INTEGER,
            witness_first_ns REAL,
            witness_median_ns REAL,
            witness_low_ns REAL,
            witness_high_ns REAL,
            witness_samples BLOB,
            witness_calls INTEGER,
            gflops REAL,
            gbs REAL,
            share REAL,
            noise REAL NOT NULL,
            message TEXT NOT NULL,
            CHECK (verdict IN ('held', 'wrong', 'failed', 'not-run')),
            CHECK (median_ns IS NULL OR verdict = 'held')
        )
        """,
        "CREATE INDEX results_of_run ON results (run)",
        "CREATE INDEX results_of_kernel ON results (operator, kernel)",
        """
        CREATE TABLE verdicts (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            artifact_key TEXT NOT NULL,
            machine TEXT NOT NULL,
            verdict TEXT NOT NULL,
            cases INTEGER NOT NULL,
            partial INTEGER NOT NULL,
            recorded TEXT NOT NULL
        )
        """,
        "CREATE INDEX verdicts_of_artifact ON verdicts (artifact_key, machine)",
    ),
    (
        # What tuning found out about each configuration of a kernel, whether it won or not.
        """
        CREATE TABLE configurations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run INTEGER NOT NULL REFERENCES runs (id),
            operator TEXT NOT NULL,
            kernel TEXT NOT NULL,
            backend TEXT NOT NULL,
            machine TEXT NOT NULL,
            dtype TEXT NOT NULL,
            shape TEXT NOT NULL,
            threads INTEGER NOT NULL,
            params TEXT NOT NULL,
            source_hash TEXT NOT NULL,
            artifact_key TEXT NOT NULL,
            compiler TEXT NOT NULL,
            flags TEXT NOT NULL,
            isa TEXT NOT NULL,
            outcome TEXT NOT NULL,
            message TEXT NOT NULL,
            cases INTEGER NOT NULL,
            build_seconds REAL NOT NULL,
            place TEXT NOT NULL,
            first_ns REAL,
            median_ns REAL,
            low_ns REAL,
            high_ns REAL,
            samples BLOB,
            calls INTEGER,
            noise REAL NOT NULL,
            recorded TEXT NOT NULL,
            UNIQUE (run, operator, kernel, dtype, shape, threads, params),
            CHECK (place IN ('', 'tied', 'won')),
            CHECK (median_ns IS NULL OR outcome = 'held'),
            CHECK (place = '' OR median_ns IS NOT NULL)
        )
        """,
        "CREATE INDEX configurations_of_kernel ON configurations (operator, kernel, source_hash)",
    ),
    (
        # The state of the caches that a configuration was timed in.
        "ALTER TABLE configurations ADD COLUMN cache TEXT NOT NULL DEFAULT 'warm'",
    ),
)


class _DamagedError(Exception):
    """The file is no longer a sound SQLite database."""


def explain(path: Path, error: sqlite3.Error) -> MachineError:
    """What an SQLite error means to a person, and what to do about it."""
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        advice = f"another process has held it for {BUSY_SECONDS:.0f} s; end that one or try later"
    elif code == sqlite3.SQLITE_FULL:
        advice = "the disk is full; free some space there"
    elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        advice = "it cannot be opened for writing; set OPWRIGHT_HOME to a folder of yours"
    elif _damaged(error):
        advice = "the file is damaged; the next command moves it aside and starts a fresh one"
    else:
        advice = "set OPWRIGHT_HOME to another folder to go on without it"
    return MachineError(f"history {path}: {error}: {advice}")


def connect(path: Path) -> tuple[sqlite3.Connection, str]:
    """Open the history at ``path``, creating or migrating it, and return it with a notice.

    The notice is empty unless the file was damaged: then it says where that file was moved, and
    the connection is to a fresh one. Raises ``MachineError`` for a file of a newer Opwright or of
    another program, which is left as it is, and when the file cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(_DamagedError):
            connection = _attach(path)
            if _version(connection) == len(MIGRATIONS):
                return connection, ""
            connection.close()
        # Creating, migrating and moving aside are done by one process at a time; the others find
        # the file ready when their turn comes.
        with _locked(path):
            notice = ""
            try:
                connection = _attach(path)
            except _DamagedError as error:
                notice = _move_aside(path, str(error))
                connection = _attach(path)
            _migrate(connection)
            return connection, notice
    except sqlite3.Error as error:
        raise explain(path, error) from error
    except OSError as error:
        raise MachineError(
            f"history {path}: {error.strerror}: set OPWRIGHT_HOME to a folder of yours"
        ) from error


def _code(error: sqlite3.Error) -> int:
    # The low byte is the primary code, the rest says more about it.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _damaged(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _attach(path: Path) -> sqlite3.Connection:
    """A connection to a file that is ours, sound, and of no newer schema than is known here."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        version = _version(connection)
        owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if owner != APPLICATION_ID and not (owner == version == 0 and empty):
            raise MachineError(
                f"history {path}: the file belongs to another program; move it, or set "
                "OPWRIGHT_HOME to another folder"
            )
        if version > len(MIGRATIONS):
            raise MachineError(
                f"history {path}: written by a newer Opwright (schema {version}, this one knows "
                f"{len(MIGRATIONS)}); upgrade Opwright, or set OPWRIGHT_HOME to another folder"
            )
        complaint = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if complaint != "ok":
            raise _DamagedError(complaint)
        connection.execute("PRAGMA foreign_keys = ON")
        # FULL: what add_result() has returned from survives even a power cut. It costs one fsync a
        # result, and a result takes seconds to make.
        connection.execute("PRAGMA synchronous = FULL")
        connection.row_factory = sqlite3.Row
    except sqlite3.DatabaseError as error:
        connection.close()
        if _damaged(error):
            raise _DamagedError(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Run the missing steps, each with its new version number in one transaction."""
    try:
        # WAL lets readers go on while another process writes. The file remembers it; where the
        # file system cannot do it, SQLite stays with its rollback journal.
        connection.execute("PRAGMA journal_mode = WAL")
        # Off, so that a step may rebuild a table that others refer to; checked before the commit.
        connection.execute("PRAGMA foreign_keys = OFF")
        for version in range(_version(connection), len(MIGRATIONS)):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                if connection.execute("PRAGMA foreign_key_check").fetchone():
                    raise sqlite3.IntegrityError(f"migration {version + 1} breaks a reference")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {version + 1}")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file gives the lock up, and so does the end of the process


def _move_aside(path: Path, complaint: str) -> str:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    # The log goes first: left beside a fresh file, it would be replayed into that one.
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return (
        f"the history {path} was damaged ({complaint}); it was moved to {aside} and a fresh one "
        "started. Nothing was deleted: sqlite3's .recover may bring its rows back"
    )
