"""The numbers that a shipped library promises, measured here: a table that never fails for speed.

Run by ``python benchmarks/ship_bars.py``. Each ratio is measured side by side in one run.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from opwright.backends.operands import operands_for, walk_over
from opwright.backends.registry import backend_named
from opwright.catalog.find import find
from opwright.ship.tree import Shipped, ship
from opwright.toolchain.build import build
from opwright.toolchain.compilers import pick_compiler

Bar = tuple[str, str, str]
FLOATS = "f32,f64,bf16,f16"
PAIRS = 64

CALLS = r"""
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "fastops.h"
#include "opwright/call.h"

template <class Call> double round(const Call& call) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 2000; ++i) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    return took.count() / 2000;
}

int main(int, char** kernels) {
    float a = 2, b = 3, c = 0;
    std::int64_t ones[] = {1, 1};
    const DLDataType f32{kDLFloat, 32, 1};
    const DLTensor ta{&a, {kDLCPU, 0}, 2, f32, ones, nullptr, 0};
    const DLTensor tb{&b, {kDLCPU, 0}, 2, f32, ones, nullptr, 0};
    const DLTensor tc{&c, {kDLCPU, 0}, 2, f32, ones, nullptr, 0};
    const DLTensor tx{&a, {kDLCPU, 0}, 1, f32, ones, nullptr, 0};
    const DLTensor ty{&c, {kDLCPU, 0}, 1, f32, ones, nullptr, 0};
    opw::Value values[8] = {};  // matmul: three sizes, four strides, and no leading dimensions
    const opw::Threads alone{1, nullptr};
    for (int op = 0; op < 2; ++op) {
        void* tensors[] = {&a, op ? &c : &b, &c};
        for (int i = 0; i < 7; ++i) values[i].i = 1;
        if (op) values[1].f = 0.5, values[2].f = 1, values[3].f = 0;
        const opw::Call call{tensors, values, &alone};
        void* kernel = dlopen(kernels[1 + op], RTLD_NOW | RTLD_LOCAL);
        if (!kernel) return 1;
        const auto entry =
            reinterpret_cast<void (*)(const opw::Call*)>(dlsym(kernel, "opw_entry"));
        int status = 0;
        double whole = 1e9, bare = 1e9;
        for (int i = 0; i < 300; ++i) {  // in turns, the best of each
            whole = std::min(whole, round([&] {
                status |= op ? fastops_threshold_activation(&tx, &ty, nullptr, nullptr)
                             : fastops_matmul(&ta, &tb, &tc, nullptr, nullptr);
            }));
            bare = std::min(bare, round([&] { entry(&call); }));
        }
        if (status) return 1;
        std::printf("%.1f %.1f\n", whole, bare);
    }
}
"""


def call_overhead(made: Shipped) -> Iterator[Bar]:
    """The C functions for one element, and what of that the kernels themselves take."""
    backend = backend_named("cpu")
    kernels: list[str] = []
    for spec in made.plan.operators:
        dtypes = spec.signature.choices()[0]
        best = made.plan.chain(spec, dtypes)[0]
        artifact = backend.build(spec.signature, best.kernel, dtypes, best.params)
        kernels.append(str(artifact.path))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "calls.cpp"
        source.write_text(CALLS)
        program = build(
            pick_compiler(),
            source=source,
            kind="executable",
            include=(made.root / "include",),
            link=(str(made.library), f"-Wl,-rpath,{made.library.parent}", "-ldl"),
        ).path
        done = subprocess.run([program, *kernels], capture_output=True, text=True, check=True)
    for spec, line in zip(made.plan.operators, done.stdout.splitlines(), strict=True):
        whole, bare = map(float, line.split())
        shown = f"{whole - bare:.0f} ns ({whole:.0f} with the kernel's own {bare:.0f})"
        yield f"call overhead of the C function {spec.name}, 1 element", "under 100 ns", shown


def fastest(call: Callable[[], object], calls: int = 1000) -> float:
    """Nanoseconds of a call from Python, the best of 300 rounds with the loop's own time."""
    best = float("inf")
    for _ in range(300):
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - began) / calls)
    return best


def tvm_ffi_overhead(made: Shipped) -> Iterator[Bar]:
    """One element through TVM-FFI."""
    try:
        import tvm_ffi
    except ImportError:
        yield "through TVM-FFI", "under 1 us", "not measured: pip install apache-tvm-ffi"
        return
    activation = tvm_ffi.load_module(str(made.library)).threshold_activation
    x, y = np.ones(1, np.float32), np.empty(1, np.float32)
    yield "through TVM-FFI from NumPy", "under 1 us", f"{fastest(lambda: activation(x, y)):.0f} ns"
    try:
        import torch
    except ImportError:
        return
    u, v = torch.ones(1), torch.empty(1)
    yield "through TVM-FFI from torch", "under 1 us", f"{fastest(lambda: activation(u, v)):.0f} ns"


def against_inside(
    made: Shipped, module: object, name: str, shape: list[tuple[int, ...]], threads: int
) -> Bar:
    """The shipped operator's time over that of the same kernel inside Opwright, in pairs."""
    spec = find(name).spec
    dtypes = spec.signature.choices()[0]
    variant = next(v for v in made.plan.chain(spec, dtypes))
    backend = backend_named("cpu")
    artifact = backend.build(spec.signature, variant.kernel, dtypes, variant.params)
    bound = backend.bind(artifact)
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(s).astype(np.float32) for s in shape[:-1]]
    out = np.empty(shape[-1], np.float32)
    dims, _ = spec.signature.settle_dims(shape[:-1])
    scalars = spec.signature.settle_scalars({}, dtypes)
    taken, strides = operands_for(spec.signature, variant.kernel, arrays)
    walk = walk_over(spec.signature, dims, taken)
    values = spec.signature.values(dims, scalars, strides, walk)

    def inside() -> None:
        bound(taken, out, values, threads)

    def shipped() -> None:
        getattr(module, name)(*arrays, out=out, threads=threads)

    ratios: list[float] = []
    for index in range(PAIRS):
        times: dict[Callable[[], None], float] = {}
        for run in (inside, shipped) if index % 2 else (shipped, inside):
            began = time.perf_counter()
            run()
            times[run] = time.perf_counter() - began
        if index >= 4:  # the first warm up
            ratios.append(times[shipped] / times[inside])
    low, median, high = np.percentile(ratios, [25, 50, 75])
    what = f"{variant.text}, {threads} thread(s), over the same kernel inside Opwright"
    return (
        what,
        "within 3 %",
        f"{median:.3f} (half of {len(ratios)} pairs in {low:.3f} to {high:.3f})",
    )


def _module(made: Shipped) -> object:
    """The wheel's module, without installing it."""
    import importlib.util
    import zipfile

    (wheel,) = (made.root / "python").glob("*.whl")
    folder = made.root / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    spec = importlib.util.spec_from_file_location("fastops", folder / "fastops" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bars(folder: Path) -> Iterator[Bar]:
    names = ("matmul", "threshold_activation")
    made = ship([find(name).spec for name in names], folder, "fastops")
    # The bar is older than matmul's rows of bytes, which are three eighths of the whole.
    floats = ship([find(name).spec for name in names], folder / "floats", "fastops", dtype=FLOATS)
    yield "both operators, stripped, for floats", "under 1 MB", f"{floats.size / 1e6:.2f} MB"
    yield "the same with bytes", "", f"{made.size / 1e6:.2f} MB"
    yield from call_overhead(made)
    yield from tvm_ffi_overhead(made)
    module = _module(made)
    square, long = (1024, 1024), (1 << 24,)
    for threads in dict.fromkeys((1, backend_named("cpu").probe().threads)):
        yield against_inside(made, module, "matmul", [square, square, square], threads)
        yield against_inside(made, module, "threshold_activation", [long, long], threads)


def main() -> None:
    print(f"{'what':100} {'bar':14} measured")
    with tempfile.TemporaryDirectory(prefix="opwright-ship-") as folder:
        for what, bar, measured in bars(Path(folder)):
            print(f"{what:100} {bar:14} {measured}", flush=True)


if __name__ == "__main__":
    main()
