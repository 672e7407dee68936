"""When a compiler runs and when it does not, and what survives other processes and damage."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wrappers import CountingCompiler, script

import opwright
from opwright.spec.errors import BuildError, MachineError
from opwright.toolchain import build as build_module
from opwright.toolchain.build import Built, build
from opwright.toolchain.cache import file_digest
from opwright.toolchain.compilers import Compiler, pick_compiler

EXPORT = 'extern "C" __attribute__((visibility("default")))'


class Project:
    """A source that returns what a header included by another header says: 1 at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "inner").mkdir(parents=True)
        self.source = folder / "kernel.cpp"
        self.outer = folder / "outer.h"
        self.inner = folder / "inner" / "in ner$.h"
        self.inner.write_text("inline int answer() { return 1; }\n")
        self.outer.write_text('#pragma once\n#include "inner/in ner$.h"\n')
        self.source.write_text(f'#include "outer.h"\n{EXPORT} int run() {{ return answer(); }}\n')

    def build(self, counting: CountingCompiler, **more: Any) -> Built:
        return build(counting.pick(), source=self.source, **more)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "user's project")


def answer(built: Built) -> int:
    result: int = ctypes.CDLL(str(built.path)).run()
    return result


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s"
        time.sleep(0.02)


def test_the_second_build_starts_no_compiler(
    counting: CountingCompiler, project: Project, home: Path
) -> None:
    first = project.build(counting)
    runs = counting.runs
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*")}
    second = project.build(counting)
    assert counting.runs == runs
    assert (first.cached, second.cached) == (False, True)
    assert (second.path, second.key, second.command) == (first.path, first.key, first.command)
    assert second.seconds == first.seconds > 0
    assert answer(second) == 1
    # A hit writes nothing: it works on a read-only home and waits for nobody.
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*")} == before


@pytest.mark.parametrize("which", ["source", "outer", "inner"])
def test_changed_text_is_compiled_again(
    counting: CountingCompiler, project: Project, which: str
) -> None:
    first = project.build(counting)
    path: Path = getattr(project, which)
    before = path.read_text()
    path.write_text(before.replace("answer();", "answer() + 1;").replace("return 1", "return 2"))
    if which == "outer":
        path.write_text("inline int answer() { return 2; }\n")
    second = project.build(counting)
    assert not second.cached
    assert second.key != first.key
    assert answer(second) == 2
    path.write_text(before)  # the earlier state is still known
    assert (project.build(counting).cached, project.build(counting).key) == (True, first.key)


def test_same_size_and_time_but_another_text(counting: CountingCompiler, project: Project) -> None:
    project.build(counting)
    stat = project.inner.stat()
    project.inner.write_text(project.inner.read_text().replace("1", "2"))
    os.utime(project.inner, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert answer(project.build(counting)) == 2


def test_digest_of_a_file_rewritten_within_a_tick_of_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    stamp = path.stat()  # before Linux 6.13, two writes within 1 to 10 ms get the same
    monkeypatch.setattr(Path, "stat", lambda _: stamp)
    for text in (b"one", b"two"):
        path.write_bytes(text)
        assert file_digest(path) == hashlib.sha256(text).hexdigest()


def test_a_removed_header_is_missed(counting: CountingCompiler, project: Project) -> None:
    project.build(counting)
    project.inner.unlink()
    with pytest.raises(BuildError, match="No such file"):
        project.build(counting)


@pytest.mark.parametrize("how", ["include", "flag"])
def test_a_new_header_that_comes_first(
    counting: CountingCompiler, project: Project, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    project.outer.rename(folder / "outer.h")
    (project.folder / "inner").rename(folder / "inner")
    more: dict[str, Any] = (
        {"include": [folder]} if how == "include" else {"flags": ["-I../elsewhere"]}
    )
    assert answer(project.build(counting, **more)) == 1
    assert project.build(counting, **more).cached
    project.outer.write_text("inline int answer() { return 3; }\n")
    assert answer(project.build(counting, **more)) == 3


def test_a_header_that_was_only_asked_for(counting: CountingCompiler, project: Project) -> None:
    project.source.write_text(
        '#if __has_include("extra.h")\n#include "extra.h"\n#else\n#include "outer.h"\n#endif\n'
        f"{EXPORT} int run() {{ return answer(); }}\n"
    )
    assert answer(project.build(counting)) == 1
    (project.folder / "extra.h").write_text("inline int answer() { return 4; }\n")
    assert answer(project.build(counting)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"flags": ["-DT=float"]},
        {"flags": ["-mavx2"]},
        {"flags": ["-DT=float", "-mavx2"]},
        {"prelude": "#include <cstdint>\n"},
        {"link": ["-lm"]},
        {"include": [Path("/usr/include")]},
    ],
    ids=str,
)
def test_what_the_key_depends_on(
    counting: CountingCompiler, project: Project, change: dict[str, Any]
) -> None:
    first = project.build(counting)
    second = project.build(counting, **change)
    assert not second.cached
    assert second.key != first.key
    assert project.build(counting, **change).cached
    assert project.build(counting).cached


def test_the_environment_of_the_compiler(
    counting: CountingCompiler, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build(counting)
    monkeypatch.setenv("CPATH", str(project.folder))
    assert not project.build(counting).cached


def test_another_compiler_version(
    counting: CountingCompiler, project: Project, tmp_path: Path
) -> None:
    first = project.build(counting)
    new = 'if [ "$1" = --version ]; then echo "g++ (Test 99.1.0) 99.1.0"; exit; fi'
    path = script(tmp_path / "new" / "g++", f'{new}\nexec {counting.path} "$@"')
    second = build(pick_compiler(str(path)), source=project.source)
    assert not second.cached
    assert second.key != first.key


def test_where_the_source_lies_matters(
    counting: CountingCompiler, project: Project, tmp_path: Path
) -> None:
    # Its path is in the debug info, and another folder's headers may differ.
    first = project.build(counting)
    other = Project(tmp_path / "other")
    other.inner.write_text("inline int answer() { return 5; }\n")
    second = other.build(counting)
    assert answer(second) == 5
    assert second.key != first.key


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("objects", _truncate),
    ("objects", _flip),
    ("objects", Path.unlink),
    ("manifests", _truncate),
    ("manifests", _flip),
    ("manifests", _edit),
    ("manifests", Path.unlink),
    ("manifests", lambda path: path.write_text("")),
    ("manifests", lambda path: path.write_text("[]")),
    ("manifests", lambda path: path.write_text('{"digest": "", "variants": null}')),
]


@pytest.mark.parametrize(("folder", "damage"), DAMAGE)
def test_a_damaged_entry_is_rebuilt(
    counting: CountingCompiler,
    project: Project,
    home: Path,
    folder: str,
    damage: Callable[[Path], object],
) -> None:
    project.build(counting)
    (path,) = (home / "cache" / folder).iterdir()
    damage(path)
    again = project.build(counting)
    assert not again.cached
    assert answer(again) == 1
    assert counting.compiles == 2
    assert project.build(counting).cached


def test_errors_are_not_cached(counting: CountingCompiler, project: Project) -> None:
    project.inner.write_text("#error not yet\n")
    for _ in range(2):
        with pytest.raises(BuildError, match="not yet"):
            project.build(counting)
    assert counting.compiles == 2


def test_warnings_are_remembered(counting: CountingCompiler, project: Project) -> None:
    project.inner.write_text("inline int answer() { int unused; return 1; }\n")
    first, second = project.build(counting), project.build(counting)
    assert second.cached
    assert "unused" in first.warnings
    assert second.warnings == first.warnings


def test_a_header_edited_while_the_compiler_ran(
    counting: CountingCompiler, project: Project, tmp_path: Path
) -> None:
    # Compiles the 1, and puts a 2 there before the compiler has ended.
    edit = f"sed -i s/1/2/ {shlex.quote(str(project.inner))}"
    late = script(
        tmp_path / "late" / "g++",
        f'{counting.path} "$@" && case "$*" in *" -c "*) {edit};; esac',
    )
    assert answer(build(pick_compiler(str(late)), source=project.source)) == 1
    again = build(counting.pick(), source=project.source)
    assert not again.cached
    assert answer(again) == 2


CHILD = """
import sys
from pathlib import Path
from opwright.toolchain.build import build
from opwright.toolchain.cache import file_digest
from opwright.toolchain.compilers import pick_compiler
compiler = pick_compiler(sys.argv[1])
print("ready", flush=True)
built = build(compiler, source=Path(sys.argv[2]))
print(built.path, built.cached)
"""


@pytest.fixture
def start(
    counting: CountingCompiler, project: Project
) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts processes that build the project; returns once they are about to."""
    children: list[subprocess.Popen[str]] = []
    package = str(Path(opwright.__file__).parent.parent)

    def start() -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(counting.path), str(project.source)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": package},
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    counting.closed.unlink(missing_ok=True)
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_two_processes_compile_once(
    counting: CountingCompiler, start: Callable[[], subprocess.Popen[str]]
) -> None:
    counting.pick()
    counting.closed.touch()
    children = [start(), start()]
    wait_for(lambda: counting.compiles > 0)
    time.sleep(0.3)  # long enough for the second to start its own compile, were it to
    counting.closed.unlink()
    outputs = sorted(child.communicate(timeout=60)[0].split() for child in children)
    assert counting.compiles == 1
    assert [cached for _, cached in outputs] == ["False", "True"]
    assert outputs[0][0] == outputs[1][0]


def test_killed_in_the_middle(
    counting: CountingCompiler,
    project: Project,
    home: Path,
    start: Callable[[], subprocess.Popen[str]],
) -> None:
    counting.closed.touch()
    child = start()
    wait_for(lambda: counting.compiles > 0)
    child.send_signal(signal.SIGKILL)
    child.wait()
    work = home / "cache" / "work"
    assert len(list(work.iterdir())) == 1
    counting.closed.unlink()
    built = project.build(counting)
    assert not built.cached
    assert answer(built) == 1
    assert list(work.iterdir()) == []
    assert len(list((home / "cache" / "objects").iterdir())) == 1
    assert project.build(counting).cached


def test_the_folder_of_a_living_build_is_left_alone(
    counting: CountingCompiler,
    project: Project,
    tmp_path: Path,
    home: Path,
    start: Callable[[], subprocess.Popen[str]],
) -> None:
    counting.closed.touch()
    child = start()
    wait_for(lambda: counting.compiles > 0)
    other = tmp_path / "other.cpp"
    other.write_text(f"{EXPORT} int run() {{ return 6; }}\n")
    assert answer(build(counting.real, source=other)) == 6  # sweeps the folders of dead builds
    counting.closed.unlink()
    assert child.communicate(timeout=60)[0].split()[1] == "False"
    assert list((home / "cache" / "work").iterdir()) == []


def test_a_compiler_that_hangs_is_ended(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shell is the driver, its child the compiler proper: both must go.
    started, survived = tmp_path / "started", tmp_path / "survived"
    path = script(tmp_path / "g++", f"touch {started}; (sleep 5; touch {survived}) & wait")
    monkeypatch.setattr(build_module, "TIME_LIMIT", 1.0)
    with pytest.raises(BuildError, match="not finished after 1 s"):
        build(Compiler("g++ 1", "gcc", (str(path),), "1", "hanging"), source=project.source)
    # A child left alive holds the pipe open: build would have returned only when it had ended.
    assert started.exists()
    assert not survived.exists()


@pytest.mark.parametrize(
    "blocked", ["home", "home/cache", "home/cache/objects", "home/cache/manifests"]
)
def test_a_cache_that_cannot_be_written(
    counting: CountingCompiler, project: Project, home: Path, blocked: str
) -> None:
    shutil.rmtree(home)
    path = home.parent / blocked
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file where a folder should be, which root cannot write to either")
    with pytest.raises(MachineError, match="OPWRIGHT_HOME") as caught:
        project.build(counting)
    assert str(home / "cache") in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_home(counting: CountingCompiler, project: Project, home: Path) -> None:
    home.mkdir(mode=0o500)
    with pytest.raises(MachineError, match="OPWRIGHT_HOME"):
        project.build(counting)


def test_a_compiler_that_is_gone(
    counting: CountingCompiler, project: Project, tmp_path: Path
) -> None:
    built = project.build(counting)
    compiler = counting.pick()
    counting.path.unlink()
    assert build(compiler, source=project.source).path == built.path  # cached: not needed
    project.inner.write_text("inline int answer() { return 2; }\n")
    with pytest.raises(MachineError, match="cannot be started"):
        build(compiler, source=project.source)


def test_a_source_that_is_not_there(counting: CountingCompiler, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gone\.cpp: cannot be read"):
        build(counting.pick(), source=tmp_path / "gone.cpp")


INLINE = f"{EXPORT} inline __attribute__((used)) int more(int a) {{ return a + 1; }}\n"


def test_equal_builds_give_equal_bytes(
    compiler: Compiler, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []
    for home in ("one", "another"):
        monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path / home))
        built = build(compiler, source=project.source, prelude=INLINE)
        contents.append(built.path.read_bytes())
    assert contents[0] == contents[1]


def test_an_executable(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "main.cpp"
    source.write_text("int main(int argc, char**) { return argc; }\n")
    built = build(compiler, source=source, kind="executable")
    assert subprocess.run([built.path, "a", "b"], check=False).returncode == 3
