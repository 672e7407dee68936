"""A shipped library hands tensors that are not dense to kernels that take strides."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from ship.tools import dltensor, load, opwright
from strided import TELL, TELLING, product


class Attrs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("scale", ctypes.c_double)]


def test_strided_tensors_are_not_copied(tmp_path: Path) -> None:
    product(tmp_path / "product", {"tells": TELLING})
    (tmp_path / "product" / "LICENSE").write_text("Terms of the test.\n")
    # Verified through the library's own functions, in every layout.
    code, said = opwright(
        "ship", str(tmp_path / "product"), "--out", str(tmp_path / "out"), "--name", "mine",
        "--verify", "quick",
    )  # fmt: skip
    assert code == 0, said
    library = load(tmp_path / "out" / "lib" / "libmine.so", "mine")

    def call(a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
        out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
        tensors = [ctypes.byref(dltensor(x)) for x in (a, b, out)]
        attrs = Attrs(ctypes.sizeof(Attrs), scale)
        status = library.mine_product(*tensors, ctypes.byref(attrs), None)
        assert status == 0, library.mine_last_error()
        return out

    def told(a: np.ndarray, b: np.ndarray) -> list[int]:
        return [int(x) for x in call(a, b, TELL).reshape(-1)[:6]]

    wide = np.random.default_rng(3).integers(-4, 5, (40, 60)).astype(np.float32)
    a, b = wide[::2, 3:10], wide[5:12, :40:2]
    assert told(a, b) == [120, 1, 60, 2, 0, 5 * 60 - 3]
    assert told(a.T[:, :7], b[:, :7]) == [1, 120, 60, 2, 0, 5 * 60 - 3]
    rows = np.broadcast_to(a[:1], a.shape)
    assert told(rows, b) == [0, 1, 60, 2, 0, 5 * 60 - 3]
    one = a[:, :1]  # of one element, the stride of row-major order
    assert told(one, b[:1]) == [120, 1, 20, 2, 0, 5 * 60 - 3]
    # Negative strides are packed: row-major, elsewhere.
    reversed_ = told(a[:, ::-1], b)
    assert reversed_[:4] == [7, 1, 60, 2] and reversed_[5] == 5 * 60 - 3 and reversed_[4] != 6
    for x, y in ((a, b), (a.T[:, :7], b), (rows, b), (a[::-1], b[:, ::-1])):
        np.testing.assert_array_equal(call(x, y, 2.0), 2 * (x.astype(np.float64) @ y))
