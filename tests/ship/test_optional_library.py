"""A shipped library takes NULL in C and None in Python for an operand that may be left out."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from optional import WRONG, moved, source
from ship.tools import CODES, dltensor, load, opwright, python


def ship(folder: Path, out: Path) -> tuple[int, str]:
    (folder / "LICENSE").write_text("Terms of the test.\n")
    return opwright("ship", str(folder), "--out", str(out), "--name", "mine", "--verify", "quick")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("optional")
    rows = {"strided": ", strided=True"}
    moved(root / "moved", {"right": source(), "strided": source(strided=True)}, rows)
    code, said = ship(root / "moved", root / "out")
    assert code == 0, said
    return root / "out"


def test_null_in_c(tree: Path) -> None:
    library = load(tree / "lib" / "libmine.so", "mine")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    scale, shift = np.arange(1, 4, dtype=np.float32), np.arange(4, dtype=np.float32) - 2

    def call(*given: np.ndarray | None) -> int:
        tensors = [None if a is None else ctypes.byref(dltensor(a)) for a in given]
        return int(library.mine_moved(*tensors, None, None))

    for rows in (x, x[:, ::-1], np.asfortranarray(x)):
        for a, b in ((None, None), (scale, None), (None, shift), (scale, shift)):
            out = np.full((3, 4), np.nan, np.float32)
            assert call(rows, a, b, out) == 0, library.mine_last_error()
            expected = rows if a is None else rows * a[:, None]
            np.testing.assert_array_equal(out, expected if b is None else expected + b)
    out = np.zeros((3, 4), np.float32)
    assert call(None, scale, shift, out) == CODES["NULL"]
    assert call(x, None, None, None) == CODES["NULL"]
    assert call(x, None, shift[:3], out) == CODES["SHAPE"]
    assert call(x, None, out[0], out) == CODES["OVERLAP"]
    assert call(x, None, shift.astype(np.float64), out) == CODES["DTYPE"]
    assert 'shift: Tensor[T, "n"] (or NULL: none)' in (tree / "include" / "mine.h").read_text()


def test_none_in_python(tree: Path, tmp_path: Path) -> None:
    (wheel,) = (tree / "python").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path, "zip")
    code = """
import mine, numpy as np
x = np.arange(4, dtype=np.float32).reshape(2, 2)
s = np.array([10, 20], np.float32)
for y in (mine.moved(x), mine.moved(x, None, s), mine.moved(x, s), mine.moved(x, shift=s, times=2)):
    print(y.tolist())
try:
    mine.moved(None)
except TypeError as error:
    print("TypeError", error)
"""
    said = python(code, env={"PYTHONPATH": str(tmp_path)}).splitlines()
    assert [eval(line) for line in said[:4]] == [
        [[0, 1], [2, 3]],
        [[10, 21], [12, 23]],
        [[0, 10], [40, 60]],
        [[10, 22], [14, 26]],
    ]
    assert said[4] == "TypeError moved: x is needed, got None"


def test_none_by_tvm_ffi(tree: Path) -> None:
    pytest.importorskip("tvm_ffi")
    code = f"""
import numpy as np, tvm_ffi
ops = tvm_ffi.load_module({str(tree / "lib" / "libmine.so")!r})
x = tvm_ffi.from_dlpack(np.arange(4, dtype=np.float32).reshape(2, 2))
s = tvm_ffi.from_dlpack(np.array([10, 20], np.float32))
out = np.zeros((2, 2), np.float32)
ops.moved(x, None, s, tvm_ffi.from_dlpack(out))
print(out.tolist())
try:
    ops.moved(None, None, s, tvm_ffi.from_dlpack(out))
except TypeError as error:
    print(error)
"""
    said = python(code).splitlines()
    assert said[0] == "[[10.0, 21.0], [12.0, 23.0]]" and "x is no tensor" in said[1]


def test_the_checklist_holds(tree: Path) -> None:
    code, said = opwright("check", str(tree / "lib" / "libmine.so"), "--quick")
    assert code == 0, said


def test_a_kernel_that_reads_a_null_is_not_shipped(tmp_path: Path) -> None:
    different, _, _ = WRONG["reads a null shift"]
    moved(tmp_path / "moved", {"wrong": source(**different)})
    code, said = ship(tmp_path / "moved", tmp_path / "out")
    assert code == 1 and "without shift" in said and "signal 11" in said
