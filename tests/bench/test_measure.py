"""Measurement: nothing unverified has a time, first calls are apart, labels say what was cached."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from cli.tool import declare, empty_history, operator, opwright, plain
from operators import RIGHT, SIGNATURE
from opwright.backends.base import Artifact, Ceiling, Fault
from opwright.backends.cpu.device import CpuDevice
from opwright.backends.registry import backend_named
from opwright.bench import measure as module
from opwright.bench.ceilings import Ceilings
from opwright.bench.measure import Row, Setup, Table, measure
from opwright.catalog.find import Target, find
from opwright.history.store import History
from opwright.spec.cases import selected_case
from opwright.spec.errors import MachineError, NothingSelectedError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import parse_dtypes
from opwright.verify.engine import Options, verify
from opwright.verify.witness import Witness
from packed import linear, source

X = np.zeros(1)
USLEEP = 'extern "C" int usleep(unsigned);'


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_history(tmp_path / "home", monkeypatch)


def setup_of(
    target: Target, shape: str, cache: Literal["cold", "warm"] = "warm", threads: int = 1
) -> Setup:
    [dtypes] = parse_dtypes(target.spec.signature, "f32")
    return Setup(selected_case(target.spec, dtypes, shape), threads, cache)


def ceilings(flops: float = 1e6, memory: float = 1e6) -> dict[str, Ceilings]:
    """Ceilings in GFLOP/s and GB/s: by default so high that nothing comes near."""
    found = (Ceiling("fma f32", flops, "GFLOP/s", 1), Ceiling("read", memory, "GB/s", 1))
    return {"cpu": Ceilings("this", found, "today")}


def table(target: Target, *setups: Setup, known: Any = None, **more: Any) -> Table:
    tables = measure(
        target.spec,
        target.kernels,
        target.reference,
        setups,
        known or ceilings(),
        budget=0.1,
        **more,
    )
    return tables[0]


def row(found: Table, name: str) -> Row:
    [one] = [r for r in found.rows if r.kernel.name == f"cpu_{name}"]
    return one


def without_time(one: Row) -> bool:
    """B7: no speed-up is recorded for what failed, least of all 1.0."""
    measured = (
        *(one.samples, one.summary, one.judgement, one.gflops, one.gbs),
        *(one.speedup, one.vs_witness),
    )
    return measured == (None,) * 7


def test_what_a_table_says(tmp_path: Path) -> None:
    slow = plain(RIGHT + "if (n) usleep(2000);", USLEEP)
    target = operator(tmp_path, {"slow": slow, "right": RIGHT})
    found = table(target, setup_of(target, "1000"))
    first, right = row(found, "slow"), row(found, "right")
    for one in (first, right):
        assert one.verdict == "held"
        assert one.samples is not None and one.summary is not None
        assert one.summary.count == len(one.samples.values) >= 5
        assert one.gflops == 2 * 1000 / one.summary.median
        assert one.gbs == 2 * 4 * 1000 / one.summary.median
        assert one.judgement is not None and one.vs_witness is not None
    assert first.speedup is not None and right.speedup is not None
    assert (first.speedup.median, first.speedup.low, first.speedup.high) == (1, 1, 1)
    # 2 ms against a fraction of a microsecond.
    assert right.speedup.low > 100
    assert first.summary is not None and first.summary.median > 2e6
    assert first.samples is not None and first.samples.calls == 1
    assert right.samples is not None and right.samples.calls > 10
    assert found.witness.startswith("NumPy ")
    assert found.witness_summary is not None and found.witness_summary.median > 0
    assert found.noise >= 0
    assert found.findings == []


LATER = """
#include <thread>
#include <chrono>
{signature} {{
    if (n == 0) return;
    float s = float(scale);
    std::thread([=] {{
        std::this_thread::sleep_for(std::chrono::microseconds({delay}));
        for (int64_t i = 0; i < n; ++i) out[i] = T(s * float(x[i]) + 1.0f);
    }}).detach();
}}
"""


@pytest.mark.parametrize("delay", [1000, 60000])
def test_b1_what_finishes_after_its_return_never_gets_a_time(tmp_path: Path, delay: int) -> None:
    later = LATER.format(signature=SIGNATURE, delay=delay)
    target = operator(tmp_path, {"later": later, "right": RIGHT})
    found = table(target, setup_of(target, "5000"))
    assert row(found, "later").verdict == "wrong"
    assert without_time(row(found, "later"))
    assert row(found, "right").summary is not None
    assert {f.kernel for f in found.findings} == {"cpu_later"}


def test_b2_a_slow_first_call_is_reported_apart(tmp_path: Path) -> None:
    body = RIGHT + "if (n) usleep(calls++ ? 1000 : 300000);"
    target = operator(tmp_path, {"starts": plain(body, USLEEP + "static int calls;")})
    one = row(table(target, setup_of(target, "5")), "starts")
    assert one.samples is not None and one.summary is not None
    assert one.samples.first >= 300e6
    assert 1e6 <= one.summary.median < 150e6


def test_b3_hot_and_cold_are_two_labelled_numbers(tmp_path: Path) -> None:
    """1 MiB in all, again and again; the memory ceiling is below what any cache gives."""
    target = operator(tmp_path, {"right": RIGHT})
    both = [setup_of(target, "131072", cache) for cache in ("warm", "cold")]
    tables = measure(
        target.spec, target.kernels, target.reference, both, ceilings(memory=0.01), budget=0.1
    )
    warm, cold = (row(t, "right").judgement for t in tables)
    assert [t.setup.cache for t in tables] == ["warm", "cold"]
    assert warm is not None and cold is not None
    assert warm.words == "in cache"
    # From cold caches it cannot be: the measurement, or the ceiling, is wrong, and it says so.
    assert cold.words == "broken measurement"
    assert "0.01 GB/s" in cold.warning
    samples = row(tables[1], "right").samples
    assert samples is not None and samples.calls == 1  # each after its operands left the caches


def test_faster_than_arithmetic_can_be_is_a_broken_measurement(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT})
    found = table(target, setup_of(target, "1000"), known=ceilings(flops=1e-6))
    judged = row(found, "right").judgement
    assert judged is not None
    assert (judged.words, judged.share) == ("broken measurement", None)


TIRES = RIGHT + "if (n == 7 && ++calls > 500) __builtin_abort();"


def test_b7_a_candidate_that_fails_while_timed_has_no_speed_up(tmp_path: Path) -> None:
    """The first rung fails, so speed-ups count from the next."""
    bodies = {"tires": plain(TIRES, "static int calls;"), "right": RIGHT, "also": RIGHT}
    target = operator(tmp_path, bodies)
    found = table(target, setup_of(target, "7"))
    tires = row(found, "tires")
    assert tires.verdict == "failed"
    assert "abort() was called" in tires.reason
    assert without_time(tires)
    first = row(found, "right").speedup
    assert first is not None and (first.median, first.low, first.high) == (1, 1, 1)
    assert row(found, "also").speedup is not None
    [finding] = found.findings
    assert (finding.kind, finding.kernel) == ("abort", "cpu_tires")
    assert "while it was timed" in finding.message
    # One line shows it again, and with it the command ends with 1.
    words = shlex.split(finding.command)
    assert words[:2] == ["opwright", "bench"]
    again = opwright(*words[1:], "--budget", "0.1", "--json")
    assert again.code == 1
    [shown] = again.json["findings"]
    assert (shown["kind"], shown["command"]) == ("abort", finding.command)
    with History.open() as history:
        [kept] = history.results(1)
    assert (kept.verdict, kept.times, kept.gflops) == ("failed", None, None)


def test_the_last_rung_may_fail_too(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT, "tires": plain(TIRES, "static int calls;")})
    found = table(target, setup_of(target, "7"))
    assert without_time(row(found, "tires"))
    assert row(found, "right").speedup is not None


WRONG = {
    "on its own inputs": "for (int64_t i = 0; i < n; ++i) out[i] = T(0.0f);",
    # Right at the five elements that are measured.
    "elsewhere": RIGHT + "if (n >= 17) out[16] = T(99.0f);",
    "for NaN only": RIGHT + "for (int64_t i = 0; i < n; ++i) if (x[i] != x[i]) out[i] = T(0.0f);",
}


@pytest.mark.parametrize("where", WRONG)
def test_a_wrong_kernel_is_in_the_table_without_a_time(tmp_path: Path, where: str) -> None:
    target = operator(tmp_path, {"wrong": WRONG[where], "right": RIGHT})
    found = table(target, setup_of(target, "5"))
    wrong = row(found, "wrong")
    assert wrong.verdict == "wrong"
    assert wrong.reason
    assert without_time(wrong)
    assert row(found, "right").summary is not None
    assert {f.kernel for f in found.findings} == {"cpu_wrong"}


def test_one_that_does_not_build_too(tmp_path: Path) -> None:
    target = operator(tmp_path, {"broken": "// whole\nint x = y;\n", "right": RIGHT})
    found = table(target, setup_of(target, "5"))
    assert row(found, "broken").verdict == "failed"
    assert without_time(row(found, "broken"))
    assert row(found, "right").summary is not None


def test_a_tolerance_that_lets_wrong_ones_pass_lets_none_be_timed(tmp_path: Path) -> None:
    declaration = """
@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(terms=lambda x, scale: 1e9 + 0 * x, depth="1"))
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    return scale * x + 1

affine.kernels(Kernel("cpu_right.cpp"))
"""
    folder = declare(tmp_path / "affine", declaration, {"cpu_right.cpp": plain(RIGHT)})
    fooled = find(str(folder))
    found = table(fooled, setup_of(fooled, "50"))
    assert without_time(row(found, "right"))
    assert "accepts a result that is known to be wrong" in row(found, "right").reason
    assert {f.kind for f in found.findings} == {"tolerance"}


class Verifications:
    """Counts what ``measure`` has verified: single cases, a third of the matrix, all of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[str] = []
        monkeypatch.setattr(module, "verify", self._verify)

    def _verify(self, spec: Any, kernels: Sequence[Any], name: str, options: Options, *rest: Any):
        kind = "case" if options.cases else "third" if options.quick else "all"
        self.kinds += [f"{kind} {k.name}" for k in kernels]
        return verify(spec, kernels, name, options, *rest)


def test_what_is_verified_before_it_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = operator(tmp_path, {"right": RIGHT})
    counted = Verifications(monkeypatch)
    warm = setup_of(target, "5")
    table(target, warm, setup_of(target, "5", "cold"), setup_of(target, "5", "warm", 2))
    # The case once, however often it is measured; the matrix once a machine.
    assert counted.kinds == ["case cpu_right", "third cpu_right"]
    counted.kinds.clear()
    table(target, warm)
    assert counted.kinds == ["case cpu_right"]
    # What was found wrong before has to hold everywhere.
    backend = backend_named("cpu")
    artifact = backend.build(target.spec.signature, target.kernels[0], warm.dtypes, {})
    with History.open() as history:
        history.record_verdict(artifact.key, backend.probe().fingerprint, "wrong", 9)
    counted.kinds.clear()
    assert row(table(target, warm), "right").summary is not None
    assert counted.kinds == ["case cpu_right", "all cpu_right"]
    counted.kinds.clear()
    table(target, warm)
    assert counted.kinds == ["case cpu_right"]


def test_what_was_verified_by_the_caller_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {"right": RIGHT, "wrong": RIGHT + "if (n >= 17) out[16] = T(99.0f);"}
    target = operator(tmp_path, bodies)
    setup = setup_of(target, "5")
    report = verify(target.spec, target.kernels, "./affine", Options(dtypes=[setup.dtypes]))
    counted = Verifications(monkeypatch)
    found = table(target, setup, verified=report.kernels)
    assert counted.kinds == ["case cpu_right"]
    assert without_time(row(found, "wrong"))
    assert row(found, "right").summary is not None


def test_tunables_reach_what_is_timed(tmp_path: Path) -> None:
    body = RIGHT + "if (BLOCK == 24 && n) usleep(2000);"
    rows = {"tuned": ', tune={"BLOCK": [16, 24]}'}
    target = operator(tmp_path, {"tuned": plain(body, USLEEP)}, rows)
    setup = setup_of(target, "5")
    plainly = row(table(target, setup), "tuned").summary
    chosen = row(table(target, setup, params={"BLOCK": 24}), "tuned").summary
    assert plainly is not None and chosen is not None
    assert plainly.median < 1e6
    assert chosen.median >= 2e6


def test_threads_reach_the_kernel_and_the_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    real = module._witness_threads
    monkeypatch.setattr(
        module, "_witness_threads", lambda threads: limits.append(threads) or real(threads)
    )
    body = RIGHT + "if (opw::threads() == 3 && n) usleep(2000);"
    head = f'#include "opwright/parallel.h"\n{USLEEP}'
    target = operator(tmp_path, {"many": plain(body, head)}, {"many": ", threads=True"})
    one = row(table(target, setup_of(target, "5", threads=1)), "many").summary
    three = row(table(target, setup_of(target, "5", threads=3)), "many").summary
    assert one is not None and three is not None
    assert one.median < 1e6
    assert three.median >= 2e6
    assert limits == [1, 3]


def test_the_witness_is_sampled_as_kernels_are(tmp_path: Path) -> None:
    """Its first call apart; warm, many calls a sample; cold, one after the caches were swept."""
    target = operator(tmp_path, {"right": RIGHT})
    calls: list[float] = []
    starts = [0.05]

    def run() -> None:
        calls.append(1)
        time.sleep(starts.pop() if starts else 0)

    warm = module._WitnessCandidate(Witness("fake", run, lambda _: X), setup_of(target, "5"), 0)
    value = warm.sample()
    assert warm.first >= 50e6
    assert 0 < value < 50e6
    assert warm.calls > 1
    before = len(calls)
    warm.sample()
    assert len(calls) == before + warm.calls
    cold = module._WitnessCandidate(
        Witness("fake", run, lambda _: X), setup_of(target, "5", "cold"), 1 << 20
    )
    calls.clear()
    for swept in (1, 2):
        cold.sample()
        assert cold._sweep.size == 1 << 20
        assert (cold._sweep == swept).all()
    assert len(calls) == 3  # the first call, then one a sample
    assert cold.calls == 1


def test_each_table_is_handed_over_as_soon_as_it_is_there(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT})
    seen: list[tuple[int, int]] = []

    def done(found: Table) -> None:
        with History.open() as history:  # by now the first verdict is recorded
            seen.append((found.setup.case.dims["n"], len(history.runs())))

    table(target, setup_of(target, "5"), setup_of(target, "6"), done=done)
    assert seen == [(5, 0), (6, 0)]


def test_nothing_is_allocated_for_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = operator(tmp_path, {"right": RIGHT})
    counted = Verifications(monkeypatch)
    with pytest.raises(MachineError, match=r"needs .* GiB"):
        table(target, setup_of(target, "5"), setup_of(target, "9000000000000"))
    assert counted.kinds == []


def test_no_kernel_for_these_types(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT}, {"right": ', dtypes=["bf16"]'})
    with pytest.raises(NothingSelectedError, match="no kernel given is for f32"):
        table(target, setup_of(target, "5"))


def test_other_libraries_are_measured_beside_the_kernels(tmp_path: Path) -> None:
    target = operator(tmp_path, {"right": RIGHT})
    bodies = {
        "other": plain(RIGHT + "if (n) usleep(2000);", USLEEP),
        "wrong": plain(RIGHT + "if (n > 3) out[3] = T(77.0f);"),
        "absent": "#error not found; apt install libabsent-dev\n",
        "half": plain(RIGHT),
    }
    for name, text in bodies.items():
        (target.spec.folder / f"cpu_{name}.cpp").write_text(text)
    target.spec.rivals(
        Kernel("cpu_other.cpp", change="Other"),
        Kernel("cpu_wrong.cpp", change="Wrong"),
        Kernel("cpu_absent.cpp", change="Absent"),
        Kernel("cpu_half.cpp", change="Half", dtypes=["bf16"]),
    )
    assert [k.name for k in target.kernels] == ["cpu_right"]
    found = table(target, setup_of(target, "1000"), rivals=True)
    rivals = {rival.name: rival for rival in found.rivals}
    assert rivals.keys() == {"Other", "Wrong", "Absent"}  # the witness is NumPy already
    other = rivals["Other"].summary
    assert other is not None and other.median > 2e6
    assert rivals["Absent"].reason == "not found; apt install libabsent-dev"
    assert "77" in rivals["Wrong"].reason
    assert rivals["Wrong"].summary is None and rivals["Absent"].summary is None
    [one] = found.rows
    assert one.vs_rivals.keys() == {"Other"} and one.vs_rivals["Other"].low > 100
    assert table(target, setup_of(target, "1000")).rivals == []


def test_numpy_beside_torch_only_where_it_computes_in_the_type(tmp_path: Path) -> None:
    folder = tmp_path / "twice"
    declare(
        folder,
        '@operator(dtypes={"T": ["f32", "bf16", "f16"]}, torch="torch.multiply")\n'
        'def twice(x: Tensor[T, "n"], y: Tensor[T, "n"]) -> Tensor[T, "n"]:\n    return x * y\n'
        'twice.kernels(Kernel("cpu_v1.cpp", change="loop"))\n',
        {
            "cpu_v1.cpp": 'extern "C" void twice(const T* x, const T* y, T* out, int64_t n) {'
            "for (int64_t i = 0; i < n; ++i) out[i] = T(float(x[i]) * float(y[i]));}"
        },
    )
    target = find(str(folder))
    for dtypes in target.spec.signature.choices():
        setup = Setup(selected_case(target.spec, dtypes, "n=50"), 1, "warm")
        found = table(target, setup, rivals=True)
        assert found.witness.startswith("torch ")
        [numpy] = found.rivals
        assert numpy.name == f"NumPy {np.__version__}"
        if dtypes["T"].name == "f32":
            assert numpy.summary is not None and found.rows[0].vs_rivals[numpy.name].median > 0
        else:
            assert numpy.summary is None and "has no arithmetic of its own in" in numpy.reason


def test_a_library_too_slow_to_be_timed_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def run() -> None:
        called.append(1)
        time.sleep(0.05)

    target = operator(tmp_path, {"right": RIGHT})
    other = Witness("Sleepy", run, lambda result: X)
    found = module._WitnessCandidate(other, setup_of(target, "10"), 0, patience=0.01)
    assert found.sample() is None
    assert len(called) == 1
    assert found.fault is not None and "one call takes 0." in found.fault.message


class Entries:
    """Which functions of a kernel were timed: those for packed input take half as long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Fault | None = None) -> None:
        self.of: dict[str, set[str]] = {}
        clock = CpuDevice.clock

        def timed(device: Any, artifact: Artifact, *words: Any) -> Any:
            found = clock(device, artifact, *words)
            self.of.setdefault(artifact.kernel, set()).add(artifact.entry)
            if artifact.entry != Artifact.PACKED_CALL:
                return replace(found, values=(1000.0,))
            return fault or replace(found, values=(500.0,))

        monkeypatch.setattr(CpuDevice, "clock", timed)


def two_that_pack(folder: Path, **different: str) -> Target:
    sources = {"first": source(), "strided": source(strided=True), "last": source(**different)}
    return linear(folder, sources, {"strided": ", strided=True"})


def test_the_last_that_packs_is_measured_with_its_input_packed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = two_that_pack(tmp_path / "op")
    entries = Entries(monkeypatch)
    found = table(target, setup_of(target, "m=3,n=5,k=8"))
    assert [r.packed is not None for r in found.rows] == [False, False, True]
    last = row(found, "last")
    assert last.packed is not None and last.packed.verdict == "held"
    assert last.summary is not None and last.summary.median == 1000
    assert last.packed.summary is not None and last.packed.summary.median == 500
    assert last.packed.speedup is not None and last.packed.speedup.median == 2
    assert last.packed.gflops == 2 * 3 * 5 * 8 / 500
    assert last.packed.vs_witness is not None
    both = {"opw_entry", Artifact.PACKED_CALL}
    assert entries.of == {
        "cpu_first": {"opw_entry"},
        "cpu_strided": {"opw_entry"},
        "cpu_last": both,
    }
    strided = Target(target.spec, [target.kernels[1]], "op", one_kernel=True)
    assert row(table(strided, setup_of(target, "m=3,n=5,k=8")), "strided").packed is not None


def test_a_packed_call_that_fails_while_timed_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = two_that_pack(tmp_path / "op")
    Entries(monkeypatch, Fault("crash", "SIGSEGV"))
    found = table(target, setup_of(target, "m=3,n=5,k=8"))
    last = row(found, "last")
    assert last.packed is not None and last.packed.verdict == "failed"
    assert without_time(last.packed) and last.packed.reason == "SIGSEGV"
    assert last.verdict == "held" and last.summary is not None
    assert [(f.kind, f.kernel) for f in found.findings] == [("crash", "cpu_last")]


def test_packing_that_fails_beyond_what_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = two_that_pack(tmp_path / "op")
    monkeypatch.setattr(module, "_packed", lambda *_: Fault("exception", "it threw: of sizes"))
    found = table(target, setup_of(target, "m=3,n=5,k=8"))
    last = row(found, "last")
    assert last.packed is not None and last.packed.reason == "it threw: of sizes"
    assert last.summary is not None and len(found.findings) == 1


def test_packed_in_tables_and_json_but_not_in_the_history(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(two_that_pack(tmp_path / "op").spec.folder, folder)
    text = (folder / "op.py").read_text()
    shapes = 'flops="2*m*n*k", bench=["m=3,n=5,k=8", "m=2,n=5,k=8"]'
    (folder / "op.py").write_text(text.replace('flops="2*m*n*k"', shapes))
    words = ["bench", f"{folder}/cpu_last", "--budget", "0.1"]
    for more in ([], ["--preset", "default"]):
        ran = opwright(*words, *more)
        assert ran.code == 0
        said = [
            line.partition("cpu_last")[2][:11]
            for line in ran.out.splitlines()
            if "cpu_last" in line and "%" in line
        ]
        assert [text.startswith(", w packed ") for text in said] == [False, True] * 2
    [mean, packed] = [line for line in ran.out.splitlines() if "geometric mean" in line]
    assert "w packed" in packed and "w packed" not in mean
    ran = opwright(*words, "--json")
    for found in ran.json["data"]["tables"]:
        [one] = found["rows"]
        assert one["packed"]["time"]["median"] > 0 and one["packed"]["packed"] is None
    with History.open() as history:  # its times are not those of a call with the input as it is
        assert [r.kernel for r in history.results(3)] == ["cpu_last"] * 2
