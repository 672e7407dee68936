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
from opwright.spec.cases import selected_case
from opwright.verify.prepare import prepare
from opwright_ops import matmul

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


def c_function() -> float:
    """The least time of the kernel that the same call runs, in a compiled loop."""
    case = selected_case(matmul, matmul.signature.choices()[0], "m=1,n=1,k=1")
    choice = choose(matmul, "", case.dtypes, case.dims)
    prepared = prepare(matmul, case, with_witness=False)
    inputs, values = prepared.operands(choice.row)
    with backend_named(choice.row.backend).open(10) as device:
        buffers = device.upload(inputs, ("out", prepared.shape, prepared.output), "aligned")
        taken = device.clock(choice.artifact, buffers, values, choice.threads, "warm", ROUNDS, 1e5)
        if isinstance(taken, Fault):
            raise SystemExit(taken.message)
        return min(taken.values)


def main() -> None:
    dtype = matmul.signature.choices()[0]["T"].numpy
    a, b, c = (np.ones((1, 1), dtype) for _ in range(3))
    matmul(a, b, out=c)
    call = least(lambda: matmul(a, b, out=c)) - least(lambda: None)
    bare = c_function()
    print(f"{'what':75} {'bar':14} measured")
    print(
        f"{'matmul(a, b, out=c) of 1x1x1 on NumPy arrays, over its C function':75} "
        f"{'at most 1.0 us':14} {(call - bare) / 1000:.2f} us ({call:.0f} - {bare:.0f} ns)"
    )


if __name__ == "__main__":
    main()
