"""The tool as a process: killed, interrupted, at a terminal, in a pipe that closes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from cli.tool import alive, children, declare, finish, operator, opwright, plain, start, wait_for
from operators import RIGHT, SIGNATURE
from opwright.cli.common import Output
from opwright.cli.tables import plain_table


def marking(mark: Path, then: str) -> str:
    """A kernel that makes the file ``mark`` and goes on with ``then``, for sizes of 50 and up."""
    return f"""
extern "C" int creat(const char*, unsigned);
extern "C" int usleep(unsigned);
static int calls;
{SIGNATURE} {{
    if (n >= 50 && ++calls) {{ {then.replace("MARK", f'creat("{mark}", 0644)')} }}
    {RIGHT}
}}
"""


def hanging(tmp_path: Path) -> tuple[Path, Path]:
    """An operator whose kernel marks a file and never ends, and the file."""
    mark = tmp_path / "mark"
    body = marking(mark, "MARK; for (volatile int i = 0;;) i = i + 1;")
    return operator(tmp_path, {"hangs": body, "right": RIGHT}).spec.folder, mark


def worker_of(process: subprocess.Popen[str], mark: Path) -> list[int]:
    """The workers of the tool, once the kernel has made its mark."""
    wait_for(mark.exists)
    workers = children(process.pid)
    assert workers and all(map(alive, workers))
    return workers


def abandoned(home: Path) -> list[Path]:
    """Work folders of builds whose process is gone; those of others that build now are locked."""
    found = []
    for folder in (home / "cache" / "work").iterdir():
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(folder)
            finally:
                os.close(handle)
    return found


def next_run_works(folder: Path, home: Path) -> None:
    """Nothing is damaged: the cache builds and finds, the history takes and gives."""
    with sqlite3.connect(home / "history.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    bench = ("bench", folder / "cpu_right", "--shape", "9", "--budget", "0.1", "--json")
    ran = opwright(*bench)
    assert ran.code == 0
    assert ran.err == ""  # no word of anything moved aside or rebuilt
    run = ran.json["data"]["runs"][0]
    shown = opwright("history", folder, "--json").json["data"]
    assert run in [r["id"] for r in shown["runs"]]
    opwright("verify", folder / "cpu_right", "--dtype", "bf16", "--shape", "9")
    wait_for(lambda: not abandoned(home))


def test_killed_in_the_middle_of_verify(tmp_path: Path, own_home: Path) -> None:
    folder, mark = hanging(tmp_path)
    words = ("--dtype", "f32", "--shape", "50", "--timeout", "600")
    process = start("verify", folder, *words)
    workers = worker_of(process, mark)
    process.kill()
    process.communicate(timeout=30)
    for pid in workers:
        wait_for(lambda pid=pid: not alive(pid))
    opwright("verify", folder / "cpu_right", "--dtype", "f32", "--shape", "9")
    next_run_works(folder, own_home)


@pytest.fixture
def sleepy(tmp_path: Path) -> tuple[Path, Path]:
    """A kernel that is right and, once it is timed at 60 elements, marks a file and sleeps."""
    mark = tmp_path / "mark"
    # Verification calls it a few times with 60 elements; timing warms up with more.
    body = marking(mark, "if (n == 60 && calls > 8) { MARK; for (;;) usleep(100000); }")
    return operator(tmp_path, {"sleepy": body, "right": RIGHT}).spec.folder, mark


BENCH = ("--dtype", "f32", "--shape", "50", "--shape", "60", "--budget", "0.1")


def recorded(folder: Path) -> list[tuple[int, str]]:
    results = opwright("history", folder, "--json").json["data"]["results"]
    return [(r["shape"]["n"], r["verdict"]) for r in results]


def test_killed_in_the_middle_of_bench(
    sleepy: tuple[Path, Path], own_home: Path, tmp_path: Path
) -> None:
    folder, mark = sleepy
    process = start("bench", folder / "cpu_sleepy", *BENCH)
    workers = worker_of(process, mark)
    process.kill()
    process.communicate(timeout=30)
    for pid in workers:
        wait_for(lambda pid=pid: not alive(pid))
    # The table that was finished is kept; there is nothing of the other.
    assert recorded(folder) == [(50, "held")]
    next_run_works(folder, own_home)


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupted_it_ends_with_130_and_keeps_what_was_recorded(
    sleepy: tuple[Path, Path], own_home: Path, as_json: bool
) -> None:
    folder, mark = sleepy
    process = start("bench", folder / "cpu_sleepy", *BENCH, *(["--json"] if as_json else []))
    workers = worker_of(process, mark)
    process.send_signal(signal.SIGINT)
    ran = finish(process)
    assert ran.code == 130
    assert "interrupted; what was recorded is kept" in ran.err
    assert "Traceback" not in ran.err
    assert not any(map(alive, workers))
    assert recorded(folder) == [(50, "held")]
    if as_json:
        assert ran.json["error"]["kind"] == "Interrupted"
    next_run_works(folder, own_home)


def test_interrupted_while_it_compiles_no_compiler_is_left(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A header that is a pipe nobody writes to: the compiler waits for it.
    folder = operator(
        tmp_path, {"right": RIGHT, "waits": '// whole\n#include "pipe.h"\n'}
    ).spec.folder
    os.mkfifo(folder / "pipe.h")
    process = start("verify", folder / "cpu_waits", "--dtype", "f32", "--shape", "9")
    [driver] = wait_for(lambda: children(process.pid))
    [compiler] = wait_for(lambda: children(driver))
    process.send_signal(signal.SIGINT)
    ran = finish(process)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    for pid in (driver, compiler):
        wait_for(lambda pid=pid: not alive(pid))
    wait_for(lambda: not abandoned(own_home))


def test_interrupted_before_a_command_is_there(tmp_path: Path) -> None:
    """While modules are imported, say: no traceback either."""
    program = (
        "import sys, click, opwright.cli as cli\n"
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "cli._Commands.get_command = interrupt\n"
        "cli.main(['verify', 'matmul'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["list"], ["list", "--json"], ["doctor"], ["verify", "matmul", "--help"]]
)
def test_a_pipe_that_closes_is_no_traceback(words: list[str]) -> None:
    process = start(*words)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # nobody reads
    said = process.stderr.read()
    process.wait(timeout=30)
    process.stderr.close()
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def at_a_terminal(folder: Path, **environment: str) -> tuple[str, str]:
    """What ``verify`` writes on stdout, a pipe, and on stderr, a terminal."""
    terminal, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **environment}
    process = start("verify", folder, "--dtype", "f32", "--shape", "9", stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    out, _ = process.communicate(timeout=30)
    os.close(terminal)
    assert process.returncode == 0
    return out, shown.decode()


def test_a_bar_is_drawn_at_a_terminal_only(tmp_path: Path) -> None:
    folder = operator(tmp_path, {"right": RIGHT}).spec.folder
    out, shown = at_a_terminal(folder)
    assert "cpu_right" in shown  # what is being worked on
    assert "\x1b[" in shown
    assert "held" in out and "\x1b" not in out
    piped = finish(start("verify", folder, "--dtype", "f32", "--shape", "9"))
    assert (piped.code, piped.err) == (0, "")
    assert "\x1b" not in piped.out


@pytest.mark.parametrize("columns", ["1", "20", "0", "wide"])
def test_any_width_of_the_terminal_will_do(
    columns: str, tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = operator(tmp_path, {"right": RIGHT, "zeros": ""}).spec.folder
    monkeypatch.setenv("COLUMNS", columns)
    assert opwright("verify", folder, "--dtype", "f32", "--shape", "9").code == 1
    assert opwright("bench", folder, "--shape", "9", "--budget", "0.1").code == 1
    for words in (["list"], ["history", folder], ["compare", "1", "1"], ["doctor"], ["--help"]):
        assert opwright(*words).code == 0
    if columns in ("0", "20"):
        right = at_a_terminal(folder / "cpu_right", COLUMNS=columns)
        assert "held" in "".join(right[0].split())


def test_no_table_is_cropped_at_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    output = Output("bench", False)
    table = plain_table("shape", "verdict", "time (median)", "change", right=["time (median)"])
    table.add_row("m=127,n=8191,k=63", "held", "8.47 ms", "blocks kept in L1")
    output.say(table)
    for whole in ("m=127,n=8191,k=63", "held", "time (median)", "8.47 ms", "blocks"):
        assert whole in shown.getvalue()
    output.say("text " * 20)  # which the terminal wraps
    assert shown.getvalue().endswith("text " * 20 + "\n")


def test_a_declaration_that_prints_without_end_is_not_in_the_way(tmp_path: Path) -> None:
    declared = """
@operator(dtypes={"T": ["f32"]})
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    print("x" * 100000)
    return scale * x + 1

affine.kernels(Kernel("cpu_right.cpp"))
"""
    folder = declare(tmp_path / "affine", declared, {"cpu_right.cpp": plain(RIGHT)})
    ran = finish(start("verify", folder, "--shape", "9", "--json"))
    assert ran.json["exit_code"] == 0
    assert len(ran.err) > 100000
