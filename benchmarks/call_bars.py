"""What a call from Python takes beside the C function: prints, never fails for speed.

Run as ``python benchmarks/call_bars.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from opwright.backends.base import Fault
from opwright.backends.registry import backend_named
from opwright.dispatch.choose import choose
from opwright.dispatch.operator import Operator
from opwright.dispatch.packed import Packed
from opwright.spec.cases import selected_case
from opwright.spec.dtypes import DTYPES
from opwright.spec.operator import parse_dtypes
from opwright.verify.prepare import prepare
from opwright_ops import linear, matmul

ROUNDS, CALLS = 300, 1000


def least(call: Callable[[], Any]) -> float:
    """The least processor time of a call, in nanoseconds: the mean of ``CALLS``, of many."""
    found = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(CALLS):
            call()
        found.append((time.process_time_ns() - started) / CALLS)
    return min(found)


def c_function(
    op: Operator, dtype: str, shape: str, packed: Packed | None = None, **attributes: Any
) -> float:
    """The least time of the kernel that the same call runs, in a compiled loop."""
    [dtypes] = parse_dtypes(op.signature, dtype)
    case = selected_case(op, dtypes, shape, attributes=attributes)
    if packed is None:
        choice = choose(op, "", case.dtypes, case.dims)
    else:
        choice = packed.choice(op, "", case.dtypes)
    prepared = prepare(op, case, with_witness=False)
    memory = None if packed is None else packed.memory
    inputs, values = prepared.operands(choice.row, memory)
    with backend_named(choice.row.backend).open(10) as device:
        buffers = device.upload(inputs, ("out", prepared.shape, prepared.output), "aligned")
        taken = device.clock(choice.artifact, buffers, values, choice.threads, "warm", ROUNDS, 1e5)
        if isinstance(taken, Fault):
            raise SystemExit(taken.message)
        return min(taken.values)


def row(what: str, bar: str, call: Callable[[], Any], bare: float) -> None:
    call()
    taken = least(call) - least(lambda: None)
    print(
        f"{what:60} {f'at most {bar} us':14} "
        f"{(taken - bare) / 1000:.2f} us ({taken:.0f} - {bare:.0f} ns)"
    )


def main() -> None:
    print(f"{'1x1x1 on NumPy arrays, over the C function':60} {'bar':14} measured")
    for dtype in ("f32", "bf16"):
        bare = c_function(matmul, dtype, "m=1,n=1,k=1")
        a, b, c = (np.ones((1, 1), DTYPES[dtype].numpy) for _ in range(3))
        row(f"{dtype} matmul(a, b, out=c)", "1.0", lambda a=a, b=b, c=c: matmul(a, b, out=c), bare)
        row(f"{dtype} matmul(a, b)", "1.5", lambda a=a, b=b: matmul(a, b), bare)
    x, w, bias = np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), np.ones(1, np.float32)
    bare = c_function(linear, "f32", "...=1,n=1,k=1", activation="gelu")
    row("linear(x, w, bias, 'gelu')", "1.5", lambda: linear(x, w, bias, "gelu"), bare)
    named = lambda: linear(x, w, bias, activation="gelu")  # noqa: E731
    row("linear(x, w, bias, activation='gelu')", "1.5", named, bare)
    if any(kernel.packs for kernel in linear.rows):
        packed = linear.pack(w)
        bare = c_function(linear, "f32", "...=1,n=1,k=1", packed, activation="none")
        row("linear(x, linear.pack(w), bias)", "1.5", lambda: linear(x, packed, bias), bare)


if __name__ == "__main__":
    main()
