import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from opwright.history import History, Result, schema
from opwright.spec.errors import OpwrightError

ROWS = 30
RESULT = Result("matmul", "cpu_v1", "cpu", "f32", "held", message="long " * 500)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def filled(path: Path) -> None:
    with History.open(path) as history:
        run = history.start_run("bench", "m1", {})
        for _ in range(ROWS):
            history.add_result(run, RESULT)


def state(path: Path) -> tuple[int, int, str]:
    db = sqlite3.connect(path)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    application = db.execute("PRAGMA application_id").fetchone()[0]
    journal = db.execute("PRAGMA journal_mode").fetchone()[0]
    db.close()
    return version, application, journal


def beside(path: Path) -> set[str]:
    return {p.name for p in path.parent.iterdir()}


def test_a_new_file_has_the_current_schema_and_wal(path: Path) -> None:
    History.open(path).close()
    assert state(path) == (len(schema.MIGRATIONS), 0x4F505752, "wal")


def test_foreign_keys_hold(path: Path) -> None:
    with History.open(path) as history:
        assert history._db.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    filled(path)
    with History.open(path) as history, pytest.raises(sqlite3.IntegrityError):
        history._db.execute("DELETE FROM runs")


@pytest.mark.parametrize("content", ["missing", "no bytes", "no tables"])
def test_an_empty_file_is_version_zero(path: Path, content: str) -> None:
    if content == "no bytes":
        path.touch()
    elif content == "no tables":  # what a kill between creating and migrating leaves
        db = sqlite3.connect(path)
        db.execute("PRAGMA journal_mode = WAL")
        db.close()
        assert path.stat().st_size > 0
    filled(path)
    with History.open(path) as history:
        assert history.notice == ""
        assert len(history.results(1)) == ROWS


def test_an_older_file_is_brought_up_with_its_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    version = len(schema.MIGRATIONS)
    steps = (
        ("ALTER TABLE runs ADD COLUMN host TEXT NOT NULL DEFAULT 'here'",),
        # Rebuilds a table that others refer to, as SQLite needs for most changes.
        (
            "CREATE TABLE fresh (fingerprint TEXT PRIMARY KEY, facts TEXT, seen TEXT)",
            "INSERT INTO fresh SELECT fingerprint, facts, 'never' FROM machines",
            "DROP TABLE machines",
            "ALTER TABLE fresh RENAME TO machines",
        ),
    )
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS + steps)
    with History.open(path) as history:
        assert len(history.results(1)) == ROWS
        assert history._db.execute("SELECT host FROM runs").fetchone()[0] == "here"
        assert history._db.execute("SELECT seen FROM machines").fetchone()[0] == "never"
        assert history._db.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    assert state(path)[0] == version + 2


@pytest.mark.parametrize(
    "bad", ["INSERT INTO nowhere VALUES (1)", "DELETE FROM machines WHERE fingerprint = 'm1'"]
)
def test_a_failing_step_leaves_the_older_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    filled(path)
    version = len(schema.MIGRATIONS)
    with monkeypatch.context() as patched:
        good = ("ALTER TABLE runs ADD COLUMN host TEXT", bad)
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, good))
        with pytest.raises(OpwrightError, match=r"history\.sqlite"):
            History.open(path)
    assert state(path)[0] == version
    with History.open(path) as history:
        assert len(history.results(1)) == ROWS
        columns = [row["name"] for row in history._db.execute("PRAGMA table_info(runs)")]
        assert "host" not in columns


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    filled(path)
    newer = len(schema.MIGRATIONS) + 1
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {newer}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(OpwrightError, match=rf"newer Opwright \(schema {newer}, this one knows"):
        History.open(path)
    assert path.read_bytes() == before
    assert not any("damaged" in name for name in beside(path))


def test_another_programs_file_is_refused_and_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(OpwrightError, match="belongs to another program"):
        History.open(path)
    assert path.read_bytes() == before


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "not a database":
        data = bytearray(b"\xff" * 5000)
    elif how == "cut":
        del data[len(data) // 2 :]
    elif how == "header":
        data[:64] = b"\0" * 64
    elif how == "page":
        data[-3 * 4096 : -4096] = b"\x5a" * (2 * 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["not a database", "cut", "header", "page"])
def test_a_damaged_file_is_moved_aside_and_a_fresh_one_started(path: Path, how: str) -> None:
    filled(path)
    damage(path, how)
    before = path.read_bytes()
    with History.open(path) as history:
        assert history.runs() == []
        [aside] = [p for p in path.parent.iterdir() if "damaged" in p.name]
        assert str(aside) in history.notice
        assert str(path) in history.notice
        assert aside.read_bytes() == before
    filled(path)
    with History.open(path) as history:
        assert history.notice == ""
        assert len(history.results(1)) == ROWS


def test_nothing_of_a_damaged_file_or_its_log_is_lost(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    with History.open(path) as history:
        run = history.start_run("bench", "m1", {})
        history._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        history.add_result(run, replace(RESULT, message="only in the log"))
        for suffix in ("", "-wal"):  # as a kill would leave them
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    damage(copy, "not a database")
    assert b"only in the log" not in copy.read_bytes()
    with History.open(copy) as history:
        assert history.runs() == []
        history.start_run("bench", "m1", {})
    aside = [p for p in copy.parent.iterdir() if "damaged" in p.name]
    assert any(b"only in the log" in p.read_bytes() for p in aside)
    assert b"only in the log" not in copy.read_bytes()


def test_damage_met_while_open_is_explained(path: Path) -> None:
    filled(path)
    with History.open(path) as history:
        history._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(path, "page")
        history._db.execute("PRAGMA shrink_memory")
        with pytest.raises(OpwrightError, match="the next command moves it aside"):
            history.results(1)
