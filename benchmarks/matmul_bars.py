"""The numbers promised of the matrix product, beside torch: prints tables, never fails for speed.

Run by ``make bench-matmul``. Both sides are called from Python in this process, in turns, packing
included: ratios are torch's time over ours, medians of the ratios within each round. Bars hold on a
machine with the instruction sets they name; what the operators are not declared for is left out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

from opwright.backends.registry import backend_named
from opwright.bench.interleave import Rounds, interleave
from opwright.bench.measure import Setup, measure
from opwright.bench.stats import Ratio, paired_ratio
from opwright.catalog.find import find
from opwright.dispatch.choose import choose
from opwright.spec.cases import selected_case
from opwright.spec.errors import NothingSelectedError, OpwrightError

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int, int]

BUDGET = 1.6  # seconds of sampling for one line: 70 lines take about four minutes
SAMPLE = 1e6  # nanoseconds a sample lasts at least
SLOW = 1.0  # seconds: a call of torch that takes longer is made once
TOO_SLOW = 8.0  # and not at all where the rate at a smaller shape says so
CUBES = (256, 512, 1023, 1024, 2048)
THREADS = (1, 2)


@dataclass(frozen=True)
class Bars:
    """What is promised of one element type: by shape, and as the geometric mean of the cubes."""

    dtype: str
    isa: str
    by_shape: dict[Shape, float]
    mean: float = 0.0


def bars_of(dtype: str, isa: str, bars: tuple[float, ...], mean: float = 0.0) -> Bars:
    """``bars`` are for 64^3, 100^3, each larger cube, m=1, m=8 and the three odd shapes."""
    small, hundred, cube, one, eight, *odd = bars
    odd_shapes = ((4096, 4096, 32), (4096, 32, 4096), (127, 8191, 63))
    return Bars(
        dtype,
        isa,
        {
            (64, 64, 64): small,
            (100, 100, 100): hundred,
            **{(s, s, s): cube for s in CUBES},
            (1, 4096, 4096): one,
            (8, 4096, 4096): eight,
            **dict(zip(odd_shapes, odd, strict=True)),
        },
        mean,
    )


ALL = (
    bars_of("f32", "avx512", (1.5, 1.25, 0.97, 0.97, 2, 0.95, 1.15, 1.0), 1.05),
    bars_of("bf16", "amx_bf16", (14, 4, 1.0, 3, 1.8, 1.0, 1.0, 1.8), 1.3),
    bars_of("f16", "avx512", (1.0,) * 8),
    bars_of("i8", "avx512_vnni", (1.0,) * 8),
)


class Call:
    """One side of a comparison: ``sample`` gives nanoseconds per call."""

    def __init__(self, name: str, run: Callable[[], Any], settle: float = 0.0) -> None:
        self.name = name
        self.run = run
        self.settle = settle
        self.calls = 0

    def sample(self) -> float:
        if not self.calls:
            self.warm_up()
        value = self.time()
        time.sleep(self.settle)
        return value

    def warm_up(self) -> None:
        """Run for a tenth of a second, and find out how many calls a sample needs."""
        self.calls = 1
        started = time.perf_counter()
        while time.perf_counter() - started < 0.1:
            if self.time() * self.calls < SAMPLE:
                self.calls *= 2

    def time(self) -> float:
        started = time.perf_counter_ns()
        for _ in range(self.calls):
            self.run()
        return (time.perf_counter_ns() - started) / self.calls


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Let both sides use ``threads`` threads."""
    torch.set_num_threads(threads)
    os.environ["OPWRIGHT_THREADS"] = str(threads)
    try:
        yield
    finally:
        del os.environ["OPWRIGHT_THREADS"]


def array(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Array:
    """Random numbers: zeros run faster on some units."""
    if dtype == "i8":
        return random.integers(-128, 128, shape, dtype=np.int8)
    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    return random.standard_normal(shape, dtype=np.float32).astype(kinds[dtype])


def as_torch(values: Array) -> torch.Tensor:
    """The same memory as a tensor."""
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def compare(pairs: dict[str, Callable[[], Any]], threads: int, budget: float = BUDGET) -> Rounds:
    # After a parallel region torch's threads spin a while, on the cores that come next.
    settle = 0.02 if threads > 1 else 0.0
    calls = [Call(name, run, settle) for name, run in pairs.items()]
    with on_threads(threads), torch.no_grad():
        return interleave(calls, budget)


def ratio(rounds: Rounds, other: str, own: str) -> Ratio:
    common = sorted(rounds[other].keys() & rounds[own].keys())
    return paired_ratio([rounds[other][r] for r in common], [rounds[own][r] for r in common])


def median(rounds: Rounds, name: str) -> float:
    return float(np.median(list(rounds[name].values()))) / 1e3


def verdict(found: float, bar: float, isa: str) -> str:
    """How a bar was met, or why there is none here."""
    missing = isa not in backend_named("cpu").probe().isas
    if not bar:
        return ""
    if missing:
        return f"at least {bar:g} with {isa}: no bar here"
    return f"at least {bar:g}: " + ("met" if found >= bar else "not met")


def product(shape: Shape, dtype: str, threads: int) -> Rounds:
    m, n, k = shape
    random = np.random.default_rng(0)
    a, b = array((m, k), dtype, random), array((k, n), dtype, random)
    ta, tb = as_torch(a), as_torch(b)
    matmul: Any = find("matmul").spec
    with on_threads(threads):
        out = matmul(a, b)  # verified and built before anything is timed
    multiply = torch._int_mm if dtype == "i8" else torch.mm
    with on_threads(threads):
        started = time.perf_counter_ns()
        tout = multiply(ta, tb)
        once = time.perf_counter_ns() - started
    pairs: dict[str, Callable[[], Any]] = {
        "ours out=": lambda: matmul(a, b, out=out),
        "ours": lambda: matmul(a, b),
        "torch out=": lambda: multiply(ta, tb, out=tout),
        "torch": lambda: ta @ tb if dtype != "i8" else multiply(ta, tb),
    }
    if once < SLOW * 1e9:
        return compare(pairs, threads)
    rounds = compare({name: pairs[name] for name in ("ours out=", "ours")}, threads)
    return rounds | {name: {0: float(once)} for name in ("torch", "torch out=")}


def declared(dtype: str) -> str:
    """Why there are no bars for this element type; empty where there are."""
    spec = find("matmul").spec
    probe = array((1, 1), dtype, np.random.default_rng(0)).dtype
    try:
        dtypes = spec.signature.settle_dtypes([probe, probe])
        choose(spec, "", dtypes, {"m": 64, "n": 64, "k": 64})
    except OpwrightError as error:
        return str(error).splitlines()[0]
    return ""


def table(bars: Bars, threads: int) -> None:
    print(f"\nmatmul {bars.dtype}, {threads} thread{'' if threads == 1 else 's'}")
    head = ("m,n,k", "torch us", "ours us", "out=", "[95 %]", "a @ b", "bar for out=")
    print("{:14} {:>9} {:>9} {:>6} {:14} {:>6}  {}".format(*head), flush=True)
    cubes = []
    rate = 0.0  # seconds an operation takes torch, where it is slow
    for shape, bar in bars.by_shape.items():
        name = ",".join(map(str, shape))
        if rate * math.prod(shape) > TOO_SLOW:
            print(f"{name:14} left out: torch takes about {rate * math.prod(shape):.0f} s")
            continue
        try:
            rounds = product(shape, bars.dtype, threads)
        except RuntimeError as error:  # torch has no such product here
            print(f"{name:14} torch: {str(error).splitlines()[0]}", flush=True)
            continue
        found = ratio(rounds, "torch out=", "ours out=")
        whole = ratio(rounds, "torch", "ours")
        theirs, own = median(rounds, "torch out="), median(rounds, "ours out=")
        if theirs > SLOW * 1e6:
            rate = theirs / 1e6 / math.prod(shape)
        between = f"[{found.low:.2f}, {found.high:.2f}]"
        said = verdict(found.median, bar, bars.isa)
        print(
            f"{name:14} {theirs:9.1f} {own:9.1f} {found.median:6.2f} {between:14} "
            f"{whole.median:6.2f}  {said}",
            flush=True,
        )
        if shape[0] in CUBES and len(set(shape)) == 1:
            cubes.append(found.median)
    if len(cubes) == len(CUBES):
        mean = math.exp(sum(map(math.log, cubes)) / len(cubes))
        what = "geometric mean of 256^3 to 2048^3"
        print(f"{what:34}{mean:6.2f}{'':24}{verdict(mean, bars.mean, bars.isa)}", flush=True)


def int8_over_bf16() -> None:
    """Our own int8 against our own bf16."""
    random = np.random.default_rng(0)
    matmul: Any = find("matmul").spec
    sides = {}
    for dtype in ("i8", "bf16"):
        a, b = array((1024, 1024), dtype, random), array((1024, 1024), dtype, random)
        with on_threads(1):
            out = matmul(a, b)
        sides[dtype] = lambda a=a, b=b, out=out: matmul(a, b, out=out)
    found = ratio(compare(sides, 1), "bf16", "i8").median
    print(f"\nint8 over our bf16 at 1024^3, 1 thread: {found:.2f}  {verdict(found, 2, 'amx_int8')}")


def linear(dtype: str, isa: str, bar: float) -> None:
    """A fused layer against torch's two calls, at 256 x 4096 x 1024."""
    spec: Any = find("linear").spec
    m, n, k = 256, 4096, 1024
    random = np.random.default_rng(0)
    x, w = array((m, k), dtype, random), array((n, k), dtype, random)
    bias = array((n,), dtype, random)
    tx, tw, tbias = as_torch(x), as_torch(w), as_torch(bias)
    # Each side gets the weight as it takes it: torch as [n, k], ours as declared.
    own = w if spec.signature.inputs[1].type.dims == ("n", "k") else np.ascontiguousarray(w.T)
    for threads in THREADS:
        with on_threads(threads):
            out = spec(x, own, bias, activation="gelu")
        rounds = compare(
            {
                "torch": lambda: functional.gelu(functional.linear(tx, tw, tbias)),
                "ours": lambda out=out: spec(x, own, bias, activation="gelu", out=out),
            },
            threads,
        )
        found = ratio(rounds, "torch", "ours").median
        what = f"linear, bias and gelu, {dtype} {m}x{n}x{k}, {threads} thread(s)"
        print(f"{what}: {found:.2f}  {verdict(found, bar, isa)}", flush=True)


def call_cost() -> None:
    """What a call from Python adds to the C function, at a size that takes next to nothing."""
    target = find("matmul")
    spec: Any = target.spec
    a = np.ones((16, 16), np.float32)
    with on_threads(1):
        out = spec(a, a)
        dtypes = spec.signature.settle_dtypes([a.dtype, a.dtype])
        case = selected_case(spec, dtypes, "m=16,n=16,k=16")
        row = spec.row(choose(spec, "", dtypes, case.dims).kernel)
    setup = Setup(case, 1, "warm")
    [measured] = measure(spec, [row], target.reference, [setup], {}, budget=2)
    kernel = measured.rows[0].summary
    if kernel is None:
        raise NothingSelectedError(f"{row.name}: {measured.rows[0].reason}")
    rounds = compare({"call": lambda: spec(a, a, out=out)}, 1)
    added = median(rounds, "call") - kernel.median / 1e3
    met = "met" if added <= 1 else "not met"
    print(
        f"\na call from Python over the C function, f32 16^3: {added:.2f} us  at most 1 us: {met}"
    )


def main() -> None:
    started = time.perf_counter()
    probe = backend_named("cpu").probe()
    print(f"{probe.device}; torch {torch.__version__}; ratios above 1: Opwright is faster")
    lacking = {bars.dtype: declared(bars.dtype) for bars in ALL}
    for bars in ALL:
        if lacking[bars.dtype]:
            print(f"\nmatmul {bars.dtype}: {lacking[bars.dtype]}")
            continue
        for threads in THREADS:
            table(bars, threads)
    if not (lacking["i8"] or lacking["bf16"]):
        int8_over_bf16()
    try:
        linear("f32", "avx512", 1.1)
        linear("bf16", "amx_bf16", 1.3)
    except OpwrightError as error:
        print(f"\nlinear: {error}")
    call_cost()
    print(f"\n{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
