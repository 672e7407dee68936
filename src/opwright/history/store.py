"""The history: runs, results and sources, kept in one SQLite file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from opwright.history import schema
from opwright.history.records import Configuration, Result, Run, Source, Times, Verdict, Version
from opwright.report.formats import jsonable
from opwright.spec.errors import OpwrightError, UnknownNameError, UsageError
from opwright.toolchain.paths import home

_TIMES = ("first_ns", "median_ns", "low_ns", "high_ns", "samples", "calls")
_PLAIN = [f.name for f in fields(Result) if f.name not in ("times", "witness_times")]
_RESULT = _PLAIN + [prefix + name for prefix in ("", "witness_") for name in _TIMES]
_INSERT_RESULT = (
    f"INSERT INTO results ({', '.join(_RESULT)}) VALUES ({', '.join('?' * len(_RESULT))})"
)

_CONFIGURATION = [f.name for f in fields(Configuration) if f.name != "times"]
_KEPT = [*_CONFIGURATION, *_TIMES]
# What one run finds out about a configuration later replaces what it found before.
_KEEP_CONFIGURATION = (
    f"INSERT INTO configurations ({', '.join(_KEPT)}) VALUES ({', '.join('?' * len(_KEPT))}) "
    "ON CONFLICT (run, operator, kernel, dtype, shape, threads, params) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _KEPT)
)

_LARGEST = 2**63 - 1  # that SQLite holds; no run gets there

# Names offered after an unknown one.
_OFFERED = 20


class History:
    """An open history; a context manager, and usable from several threads.

    What a method has recorded when it returns survives a kill and a power cut. Several processes
    may record at once. Every method raises ``MachineError`` when the file cannot be used.

    ``notice`` is empty, or says that a damaged file was moved aside when this one was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._db, self.notice = schema.connect(path)

    @classmethod
    def open(cls, path: Path | None = None) -> Self:
        """Open the history at ``path``, by default ``history.sqlite`` in Opwright's home.

        It is created, or brought up from an older schema, as needed. Raises ``MachineError`` when
        a newer Opwright wrote it; the file is then left as it is.
        """
        return cls(path or home() / "history.sqlite")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise schema.explain(self.path, error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            # IMMEDIATE takes the write lock first: a transaction that began by reading could not
            # wait for another writer, it would fail at once.
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def start_run(
        self, command: str, machine: str, facts: Mapping[str, Any], note: str = ""
    ) -> int:
        """Record that ``command`` began on ``machine`` and return the run's number, from 1 up.

        ``machine`` is a fingerprint and ``facts`` what it was made from, kept as JSON.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO machines VALUES (?, ?) "
                "ON CONFLICT (fingerprint) DO UPDATE SET facts = excluded.facts",
                (_text(machine), json.dumps(jsonable(facts))),
            )
            row = db.execute(
                "INSERT INTO runs (started, command, machine, version, note) "
                "VALUES (?, ?, ?, ?, ?)",
                (_now(), _text(command), _text(machine), _own_version(), _text(note)),
            )
            return int(row.lastrowid or 0)

    def add_result(self, run: int, result: Result) -> None:
        """Record one result of ``run``; it is on the disk when this returns.

        Raises ``OpwrightError`` when there is no such run or the source was not kept before.
        """
        values = [_text(v) if isinstance(v, str) else v for v in _row_of(run, result)]
        try:
            with self._writing() as db:
                db.execute(_INSERT_RESULT, values)
        except OpwrightError as error:
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise OpwrightError(
                    f"history {self.path}: the result of {result.operator}/{result.kernel} needs a "
                    f"run {run} from start_run and a source {result.source_hash or '(none)'} from "
                    f"keep_source ({error.__cause__})"
                ) from error
            raise

    def keep_source(self, path: Path) -> str:
        """Keep the file's bytes, once however often it is called, and return their SHA-256."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OpwrightError(f"cannot read the source {path}: {error.strerror}") from error
        digest = hashlib.sha256(data).hexdigest()
        with self._writing() as db:
            db.execute(
                "INSERT INTO sources VALUES (?, ?) ON CONFLICT DO NOTHING",
                (digest, zlib.compress(data)),
            )
            db.execute(
                "INSERT INTO source_paths VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (digest, _text(str(path.resolve())), _now()),
            )
        return digest

    def runs(self, operator: str = "", limit: int = _OFFERED) -> list[Run]:
        """The newest ``limit`` runs, newest first; only those with results of ``operator``."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT runs.*, machines.facts FROM runs "
                "JOIN machines ON machines.fingerprint = runs.machine "
                "WHERE ?1 = '' OR EXISTS (SELECT 1 FROM results "
                "WHERE results.run = runs.id AND results.operator = ?1) "
                "ORDER BY runs.id DESC LIMIT ?2",
                (_text(operator), limit),
            ).fetchall()
            return [self._run(row) for row in rows]

    def run(self, run: int) -> Run:
        """The run with that number; raises ``UnknownNameError`` with the newest there are."""
        with self._reading() as db:
            row = db.execute(
                "SELECT runs.*, machines.facts FROM runs "
                "JOIN machines ON machines.fingerprint = runs.machine WHERE runs.id = ?",
                (min(run, _LARGEST),),
            ).fetchone()
            if row is None:
                known = db.execute("SELECT id FROM runs ORDER BY id DESC LIMIT ?", (_OFFERED,))
                raise UnknownNameError("run", str(run), [str(k["id"]) for k in known])
            return self._run(row)

    def _run(self, row: sqlite3.Row) -> Run:
        operators = self._db.execute(
            "SELECT DISTINCT operator FROM results WHERE run = ? ORDER BY operator", (row["id"],)
        )
        return Run(
            id=row["id"],
            started=row["started"],
            command=row["command"],
            machine=row["machine"],
            facts=json.loads(row["facts"]),
            version=row["version"],
            note=row["note"],
            operators=tuple(r["operator"] for r in operators),
        )

    def results(self, run: int, operator: str = "", kernel: str = "") -> list[Result]:
        """The results of ``run`` in the order they came, optionally of one operator or kernel."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT * FROM results WHERE run = ?1 AND (?2 = '' OR operator = ?2) "
                "AND (?3 = '' OR kernel = ?3) ORDER BY id",
                (run, _text(operator), _text(kernel)),
            )
            return [_result_of(row) for row in rows]

    def best_times(
        self, operator: str, dtype: str, machine: str, threads: int, cache: str = "warm"
    ) -> list[Result]:
        """The newest times for each kernel, artifact and shape, measured on ``machine``."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT * FROM results WHERE id IN ("
                "SELECT max(results.id) FROM results JOIN runs ON runs.id = results.run "
                "WHERE operator = ? AND dtype = ? AND machine = ? AND threads = ? AND cache = ? "
                "AND median_ns IS NOT NULL GROUP BY kernel, artifact_key, shape) ORDER BY id",
                (_text(operator), _text(dtype), _text(machine), threads, cache),
            )
            return [_result_of(row) for row in rows]

    def keep_configurations(self, run: int, found: Sequence[Configuration]) -> None:
        """Record what ``run`` found out about configurations, all of them or none.

        A configuration that the run has recorded before is replaced.
        """
        with self._writing() as db:
            db.executemany(_KEEP_CONFIGURATION, [_row_of_configuration(run, c) for c in found])

    def configurations(
        self,
        operator: str,
        kernel: str = "",
        *,
        source_hash: str = "",
        machine: str = "",
        dtype: str = "",
        threads: int = 0,
        place: str = "",
        run: int = 0,
    ) -> list[Configuration]:
        """The newest record of each configuration, oldest first; only those with what is given.

        Configurations are told apart by everything that a time depends on: the kernel's source,
        flags, compiler, instruction set, machine, element types, shape, threads and cache. With
        ``place`` they are the newest of that place, which a later run may have given to another.
        """
        with self._reading() as db:
            rows = db.execute(
                "SELECT * FROM configurations WHERE id IN (SELECT max(id) FROM configurations "
                "WHERE operator = ?1 AND (?2 = '' OR kernel = ?2) "
                "AND (?3 = '' OR source_hash = ?3) AND (?4 = '' OR machine = ?4) "
                "AND (?5 = '' OR dtype = ?5) AND (?6 = 0 OR threads = ?6) "
                "AND (?7 = '' OR place = ?7) AND (?8 = 0 OR run = ?8) "
                "GROUP BY kernel, source_hash, flags, compiler, isa, machine, dtype, shape, "
                "threads, cache, params) ORDER BY id",
                (
                    *map(_text, (operator, kernel, source_hash, machine, dtype)),
                    *(threads, place, min(run, _LARGEST)),
                ),
            )
            return [_configuration_of(row) for row in rows]

    def source(self, run: int, kernel: str) -> Source:
        """The source of ``kernel`` (``matmul/cpu_v3_tiled``) as it was in ``run``.

        Raises ``UnknownNameError`` for a run or kernel that the history does not have.
        """
        operator, _, name = kernel.rpartition("/")
        self.run(run)
        with self._reading() as db:
            # The last result counts, should the file have changed during the run.
            row = db.execute(
                "SELECT source_hash FROM results WHERE run = ? AND operator = ? AND kernel = ? "
                "AND source_hash IS NOT NULL ORDER BY id DESC LIMIT 1",
                (run, _text(operator), _text(name)),
            ).fetchone()
            if row is None:
                known = db.execute(
                    "SELECT DISTINCT operator || '/' || kernel AS name FROM results "
                    "WHERE run = ? AND source_hash IS NOT NULL",
                    (run,),
                )
                names = [k["name"] for k in known]
                raise UnknownNameError("kernel source", kernel, names, f"run {run}")
        return self._source(row["source_hash"])

    def source_version(self, kernel: str, prefix: str, path: Path | None = None) -> Source:
        """The version of ``kernel``, among ``versions``, whose hash starts with ``prefix``.

        Raises ``UnknownNameError`` when there is none and ``UsageError`` when there are several.
        """
        versions = self.versions(kernel, path)
        found = [v.hash for v in versions if v.hash.startswith(prefix.lower())]
        if not found:
            known = [v.hash[:12] for v in versions]
            raise UnknownNameError("version", prefix, known, kernel)
        if len(found) > 1:
            raise UsageError(
                f"{kernel}@{prefix} could be any of {', '.join(h[:16] for h in found)}: "
                "give more of the hash"
            )
        return self._source(found[0])

    def versions(self, kernel: str, path: Path | None = None) -> list[Version]:
        """Every kept version of ``kernel`` (``matmul/cpu_v3_tiled``), newest first.

        These are the sources that a run used as that kernel and, given the kernel's ``path``,
        those that were kept from this file without a run.
        """
        operator, _, name = kernel.rpartition("/")
        with self._reading() as db:
            rows = db.execute(
                "WITH used AS (SELECT DISTINCT source_hash AS hash FROM results "
                "WHERE operator = ?1 AND kernel = ?2 AND source_hash IS NOT NULL) "
                "SELECT hash, path, min(kept) AS kept FROM source_paths "
                "WHERE hash IN used OR path = ?3 GROUP BY hash ORDER BY min(rowid) DESC",
                (_text(operator), _text(name), _text(str(path.resolve())) if path else ""),
            ).fetchall()
            versions = []
            for row in rows:
                runs = db.execute(
                    "SELECT DISTINCT run FROM results "
                    "WHERE source_hash = ? AND operator = ? AND kernel = ? ORDER BY run",
                    (row["hash"], _text(operator), _text(name)),
                )
                used_in = tuple(r["run"] for r in runs)
                versions.append(Version(row["hash"], row["path"], row["kept"], used_in))
            return versions

    def _source(self, digest: str) -> Source:
        with self._reading() as db:
            row = db.execute(
                "SELECT sources.data, source_paths.path FROM sources "
                "JOIN source_paths USING (hash) WHERE hash = ? ORDER BY source_paths.rowid",
                (digest,),
            ).fetchone()
        return Source(digest, row["path"], zlib.decompress(row["data"]))

    def record_verdict(
        self,
        artifact_key: str,
        machine: str,
        verdict: Literal["held", "wrong", "failed"],
        cases: int,
        *,
        partial: bool = False,
    ) -> None:
        """Record how verification of a built kernel ended on ``machine``, over ``cases`` cases.

        ``partial`` says that a person had limited the cases: such a run can refute a kernel but
        never vouch for it.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO verdicts (artifact_key, machine, verdict, cases, partial, recorded) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (_text(artifact_key), _text(machine), verdict, cases, partial, _now()),
            )

    def verdict(self, artifact_key: str, machine: str) -> Verdict | None:
        """How the newest verification of a built kernel on ``machine`` ended; None without one.

        A partial one counts only when it found something.
        """
        with self._reading() as db:
            row = db.execute(
                "SELECT verdict FROM verdicts WHERE artifact_key = ? AND machine = ? "
                "AND NOT (partial AND verdict = 'held') ORDER BY id DESC LIMIT 1",
                (_text(artifact_key), _text(machine)),
            ).fetchone()
            return row["verdict"] if row else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("opwright")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def _text(text: str) -> str:
    """``text`` as SQLite can hold it: file names may have bytes that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _row_of(run: int, result: Result) -> list[Any]:
    given = {
        **dict.fromkeys(_RESULT),
        **{name: getattr(result, name) for name in _PLAIN},
        "run": run,
        "shape": json.dumps(dict(result.shape)),
        "params": json.dumps(dict(result.params)),
        "flags": json.dumps(list(result.flags)),
        "source_hash": result.source_hash or None,
        **_times_row("", result.times),
        **_times_row("witness_", result.witness_times),
    }
    return [given[name] for name in _RESULT]


def _row_of_configuration(run: int, found: Configuration) -> list[Any]:
    given = {
        **{name: getattr(found, name) for name in _CONFIGURATION},
        "run": run,
        "recorded": _now(),
        "shape": json.dumps(dict(found.shape), sort_keys=True),
        "params": json.dumps(dict(found.params), sort_keys=True),
        "flags": json.dumps(list(found.flags)),
        **dict.fromkeys(_TIMES),
        **_times_row("", found.times),
    }
    return [_text(v) if isinstance(v := given[name], str) else v for name in _KEPT]


def _configuration_of(row: sqlite3.Row) -> Configuration:
    return Configuration(
        **{
            **{name: row[name] for name in _CONFIGURATION},
            "shape": json.loads(row["shape"]),
            "params": json.loads(row["params"]),
            "flags": tuple(json.loads(row["flags"])),
            "times": _times_of(row, ""),
        }
    )


def _times_row(prefix: str, times: Times | None) -> dict[str, Any]:
    if times is None:
        return {}
    row = {prefix + name: getattr(times, name) for name in _TIMES}
    row[f"{prefix}samples"] = struct.pack(f"<{len(times.samples)}d", *times.samples)
    return row


def _result_of(row: sqlite3.Row) -> Result:
    return Result(
        **{
            **{name: row[name] for name in _PLAIN},
            "shape": json.loads(row["shape"]),
            "params": json.loads(row["params"]),
            "flags": tuple(json.loads(row["flags"])),
            "source_hash": row["source_hash"] or "",
            "fast_math": bool(row["fast_math"]),
            "times": _times_of(row, ""),
            "witness_times": _times_of(row, "witness_"),
        }
    )


def _times_of(row: sqlite3.Row, prefix: str) -> Times | None:
    if row[f"{prefix}median_ns"] is None:
        return None
    packed = row[f"{prefix}samples"]
    samples = struct.unpack(f"<{len(packed) // 8}d", packed)
    return Times(**{**{name: row[prefix + name] for name in _TIMES}, "samples": samples})
