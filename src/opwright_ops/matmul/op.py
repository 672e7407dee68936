"""The matrix product: its declaration, known-wrong variants, and the one list of its kernels."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from opwright import Kernel, T, Tensor, U, V, cdiv, operator

Array = NDArray[Any]
FLOATS = ["f32", "f64", "bf16", "f16"]
# Of packed panels (blocks.h): terms, in cache lines of a row of A, and columns of B, in 64s.
BLOCKS = {"DEPTH_LINES": [16, 8, 24, 32], "COLS_64": [16, 2, 4, 8, 32]}
# A third less code than -O3, as fast within 3 % at 16 of 17 shapes (AVX2, f32; 7 % less at one).
# The rungs above stay with -O3: there products of few rows lose up to a quarter.
SMALL = ["-O2"]


@operator(
    dtypes={"T U V": ["f32", "f64", "bf16", "f16", "i8 i8 i32", "u8 i8 i32"]},
    flops="2*m*n*k",
    torch="torch.matmul",
    may_flush=["bf16"],
    rows="m",
    bench={
        "default": [
            "m=1024,n=1024,k=1024",
            "m=127,n=8191,k=63",
            "m=1000,n=300,k=500",
            "m=17,n=4099,k=1021",
        ],
        "square": [f"m={s},n={s},k={s}" for s in (64, 100, 256, 512, 1023, 1024, 2048)],
        "odd": [
            "m=127,n=8191,k=63",
            "m=1000,n=300,k=500",
            "m=17,n=4099,k=1021",
            "m=4096,n=4096,k=32",
            "m=4096,n=32,k=4096",
        ],
        "llm": [
            "m=1,n=4096,k=4096",
            "m=8,n=4096,k=4096",
            "m=256,n=4096,k=1024",
            "m=256,n=1024,k=4096",
        ],
    },
)
def matmul(a: Tensor[T, "#... m k"], b: Tensor[U, "#... k n"]) -> Tensor[V, "#... m n"]:
    """Matrix product: each element is the sum over k of a[i, k] * b[k, j].

    Leading dimensions broadcast, and each item that they count is a product of its own.

    Sums are made in float32 for f32, bf16 and f16 and in float64 for f64, in any order, and rounded
    to T once; in int32 for i8 and u8, exactly while they fit: for any k up to 131,000 with i8 and
    65,000 with u8. An empty sum (k = 0) is 0. Infinities and NaN go where IEEE arithmetic takes
    them; subnormal numbers are kept, but products of bf16 may take those of float32 (below 2^-126)
    for zero.
    """
    return a @ b


matmul.rivals(
    Kernel(
        "cpu_onednn.cpp",
        change="oneDNN",
        dtypes=["f32", "bf16", "i8", "u8", "i32"],
        threads=True,
        flags=["-ldnnl"],
    ),
)

matmul.kernels(
    Kernel("cpu_v1_naive.cpp", change="three nested loops"),
    Kernel("cpu_v2_reordered.cpp", change="i-k-j order: B is read along its rows"),
    Kernel(
        "cpu_v3_tiled.cpp",
        change="blocks of B copied once and kept in L1",
        tune={"BLOCK": [64, 16, 32, 128]},
    ),
    Kernel(
        "cpu_v4_portable.cpp",
        change="packed panels, 4 x 8 sums in registers, threads",
        tune=BLOCKS,
        threads=True,
        strided=True,
        flags=SMALL,
    ),
    Kernel(
        "cpu_v5_avx2.cpp",
        change="6 x 16 sums in registers, AVX2",
        isa="avx2",
        tune=BLOCKS,
        threads=True,
        strided=True,
        flags=SMALL,
    ),
    Kernel(
        "cpu_v6_avx512.cpp",
        change="12 x 32 sums in registers, AVX-512",
        isa="avx512",
        tune=BLOCKS,
        threads=True,
        strided=True,
    ),
    Kernel(
        "cpu_v7_avx512_bf16.cpp",
        change="dot products of bfloat16 pairs, 32 multiply-adds an instruction",
        isa="avx512_bf16",
        dtypes=["bf16"],
        tune=BLOCKS,
        threads=True,
        strided=True,
    ),
    Kernel(
        "cpu_v8_avx512_vnni.cpp",
        change="dot products of four bytes, 64 multiply-adds an instruction",
        isa="avx512_vnni",
        dtypes=["i8", "u8", "i32"],
        tune=BLOCKS,
        threads=True,
        strided=True,
    ),
    Kernel(
        "cpu_v9_amx_bf16.cpp",
        change="tiles of 16 x 16 sums, 8192 multiply-adds an instruction, AMX",
        isa="amx_bf16",
        dtypes=["bf16"],
        tune=BLOCKS,
        threads=True,
        strided=True,
    ),
    Kernel(
        "cpu_v10_amx_int8.cpp",
        change="tiles of 16 x 16 sums, 16384 multiply-adds an instruction, AMX",
        isa="amx_int8",
        dtypes=["i8", "u8", "i32"],
        tune=BLOCKS,
        threads=True,
        strided=True,
    ),
    Kernel(
        "cuda_v1_naive.cu",
        change="a thread for each element, lanes along the rows",
        dtypes=FLOATS,
        block=lambda: (32, 8),
        grid=lambda m, n: (cdiv(m, 32), cdiv(n, 8)),
    ),
    Kernel(
        "cuda_v2_coalesced.cu",
        change="lanes along the columns: neighbours read neighbours",
        dtypes=FLOATS,
        block=lambda: (32, 8),
        grid=lambda m, n: (cdiv(n, 32), cdiv(m, 8)),
    ),
    Kernel(
        "cuda_v3_tiled.cu",
        change="tiles in shared memory, each element loaded once for 16 uses",
        dtypes=FLOATS,
        tune={"TILE": [16, 32, 8]},
        block=lambda TILE: (TILE, TILE),
        grid=lambda m, n, TILE: (cdiv(n, TILE), cdiv(m, TILE)),
    ),
    Kernel(
        "cuda_v4_padded.cu",
        change="a padded tile: no bank conflicts",
        dtypes=FLOATS,
        tune={"TILE": [16, 32, 8]},
        block=lambda TILE: (TILE, TILE),
        grid=lambda m, n, TILE: (cdiv(n, TILE), cdiv(m, TILE)),
    ),
    Kernel(
        "cuda_v5_float4.cu",
        change="float4 loads, the inner loop unrolled by four",
        dtypes=FLOATS,
        tune={"TILE": [32, 16]},
        block=lambda TILE: (TILE, TILE),
        grid=lambda m, n, TILE: (cdiv(n, TILE), cdiv(m, TILE)),
    ),
    Kernel(
        "cuda_v6_registers.cu",
        change="4 x 4 sums a thread in registers",
        dtypes=FLOATS,
        tune={"DEPTH": [16, 8, 32]},
        block=lambda: (16, 16),
        grid=lambda m, n: (cdiv(n, 64), cdiv(m, 64)),
    ),
)


@matmul.gradient("a")
def gradient_of_a(grad: Array, a: Array, b: Array) -> Any:
    """The product of ``grad`` and the transpose of ``b``, by the same kernels."""
    return matmul(grad, np.swapaxes(b, -1, -2))


@matmul.gradient("b")
def gradient_of_b(grad: Array, a: Array, b: Array) -> Any:
    """The product of the transpose of ``a`` and ``grad``, by the same kernels."""
    if b.ndim == 2:  # one product over the rows of all items, instead of one for each and their sum
        rows = math.prod(a.shape[:-1])
        a, grad = a.reshape(rows, a.shape[-1]), grad.reshape(rows, grad.shape[-1])
    return matmul(np.swapaxes(a, -1, -2), grad)


@matmul.known_wrong("last term of k left out")
def last_term_missing(a: Array, b: Array) -> Array:
    """A loop over k that ends one early."""
    return np.asarray(a[..., :-1] @ b[..., :-1, :])


@matmul.known_wrong("first term of k added twice")
def first_term_twice(a: Array, b: Array) -> Array:
    """Sums that start at the first term instead of at 0, in a loop that also adds it."""
    return np.asarray(a @ b + a[..., :1] @ b[..., :1, :])


@matmul.known_wrong("sums kept in bfloat16")
def sums_in_bfloat16(a: Array, b: Array) -> Array:
    """An accumulator of 8 bits: it stops growing at 256 times the size of a term."""
    sums = np.zeros((a[..., :0] @ b[..., :0, :]).shape, dtype=ml_dtypes.bfloat16)
    for p in range(a.shape[-1]):
        sums = (sums + a[..., p, None] * b[..., p, None, :]).astype(ml_dtypes.bfloat16)
    return sums.astype(np.float64)


@matmul.known_wrong("b read as if stored column by column")
def b_read_by_columns(a: Array, b: Array) -> Array:
    """The leading dimension confused: for a square b, this multiplies by its transpose."""
    read = b.reshape(*b.shape[:-2], b.shape[-1], b.shape[-2])
    return np.asarray(a @ np.swapaxes(read, -1, -2))


@matmul.known_wrong("last row left zero")
def last_row_zero(a: Array, b: Array) -> Array:
    """An edge tile that is never computed."""
    out = np.asarray(a @ b).copy()
    out[..., -1:, :] = 0
    return out


@matmul.known_wrong("only the last half of k kept")
def last_block_only(a: Array, b: Array) -> Array:
    """Blocks of k that overwrite the sums instead of adding to them."""
    half = a.shape[-1] // 2
    return np.asarray(a[..., half:] @ b[..., half:, :])
