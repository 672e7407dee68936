import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opwright.history import History, Result, Times, schema
from opwright.spec.errors import OpwrightError, UnknownNameError, UsageError

TIMES = Times(900.0, 100.5, 99.0, 102.0, (99.0, 100.5, 1 / 3), 7)
HELD = Result(
    operator="matmul",
    kernel="cpu_v1",
    backend="cpu",
    dtype="f32",
    verdict="held",
    shape={"m": 17, "n": 1, "k": 257},
    threads=2,
    cache="warm",
    params={"BLOCK": 64},
    artifact_key="abc",
    compiler="g++ 12.2",
    flags=("-O3", "-g"),
    isa="avx2",
    fast_math=True,
    cases=120,
    held=120,
    max_error=2.1e-6,
    witness="torch.matmul",
    witness_error=1.9e-6,
    times=TIMES,
    witness_times=replace(TIMES, median_ns=50.0, calls=3),
    gflops=12.5,
    gbs=3.25,
    share=0.4,
    noise=0.015,
    message="é\n😀",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "history.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History.open(path) as opened:
        yield opened


def begin(history: History, machine: str = "m1") -> int:
    return history.start_run("opwright verify matmul", machine, {"cpu": machine})


def test_the_default_place_is_opwrights_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path / "own"))
    with History.open() as history:
        assert history.path == tmp_path / "own" / "history.sqlite"
        assert history.path.exists()


def test_a_result_comes_back_as_it_was(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "k.cpp"
    file.write_bytes(b"int x;\r\n\xff")
    with History.open(path) as history:
        run = begin(history)
        full = replace(HELD, source_hash=history.keep_source(file))
        bare = Result("matmul", "cpu_v9", "cpu", "bf16", "not-run", message="no AMX here")
        history.add_result(run, full)
        history.add_result(run, bare)
    with History.open(path) as history:
        assert history.results(run) == [replace(full, run=run), replace(bare, run=run)]
        assert list(history.results(run)[0].shape) == ["m", "n", "k"]
        assert history.results(run, kernel="cpu_v9") == [replace(bare, run=run)]
        assert history.results(run, operator="softmax") == []
        assert history.results(run + 1) == []


def test_infinite_errors_are_kept_and_nan_is_none(history: History) -> None:
    run = begin(history)
    wrong = replace(HELD, verdict="wrong", times=None, max_error=float("inf"))
    history.add_result(run, replace(wrong, witness_error=float("nan")))
    [back] = history.results(run)
    assert back.max_error == float("inf")
    assert back.witness_error is None


@pytest.mark.parametrize("verdict", ["wrong", "failed", "not-run"])
def test_no_times_without_verification(history: History, verdict: str) -> None:
    with pytest.raises(UsageError, match="cannot be recorded"):
        replace(HELD, verdict=verdict)  # type: ignore[arg-type]
    with sqlite3.connect(history.path) as db, pytest.raises(sqlite3.IntegrityError):
        history.add_result(begin(history), HELD)
        db.execute("UPDATE results SET verdict = ?", (verdict,))


def test_results_need_their_run_and_source(history: History) -> None:
    with pytest.raises(OpwrightError, match="needs a run 5 from start_run"):
        history.add_result(5, HELD)
    run = begin(history)
    with pytest.raises(OpwrightError, match="keep_source"):
        history.add_result(run, replace(HELD, source_hash="ab" * 32))
    assert history.results(run) == []
    history.add_result(run, HELD)  # the failures left no transaction open
    assert len(history.results(run)) == 1


def test_runs_are_numbered_newest_first_with_their_operators(history: History) -> None:
    first, second, third = begin(history), begin(history, "m2"), begin(history)
    history.add_result(first, HELD)
    history.add_result(first, replace(HELD, operator="softmax"))
    history.add_result(second, replace(HELD, operator="softmax"))
    assert [run.id for run in history.runs()] == [third, second, first] == [3, 2, 1]
    assert [run.id for run in history.runs("softmax")] == [second, first]
    assert [run.id for run in history.runs("softmax", limit=1)] == [second]
    assert history.runs("relu") == []
    run = history.run(first)
    assert run.operators == ("matmul", "softmax")
    assert (run.command, run.machine, run.facts) == ("opwright verify matmul", "m1", {"cpu": "m1"})
    assert run.started.endswith("+00:00")
    with pytest.raises(UnknownNameError, match=r"no run named '99'; there are: 1, 2, 3"):
        history.run(99)


def test_texts_of_any_kind_survive(history: History) -> None:
    run = history.start_run("opwright verify 'é\x00\udcff'", "m\udc80", {"path": "\udcff"}, "😀")
    kept = history.run(run)
    assert kept.command == "opwright verify 'é\x00\\udcff'"
    assert kept.machine == "m\\udc80"
    assert kept.note == "😀"
    history.add_result(run, replace(HELD, message="\udc80"))
    assert history.results(run)[0].message == "\\udc80"


def test_sources_are_kept_once_and_byte_for_byte(history: History, tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfint x;\r\n\x00\xff\n\n"
    file, copy = tmp_path / "k.cpp", tmp_path / "copy.cpp"
    file.write_bytes(data)
    copy.write_bytes(data)
    digest = history.keep_source(file)
    assert digest == hashlib.sha256(data).hexdigest()
    assert history.keep_source(file) == history.keep_source(copy) == digest
    run = begin(history)
    history.add_result(run, replace(HELD, source_hash=digest))
    source = history.source(run, "matmul/cpu_v1")
    assert (source.hash, source.path, source.data) == (digest, str(file), data)


def test_a_source_beyond_utf8_in_its_name(history: History, tmp_path: Path) -> None:
    file = Path(os.fsdecode(bytes(tmp_path) + b"/k\xff.cpp"))
    file.write_text("x")
    assert history.keep_source(file) == hashlib.sha256(b"x").hexdigest()


def test_unknown_sources_say_what_there_is(history: History, tmp_path: Path) -> None:
    run = begin(history)
    history.add_result(run, replace(HELD, kernel="cpu_v0"))  # has no source
    file = tmp_path / "k.cpp"
    file.write_text("x")
    history.add_result(run, replace(HELD, source_hash=history.keep_source(file)))
    with pytest.raises(UnknownNameError, match="no run named '7'"):
        history.source(7, "matmul/cpu_v1")
    with pytest.raises(UnknownNameError, match=r"in run 1; did you mean matmul/cpu_v1\?"):
        history.source(run, "matmul/cpu_v0")
    with pytest.raises(OpwrightError, match=r"cannot read the source .*none\.cpp"):
        history.keep_source(tmp_path / "none.cpp")


def test_versions_are_found_by_their_hash(history: History, tmp_path: Path) -> None:
    file, other = tmp_path / "k.cpp", tmp_path / "other.cpp"
    file.write_text("first")
    first = history.keep_source(file)
    runs = [begin(history), begin(history)]
    for run in runs:
        history.add_result(run, replace(HELD, source_hash=first))
    file.write_text("second")
    second = history.keep_source(file)
    other.write_text("another kernel")
    foreign = history.keep_source(other)
    listed = history.versions("matmul/cpu_v1", file)
    assert [(v.hash, v.runs) for v in listed] == [(second, ()), (first, (1, 2))]
    assert [v.hash for v in history.versions("matmul/cpu_v1")] == [first]
    assert history.source_version("matmul/cpu_v1", second[:8], file).data == b"second"
    assert history.source_version("matmul/cpu_v1", first[:8].upper()).data == b"first"
    with pytest.raises(UnknownNameError, match="no version named"):
        history.source_version("matmul/cpu_v1", foreign[:12], file)
    with pytest.raises(UsageError, match="could be any of"):
        history.source_version("matmul/cpu_v1", "", file)


def test_verdicts_are_by_machine_and_the_newest_counts(history: History) -> None:
    assert history.verdict("abc", "m1") is None
    history.record_verdict("abc", "m1", "wrong", 100)
    history.record_verdict("abc", "m2", "held", 100)
    assert history.verdict("abc", "m1") == "wrong"
    history.record_verdict("abc", "m1", "held", 100)
    assert history.verdict("abc", "m1") == "held"
    assert history.verdict("abd", "m1") is None


def test_a_partial_verification_refutes_but_never_vouches(history: History) -> None:
    history.record_verdict("abc", "m1", "held", 1, partial=True)
    assert history.verdict("abc", "m1") is None
    history.record_verdict("abc", "m1", "held", 100)
    history.record_verdict("abc", "m1", "wrong", 1, partial=True)
    assert history.verdict("abc", "m1") == "wrong"
    history.record_verdict("abc", "m1", "held", 1, partial=True)
    assert history.verdict("abc", "m1") == "wrong"


def test_best_times_are_the_newest_of_each_artifact_and_shape(history: History) -> None:
    old, new, elsewhere = begin(history), begin(history), begin(history, "m2")
    faster = replace(TIMES, median_ns=1.0)
    for result in (
        replace(HELD, times=faster),  # superseded below
        replace(HELD, shape={"m": 1}),
        replace(HELD, kernel="cpu_v2", artifact_key="xyz"),
    ):
        history.add_result(old, result)
    for result in (
        HELD,
        replace(HELD, artifact_key="tuned"),
        replace(HELD, cache="cold", times=faster),
        replace(HELD, threads=1),
        replace(HELD, dtype="bf16"),
        replace(HELD, operator="softmax"),
        replace(HELD, kernel="cpu_v3", times=None),
        replace(HELD, kernel="cpu_v4", verdict="wrong", times=None),
    ):
        history.add_result(new, result)
    history.add_result(elsewhere, replace(HELD, kernel="cpu_v5"))
    best = history.best_times("matmul", "f32", "m1", threads=2)
    assert [(r.run, r.kernel, r.artifact_key, dict(r.shape)) for r in best] == [
        (old, "cpu_v1", "abc", {"m": 1}),
        (old, "cpu_v2", "xyz", dict(HELD.shape)),
        (new, "cpu_v1", "abc", dict(HELD.shape)),
        (new, "cpu_v1", "tuned", dict(HELD.shape)),
    ]
    assert best[2].times == TIMES


def test_threads_may_share_one_history(history: History) -> None:
    run = begin(history)

    def record(kernel: str) -> None:
        for _ in range(10):
            history.add_result(run, replace(HELD, kernel=kernel))

    threads = [threading.Thread(target=record, args=(f"cpu_v{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert len(history.results(run, kernel=f"cpu_v{i}")) == 10


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from opwright.history import History, Result, Times

count, kernel = int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
with History.open(Path(sys.argv[1])) as history:
    run = history.start_run("write", "m", {})
    times = Times(1.0, 2.0, 1.0, 3.0, tuple(map(float, range(20_000))), 1)
    for done in range(1, count + 1):
        history.add_result(run, Result("op", kernel, "cpu", "f32", "held", times=times))
        print(done, flush=True)
"""


@contextlib.contextmanager
def writer(path: Path, count: int, kernel: str) -> Iterator["subprocess.Popen[str]"]:
    source = Path(schema.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count), kernel],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_killed_writer_loses_nothing_it_had_recorded(path: Path) -> None:
    with writer(path, 100_000, "k") as process:
        go(process)
        assert process.stdout
        for line in process.stdout:
            if int(line) == 20:
                break
        # Somewhere in the next transaction, most of whose time is writing 160 kB.
        process.send_signal(signal.SIGKILL)
        acknowledged = [20, *map(int, process.stdout.read().split())][-1]
    with History.open(path) as history:
        assert history.notice == ""
        results = history.results(1)
        assert acknowledged <= len(results) <= acknowledged + 1
        assert all(r.times and len(r.times.samples) == 20_000 for r in results)
        history.add_result(1, HELD)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_processes_create_and_write_at_once(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(writer(path, 15, f"k{i}")) for i in range(3)]
        for process in processes:
            go(process)
        for process in processes:
            assert process.stdout
            process.stdout.read()
            assert process.wait() == 0
    with History.open(path) as history:
        assert [run.id for run in history.runs()] == [3, 2, 1]
        found = [result.kernel for run in (1, 2, 3) for result in history.results(run)]
        assert sorted(found) == sorted(f"k{i}" for i in range(3) for _ in range(15))


def test_a_reader_does_not_wait_for_a_writer(history: History) -> None:
    begin(history)
    other = sqlite3.connect(history.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE runs SET note = 'unfinished'")
    assert history.runs()[0].note == ""
    other.execute("ROLLBACK")
    other.close()


def test_a_lock_that_is_not_given_up_is_explained(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    with History.open(path) as history:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OpwrightError, match=r"history\.sqlite.*another process has held it"):
            begin(history)
        other.execute("ROLLBACK")
        other.close()
        assert begin(history) == 1


def test_a_place_that_cannot_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OpwrightError, match="set OPWRIGHT_HOME to a folder of yours"):
        History.open(tmp_path / "file" / "history.sqlite")
    with pytest.raises(OpwrightError, match="set OPWRIGHT_HOME to a folder of yours"):
        History.open(tmp_path)
