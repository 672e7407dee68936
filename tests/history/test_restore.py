import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from opwright.history import History, Result, restore
from opwright.spec.errors import OpwrightError, UnknownNameError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import T, Tensor

VERSIONS = (b"// first\r\nint x;\r\n", b"// second, no newline at the end \xff", b"")
RESULT = Result("scale", "cpu_v1", "cpu", "f32", "held")


@dataclass
class World:
    history: History
    operator: OperatorSpec
    file: Path

    def measured(self, data: bytes) -> int:
        """A run in which the kernel's source was ``data``."""
        self.file.write_bytes(data)
        run = self.history.start_run("verify", "m1", {})
        digest = self.history.keep_source(self.file)
        self.history.add_result(run, replace(RESULT, source_hash=digest))
        return run


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def declared(folder: Path) -> OperatorSpec:
    @OperatorSpec.declare(dtypes={"T": ["f32"]})
    def scale(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
        return x

    scale.folder = folder
    scale.kernels(Kernel("cpu_v1.cpp"), Kernel("cpu_v2.cpp"))
    return scale


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = tmp_path / "scale"
    folder.mkdir()
    for name in ("cpu_v1.cpp", "cpu_v2.cpp"):
        (folder / name).touch()
    with History.open(tmp_path / "history.sqlite") as history:
        yield World(history, declared(folder), folder / "cpu_v1.cpp")


def test_every_run_can_be_gone_back_to(world: World) -> None:
    runs = [world.measured(data) for data in VERSIONS]
    for run, data in list(zip(runs, VERSIONS, strict=True))[::-1]:
        restored = restore(world.history, world.operator, f"scale/cpu_v1@{run}")
        assert world.file.read_bytes() == data
        assert restored.path == world.file
        assert restored.to_hash == sha(data)
        assert restored.changed is (data != VERSIONS[-1])


def test_restoring_twice_changes_nothing_the_second_time(world: World) -> None:
    run = world.measured(VERSIONS[0])
    world.measured(VERSIONS[1])
    assert restore(world.history, world.operator, f"scale/cpu_v1@{run}").changed
    stamp = world.file.stat()
    again = restore(world.history, world.operator, f"scale/cpu_v1@{run}")
    assert not again.changed
    assert again.from_hash == again.to_hash == sha(VERSIONS[0])
    assert world.file.stat().st_mtime_ns == stamp.st_mtime_ns
    assert world.file.stat().st_ino == stamp.st_ino


def test_edits_that_no_run_has_seen_come_back_by_their_hash(world: World) -> None:
    run = world.measured(VERSIONS[0])
    world.file.write_bytes(b"never measured\r")
    gone = restore(world.history, world.operator, f"scale/cpu_v1@{run}")
    assert gone.from_hash == sha(b"never measured\r")
    back = restore(world.history, world.operator, f"scale/cpu_v1@{gone.from_hash[:12]}")
    assert world.file.read_bytes() == b"never measured\r"
    assert (back.from_hash, back.to_hash) == (gone.to_hash, gone.from_hash)


def test_a_hash_of_digits_is_found_unless_a_run_has_that_number(world: World) -> None:
    # The text whose SHA-256 starts with seven digits, found by counting up.
    text = next(data for n in range(10_000) if sha(data := str(n).encode())[:7].isdecimal())
    world.file.write_bytes(text)
    world.history.keep_source(world.file)
    world.measured(VERSIONS[0])
    restore(world.history, world.operator, f"scale/cpu_v1@{sha(text)[:7]}")
    assert world.file.read_bytes() == text


def test_mode_and_links_stay(world: World, tmp_path: Path) -> None:
    run = world.measured(VERSIONS[0])
    world.measured(VERSIONS[1])
    world.file.chmod(0o640)
    target = tmp_path / "elsewhere.cpp"
    world.file.rename(target)
    world.file.symlink_to(target)
    assert restore(world.history, world.operator, f"scale/cpu_v1@{run}").path == target
    assert world.file.is_symlink()
    assert target.read_bytes() == VERSIONS[0]
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in target.parent.glob(".*.new")) == []


def test_a_deleted_file_comes_back(world: World) -> None:
    run = world.measured(VERSIONS[0])
    world.file.unlink()
    restored = restore(world.history, world.operator, f"scale/cpu_v1@{run}")
    assert (restored.from_hash, restored.changed) == ("", True)
    assert world.file.read_bytes() == VERSIONS[0]


SPELLINGS: list[Callable[[World], str]] = [
    lambda world: "scale/cpu_v1",
    lambda world: "scale/cpu_v1.cpp",
    lambda world: "cpu_v1",
    lambda world: str(world.file),
    lambda world: f"{world.file.parent}/cpu_v1",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_kernel_may_be_named_as_everywhere(
    world: World, spelling: Callable[[World], str]
) -> None:
    run = world.measured(VERSIONS[0])
    world.measured(VERSIONS[1])
    assert restore(world.history, world.operator, f"{spelling(world)}@{run}").changed


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("scale/cpu_v1", UsageError, r"names no version: write scale/KERNEL@RUN or @HASH"),
        ("scale/cpu_v1@", UsageError, "names no version"),
        ("matmul/cpu_v1@1", UsageError, "is not a kernel of scale"),
        ("scale/cpu_v7@1", UnknownNameError, "no kernel named 'cpu_v7' in scale; did you mean"),
        ("scale/cpu_v1@77", UnknownNameError, "no run named '77'; there are: 1"),
        ("scale/cpu_v2@1", UnknownNameError, "in run 1; did you mean scale/cpu_v1"),
        ("scale/cpu_v1@beef", UnknownNameError, "no version named 'beef' in scale/cpu_v1"),
    ],
)
def test_what_does_not_exist_is_named(
    world: World, reference: str, error: type[OpwrightError], message: str
) -> None:
    world.measured(VERSIONS[0])
    world.file.write_bytes(VERSIONS[1])
    with pytest.raises(error, match=message):
        restore(world.history, world.operator, reference)
    assert world.file.read_bytes() == VERSIONS[1]


@pytest.mark.parametrize("failing", ["replace", "access"])
def test_a_file_that_cannot_be_written_stays_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    run = world.measured(VERSIONS[0])
    world.measured(VERSIONS[1])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    if failing == "replace":
        monkeypatch.setattr(Path, "replace", refuse)
    else:
        monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OpwrightError, match=r"cannot restore .*cpu_v1\.cpp.*the file is as it was"):
        restore(world.history, world.operator, f"scale/cpu_v1@{run}")
    assert world.file.read_bytes() == VERSIONS[1]
    assert {p.name for p in world.file.parent.iterdir()} == {"cpu_v1.cpp", "cpu_v2.cpp"}
