"""Products of short types: int8 exact everywhere, AMX on a model of its tiles, other CPUs."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opwright.catalog.find import reference
from opwright.dispatch.choose import why_not
from opwright.spec.cases import Case, selected_case
from opwright.spec.dtypes import DType, dtype_named
from opwright.spec.isa import isa_named
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler
from opwright.verify.engine import Options, verify
from opwright_ops import linear, linear_int8, matmul

Array = np.ndarray[Any, np.dtype[Any]]

HERE = Path(__file__).parent
BYTES: dict[str, dict[str, DType]] = {
    a: {"T": dtype_named(a), "U": dtype_named("i8"), "V": dtype_named("i32")} for a in ("i8", "u8")
}
BF16 = dict.fromkeys(("T", "U", "V"), dtype_named("bf16"))
each_left = pytest.mark.parametrize("left", ["i8", "u8"])

# By row, without limits on the element types and by the most a CPU may lack.
RUNGS = [
    row.name
    for row in matmul.rows
    if row.backend == "cpu" and (not row.dtypes or {"i8", "u8", "i32"} <= set(row.dtypes))
]


@pytest.fixture(params=RUNGS)
def rung(request: pytest.FixtureRequest) -> Any:
    row = matmul.row(request.param)
    if reason := why_not(matmul, row, BYTES["i8"]):
        pytest.skip(reason)
    return matmul.kernel(row.name)


def exact(a: Array, b: Array) -> Array:
    """By NumPy, in float64: sums below 2**53 are exact, in an eighth of the time of int64."""
    return np.asarray(a.astype(float) @ b.astype(float)).astype(np.int64)


def check(kernel: Any, a: Array, b: Array) -> None:
    """The kernel's sums, in an output that held something else before."""
    out = np.full((a.shape[0], b.shape[1]), 0x5A5A5A5A, np.int32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(out, exact(a, b), f"{a.shape} x {b.shape}")


def bytes_of(dtype: DType, shape: tuple[int, int], seed: int) -> Array:
    random = np.random.default_rng(seed)
    return random.integers(int(dtype.lowest), int(dtype.highest) + 1, shape).astype(dtype.numpy)


@each_left
@pytest.mark.parametrize("m", [1, 17])
def test_every_number_of_terms_is_exact(rung: Any, left: str, m: int) -> None:
    # Remainders of pairs, quads, the 64 of a register or tile, and of blocks of 512, 1024 and 2048.
    for k in [*range(70), 127, 129, 511, 513, 1023, 1027, 1091, 2047, 2051, 2115]:
        for n in (1, 33):
            a = bytes_of(BYTES[left]["T"], (m, k), k)
            check(rung, a, bytes_of(BYTES[left]["U"], (k, n), k + 1))


@each_left
def test_extremes_neither_saturate_nor_wrap(rung: Any, left: str) -> None:
    info = np.iinfo(BYTES[left]["T"].numpy)
    for m, n, k in ((1, 1, 64), (1, 37, 67), (5, 3, 130), (17, 33, 1030), (40, 40, 36)):
        for first in (info.min, info.max):
            for second in (-128, 127):
                a, b = np.full((m, k), first, info.dtype), np.full((k, n), second, np.int8)
                check(rung, a, b)
                b[1::2] = -1 - b[1::2]  # the other extreme, in turns
                check(rung, a, b)


# Around the 2048 terms that are read at a time where those of B are neighbours, for up to 64 rows.
PIECES = [(5, 33, 2047), (9, 31, 2048), (64, 40, 2049), (65, 33, 2050), (17, 64, 4100)]


@each_left
def test_sizes_around_tiles_and_layouts(rung: Any, left: str) -> None:
    sizes = [(2, 31, 9), (4, 17, 65), (6, 16, 64), (12, 32, 20), (13, 65, 129), (16, 100, 33)]
    for m, n, k in [
        *sizes,
        (31, 33, 63),
        (33, 15, 257),
        (65, 2, 40),
        (50, 4, 100),
        (70, 70, 1100),
        *PIECES,
    ]:
        a, b = bytes_of(BYTES[left]["T"], (m, k), m), bytes_of(BYTES[left]["U"], (k, n), n)
        check(rung, a, b)
        check(rung, np.asfortranarray(a), b)
        check(rung, a, np.asfortranarray(b))
        check(rung, np.asfortranarray(a), np.asfortranarray(b))
        apart_a = np.zeros((2 * m, 3 * k + 1), a.dtype)[::2, : 3 * k : 3]
        apart_a[...] = a
        check(rung, apart_a, b)


# Where the terms of the many are neighbours, up to 8 are few, one for every 64 bytes of a line, and
# up to 32 where the many have more than 8 MiB. They are multiplied 4 at a time, then 2, with a line
# of zeros beside an odd one, and the many 4 at a time and 64 before the next.
FEW = [(2, 67, 130), (3, 5, 257), (4, 62, 1024), (5, 66, 511), (6, 1, 448), (7, 131, 513)]
FEW += [(8, 3, 1089), (31, 2051, 4129)]


@each_left
def test_few_lines_against_many(rung: Any, left: str) -> None:
    t, u = BYTES[left]["T"], BYTES[left]["U"]
    for few, many, k in FEW:
        check(rung, bytes_of(t, (few, k), few), np.asfortranarray(bytes_of(u, (k, many), many)))
        check(rung, bytes_of(t, (many, k), many), bytes_of(u, (k, few), few))


# Few rows take 256 bytes of B's rows at a time, and 4096 columns before the next; 16 rows are few
# where B has more than 8 MiB, and take 2048 columns.
WIDE = [(6, 257, 0), (5, 255, 70), (6, 513, 65), (2, 4353, 130), (5, 4099, 67), (16, 2817, 3001)]


@each_left
def test_few_rows_against_wide_matrices(
    rung: Any, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_THREADS", "1")  # or no thread has as many columns
    for m, n, k in WIDE:
        a, b = bytes_of(BYTES[left]["T"], (m, k), m), bytes_of(BYTES[left]["U"], (k, n), n)
        check(rung, a, b)


@pytest.fixture
def pairs_of_bfloat16() -> Any:
    row = matmul.row("cpu_v7_avx512_bf16")
    if reason := why_not(matmul, row, BF16):
        pytest.skip(reason)
    return matmul.kernel(row.name)


def test_few_rows_of_bfloat16_against_wide_matrices(
    pairs_of_bfloat16: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWRIGHT_THREADS", "1")
    random = np.random.default_rng(1)
    for m, n, k in [*WIDE[:-1], (16, 4097, 1025)]:
        # -1, 0 and 1: sums are exact.
        a, b = (random.integers(-1, 2, shape).astype(BF16["T"].numpy) for shape in ((m, k), (k, n)))
        expected = (a.astype(float) @ b.astype(float)).astype(BF16["T"].numpy)
        out = np.full((m, n), np.nan, BF16["T"].numpy)
        np.testing.assert_array_equal(pairs_of_bfloat16(a, b, out=out), expected, f"{m} {n} {k}")


def test_few_lines_of_bfloat16_against_many(pairs_of_bfloat16: Any) -> None:
    random = np.random.default_rng(2)
    for few, many, k in FEW:
        # -1, 0 and 1: sums are exact.
        x, y = (random.integers(-1, 2, s).astype(BF16["T"].numpy) for s in ((few, k), (k, many)))
        expected = (x.astype(float) @ y.astype(float)).astype(BF16["T"].numpy)
        for a, b, wanted in (
            (x, np.asfortranarray(y), expected),
            (np.ascontiguousarray(y.T), np.ascontiguousarray(x.T), expected.T),
        ):
            out = np.full(wanted.shape, np.nan, BF16["T"].numpy)
            np.testing.assert_array_equal(pairs_of_bfloat16(a, b, out=out), wanted)


def test_the_number_of_threads_changes_no_bit_of_bfloat16(
    pairs_of_bfloat16: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    # Each large enough for three threads: blocks, few rows, few columns.
    for m, n, k in ((150, 170, 150), (5, 2600, 301), (2600, 2, 801)):
        a, b = (random.standard_normal(shape).astype(BF16["T"].numpy) for shape in ((m, k), (k, n)))
        for right in (b, np.asfortranarray(b)):
            monkeypatch.setenv("OPWRIGHT_THREADS", "1")
            one = pairs_of_bfloat16(a, right)
            for threads in ("2", "3", "4"):
                monkeypatch.setenv("OPWRIGHT_THREADS", threads)
                more = pairs_of_bfloat16(a, right)
                np.testing.assert_array_equal(more, one, f"{threads} threads")


def test_bfloat16_dot_products_round_once_and_keep_nan(pairs_of_bfloat16: Any) -> None:
    """Known answer A7 at the end of a sum, and padding that multiplies no infinity by zero."""
    kernel = pairs_of_bfloat16
    bf16 = ml_dtypes.bfloat16
    for m, n in ((1, 1), (1, 40), (17, 1), (13, 33)):
        # 1 + 1/256 and 1.5 + 3/256 lie between two numbers, at odd k.
        for terms, rounded in (([1, 2**-8, 0], 1.0), ([1, 3 * 2**-8, 0], 1.015625)):
            a, b = np.ones((m, 3), bf16), np.tile(np.array([terms], bf16).T, (1, n))
            np.testing.assert_array_equal(kernel(a, b).astype(float), np.full((m, n), rounded))
        for k in (1, 3, 33, 65):
            a, b = np.ones((m, k), bf16), np.ones((k, n), bf16)
            a[0, k - 1] = np.inf
            expected = np.full((m, n), float(k))
            expected[0] = np.inf
            np.testing.assert_array_equal(kernel(a, b).astype(float), expected)
            b[k - 1, n - 1] = np.nan
            expected[:, n - 1] = np.nan
            np.testing.assert_array_equal(kernel(a, b).astype(float), expected)


# --- AMX ----------------------------------------------------------------------------------------

# Around 16 and 32 rows, columns and words; blocks of 512 and 1024 terms; fewer rows than a tile's.
TILED = [
    *("m=1,n=5,k=7", "m=17,n=1,k=1", "m=17,n=16,k=32", "m=18,n=17,k=33", "m=31,n=33,k=63"),
    *("m=32,n=32,k=64", "m=33,n=31,k=65", "m=49,n=70,k=130", "m=20,n=40,k=1090", "m=64,n=20,k=0"),
]


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operators' folders, with AMX's instructions replaced by a model of them."""
    root = tmp_path_factory.mktemp("amx") / "operators"
    shutil.copytree(matmul.folder.parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "amx_model" / "amx_tiles.h", root / matmul.folder.name)
    return root


def on_the_model(spec: OperatorSpec, name: str, isa: str, modelled: Path) -> Kernel:
    """A row of ``spec`` that needs no AMX, but the vectors of ``isa``."""
    real = spec.row(name)
    return Kernel(
        real.file,
        change="on a model of AMX",
        isa=isa,
        strided=real.strided,
        packs=real.packs,
        dtypes=real.dtypes,
        threads=True,
        folder=modelled / spec.folder.name,
    )


@pytest.mark.parametrize(
    ("kernel", "isa", "dtypes"),
    [
        ("cpu_v9_amx_bf16", "avx512_bf16", BF16),
        ("cpu_v10_amx_int8", "avx512_vnni", BYTES["i8"]),
        ("cpu_v10_amx_int8", "avx512_vnni", BYTES["u8"]),
    ],
    ids=["bf16", "i8", "u8"],
)
def test_amx_kernels_hold_on_a_model_of_the_tiles(
    modelled: Path, kernel: str, isa: str, dtypes: dict[str, DType]
) -> None:
    row = on_the_model(matmul, kernel, isa, modelled)
    if reason := why_not(matmul, row, dtypes):
        pytest.skip(reason)

    def case(shape: str, values: str = "typical", layout: str = "contiguous") -> Case:
        return selected_case(matmul, dtypes, shape, values, layout)

    cases = [case(shape, values) for shape in TILED for values in ("typical", "whole")]
    cases += [
        case("m=35,n=37,k=70", layout=layout)
        for layout in ("transposed", "padded", "stepped", "expanded", "others-transposed")
    ]
    kinds = ("special", "overflow") if dtypes is BF16 else ("extremes", "wide")
    cases += [case("m=35,n=37,k=71", values) for values in kinds]
    report = verify(matmul, [row], reference(matmul), Options(dtypes=[dtypes], cases=cases))
    assert report.findings == []
    assert [done.held for done in report.kernels] == [len(cases)]


@pytest.mark.parametrize(
    ("spec", "kernel", "isa", "dtypes"),
    [
        (linear, "cpu_v6_amx_bf16", "avx512_bf16", {"T": BF16["T"]}),
        (linear_int8, "cpu_v5_amx_int8", "avx512_vnni", BYTES["i8"]),
        (linear_int8, "cpu_v5_amx_int8", "avx512_vnni", BYTES["u8"]),
    ],
    ids=["bf16", "i8", "u8"],
)
def test_amx_layers_hold_on_a_model_of_the_tiles(
    modelled: Path, spec: OperatorSpec, kernel: str, isa: str, dtypes: dict[str, DType]
) -> None:
    """Both calls: tiles work on a packed input however few its rows are."""
    row = on_the_model(spec, kernel, isa, modelled)
    if reason := why_not(spec, row, dtypes):
        pytest.skip(reason)
    shapes = [shape.replace("m=", "...=") for shape in TILED]
    cases = [selected_case(spec, dtypes, shape) for shape in ("...=1,n=1,k=1", *shapes)]
    cases += [
        selected_case(spec, dtypes, "...=35,n=37,k=70", "whole", layout, attributes=how)
        for layout, how in (
            ("transposed", {"activation": "gelu"}),
            ("padded", {"activation": "relu"}),
        )
    ]
    report = verify(spec, [row], reference(spec), Options(dtypes=[dtypes], cases=cases))
    assert report.findings == []
    assert [done.held for done in report.kernels] == [len(cases)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.parametrize("kind", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("kernel", "dtypes", "instruction"),
    [
        ("cpu_v9_amx_bf16", BF16, "tdpbf16ps"),
        ("cpu_v10_amx_int8", BYTES["i8"], "tdpbssd"),
        ("cpu_v10_amx_int8", BYTES["u8"], "tdpbusd"),
    ],
    ids=["bf16", "i8", "u8"],
)
def test_amx_instructions_are_encoded(
    kind: str, kernel: str, dtypes: dict[str, DType], instruction: str
) -> None:
    if not shutil.which("objdump"):
        pytest.skip("no objdump here")
    try:
        compiler = pick_compiler(kind)
    except Exception as error:
        pytest.skip(str(error))
    row = matmul.row(kernel)
    built = build(
        compiler,
        source=row.path,
        prelude=matmul.signature.c_prelude(dtypes, row),
        flags=(*isa_named(row.isa).flags, *(f"-D{v}={d.c}" for v, d in dtypes.items())),
    )
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", built.path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = set(re.findall(rf"\b{instruction} +(%tmm\d,%tmm\d,%tmm\d)", text))
    # C is 0 to 3, A 4 and 5, B 6 and 7, here written from right to left.
    assert found == {
        *("%tmm6,%tmm4,%tmm0", "%tmm7,%tmm4,%tmm1", "%tmm6,%tmm5,%tmm2", "%tmm7,%tmm5,%tmm3")
    }
    others = {"tdpbf16ps", "tdpbssd", "tdpbusd", "tdpbsud", "tdpbuud"} - {instruction}
    assert not any(other in text for other in others)
    assert "ldtilecfg" in text and "tilerelease" in text
    loads = set(re.findall(r"\btileloadd? +[^\n]*%tmm(\d)", text))
    assert {"4", "5", "6", "7"} <= loads


# --- other processors ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtypes", [BYTES["i8"], BYTES["u8"], BF16], ids=["i8", "u8", "bf16"])
@pytest.mark.parametrize(
    ("compiler", "emulator", "isa", "rung"),
    [
        ("", "qemu-x86_64 -cpu Haswell", "avx2", "cpu_v5_avx2"),
        ("", "qemu-x86_64 -cpu Nehalem", "baseline", "cpu_v4_portable"),
        ("aarch64-linux-gnu-g++", "qemu-aarch64", "baseline", "cpu_v4_portable"),
    ],
    ids=["avx2", "baseline", "aarch64"],
)
def test_paths_of_other_processors(
    compiler: str, emulator: str, isa: str, rung: str, dtypes: dict[str, DType]
) -> None:
    command = emulator.split()
    for tool in (command[0], compiler):
        if tool and not shutil.which(tool):
            pytest.skip(f"no {tool} here")
    if not compiler and platform.machine() != "x86_64":
        pytest.skip("emulates x86-64 on itself")
    row = matmul.row(rung)
    built = build(
        pick_compiler(compiler),
        source=HERE / "product_elsewhere.cpp",
        flags=(
            *isa_named(isa).flags,
            *(f"-D{variable}={dtype.c}" for variable, dtype in dtypes.items()),
            f'-DKERNEL="{row.path}"',
        ),
        link=("-static",),
        kind="executable",
    )
    ran = subprocess.run(
        [*command, str(built.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # On stderr qemu names the features of the processor that it does not have.
    assert (ran.returncode, ran.stdout) == (0, "20 products are right\n"), ran.stderr
