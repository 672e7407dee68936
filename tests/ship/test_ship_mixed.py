"""Shipped operators of several element types, with words among their attributes."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from mixed_operators import write_operator
from ship.tools import need, opwright, python, run


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the operators, every variant verified through its C function."""
    root = tmp_path_factory.mktemp("mixed")
    folders = [str(write_operator(root / name, name)) for name in ("blend", "batched")]
    out = root / "out"
    words = ("--out", str(out), "--name", "mine", "--verify", "quick")
    code, said = opwright("ship", *folders, *words)
    assert code == 0, said
    (wheel,) = (out / "python").glob("*.whl")
    shutil.unpack_archive(wheel, root / "site", "zip")
    return root


def test_words_in_python(tree: Path) -> None:
    code_text = """
import mine, numpy as np
x = np.array([[100, -128, 7], [-1, 2, 3]], np.int8)
w = np.array([127, 127, -2], np.int8)
for given in ({}, {"after": "negate"}, {"after": "relu"}):
    print(mine.blend(x, w, **given).tolist(), mine.blend(x, w, **given).dtype)
print(mine.blend(x.astype(np.uint8), w).tolist())
for bad in (
    lambda: mine.blend(x, w, after="rleu"),
    lambda: mine.blend(x, w.astype(np.uint8)),
    lambda: mine.blend(x, w, out=np.zeros(2, np.float32)),
):
    try:
        bad()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""
    lines = python(code_text, env={"PYTHONPATH": str(tree / "site")}).splitlines()
    first, second = 100 * 127 - 128 * 127 - 14, -127 + 2 * 127 - 6
    assert lines[:3] == [
        f"{[first, second]} int32",
        f"{[-first, -second]} int32",
        f"{[0, second]} int32",
    ]
    assert lines[3] == str([100 * 127 + 128 * 127 - 14, 255 * 127 + 2 * 127 - 6])
    assert lines[4] == "ValueError blend: after='rleu' is not among none, relu, negate"
    assert lines[5].startswith("TypeError blend: ")
    assert "T=u8,U=i8,V=i32" in lines[5]
    assert lines[6].startswith("TypeError blend: ")


def test_words_in_c(tree: Path) -> None:
    need("cc")
    header = (tree / "out" / "include" / "mine.h").read_text()
    assert "int64_t after; /* MINE_BLEND_AFTER_NONE and so on; default none */" in header
    program = tree / "use.c"
    program.write_text(
        """
#include <mine.h>
#include <stdio.h>
int main(void) {
    float x[2] = {3, 4}, w[2] = {-1, 0.5f}, out[1];
    int64_t two[1] = {2};
    DLDevice host = {kDLCPU, 0};
    DLDataType f32 = {kDLFloat, 32, 1};
    DLTensor tx = {x, host, 1, f32, two, NULL, 0}, tw = {w, host, 1, f32, two, NULL, 0};
    DLTensor to = {out, host, 0, f32, NULL, NULL, 0};
    mine_blend_attrs attrs = MINE_BLEND_ATTRS_INIT;
    int64_t all[] = {attrs.after, MINE_BLEND_AFTER_RELU, MINE_BLEND_AFTER_NEGATE, 3, -1};
    for (int i = 0; i < 5; ++i) {
        attrs.after = all[i];
        const int status = mine_blend(&tx, &tw, &to, &attrs, NULL);
        printf("%d %g %s\\n", status, out[0], status ? mine_last_error() : "");
    }
    return 0;
}
"""
    )
    out = tree / "out"
    flags = ["-Wall", "-Werror", f"-I{out / 'include'}", f"-L{out / 'lib'}", "-lmine"]
    run(["cc", "-std=c11", str(program), "-o", str(tree / "use"), *flags])
    said = run([str(tree / "use")], env={"LD_LIBRARY_PATH": str(out / "lib")}).splitlines()
    assert said == [
        "0 -1 ",
        "0 0 ",
        "0 1 ",
        "10 1 blend: attribute after is 3; it can be 0 to 2",
        "10 1 blend: attribute after is -1; it can be 0 to 2",
    ]


def test_a_library_of_ints_loads(tree: Path) -> None:
    library = ctypes.CDLL(str(tree / "out" / "lib" / "libmine.so"))
    library.mine_variants.restype = ctypes.c_char_p
    variants = [line.split() for line in library.mine_variants().decode().splitlines()]
    assert [words[1] for words in variants if words[0] == "blend"] == [
        *("f32", "bf16", "T=i8,U=i8,V=i32", "T=u8,U=i8,V=i32")
    ]


def test_leading_dimensions_broadcast(tree: Path) -> None:
    code_text = """
import mine, numpy as np
random = np.random.default_rng(0)
for a, b in (((), ()), ((2, 1), (1, 3)), ((3,), ()), ((), (2, 3)), ((5, 1, 2), (4, 1)), ((0,), ())):
    x = random.integers(-4, 5, (*a, 3, 5)).astype(np.float32)
    y = random.integers(-4, 5, (*b, 5, 4)).astype(np.float32)
    for left in (x, x.swapaxes(-1, -2).copy().swapaxes(-1, -2), x[::-1, ...][::-1, ...]):
        got = mine.batched(left, y)
        assert got.shape == (x @ y).shape and (got == x @ y).all(), (a, b)
    out = np.full((*got.shape[:-1], 8), 7, np.float32)
    mine.batched(x, np.broadcast_to(y, (*b, 5, 4)), out=out[..., ::2], threads=3)
    assert (out[..., ::2] == x @ y).all() and (out[..., 1::2] == 7).all()
one = np.ones((2, 3, 4), np.float32)
for other, out in (
    (np.ones((3, 4, 5), np.float32), None),
    (np.ones((4, 5), np.float32), np.zeros((3, 5), np.float32)),
    (np.ones((4, 5), np.float32), np.zeros((1, 3, 5), np.float32)),
):
    try:
        mine.batched(one, other, out=np.zeros((2, 3, 5), np.float32) if out is None else out)
    except ValueError as error:
        print(error)
try:
    mine.batched(one, np.ones((3, 4, 5), np.float32))
except ValueError as error:
    print(error)
"""
    lines = python(code_text, env={"PYTHONPATH": str(tree / "site")}).splitlines()
    assert lines.pop() == "batched: the leading dimensions (2,) and (3,) do not broadcast"
    assert lines == [
        "batched: the leading dimensions of a and b do not broadcast: 2 and 3",
        "batched: out has 0 leading dimensions; those of the inputs broadcast to 1",
        "batched: the leading dimensions of a and out do not broadcast: 2 and 1",
    ]


COUNTING = """
extern "C" void stacked(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * n; ++i) out[i] = V(m);
}
"""


def test_items_that_share_all_else_are_one_with_more_rows(tmp_path: Path) -> None:
    """A kernel that gives the number of rows it is called with; and one that is told strides."""
    folder = write_operator(tmp_path / "stacked", "stacked", COUNTING)
    text = (folder / "op.py").read_text()
    text = text.replace('"f32", "f64", "bf16", "i8 i8 i32"', '"f32", "f64"')
    text = text.replace('change="three loops"', 'change="rows", dtypes=["f64"]')
    (folder / "op.py").write_text(text.replace("strided=True,", 'strided=True, dtypes=["f32"],'))
    strided = (folder / "cpu_v2.cpp").read_text()
    strided = strided.replace("out[i * n + j] = V(y);", "out[i * n + j] = V(m);")
    (folder / "cpu_v2.cpp").write_text(strided)
    words = ("--out", str(tmp_path / "out"), "--name", "mine", "--verify", "none")
    code, said = opwright("ship", str(folder), *words)
    assert code == 0, said
    (wheel,) = (tmp_path / "out" / "python").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code_text = """
import mine, numpy as np
for dtype in (np.float64, np.float32):
    one = lambda *shape: np.ones(shape, dtype)
    rows = []
    for x, y in (
        (one(4, 6), one(6, 5)),
        (one(2, 3, 4, 6), one(6, 5)),
        (one(9, 1, 6), one(1, 6, 5)),
        (one(3, 2, 4, 6), one(3, 1, 6, 5)),
        (one(3, 4, 6), one(3, 6, 5)),
        (one(1, 4, 6), one(3, 6, 5)),
        (np.broadcast_to(one(4, 6), (3, 4, 6)), one(6, 5)),
        (one(3, 8, 6)[:, ::2], one(6, 5)),
        (one(3, 7, 6)[:, ::2], one(6, 5)),
        (one(3, 7, 6)[:, -1:], one(6, 5)),
    ):
        rows += set(mine.stacked(x, y).ravel().tolist())
    print(*map(int, rows))
"""
    lines = python(code_text, env={"PYTHONPATH": str(tmp_path / "site")}).splitlines()
    assert lines == ["4 24 9 8 4 4 12 12 12 3", "4 24 9 8 4 4 4 12 4 3"]
