"""What goes into a library, what is left out and refused, and that it comes out the same again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opwright.catalog.find import find
from opwright.ship.elf import Elf
from opwright.ship.header import exported
from opwright.ship.plan import plan_library
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import NothingSelectedError, UsageError
from ship.tools import RIGHT, affine_folder, load, opwright, python


def ship(folder: Path, out: Path, *words: str) -> tuple[int, str]:
    return opwright("ship", str(folder), "--out", str(out), "--name", "mine", *words)


def tree_hashes(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


def test_the_best_rung_of_each_instruction_set_best_first() -> None:
    plan = plan_library("fastops", "0.1.0", "x86_64", [find("threshold_activation").spec])
    chain = [v.text for v in plan.variants if v.text.split()[1] == "f32"]
    assert chain == [
        "threshold_activation f32 avx512 cpu_v6_streamed",
        "threshold_activation f32 avx2 cpu_v3_threads",
        "threshold_activation f32 baseline cpu_v1_scalar",
    ]
    arm = plan_library("fastops", "0.1.0", "aarch64", [find("threshold_activation").spec])
    assert {v.path for v in arm.variants} == {"neon"}


def test_element_types_may_be_limited() -> None:
    specs = [find(n).spec for n in ("matmul", "threshold_activation")]
    plan = plan_library("fastops", "0.1.0", "x86_64", specs, dtype="f32,bf16")
    for spec in specs:
        assert [short_dtypes(c) for c in plan.choices(spec)] == ["f32", "bf16"]
    with pytest.raises(UsageError, match="threshold_activation is not declared for i32"):
        plan_library("fastops", "0.1.0", "x86_64", specs[1:], dtype="i32")


def test_symbols_and_dependencies(library: Path) -> None:
    elf = Elf(library.read_bytes())
    plan = plan_library(
        "fastops", "0.1.0", "x86_64", [find(n).spec for n in ("matmul", "threshold_activation")]
    )
    defined = {s.name for s in elf.symbols if s.defined} - {"FASTOPS_0", ""}
    assert defined == set(exported(plan))
    assert {n.partition(".so")[0] for n in elf.needed} <= {"libc", "libm", "ld-linux-x86-64"}
    assert not elf.stays_loaded and not elf.executable_stack and elf.relro
    assert elf.soname == "libfastops.so.0"
    assert len(library.read_bytes()) < 2_000_000  # 37 variants of about 45 kB


def test_a_library_for_floats_is_under_a_megabyte(library: Path, tmp_path: Path) -> None:
    words = ["matmul", "threshold_activation", "--name", "fastops", "--out", str(tmp_path)]
    code, said = opwright("ship", *words, "--dtype", "f32,f64,bf16,f16", "--verify", "none")
    assert code == 0, said
    made = tmp_path / "lib" / "libfastops.so"
    assert len(made.read_bytes()) < min(1_000_000, len(library.read_bytes()))


def test_the_same_bytes_from_another_folder(tmp_path: Path) -> None:
    first = affine_folder(tmp_path / "here" / "affine", before="const char* where = __FILE__;")
    second = tmp_path / "far" / "away" / "affine"
    shutil.copytree(first, second)
    for folder, out in ((first, "one"), (second, "two")):
        code, said = ship(folder, tmp_path / out, "--verify", "quick")
        assert code == 0, said
    assert tree_hashes(tmp_path / "one") == tree_hashes(tmp_path / "two")
    data = (tmp_path / "one" / "lib" / "libmine.so").read_bytes()
    assert str(tmp_path).encode() not in data


def test_built_again_from_its_manifest(tmp_path: Path) -> None:
    code, said = ship(affine_folder(tmp_path / "affine"), tmp_path / "dist", "--verify", "none")
    assert code == 0, said
    shutil.rmtree(tmp_path / "affine")
    moved = tmp_path / "moved"
    (tmp_path / "dist").rename(moved)
    manifest = str(moved / "share" / "mine" / "manifest.json")
    code, said = opwright("ship", "--from", manifest, "--out", str(tmp_path / "again"))
    assert code == 0, said
    assert "the bytes are those of the manifest" in said
    one, two = tree_hashes(moved), tree_hashes(tmp_path / "again")
    differ = {name for name in one | two if one.get(name) != two.get(name)}
    assert differ == {"share/mine/manifest.json"}  # it was verified this time
    content = json.loads((tmp_path / "again" / "share" / "mine" / "manifest.json").read_text())
    (row,) = content["verification"]
    assert row["verdict"] == "held" and row["cases"] == row["held"] > 50
    assert content["library"]["sha256"] == one["lib/libmine.so"]


def test_a_manifest_that_is_not_of_these_sources(tmp_path: Path) -> None:
    code, said = ship(affine_folder(tmp_path / "affine"), tmp_path / "dist", "--verify", "none")
    assert code == 0, said
    manifest = tmp_path / "dist" / "share" / "mine" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["library"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    out = ("--out", str(tmp_path / "again"), "--verify", "none")
    code, said = opwright("ship", "--from", str(manifest), *out)
    assert code == 1 and "has other bytes than the manifest names" in said
    source = manifest.parent / "src" / "affine" / "cpu_v1.cpp"
    source.write_text(source.read_text() + "\n")
    code, said = opwright("ship", "--from", str(manifest), *out)
    assert code == 1 and "is not the source that the library was made of" in said
    manifest.write_text("{}")
    code, said = opwright("ship", "--from", str(manifest), *out)
    assert code == 2 and "is no manifest" in said


def test_a_constructor_that_would_run_anywhere_is_refused(tmp_path: Path) -> None:
    before = "#include <vector>\nstatic std::vector<float> table(16, 1.0f);"
    body = RIGHT + " out[0] = out[0] * table[3];"
    folder = affine_folder(tmp_path / "affine", body, before=before, row=', isa="avx2"')
    code, said = ship(folder, tmp_path / "out", "--verify", "none")
    assert code == 1
    assert "a global or static object is made when the library is loaded" in said
    assert "avx2" in said


def test_kernels_that_need_another_library_are_passed_over(tmp_path: Path) -> None:
    folder = affine_folder(tmp_path / "affine", row=', flags=["-fopenmp"]')
    code, said = ship(folder, tmp_path / "out")
    assert code == 5
    assert "affine/cpu_v1: -fopenmp would make the library depend on another" in said


def test_what_a_kernel_throws_is_a_status(tmp_path: Path) -> None:
    before = "#include <stdexcept>\n#include <string>"
    body = (
        'if (n == 3) throw std::runtime_error("three " + std::to_string(n));'
        " if (n == 4) throw 4; if (n == 5) throw std::bad_alloc();" + RIGHT
    )
    folder = affine_folder(tmp_path / "affine", body, before=before)
    code, said = ship(folder, tmp_path / "out", "--verify", "none")
    assert code == 0, said
    code_text = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import ctypes
import numpy as np
from pathlib import Path
from ship.tools import dltensor, load
lib = load(Path({str(tmp_path / "out" / "lib" / "libmine.so")!r}), "mine")
for n in (3, 4, 5, 6):
    x, out = np.ones(n, np.float32), np.zeros(n, np.float32)
    print(lib.mine_affine(*map(ctypes.byref, map(dltensor, (x, out))), None, None), out[0],
          lib.mine_last_error().decode() if n < 6 else "")
"""
    said_lines = python(code_text).splitlines()
    assert said_lines[0].startswith("14 0.0 affine: affine f32 baseline cpu_v1 threw: three 3")
    assert said_lines[1].startswith("14 0.0 affine: affine f32 baseline cpu_v1 threw; out is")
    assert said_lines[2].startswith("13 0.0 affine: no memory for the kernel's workspace")
    assert said_lines[3] == "0 2.5 "


def test_attributes_of_every_type_round_as_numpy_does(tmp_path: Path) -> None:
    folder = tmp_path / "shift"
    folder.mkdir()
    (folder / "LICENSE").write_text("Terms.")
    (folder / "op.py").write_text(
        "import numpy as np\n"
        "from opwright import Kernel, T, Tensor, operator\n\n"
        '@operator(dtypes={"T": ["f32", "i32"]}, flops="4*n", limits=["-9 < by", "0 <= limit"])\n'
        'def shift(x: Tensor[T, "... 4"], by: int, twice: bool = False, limit: float = np.inf)'
        ' -> Tensor[T, "... 4"]:\n'
        "    y = x + by * (2 if twice else 1)\n"
        "    return np.where(y > np.floor(limit), np.floor(limit), y)\n\n"
        'shift.kernels(Kernel("cpu_v1.cpp", change="one loop"))\n'
    )
    (folder / "cpu_v1.cpp").write_text(
        "#include <cmath>\n"
        'extern "C" void shift(const T* x, T* out, int64_t n, int64_t by, bool twice,'
        " double limit) {\n"
        "    for (int64_t i = 0; i < 4 * n; ++i) {\n"
        "        const double y = double(x[i]) + double(by) * (twice ? 2 : 1);\n"
        "        out[i] = T(y > std::floor(limit) ? std::floor(limit) : y);\n    }\n}\n"
    )
    code, said = ship(folder, tmp_path / "out", "--verify", "full")
    assert code == 0, said
    header = (tmp_path / "out" / "include" / "mine.h").read_text()
    assert "int64_t by; /* -9 < by; no default */" in header
    assert "int32_t twice; /* default False */" in header
    (wheel,) = (tmp_path / "out" / "python").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code_text = """
import mine, numpy as np
x = np.arange(8, dtype=np.int32).reshape(2, 1, 4)
print(mine.shift(x, by=2**31 - 9, twice=False).tolist())
print(mine.shift(x.astype(np.float32), by=-3, twice=True, limit=1.9).max())
for bad in (
    lambda: mine.shift(x),
    lambda: mine.shift(x[..., :3], by=1),
    lambda: mine.shift(x, by=-9),
    lambda: mine.shift(x, by=1, limit=float("nan")),
    lambda: mine.shift(x, by=1, limit=-0.5),
):
    try:
        bad()
    except (TypeError, ValueError, mine.Error) as error:
        print(error)
"""
    lines = python(code_text, env={"PYTHONPATH": str(tmp_path / "site")}).splitlines()
    top = np.arange(8).reshape(2, 1, 4) + 2**31 - 9
    assert lines[0] == str(top.tolist())
    assert lines[1] == "1.0"
    assert lines[2] == "shift: attribute by has no default: give it"
    assert lines[3] == 'shift: dimension 2 of x is 3; Tensor[T, "... 4"] needs 4'
    assert lines[4] == "shift: attribute by is -9; it should be -9 < by"
    assert lines[5] == "shift: attribute limit is nan; it should be 0 <= limit"
    assert lines[6] == "shift: attribute limit is -0.5; it should be 0 <= limit"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--name", "Fast-Ops"), "cannot be a name in C++"),
        (("--name", "FastOps"), "use a-z, 0-9 and _"),
        (("--name", "fastops", "--version", "1"), "write three numbers"),
        ((), "name the operators and the library"),
        (("--name", "x", "--from", "manifest.json"), "takes operators, name"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    code, said = opwright("ship", "matmul", "--out", str(tmp_path / "out"), *words)
    assert code == 2
    assert says in said


def test_plans_that_cannot_be() -> None:
    matmul = find("matmul").spec
    with pytest.raises(UsageError, match="have the same name"):
        plan_library("fastops", "0.1.0", "x86_64", [matmul, matmul])
    with pytest.raises(NothingSelectedError, match="no operator"):
        plan_library("fastops", "0.1.0", "x86_64", [])


def test_without_a_licence_nothing_is_passed_on(tmp_path: Path) -> None:
    folder = affine_folder(tmp_path / "affine")
    (folder / "LICENSE").unlink()
    (folder / "pyproject.toml").touch()
    code, said = ship(folder, tmp_path / "out")
    assert code == 2 and "say with --license FILE" in said


def test_folders_above_that_cannot_be_listed_hold_no_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = affine_folder(tmp_path / "closed" / "affine")
    (folder / "LICENSE").unlink()
    listed = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    (tmp_path / "pyproject.toml").touch()
    code, said = ship(folder, tmp_path / "out")
    assert code == 2 and "say with --license FILE" in said


def test_a_library_loaded_twice_is_one(library: Path) -> None:
    one, two = load(library), load(library)
    assert one.fastops_force(b"baseline") == 0
    assert two.fastops_active() == b"baseline"
    assert one.fastops_force(None) == 0
