"""The numbers that the project promises, measured here: prints a table, never fails for speed.

Run by ``make bench``. Each ratio is measured side by side in one run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from opwright.backends.registry import backend_named
from opwright.bench.ceilings import ensure
from opwright.bench.measure import Setup, Table, measure
from opwright.catalog.find import find
from opwright.spec.cases import selected_case
from opwright.verify.engine import verify

Bar = tuple[str, str, str]


def opwright(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "opwright"), *arguments]


def table(name: str, shape: str, threads: int) -> Table:
    target = find(name)
    dtypes = target.spec.signature.choices()[0]
    case = selected_case(target.spec, dtypes, shape)
    backend = backend_named("cpu")
    ceilings = {"cpu": ensure(backend, backend.probe(), lambda text: None)}
    setup = Setup(case, threads, "warm")
    last = target.kernels[-1:]
    return measure(target.spec, last, target.reference, [setup], ceilings, budget=20)[0]


def against_witness(name: str, shape: str, threads: int, bar: float) -> Bar:
    measured = table(name, shape, threads)
    row = measured.rows[-1]
    ratio = row.vs_witness
    shown = f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else row.reason
    what = f"{name}/{row.kernel.name} f32 {shape}, {threads} thread(s), against {measured.witness}"
    return what, f"at least {bar}", shown


def bars() -> Iterator[Bar]:
    for threads in (1, 2):
        yield against_witness("matmul", "m=1024,n=1024,k=1024", threads, 0.5)
    for threads in (1, 2):
        yield against_witness("threshold_activation", "n=16777216", threads, 5)
    target = find("matmul")
    verify(target.spec, target.kernels, target.reference)  # everything into the build cache
    report = verify(target.spec, target.kernels, target.reference)
    cases = sum(k.cases for k in report.kernels)
    yield (
        f"verify matmul, {cases} cases of {len(report.kernels)} kernels and dtypes",
        "under 60 s",
        (f"{report.seconds:.1f} s"),
    )
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(opwright("--help"), check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    yield "opwright --help", "under 0.3 s", f"{sorted(times)[2]:.2f} s"
    yield "opwright run matmul, nothing cached", "under 180 s", f"{first_run():.0f} s"


def first_run() -> float:
    home = tempfile.mkdtemp(prefix="opwright-bars-")
    try:
        started = time.perf_counter()
        environment = {**os.environ, "OPWRIGHT_HOME": home}
        subprocess.run(opwright("run", "matmul"), check=True, capture_output=True, env=environment)
        return time.perf_counter() - started
    finally:
        shutil.rmtree(home)


def main() -> None:
    print(f"{'what':95} {'bar':14} measured")
    for what, bar, measured in bars():
        print(f"{what:95} {bar:14} {measured}", flush=True)


if __name__ == "__main__":
    main()
