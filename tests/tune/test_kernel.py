"""Tuning kernels that are built and run: what fails, what is kept, and what calls make of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from cli.tool import declare, empty_history, operator, plain
from operators import RIGHT
from opwright.backends.cpu.device import CpuDevice
from opwright.backends.registry import backend_named
from opwright.bench.measure import CacheState, Setup
from opwright.catalog.find import Target, find
from opwright.dispatch.choose import choose, forget
from opwright.dispatch.operator import Operator
from opwright.history.records import Configuration
from opwright.history.store import History
from opwright.spec.cases import selected_case
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import OpwrightError
from opwright.spec.operator import parse_dtypes
from opwright.tune import kernel as module
from opwright.tune.kernel import Laboratory, Tuned, tune
from opwright.tune.search import Search
from opwright.verify import prepare
from packed import PACK, source
from packed import linear as packing

F32 = {"T": dtype_named("f32")}
USLEEP = 'extern "C" int usleep(unsigned); [[maybe_unused]] static int calls;'
# What each value of MODE does: 1 is right and fast, 0 is right and takes half a millisecond more.
BODY = (
    RIGHT
    + """
#if MODE == 0
    usleep(500);
#elif MODE == 2
    *(volatile int*)8 = 1;
#elif MODE == 3
    if (n > 3) out[3] = T(77.0f);
#elif MODE == 4
    #error this mode is not for this machine
#elif MODE == 5
    for (volatile bool on = true; on;) usleep(1000);
#elif MODE == 6
    if (++calls > 3000) *(volatile int*)8 = 1;
#elif MODE == 7
    usleep(4);
#elif MODE == 12
    if (n != 300 && n > 3) out[3] = T(77.0f);
#endif
"""
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("opwright.tune.search.FINAL_ROUNDS", 20)  # a second at most
    return empty_history(tmp_path / "home", monkeypatch)


@pytest.fixture
def history() -> Iterator[History]:
    with History.open() as opened:
        yield opened


def tunable(folder: Path, modes: str, body: str = BODY) -> Target:
    return operator(folder, {"v1": plain(body, USLEEP)}, {"v1": f', tune={{"MODE": {modes}}}'})


def tuned_at(
    target: Target, history: History, shape: str, budget: float = 120.0, **more: Any
) -> Tuned:
    spec = target.spec
    [dtypes] = parse_dtypes(spec.signature, "f32" if spec.signature.variables else "")
    setup = Setup(selected_case(spec, dtypes, shape), 1, "warm")
    run = history.start_run("tune", backend_named("cpu").probe().fingerprint, {})
    rows = target.kernels[:1]
    [tuned] = tune(spec, rows, target.reference, setup, budget, history, run, **more)
    return tuned


def ladder(folder: Path, *modes: str, body: str = BODY) -> Target:
    """Kernels v1, v2 and so on of the same source, which differ in the modes that they list."""
    names = [f"v{number}" for number in range(1, len(modes) + 1)]
    rows = {n: f', tune={{"MODE": {m}}}' for n, m in zip(names, modes, strict=True)}
    return operator(folder, {n: plain(body, USLEEP) for n in names}, rows)


def all_tuned(
    target: Target, history: History, budget: float = 120.0, cache: CacheState = "warm"
) -> dict[str, Tuned]:
    """All kernels of ``target`` tuned at n=300, by name, in the order in which they were done."""
    setup = Setup(selected_case(target.spec, F32, "300"), 1, cache)
    run = history.start_run("tune", backend_named("cpu").probe().fingerprint, {})
    rows = target.kernels
    found = tune(target.spec, rows, target.reference, setup, budget, history, run)
    return {tuned.kernel.name: tuned for tuned in found}


def tried(tuned: Tuned) -> set[int]:
    return {mode for configuration in tuned.found.trials for _, mode in configuration}


def kept(history: History, name: str = "affine", **key: Any) -> dict[int, Configuration]:
    return {c.params["MODE"]: c for c in history.configurations(name, **key)}


def test_what_fails_is_recorded_as_such_and_tuning_goes_on(
    tmp_path: Path, history: History
) -> None:
    target = tunable(tmp_path, "[0, 2, 3, 4, 5, 6, 12, 1]")
    found = tuned_at(target, history, "300")
    assert found.found.winner == (("MODE", 1),)
    assert found.gain is not None and found.gain > 20  # half a millisecond against microseconds
    outcomes = {mode: c.outcome for mode, c in kept(history).items()}
    assert outcomes[0] == outcomes[1] == "held"
    assert outcomes[2] == outcomes[6] == "crash"
    assert outcomes[4] == "does-not-compile"
    assert outcomes[5] == "hang"
    assert outcomes[3] == outcomes[12] not in ("held", "crash", "hang")
    by_mode = kept(history)
    for mode in (2, 3, 4, 5, 6, 12):  # B7
        assert by_mode[mode].times is None and by_mode[mode].place == ""
        assert (("MODE", mode),) not in [c for c, t in found.found.trials.items() if t.relative]
    assert "while it was timed" in by_mode[6].message
    # What may win is verified on the matrix too: there 12 is found out.
    assert by_mode[1].cases > 40 and by_mode[2].cases == 1 < by_mode[12].cases
    assert "not for this machine" in by_mode[4].message
    # A call makes up its own mind about what may only have been slow.
    verdicts = {m: history.verdict(c.artifact_key, c.machine) for m, c in by_mode.items()}
    assert verdicts[1] == "held" and verdicts[3] == "wrong" and verdicts[5] is None
    assert by_mode[1].place == "won" and by_mode[0].place == ""
    commands = {f.message.split(":")[0]: f.command for f in found.findings}
    assert set(commands) == {f"MODE={mode}" for mode in (2, 3, 4, 5, 6, 12)}
    assert all("--param MODE=3" in c for m, c in commands.items() if m == "MODE=3")
    assert commands["MODE=6"].startswith("opwright bench")


def test_two_tunings_in_a_row_name_the_same_winner(tmp_path: Path, history: History) -> None:
    target = tunable(tmp_path, "[0, 8, 9, 10, 1, 11]")  # but for 0 all are the same code
    first = tuned_at(target, history, "5000")
    again = tuned_at(target, history, "5000", seed=1)
    assert first.found.winner == again.found.winner != (("MODE", 0),)
    assert first.found.ranking.tie and again.found.ranking.tie
    places = [c.place for c in history.configurations("affine", run=again.run)]
    assert places.count("won") == 1 and "tied" in places


def test_what_won_before_counts_for_the_same_build_and_shape(
    tmp_path: Path, history: History
) -> None:
    (tmp_path / "affine").mkdir()
    header = tmp_path / "affine" / "part.h"
    header.write_text("// first\n")
    target = tunable(tmp_path, "[0, 1]", '\n#include "part.h"\n' + BODY)
    tuned_at(target, history, "5000")

    def earlier_winner(shape: str) -> Any:
        setup = Setup(selected_case(target.spec, F32, shape), 1, "warm")
        known = (target.spec, target.kernels[0], target.reference, setup, backend_named("cpu"))
        with Laboratory(*known, history, 0, 10.0) as laboratory:
            return laboratory.earlier_winner()

    assert earlier_winner("5000") == (("MODE", 1),)
    assert earlier_winner("4999") is None
    header.write_text("if (n) usleep(1);\n")
    assert earlier_winner("5000") is None


def test_a_call_runs_what_was_tuned_and_says_where_it_was(tmp_path: Path, history: History) -> None:
    target = tunable(tmp_path, "[0, 1]")
    x = np.arange(5000, dtype=np.float32)
    before = choose(target.spec, "", F32, {"n": 5000})
    assert before.params == {"MODE": 0} and before.tuned_at is None
    tuned_at(target, history, "5000")
    at, near, far = (choose(target.spec, "", F32, {"n": n}) for n in (5000, 4999, 100))
    assert at.params == {"MODE": 1} and at.tuned_at == {"n": 5000}
    # Not measured there: the sizes it was tuned at tell.
    assert near.params == {"MODE": 1} and near.tuned_at == {"n": 5000}
    assert far.params == {"MODE": 0} and far.tuned_at is None
    np.testing.assert_array_equal(target.spec(x, scale=2.0), 2 * x + 1)
    bound = target.spec.kernel("cpu_v1")(x, scale=2.0)
    np.testing.assert_array_equal(bound, 2 * x + 1)
    # Of two tuned sizes in one class, each has its own.
    tuned_at(tunable(tmp_path / "b", "[0]"), history, "4500")
    assert choose(target.spec, "", F32, {"n": 5000}).tuned_at == {"n": 5000}


def test_what_was_packed_is_never_read_by_another_configuration(
    tmp_path: Path, history: History
) -> None:
    """The packed form depends on FLIP, and tuning chooses another one than packing does."""
    at = "to[t * n + (FLIP ? n - 1 - j : j)]"
    text = source(
        pack=PACK.format(w="w[j * k + t]").replace("to[t * n + j]", at),
    ).replace("from[t * n + j]", at.replace("to[", "from["))
    slow = text.replace("double scale) {", "double scale) {\n    if (!FLIP) usleep(500);", 1)
    target = packing(
        tmp_path / "linear_op", {"v1": f"{USLEEP}\n{slow}"}, {"v1": ', tune={"FLIP": [0, 1]}'}
    )
    op = target.spec
    assert isinstance(op, Operator)
    random = np.random.default_rng(1)
    x, w = (random.integers(-4, 5, s).astype(np.float32) for s in ((4, 7), (5, 7)))
    before = op.pack(w)
    tuned = tuned_at(target, history, "m=4,n=5,k=7")
    assert tuned.found.winner == (("FLIP", 1),)
    packed = op.pack(w)
    for _ in range(2):  # the second time it is remembered
        np.testing.assert_array_equal(op(x, w), 2 * (x @ w.T))
        for one in (packed, before):
            np.testing.assert_array_equal(op(x, one), 2 * (x @ w.T))
    chosen = choose(op, "", F32, {"m": 4, "n": 5, "k": 7})
    assert chosen.params == {"FLIP": 1}
    assert packed.artifact.key == before.artifact.key != chosen.artifact.key


def test_tuning_a_lower_rung_says_nothing_of_those_above(tmp_path: Path, history: History) -> None:
    bodies = {"v1": plain(BODY, USLEEP), "v2": RIGHT}
    target = operator(tmp_path, bodies, {"v1": ', tune={"MODE": [0, 1]}'})
    tuned_at(target, history, "5000")
    assert choose(target.spec, "", F32, {"n": 5000}).kernel == "cpu_v2"
    assert choose(target.spec, "cpu_v1", F32, {"n": 5000}).params == {"MODE": 1}


@pytest.mark.parametrize("change", ["source", "header", "flags", "machine", "dtype", "threads"])
def test_a_changed_key_misses(tmp_path: Path, history: History, change: str) -> None:
    body = '\n#include "part.h"\n' + BODY
    (tmp_path / "affine").mkdir()
    header = tmp_path / "affine" / "part.h"
    header.write_text("// first\n")
    target = tunable(tmp_path, "[0, 1]", body)
    tuned_at(target, history, "5000")
    assert choose(target.spec, "", F32, {"n": 5000}).params == {"MODE": 1}
    dtypes = F32
    if change == "source":
        with target.kernels[0].path.open("a") as file:
            file.write("// changed\n")
    elif change == "header":
        header.write_text("if (n) usleep(1);\n")
    elif change == "flags":
        [row] = target.spec.rows
        target.spec.rows = (replace(row, flags=["-fno-unroll-loops"]),)
    elif change == "dtype":
        dtypes = {"T": dtype_named("bf16")}
    elif change in ("machine", "threads"):
        [won] = history.configurations("affine", place="won")
        history._db.execute("DELETE FROM configurations")
        other = {"machine": "another"} if change == "machine" else {"threads": 7}
        history.keep_configurations(won.run, [replace(won, **other)])
    forget(target.spec)
    chosen = choose(target.spec, "", dtypes, {"n": 5000})
    assert chosen.params == {"MODE": 0} and chosen.tuned_at is None


def test_a_verdict_that_is_lost_is_made_again_for_the_tuned_build(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the history trusts is the configuration that runs, not the default's."""
    target = tunable(tmp_path, "[0, 1]")
    tuned_at(target, history, "5000")
    history._db.execute("DELETE FROM verdicts")
    forget(target.spec)
    assert choose(target.spec, "", F32, {"n": 5000}).params == {"MODE": 1}
    [row] = history._db.execute("SELECT artifact_key FROM verdicts").fetchall()
    assert row["artifact_key"] == kept(history, place="won")[1].artifact_key


def test_a_budget_too_small_records_no_winner(tmp_path: Path, history: History) -> None:
    target = tunable(tmp_path, "[0, 1]")
    found = tuned_at(target, history, "5000", budget=0.001)
    assert found.found.too_short and found.found.winner == found.default
    assert history.configurations("affine", place="won") == []


@pytest.mark.parametrize("several", [False, True])
def test_a_build_that_outlasts_the_budget_is_ended_and_says_nothing_of_the_kernel(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    monkeypatch.setattr("opwright.toolchain.build.TIME_LIMIT", 30.0)
    target = ladder(tmp_path, *["[0, 1]"] * (2 if several else 1), body="")
    os.mkfifo(target.spec.folder / "endless")  # which the compiler reads until somebody writes
    for kernel in target.kernels:
        kernel.path.write_text('#include "endless"\n' + kernel.path.read_text())
    for tuned in all_tuned(target, history, budget=0.5).values():
        assert tuned.found.too_short and tuned.found.winner == tuned.default
        assert not tuned.findings and not tuned.found.trials
    assert history.configurations("affine") == []


def test_what_takes_long_to_make_ready_is_not_verified_past_the_budget(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tunable(tmp_path, "[0, 1]")
    backend_named("cpu").build_own()
    backend_named("cpu").build(target.spec.signature, target.kernels[0], F32, {"MODE": 0})
    make_inputs, run_case, run = prepare.make_inputs, module.run_case, list[int]()

    def slow(*words: Any) -> Any:
        time.sleep(0.6)
        return make_inputs(*words)

    def counted(*words: Any, **more: Any) -> Any:
        run.append(1)
        return run_case(*words, **more)

    def expected(*_: Any) -> Any:
        raise AssertionError("after the inputs there is no time for the rest")

    monkeypatch.setattr(prepare, "make_inputs", slow)
    monkeypatch.setattr(prepare, "_oracle", expected)
    monkeypatch.setattr(module, "run_case", counted)
    found = tuned_at(target, history, "300", budget=1.0)
    assert found.found.too_short and found.found.winner == found.default
    assert not run


def test_an_interruption_keeps_what_was_measured(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tunable(tmp_path, "[7, 1]")
    taken = module.Laboratory.sample
    calls = 0

    def sample(self: Any, configuration: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 18:
            raise KeyboardInterrupt
        return taken(self, configuration)

    monkeypatch.setattr(module.Laboratory, "sample", sample)
    found = tuned_at(target, history, "5000")
    assert found.found.interrupted
    assert {c.outcome for c in kept(history).values()} == {"held"}
    assert kept(history)[1].times is not None and kept(history, place="won")


SUM = '''
@operator(dtypes={"T": ["f32"]}, flops="n")
def total(x: Tensor[T, "n"]) -> Tensor[T, "1"]:
    """The sum of x."""
    return x.sum(keepdims=True)

total.kernels(Kernel("cpu_v1.cpp", change="loop", tune={"MODE": [0, 1, 2, 3, 4, 5]}))
'''
DOUBLE = '''
@operator(dtypes={"T": ["f32"]}, flops="n")
def twice(x: Tensor[T, "n"]) -> Tensor[T, "n"]:
    """2 x"""
    x *= 2
    return x

twice.kernels(Kernel("cpu_v1.cpp", change="loop", tune={"MODE": [0, 1, 2, 3, 4, 5]}))
'''
# Modes 1 and 2 accumulate into what is there, in the output and in a variable of their own.
SUM_KERNEL = """
[[maybe_unused]] static double kept;
extern "C" void total(const T* x, T* out, int64_t n) {
    double sum = 0;
#if MODE == 1
    sum = out[0];
#elif MODE == 2
    sum = kept;
#endif
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    kept = sum;
    out[0] = T(sum);
}
"""
# Mode 1 doubles in place; mode 2 doubles what its last call had left.
DOUBLE_KERNEL = """
extern "C" void twice(const T* x, T* out, int64_t n) {
#if MODE == 1
    for (int64_t i = 0; i < n; ++i) out[i] = const_cast<T*>(x)[i] *= 2;
#elif MODE == 2
    for (int64_t i = 0; i < n; ++i) out[i] = out[i] == x[i] * 2 ? out[i] * 2 : x[i] * 2;
#else
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * 2;
#endif
}
"""


def test_b5_accumulating_kernels_are_right_on_the_first_call(
    tmp_path: Path, history: History
) -> None:
    target = find(str(declare(tmp_path / "total", SUM, {"cpu_v1.cpp": SUM_KERNEL})))
    found = tuned_at(target, history, "n=120")
    ones = np.ones(120, np.float32)
    out = np.full(1, 1000, np.float32)
    assert target.spec(ones, out=out)[0] == 120
    assert target.spec(ones)[0] == 120
    assert len(found.found.trials) == 6
    assert {m: c.outcome == "held" for m, c in kept(history, "total").items()} == {
        **dict.fromkeys((0, 3, 4, 5), True),
        **dict.fromkeys((1, 2), False),
    }


def test_b5_in_place_kernels_are_right_on_the_first_call(tmp_path: Path, history: History) -> None:
    target = find(str(declare(tmp_path / "twice", DOUBLE, {"cpu_v1.cpp": DOUBLE_KERNEL})))
    tuned_at(target, history, "n=3")
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(target.spec(x), [2, 4, 6])
    np.testing.assert_array_equal(x, [1, 2, 3])
    outcomes = {m: c.outcome for m, c in kept(history, "twice").items()}
    assert outcomes[1] == "writes-input"
    assert outcomes[0] == "held"


def test_a_tolerance_that_cannot_be_trusted_is_an_error(tmp_path: Path, history: History) -> None:
    declaration = DOUBLE.replace("flops", "tolerance=Tolerance(ulps=1e9), flops") + (
        '\n@twice.known_wrong("three times")\ndef thrice(x):\n    return 3 * x\n'
    )
    target = find(str(declare(tmp_path / "twice", declaration, {"cpu_v1.cpp": DOUBLE_KERNEL})))
    with pytest.raises(OpwrightError, match="known to be wrong"):
        tuned_at(target, history, "n=3")


# With each mode a sleep of so many microseconds, which a busy machine does not shorten.
SLEEPS = RIGHT + "\nusleep((MODE == 0) ? 3000 : (MODE == 1) ? 200 : (MODE == 2) ? 180 : 20);\n"


def test_kernels_that_cannot_win_are_timed_but_not_tuned(tmp_path: Path, history: History) -> None:
    target = ladder(tmp_path, "[0, 2, 9]", "[1, 9]", "[2, 9]", body=SLEEPS)
    found = all_tuned(target, history)
    assert [*found][-1] == "cpu_v1"  # the fastest first
    # v1 would be the equal of the others with mode 9, which nobody has asked for by name.
    assert re.fullmatch(r"\d+\.\d times as slow as cpu_v[23]", found["cpu_v1"].passed_over)
    assert (
        tried(found["cpu_v1"])
        == {0}
        == {c.params["MODE"] for c in history.configurations("affine", "cpu_v1")}
    )
    first = next(iter(found.values()))
    assert not first.passed_over and first.found.winner == (("MODE", 9),)
    [alone] = [tuned_at(Target(target.spec, target.kernels[:1], "", True), history, "300")]
    assert not alone.passed_over and alone.found.winner == (("MODE", 9),)
    assert tried(alone) == {0, 2, 9}
    # What won before is what it is known for from then on.
    again = all_tuned(target, history)["cpu_v1"]
    assert not again.passed_over and tried(again) == {0, 2, 9}


def test_calls_know_the_times_of_kernels_that_were_passed_over(
    tmp_path: Path, history: History
) -> None:
    target = ladder(tmp_path, "[1, 9]", "[0, 2]", body=SLEEPS)
    assert (
        choose(target.spec, "", F32, {"n": 300}).kernel == "cpu_v2"
    )  # the last, as nothing is known
    assert all_tuned(target, history)["cpu_v2"].passed_over
    chosen = choose(target.spec, "", F32, {"n": 300})
    assert (chosen.kernel, chosen.params) == ("cpu_v1", {"MODE": 9})


def test_times_in_cold_caches_choose_no_kernel_for_calls(tmp_path: Path, history: History) -> None:
    target = ladder(tmp_path, "[1, 9]", "[0, 2]", body=SLEEPS)
    assert all_tuned(target, history, cache="cold")["cpu_v2"].passed_over
    assert choose(target.spec, "", F32, {"n": 300}).kernel == "cpu_v2"


def test_a_fast_kernel_that_is_wrong_elsewhere_keeps_none_from_being_tuned(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets, allow = list[float](), Search.allow

    def allowed(self: Search, budget: float) -> None:
        budgets.append(budget)
        allow(self, budget)

    monkeypatch.setattr(Search, "allow", allowed)
    found = all_tuned(ladder(tmp_path, "[0, 1]", "[12, 2]"), history)
    assert found["cpu_v1"].found.winner == (("MODE", 1),)
    assert found["cpu_v2"].found.winner is None
    assert {t.passed_over for t in found.values()} == {""}
    # Both began with 120 s; then the wrong one got the least part of what was left.
    assert budgets[:2] == [120.0, 120.0] and budgets[2] < 40 and budgets[3] > 60


def test_a_default_that_does_not_compile_says_nothing_of_the_others(
    tmp_path: Path, history: History
) -> None:
    found = all_tuned(ladder(tmp_path, "[0, 7]", "[4, 1]"), history)
    assert found["cpu_v2"].found.winner == (("MODE", 1),)
    assert found["cpu_v2"].findings[0].kind == "does-not-compile"


def test_a_kernel_that_is_far_too_slow_is_not_waited_for_nor_said_to_hang(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_LIMIT", 0.5)
    body = RIGHT + "\n#if MODE == 3\nif (n == 300) usleep(900000);\n#endif\n"
    found = all_tuned(ladder(tmp_path, "[3, 1]", "[1, 2]", body=body), history)
    assert found["cpu_v1"].passed_over == "over 50 times as slow as cpu_v2"
    assert not found["cpu_v1"].findings and not history.configurations("affine", "cpu_v1")
    assert found["cpu_v2"].found.winner is not None


def test_no_time_for_several_kernels(tmp_path: Path, history: History) -> None:
    found = all_tuned(ladder(tmp_path, "[0, 1]", "[1, 2]"), history, budget=0.001)
    assert [t.found.too_short for t in found.values()] == [True, True]
    assert history.configurations("affine") == []


def test_calls_too_short_for_the_clock_can_be_compared(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = CpuDevice.clock

    def nothing(self: Any, *words: Any) -> Any:
        return replace(clock(self, *words), values=(0.0,))

    monkeypatch.setattr(CpuDevice, "clock", nothing)
    found = all_tuned(ladder(tmp_path, "[0, 1]", "[1, 2]"), history)
    assert [t.found.winner for t in found.values()] == [(("MODE", 0),), (("MODE", 1),)]


def test_an_interruption_while_defaults_are_timed_keeps_them(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = module.Laboratory.sample

    def sample(self: Any, configuration: Any) -> Any:
        if self.kernel.name == "cpu_v1":
            raise KeyboardInterrupt
        return taken(self, configuration)

    monkeypatch.setattr(module.Laboratory, "sample", sample)
    found = all_tuned(ladder(tmp_path, "[0, 1]", "[1, 2]", "[2, 1]"), history)
    assert found.keys() >= {"cpu_v2", "cpu_v3"}
    assert all(
        t.found.interrupted and tried(t) <= {1, 2} for n, t in found.items() if n != "cpu_v1"
    )
    assert {c.kernel for c in history.configurations("affine")} == {"cpu_v2", "cpu_v3"}


def test_an_interruption_before_anything_is_known_is_one(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Laboratory, "make_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        all_tuned(ladder(tmp_path, "[0, 1]", "[1, 2]"), history)


def test_nothing_is_compiled_while_a_kernel_that_needs_all_cores_is_timed(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_cores_beside", lambda threads: set())
    backend, lock, running, builds = type(backend_named("cpu")), Lock(), 0, list[int]()
    build, clock = backend.build, CpuDevice.clock

    def counted(self: Any, *words: Any) -> Any:
        nonlocal running
        with lock:
            running += 1
        builds.append(running)
        try:
            time.sleep(0.05)
            return build(self, *words)
        finally:
            with lock:
                running -= 1

    def quiet(self: Any, *words: Any) -> Any:
        assert running == 0
        return clock(self, *words)

    monkeypatch.setattr(backend, "build", counted)
    monkeypatch.setattr(CpuDevice, "clock", quiet)
    target = tunable(tmp_path, str([*range(20, 40)]))
    setup = Setup(selected_case(target.spec, F32, "300"), 1, "warm")
    with module.Laboratory(
        *(target.spec, target.kernels[0], target.reference, setup, backend_named("cpu")),
        *(history, 0, 60.0),
    ) as laboratory:
        space = [(("MODE", mode),) for mode in range(20, 40)]
        until = time.monotonic() + 60.0
        laboratory.prefetch(space, ahead=[(("MODE", 20),)])
        assert laboratory.verify(space[0], until) is None
        assert isinstance(laboratory.sample(space[0]), float)
        assert len(builds) < len(space)  # what had not begun was left
        assert laboratory.verify(space[-1], until) is None
        assert isinstance(laboratory.sample(space[-1]), float)
    if len(os.sched_getaffinity(0)) > 1:
        assert max(builds) > 1  # several at once, before any of them is timed
