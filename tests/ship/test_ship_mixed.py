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
    folder = write_operator(root / "blend", "blend")
    out = root / "out"
    words = ("--out", str(out), "--name", "mine", "--verify", "quick")
    code, said = opwright("ship", str(folder), *words)
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
    variants = [line.split()[1] for line in library.mine_variants().decode().splitlines()]
    assert variants == ["f32", "bf16", "T=i8,U=i8,V=i32", "T=u8,U=i8,V=i32"]
