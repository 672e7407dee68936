"""The build cache keeps to its limit, and removes nothing that a process uses."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opwright.spec.errors import BuildError, UsageError
from opwright.toolchain import cache
from opwright.toolchain.build import Built, build
from opwright.toolchain.compilers import pick_compiler

KIB = 1 << 10
# Builds what it is told on stdin, and says where that is: "NAME\n" for "PATH\n".
BUILDER = """
import sys
from pathlib import Path
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler
for line in sys.stdin:
    print(build(pick_compiler(), source=Path(line.strip())).path, flush=True)
"""
# Builds each several times, and loads it at once.
LOADER = """
import ctypes, sys
from pathlib import Path
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler
for _ in range(2):
    for source in sys.argv[1:]:
        built = build(pick_compiler(), source=Path(source))
        assert ctypes.CDLL(str(built.path)).value() == int(Path(source).stem[1:])
"""


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Six, whose binaries have 100 KiB and a little."""
    found = []
    for number in range(6):
        path = tmp_path / f"f{number}.cpp"
        shown = 'extern "C" __attribute__((visibility("default")))'
        path.write_text(
            "volatile unsigned char room[100 << 10] = {1};\n"
            f"{shown} int value() {{ return {number} + room[1]; }}\n"
        )
        found.append(path)
    return found


def built(source: Path) -> Built:
    return build(pick_compiler(), source=source)


def objects(home: Path) -> set[str]:
    return {path.name for path in (home / "cache" / "objects").iterdir()}


def test_what_was_used_least_recently_goes(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = map(built, sources[:4])
    for path in (home / "cache" / "manifests").iterdir():
        os.utime(path, (day := path.stat().st_mtime - 86400, day))
    assert built(sources[0]).cached  # now the second is the oldest
    cache.end_use()  # as if the process had ended
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "512K")  # three quarters are three binaries
    fifth = built(sources[4])
    assert objects(home) == {one.path.name for one in (first, fourth, fifth)}
    assert len(list((home / "cache" / "manifests").iterdir())) == 3
    assert built(sources[0]).cached
    again = built(sources[1])
    assert not again.cached and again.path == second.path
    assert third.path.name not in objects(home)


def test_within_the_limit_nothing_goes(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "512K")
    paths = {built(source).path.name for source in sources[:4]}
    cache.end_use()
    assert built(sources[0]).cached
    assert objects(home) == paths


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_process_uses_stays_until_it_has_ended(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "150K")
    other = subprocess.Popen(
        [sys.executable, "-c", BUILDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None
    kept = []
    for source in sources[:2]:
        other.stdin.write(f"{source}\n")
        other.stdin.flush()
        kept.append(Path(other.stdout.readline().strip()))
    own = built(sources[2])  # three are twice the limit, but two processes use them
    assert own.path.exists() and all(path.exists() for path in kept)
    if killed:
        other.send_signal(signal.SIGKILL)
    other.communicate()
    built(sources[3])
    assert own.path.exists() and not any(path.exists() for path in kept)
    assert len(list((home / "cache" / "used").iterdir())) == 1


def test_what_no_manifest_lists_goes_first(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(sources[0])
    left = home / "cache" / "objects" / f"{0:064x}.so"
    left.write_bytes(bytes(300 * KIB))
    arriving = home / "cache" / "objects" / f".{1:064x}.so"
    arriving.write_bytes(bytes(KIB))
    cache.end_use()
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "400K")
    built(sources[1])
    assert not left.exists() and first.path.exists() and arriving.exists()


def test_several_processes_at_a_limit_that_none_can_keep(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "1K")
    words = [str(source) for source in sources]
    orders = [words, words[::-1], words[3:] + words[:3]]
    running = [subprocess.Popen([sys.executable, "-c", LOADER, *order]) for order in orders]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    last = built(sources[0])
    assert ctypes.CDLL(str(last.path)).value() == 0


def test_what_is_forked_keeps_its_parents_list(home: Path, sources: list[Path]) -> None:
    one = built(sources[0])
    child = os.fork()
    if child == 0:
        cache.end_use()
        os._exit(0)
    os.waitpid(child, 0)
    with cache.lock("prune"):
        assert cache.used() == {one.path.name}


@pytest.mark.parametrize("text", ["2", "2X", "-1G", "much", "1.5G"])
def test_what_is_no_size(sources: list[Path], monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", text)
    with pytest.raises(UsageError, match="is no size such as 500M or 4G"):
        built(sources[0])


def test_what_is_not_the_caches_own_stays(
    home: Path, tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(sources[0])
    root, outside = home / "cache", tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    kept = [outside / "folder" / "file", outside / "file"]
    for name in "objects", "manifests", "used", "work":
        (root / name / "a.json").mkdir(parents=True)
        kept += [root / name / "a.json" / "file", root / name / "b.json", root / name / "c.so"]
        (root / name / "link").symlink_to(outside / "folder")
    for path in kept:
        path.write_bytes(bytes(300 * KIB))
    (root / "objects" / f"{0:064x}.so").symlink_to(outside / "file")
    # A list of files that leads out of the cache, as if a program had written it.
    variants = [{"file": "../../../outside/file"}]
    told = {"digest": cache.digest(variants), "variants": variants}
    cache.write_json(root / "manifests" / f"{0:064x}.json", told)
    cache.end_use()
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "100K")
    own = built(sources[1])
    assert own.path.exists() and not first.path.exists()  # so that it was about to remove
    assert [path for path in kept if not path.exists()] == []


def test_a_cache_removed_while_it_is_used(
    home: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_LIMIT", "1K")
    built(sources[0])
    shutil.rmtree(home / "cache")
    again = built(sources[0])
    with cache.lock("prune"):
        assert cache.used() == {again.path.name}


def test_a_compiler_that_is_killed_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # Constant evaluation that takes long: 4e5 loops at most, each of 3e6 operations at most.
    source = tmp_path / "slow.cpp"
    source.write_text(
        "template <long N> struct F { static constexpr long go(long x) {"
        " for (long i = 0; i < 200000; ++i) x = x * 3 + N; return x; }"
        " static constexpr long value = go(N) + F<N - 1>::value; };"
        "template <> struct F<0> { static constexpr long value = 0; };"
        "long value = F<300>::value;"
    )
    monkeypatch.setattr("opwright.toolchain.build.TIME_LIMIT", 1.0)
    with pytest.raises(BuildError, match="not finished after 1 s"):
        built(source)
    assert list(folder.iterdir()) == []
    assert list((home / "cache" / "work").iterdir()) == []
