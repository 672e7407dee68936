"""A matrix product with a large space of parameters, its defaults those of another CPU."""

from __future__ import annotations

from opwright import Kernel, T, Tensor, operator


@operator(dtypes={"T": ["f32"]}, flops="2*m*n*k", bench=["m=384,n=384,k=384"])
def product(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    """The matrix product."""
    return a @ b


product.kernels(
    Kernel(
        "cpu_v1_blocked.cpp",
        change="blocks of everything, by parameters",
        isa="avx2",
        flags=["-ffp-contract=fast"],
        tune={
            "ROWS": [1, 2, 3, 4, 6, 8],
            "VECTORS": [1, 2, 3, 4],
            "BYTES": [16, 32],
            "DEPTH": [16, 64, 256],
            "PANELS": [1, 8],
        },
        # More sums than this are kept in memory on every CPU that has AVX2.
        when=["ROWS * VECTORS <= 24"],
    ),
)
