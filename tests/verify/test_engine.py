"""Verification as a whole: what is reported, what is run, and that nothing stays behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.tool import children, operator, plain
from operators import RIGHT, SIGNATURE
from opwright.catalog.find import Target, find
from opwright.report.findings import Finding
from opwright.spec.cases import Case, matrix, selected_case
from opwright.spec.errors import MachineError, NothingSelectedError
from opwright.spec.operator import parse_dtypes
from opwright.verify import engine
from opwright.verify.engine import MAX_FAILURES, MAX_FAULTS, KernelReport, Options, Report, verify


def one(target: Target, shape: str, values: str = "typical", dtype: str = "f32", **more: object):
    """Options for a single case."""
    dtypes = parse_dtypes(target.spec.signature, dtype)
    cases = [selected_case(target.spec, d, shape, values) for d in dtypes]
    return Options(dtypes=dtypes, cases=cases, **more)  # type: ignore[arg-type]


def checked(target: Target, options: Options) -> Report:
    return verify(target.spec, target.kernels, target.reference, options)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    before = set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= before


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A right kernel, and one whose error is known: an eighth more at the last element."""
    off = RIGHT + "if (n) out[n - 1] = T(float(out[n - 1]) * 1.125f);"
    return operator(tmp_path_factory.mktemp("pair"), {"right": RIGHT, "off": off})


def test_a_report_says_how_right_a_kernel_is(pair: Target) -> None:
    """At ones, 1.5 * 1 + 1 is 2.5; an eighth of that is 0.3125, or 0.3125 * 2^22 f32 steps."""
    right, off = checked(pair, one(pair, "100", "ones")).kernels
    assert (right.verdict, right.cases, right.held) == ("held", 1, 1)
    assert (right.max_error, right.max_ulp, right.of_allowed) == (0, 0, 0)
    assert (off.verdict, off.cases, off.held) == ("wrong", 1, 0)
    assert off.max_error == 0.3125
    assert off.max_ulp == 0.3125 * 2**22
    assert off.worst is not None
    assert off.worst.mean_abs == pytest.approx(0.003125)
    assert off.worst.max_rel == 0.125
    assert off.worst.wrong_share == 0.01
    assert str(off.worst_case).startswith("f32 n=100 values=ones")
    [split] = off.ranges  # by the input, which is 1 everywhere
    assert (split.low, split.high, split.count, split.max_abs) == (1.0, 1e3, 100, 0.3125)
    assert off.witness.startswith("NumPy ")
    assert off.witness_error == 0
    assert off.bound_origin == "derived from the formula"
    [finding] = off.findings
    assert finding.file == str(pair.spec.folder / "cpu_off.cpp")
    assert SIGNATURE in Path(finding.file).read_text().splitlines()[finding.line - 1]


def test_the_worst_case_of_several_counts(pair: Target) -> None:
    dtypes = parse_dtypes(pair.spec.signature, "f32")
    [d] = dtypes
    cases = [selected_case(pair.spec, d, "5", v) for v in ("zeros", "ones", "negative-zeros")]
    right, off = checked(pair, Options(dtypes=dtypes, cases=cases)).kernels
    assert (right.cases, right.held) == (3, 3)
    assert (off.cases, off.held) == (3, 0)
    assert off.max_error == 0.3125  # at ones; an eighth of 1 at zeros
    assert off.worst_case == cases[1]


def test_every_case_of_the_matrix_is_run_for_every_kernel_and_dtype(pair: Target) -> None:
    right = [k for k in pair.kernels if k.name == "cpu_right"]
    seen: list[tuple[int, int]] = []
    report = verify(
        pair.spec, right, "./affine", Options(), lambda done, total, _: seen.append((done, total))
    )
    sizes = {}
    for dtypes in pair.spec.signature.choices():
        sizes[dtypes["T"].name] = len(list(matrix(pair.spec, dtypes, right)))
    assert {k.dtypes["T"].name: k.cases for k in report.kernels} == sizes
    assert report.held
    assert [k.held for k in report.kernels] == [k.cases for k in report.kernels]
    done = [d for d, total in seen if total]
    assert done == list(range(1, sum(sizes.values()) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_quick_has_less_than_half_and_every_kind(
    pair: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = parse_dtypes(pair.spec.signature, "f32")
    right = [k for k in pair.kernels if k.name == "cpu_right"]
    run: list[Case] = []
    real = engine.run_case

    def recording(*given: Any, **more: Any) -> Any:
        run.append(given[3].case)
        return real(*given, **more)

    monkeypatch.setattr(engine, "run_case", recording)
    assert verify(pair.spec, right, "./affine", Options(dtypes=dtypes, quick=True)).held
    whole = list(matrix(pair.spec, dtypes[0], right))
    assert len(run) < len(whole) / 2
    for part in ("values", "layout"):
        assert {getattr(c, part) for c in run} == {getattr(c, part) for c in whole}
    assert {str(c.attributes) for c in run} == {str(c.attributes) for c in whole}
    # The same shape twice in a row, with other values.
    plain_cases = [c for c in run if c.seed == 0]
    for first, second in zip(plain_cases[::2], plain_cases[1::2], strict=True):
        assert (first.dims, first.leading) == (second.dims, second.leading)
        assert first.values != second.values


def test_filters_that_leave_no_kernel(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT}, {"right": ', dtypes=["f32"]'})
    bf16 = Options(dtypes=parse_dtypes(target.spec.signature, "bf16"))
    with pytest.raises(NothingSelectedError, match="cpu_right"):
        checked(target, bf16)
    every = checked(target, Options(cases=[]))
    assert [k.dtypes["T"].name for k in every.kernels] == ["f32"]
    assert not every.held  # nothing was run


def test_a_case_that_does_not_fit_in_memory(pair: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = engine.backend_named("cpu")
    monkeypatch.setattr(type(backend), "memory_available", lambda self: 1000)
    assert checked(pair, one(pair, "5", "ones")).kernels[0].held == 1
    with pytest.raises(MachineError, match=r"needs .* GiB .* is available"):
        checked(pair, one(pair, "100", "ones"))


def test_a_kernel_that_cannot_run_here_says_why(
    pair: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine.backend_named("cpu")
    monkeypatch.setattr(
        type(backend), "missing", lambda self, k: "no such unit" if "off" in k.name else ""
    )
    right, off = checked(pair, one(pair, "5")).kernels
    assert (right.verdict, off.verdict, off.reason) == ("held", "not-run", "no such unit")
    assert off.cases == 0 and off.findings == []


def test_kernels_are_built_at_once_and_reported_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first build ends last; the second fails."""
    bodies = {"slow": RIGHT, "broken": "nonsense", "right": RIGHT}
    target = operator(tmp_path, bodies, dict.fromkeys(bodies, ', dtypes=["f32"]'))
    backend = engine.backend_named("cpu")
    real, right = backend.build, threading.Event()

    def build(signature: Any, kernel: Any, *more: Any) -> Any:
        if kernel.name == "cpu_slow":
            assert right.wait(60)
        try:
            return real(signature, kernel, *more)
        finally:
            if kernel.name == "cpu_right":
                right.set()

    monkeypatch.setattr(backend, "build", build)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    shown: list[str] = []
    options = one(target, "100")
    report = verify(
        target.spec, target.kernels, "./affine", options, lambda d, t, text: shown.append(text)
    )
    assert [(k.kernel.name, k.verdict) for k in report.kernels] == [
        ("cpu_slow", "held"),
        ("cpu_broken", "failed"),
        ("cpu_right", "held"),
    ]
    assert [text.split()[1] for text in shown if "building" in text] == [
        "cpu_slow",
        "cpu_broken",
        "cpu_right",
    ]


def test_an_interruption_begins_no_further_build(
    pair: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine.backend_named("cpu")
    real, begun, told = backend.build, [], threading.Event()

    def build(*given: Any) -> Any:
        begun.append(given)
        if len(begun) > 1:  # ends well after the interruption
            told.wait(30)
            time.sleep(0.5)
        return real(*given)

    def interrupted(*_: Any) -> None:
        told.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "build", build)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(KeyboardInterrupt):
        verify(pair.spec, pair.kernels, "./affine", Options(), interrupted)
    assert len(begun) <= 2 < len(pair.kernels) * len(pair.spec.signature.choices())


def test_hopeless_kernels_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong 20 times is wrong; each crash starts a worker anew and each hang takes its time."""
    bodies = {"zeros": "", "crashes": "*(volatile int*)8 = 1;"}
    target = operator(tmp_path, bodies)
    f32 = Options(dtypes=parse_dtypes(target.spec.signature, "f32"))
    zeros, crashes = checked(target, f32).kernels
    assert len(zeros.findings) == MAX_FAILURES
    assert len(crashes.findings) == MAX_FAULTS
    hangs = operator(tmp_path / "h", {"hangs": "for (volatile int i = 0;;) i = i + 1;"})
    launches = []
    real = engine.run_case
    monkeypatch.setattr(engine, "run_case", lambda *a, **k: launches.append(1) or real(*a, **k))
    limited = Options(dtypes=f32.dtypes, time_limit=0.1)
    assert {f.kind for f in checked(hangs, limited).findings} == {"hang"}
    assert len(launches) <= 3


def test_findings_of_one_kind_are_one_with_a_count(pair: Target) -> None:
    report = checked(pair, Options())
    [finding] = report.findings
    assert finding.kernel == "cpu_off"
    assert finding.count == 2 * MAX_FAILURES  # in f32 and in bf16


def verdict_of(report: Report, name: str) -> KernelReport:
    [found] = [k for k in report.kernels if k.kernel.name == name]
    return found


TILED = """
for (int64_t i = 0; i + 16 <= n; i += 16)
    for (int64_t j = i; j < i + 16; ++j) out[j] = T(float(scale) * float(x[j]) + 1.0f);
"""


def test_a1_an_edge_tile_that_is_not_written_is_found(tmp_path: Path) -> None:
    """What was in the output before shines through, whatever it is."""
    target = operator(tmp_path, {"tiled": TILED})
    assert checked(target, one(target, "32", "ones")).held
    [finding] = checked(target, one(target, "257", "ones")).findings
    assert finding.kind == "unwritten"
    assert "elements were never written" in finding.message


def test_a_wrong_byte_that_is_the_poison_by_chance_was_written(tmp_path: Path) -> None:
    """-1 in i8 is what outputs hold before; a kernel that wraps to it has written it."""
    (tmp_path / "op.py").write_text(
        """
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={"T": ["i8"]}, overflow="saturate")
def double_of(x: Tensor[T, "n"]) -> Tensor[T, "n"]:
    return 2 * x.astype(int) + 1

double_of.kernels(Kernel("cpu_wraps.cpp"), Kernel("cpu_skips.cpp"))
"""
    )
    loop = 'extern "C" void double_of(const T* x, T* out, int64_t n) {{ {} }}'
    wraps = loop.format("for (int64_t i = 0; i < n; ++i) out[i] = T(2 * x[i] + 1);")
    skips = loop.format("for (int64_t i = 1; i < n; ++i) out[i] = T(2 * x[i] + 1);")
    (tmp_path / "cpu_wraps.cpp").write_text(wraps)
    (tmp_path / "cpu_skips.cpp").write_text(skips)
    target = find(str(tmp_path))
    # 2 * 127 + 1 is 255, which is -1 in 8 bits.
    report = checked(target, one(target, "n=200", "extremes", "i8"))
    assert [f.kind for f in verdict_of(report, "cpu_wraps").findings] == ["wrong-values"]
    report = checked(target, one(target, "n=5", "ones", "i8"))
    assert [f.kind for f in verdict_of(report, "cpu_skips").findings] == ["unwritten"]
    assert verdict_of(report, "cpu_wraps").verdict == "held"


PRODUCTS = {
    "a1 17x17 ones": ("m=17,n=17,k=17", "f32"),
    "a1 257x192 by a vector": ("m=257,n=1,k=192", "f32"),
    "a6 4096 ones": ("m=1,n=1,k=4096", "f16"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a1_and_a6_hold_exactly_for_every_matmul(name: str) -> None:
    shape, dtype = PRODUCTS[name]
    matmul = find("matmul")
    report = checked(matmul, one(matmul, shape, "ones", dtype))
    assert report.held
    ran = [k for k in report.kernels if k.cases]
    assert len(ran) >= 3
    assert all(k.max_error == 0 for k in ran)  # 17, 192 and 4096 are exact in these types


def test_a6_an_accumulator_of_16_bits_is_found(tmp_path: Path) -> None:
    """It stops at 2048, where 2049 rounds back to 2048."""
    op = """
from opwright import Kernel, T, Tensor, operator

@operator(dtypes={"T": ["f16"]})
def total(x: Tensor[T, "m k"]) -> Tensor[T, "m"]:
    return x.sum(axis=1)

total.kernels(Kernel("cpu_narrow.cpp"), Kernel("cpu_wide.cpp"))
"""
    (tmp_path / "op.py").write_text(op)
    for name, kind in (("narrow", "T"), ("wide", "float")):
        (tmp_path / f"cpu_{name}.cpp").write_text(
            f"""
extern "C" void total(const T* x, T* out, int64_t m, int64_t k) {{
    for (int64_t i = 0; i < m; ++i) {{
        {kind} sum = {kind}(0.0f);
        for (int64_t j = 0; j < k; ++j) sum = {kind}(float(sum) + float(x[i * k + j]));
        out[i] = T(float(sum));
    }}
}}
"""
        )
    target = find(str(tmp_path))
    report = checked(target, one(target, "m=1,k=4096", "ones", "f16"))
    assert verdict_of(report, "cpu_wide").verdict == "held"
    narrow = verdict_of(report, "cpu_narrow")
    assert narrow.findings[0].kind == "wrong-values"
    assert narrow.max_error == 2048
    # Shrunk to where it begins: 2048 fits, 2049 is no number of f16, and 2050 is one again.
    assert "m=1 k=2050 values=ones" in narrow.findings[0].case


def openmp(tmp_path: Path) -> Target:
    """Work sliced by the threads asked for, and by those that are there."""
    template = """
    const int64_t asked = 8;
    #pragma omp parallel num_threads(8)
    {{
        (void)asked;
        const int64_t all = {all}, me = omp_get_thread_num();
        for (int64_t i = n * me / all; i < n * (me + 1) / all; ++i)
            out[i] = T(float(scale) * float(x[i]) + 1.0f);
    }}
    """
    bodies = {
        "asked": plain(template.format(all="asked"), "#include <omp.h>"),
        "granted": plain(template.format(all="omp_get_num_threads()"), "#include <omp.h>"),
    }
    row = ', threads=True, flags=["-fopenmp"]'
    return operator(tmp_path, bodies, dict.fromkeys(bodies, row))


def test_a17_work_sliced_by_threads_that_were_not_granted_is_found(tmp_path: Path) -> None:
    target = openmp(tmp_path)
    report = checked(target, one(target, "1000", "ones"))
    granted, asked = verdict_of(report, "cpu_granted"), verdict_of(report, "cpu_asked")
    if granted.verdict == "failed":
        pytest.skip("this compiler has no OpenMP")
    assert granted.verdict == "held"
    [finding] = asked.findings
    assert finding.kind == "unwritten"
    assert "--threads 8" in finding.command


def test_a_finding_is_known_by_what_and_where(pair: Target) -> None:
    found: list[Finding] = checked(pair, one(pair, "9", "ones")).findings
    assert [(f.name, f.kind) for f in found] == [("affine/cpu_off", "wrong-values")]
    assert found[0].case == "f32 n=1 values=ones layout=contiguous seed=0 scale=1.5"


def test_what_a_kernel_leaves_behind_fails_no_other(tmp_path: Path) -> None:
    """Each kernel has a worker of its own, so that a right one is not blamed for its neighbour."""
    head = "#include <cstdlib>"
    leaves = plain(f'setenv("left_behind", "1", 1); {RIGHT}', head)
    finds = plain(f'if (std::getenv("left_behind")) std::abort(); {RIGHT}', head)
    target = operator(tmp_path, {"leaves": leaves, "finds": finds})
    report = checked(target, one(target, "100"))
    assert [k.verdict for k in report.kernels] == ["held", "held"]
