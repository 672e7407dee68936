from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opwright.bench.compare import Comparison, Difference, Row, compare
from opwright.history import History, Result, Times
from opwright.spec.errors import UnknownNameError

SIZES = {"m": 64, "n": 32, "k": 16}


def times(median: float, seed: int, spread: float = 0.01) -> Times:
    """Times as a quiet machine gives them: one-sided noise of ``spread`` over ``median``."""
    rng = np.random.default_rng(seed)
    samples = tuple(float(v) for v in median * np.exp(spread * rng.standard_normal(60)))
    return Times(samples[0], median, min(samples), max(samples), samples, 1)


def result(median: float | None = None, seed: int = 0, witness: float | None = None) -> Result:
    return Result(
        operator="matmul",
        kernel="cpu_v1",
        backend="cpu",
        dtype="f32",
        verdict="held",
        shape=SIZES,
        cache="warm",
        artifact_key="abcdef",
        compiler="g++ 12.2.0",
        flags=("-O3",),
        isa="avx2",
        times=times(median, seed) if median else None,
        witness="torch.matmul",
        witness_times=times(witness, seed + 1000) if witness else None,
        noise=0.01,
    )


class Bench:
    def __init__(self, path: Path) -> None:
        self.history = History.open(path)

    def run(self, *results: Result, machine: str = "m1", cpu: str = "Zen") -> int:
        run = self.history.start_run("bench", machine, {"cpu": cpu, "cores": 2})
        for given in results:
            self.history.add_result(run, given)
        return run

    def compared(self, a: Result, b: Result) -> Row:
        [row] = self.both([a], [b]).rows
        return row

    def both(self, a: list[Result], b: list[Result]) -> Comparison:
        return compare(self.history, self.run(*a), self.run(*b))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "history.sqlite")
    yield bench
    bench.history.close()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.10, "slower"), (1 / 1.10, "faster"), (1.0, "cannot tell"), (1.01, "cannot tell")],
)
def test_the_three_verdicts(bench: Bench, factor: float, expected: str, seed: int) -> None:
    row = bench.compared(result(1000, seed), result(1000 * factor, seed + 100))
    assert row.verdict == expected
    assert row.ratio
    assert row.ratio.median == pytest.approx(factor, rel=0.01)
    assert row.ratio.low <= row.ratio.median <= row.ratio.high
    assert row.normalised is None
    assert row.reason == ""


def test_slower_rows_are_what_the_command_fails_for(bench: Bench) -> None:
    v1, v2, v3 = (replace(result(1000, s), kernel=f"cpu_v{s}") for s in (1, 2, 3))
    worse = replace(v2, times=times(1500, 9))
    better = replace(v3, times=times(500, 9))
    both = bench.both([v1, v2, v3], [v1, worse, better])
    assert [(row.a.kernel, row.verdict) for row in both.rows] == [
        ("cpu_v1", "cannot tell"),
        ("cpu_v2", "slower"),
        ("cpu_v3", "faster"),
    ]
    assert [row.a.kernel for row in both.slower] == ["cpu_v2"]
    assert both.broken == ()


@pytest.mark.parametrize("noisy", ["a", "b"])
def test_the_noise_floor_of_either_run_widens_the_interval(bench: Bench, noisy: str) -> None:
    a, b = result(1000, 1), result(1050, 2)
    assert bench.compared(a, b).verdict == "slower"
    if noisy == "a":
        a = replace(a, noise=0.10)
    else:
        b = replace(b, noise=0.10)
    row = bench.compared(a, b)
    assert row.verdict == "cannot tell"
    assert row.noise == pytest.approx(0.11)


def test_two_processes_differ_even_where_each_is_quiet(bench: Bench) -> None:
    # The samples prove the difference of 1.5 %, but not that the code makes it.
    a, b = (replace(result(), noise=0.0, times=times(t, t, 0.0001)) for t in (1000, 1015))
    row = bench.compared(a, b)
    assert row.ratio
    assert row.ratio.low > 1.01
    assert row.verdict == "cannot tell"


def test_drift_of_the_machine_cancels_against_the_witness(bench: Bench) -> None:
    # Everything takes 30 % longer in the second run, the kernel and the witness alike.
    row = bench.compared(result(1000, 1, witness=400), result(1300, 2, witness=520))
    assert row.ratio
    assert row.ratio.median == pytest.approx(1.3, rel=0.01)
    assert row.normalised
    assert row.normalised.median == pytest.approx(1.0, rel=0.02)
    assert row.normalised.low < row.normalised.median < row.normalised.high
    assert row.verdict == "cannot tell"


def test_a_change_hidden_by_drift_is_seen(bench: Bench) -> None:
    # 30 % slower code on a machine that meanwhile runs 30 % faster.
    row = bench.compared(result(1000, 1, witness=400), result(1000, 2, witness=400 / 1.3))
    assert row.verdict == "slower"
    assert row.normalised
    assert row.normalised.median == pytest.approx(1.3, rel=0.02)


def test_a_normalised_ratio_is_less_certain_than_its_parts(bench: Bench) -> None:
    plain = bench.compared(result(1000, 1), result(1000, 2)).ratio
    both = bench.compared(result(1000, 1, witness=400), result(1000, 2, witness=400)).normalised
    assert plain
    assert both
    assert both.high / both.low > plain.high / plain.low


def test_time_and_relative_time_against_each_other_decide_nothing(bench: Bench) -> None:
    # The kernel got faster, the witness much faster: the machine, or a new witness?
    row = bench.compared(result(1000, 1, witness=400), result(800, 2, witness=200))
    assert row.verdict == "cannot tell"
    assert "torch.matmul" in row.reason


def test_another_witness_does_not_normalise(bench: Bench) -> None:
    b = replace(result(1000, 2, witness=100), witness="numpy")
    row = bench.compared(result(1000, 1, witness=400), b)
    assert row.normalised is None
    assert row.verdict == "cannot tell"
    assert row.differences == (Difference("witness", "torch.matmul", "numpy"),)


def test_different_machines_are_said_and_never_judged(bench: Bench) -> None:
    a = bench.run(result(1000, 1), machine="m1", cpu="Zen 4")
    b = bench.run(result(9000, 2), machine="m2", cpu="Atom")
    both = compare(bench.history, a, b)
    assert both.other_machine
    assert both.differences == (
        Difference("machine", "m1", "m2"),
        Difference("cpu", "Zen 4", "Atom"),
    )
    [row] = both.rows
    assert (row.verdict, row.reason) == ("cannot tell", "measured on different machines")
    assert row.ratio
    assert row.ratio.median == pytest.approx(9, rel=0.05)
    assert both.slower == ()


def test_what_differs_is_said_by_row(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "k.cpp"
    file.write_text("one")
    one = bench.history.keep_source(file)
    file.write_text("two")
    two = bench.history.keep_source(file)
    a = replace(result(1000, 1), source_hash=one, params={"BLOCK": 16})
    b = replace(
        result(1000, 2),
        source_hash=two,
        compiler="clang 14",
        flags=("-O3", "-ffast-math"),
        isa="avx512",
        params={"BLOCK": 32},
        artifact_key="other",
    )
    assert bench.compared(a, b).differences == (
        Difference("source", one[:12], two[:12]),
        Difference("compiler", "g++ 12.2.0", "clang 14"),
        Difference("flags", "-O3", "-O3 -ffast-math"),
        Difference("isa", "avx2", "avx512"),
        Difference("params", "BLOCK=16", "BLOCK=32"),
    )
    assert bench.compared(a, replace(a, artifact_key="other")).differences == (
        Difference("included headers", "abcdef", "other"),
    )
    assert bench.compared(a, a).differences == ()
    assert bench.both([a], [a]).differences == ()


def test_rows_match_by_everything_that_makes_times_comparable(bench: Bench) -> None:
    base = result(1000, 1)
    others = [
        replace(base, operator="softmax"),
        replace(base, kernel="cpu_v2"),
        replace(base, dtype="f64"),
        replace(base, shape={**SIZES, "m": 65}),
        replace(base, threads=2),
        replace(base, cache="cold"),
    ]
    both = bench.both([base, *others[:3]], [*others[3:], base])
    assert [row.a.kernel for row in both.rows] == ["cpu_v1"]
    assert both.only_a == tuple(replace(r, run=both.a.id) for r in others[:3])
    assert both.only_b == tuple(replace(r, run=both.b.id) for r in others[3:])
    reordered = replace(base, shape=dict(reversed(SIZES.items())))
    assert len(bench.both([base], [reordered]).rows) == 1


def test_the_last_of_several_results_counts(bench: Bench) -> None:
    row = bench.compared(result(1000, 1), result(1000, 2))
    assert row.verdict == "cannot tell"
    [row] = bench.both([result(1000, 1)], [result(1000, 2), result(2000, 3)]).rows
    assert row.verdict == "slower"


def test_a_kernel_that_broke_is_matched_with_all_its_sizes(bench: Bench) -> None:
    small, large = result(10, 1), replace(result(1000, 2), shape={**SIZES, "m": 999})
    wrong = replace(result(), verdict="wrong", cache="", shape={})
    both = bench.both([small, large], [wrong])
    assert [(dict(row.a.shape)["m"], row.verdict) for row in both.broken] == [
        (64, "cannot tell"),
        (999, "cannot tell"),
    ]
    assert both.broken[0].reason == f"wrong in run {both.b.id}"
    assert (both.slower, both.only_a, both.only_b) == ((), (), ())
    mended = bench.both([wrong], [small])
    assert mended.broken == ()
    assert mended.rows[0].reason == f"wrong in run {mended.a.id}"


def test_runs_without_times_compare_without_a_verdict(bench: Bench) -> None:
    row = bench.compared(result(), result())
    assert (row.ratio, row.verdict) == (None, "cannot tell")
    assert row.reason.startswith("not timed in run ")
    absent = replace(result(), verdict="not-run")
    assert bench.compared(absent, result()).reason == "not run in run 3"


def test_an_unknown_run_is_named(bench: Bench) -> None:
    run = bench.run(result(1000, 1))
    with pytest.raises(UnknownNameError, match="no run named '9'"):
        compare(bench.history, run, 9)
