"""Ranges of sizes that get a kernel of their own, by what was measured on this machine."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from opwright.backends.registry import backend_named
from opwright.catalog.find import load_folder
from opwright.history.records import Configuration, Result, Times
from opwright.history.store import History
from opwright.ship.plan import Plan, plan_library
from opwright.ship.tuned import tuned_for
from opwright.spec.operator import OperatorSpec, parse_dtypes
from ship.tools import affine_folder, dltensor, load, opwright


def two_rungs(folder: Path) -> OperatorSpec:
    """The operator affine with rungs v1, which has a tunable, and v2."""
    affine_folder(folder)
    for name in ("cpu_v1", "cpu_v2"):
        source = (folder / "cpu_v1.cpp").read_text()
        (folder / f"{name}.cpp").write_text(source)
    text = (folder / "op.py").read_text()
    rows = (
        'affine.kernels(Kernel("cpu_v1.cpp", change="one", tune={"STEP": [1, 2]}), '
        'Kernel("cpu_v2.cpp", change="two"))'
    )
    (folder / "op.py").write_text(text.partition("affine.kernels")[0] + rows + "\n")
    return load_folder(folder)


def measured(
    history: History, spec: OperatorSpec, kernel: str, n: int, ns: float, **more: object
) -> None:
    """One time of a kernel, as 'bench' records it."""
    row = spec.row(kernel)
    fields = {
        "shape": {"n": n},
        "cache": "warm",
        "params": row.defaults,
        "source_hash": history.keep_source(row.path),
        "artifact_key": f"{kernel}{n}{more}",
        "times": Times(ns, ns, ns, ns, (ns,), 1),
        **more,
    }
    run = history.start_run(
        "opwright bench affine",
        machine=backend_named("cpu").probe().fingerprint,
        facts={},
    )
    history.add_result(run, Result("affine", kernel, "cpu", "f32", "held", **fields))  # type: ignore[arg-type]


def tuned(
    history: History, spec: OperatorSpec, times: dict[int, float], n: int = 1000, **more: object
) -> None:
    """What 'tune' records of cpu_v1 by its tunable, the fastest as the winner."""
    row, [dtypes] = spec.row("cpu_v1"), parse_dtypes(spec.signature, "f32")
    backend = backend_named("cpu")
    machine = backend.probe().fingerprint
    best = min(times, key=times.__getitem__)
    found = []
    for step, ns in times.items():
        params = {"STEP": step}
        fields = {
            "artifact_key": backend.build(spec.signature, row, dtypes, params).key,
            "place": "won" if step == best else "",
            "times": Times(ns, ns, ns, ns, (ns,), 1),
            **more,
        }
        source = history.keep_source(row.path)
        key = ("affine", row.name, "cpu", machine, "f32", {"n": n}, 1, params, source, "held")
        found.append(Configuration(*key, **fields))  # type: ignore[arg-type]
    run = history.start_run("opwright tune affine", machine=machine, facts={})
    history.keep_configurations(run, found)


@pytest.fixture
def spec(tmp_path: Path) -> OperatorSpec:
    return two_rungs(tmp_path / "affine")


def chain(spec: OperatorSpec, history: History) -> list[str]:
    plan: Plan = plan_library("mine", "0.1.0", "x86_64", [spec], history)
    return [v.text for v in plan.variants]


def test_nothing_measured(spec: OperatorSpec, tmp_path: Path) -> None:
    with History.open(tmp_path / "history") as history:
        assert chain(spec, history) == ["affine f32 baseline cpu_v2"]


def test_a_faster_rung_gets_its_range(spec: OperatorSpec, tmp_path: Path) -> None:
    with History.open(tmp_path / "history") as history:
        measured(history, spec, "cpu_v2", 1000, 900.0)
        measured(history, spec, "cpu_v1", 1000, 800.0)
        measured(history, spec, "cpu_v1", 1000, 700.0, params={"STEP": 2})
        measured(history, spec, "cpu_v2", 80000, 100.0)
        measured(history, spec, "cpu_v1", 80000, 200.0)
        assert chain(spec, history) == [
            "affine f32 baseline cpu_v1 STEP=2 n=500..2000",
            "affine f32 baseline cpu_v2",
        ]


RANGED = "affine f32 baseline cpu_v1 STEP=2 n=500..2000"


def test_what_tuning_chose_gets_its_range(spec: OperatorSpec, tmp_path: Path) -> None:
    with History.open(tmp_path / "history") as history:
        tuned(history, spec, {1: 800.0, 2: 700.0})
        # Of the last rung nothing is known there.
        assert chain(spec, history) == ["affine f32 baseline cpu_v2"]
        measured(history, spec, "cpu_v2", 1000, 900.0)
        assert chain(spec, history) == [RANGED, "affine f32 baseline cpu_v2"]
        # A newer tuning, which the default won.
        tuned(history, spec, {1: 600.0, 2: 700.0})
        assert chain(spec, history)[0] == "affine f32 baseline cpu_v1 n=500..2000"


def test_a_last_rung_that_was_tuned(spec: OperatorSpec, tmp_path: Path) -> None:
    spec.rows = spec.rows[:1]
    with History.open(tmp_path / "history") as history:
        tuned(history, spec, {1: 800.0, 2: 700.0})
        assert chain(spec, history) == [RANGED, "affine f32 baseline cpu_v1"]
        tuned(history, spec, {1: 600.0, 2: 700.0})
        assert chain(spec, history) == ["affine f32 baseline cpu_v1"]


@pytest.mark.parametrize(
    "more", [{"artifact_key": "of another header"}, {"cache": "cold"}, {"noise": 0.3}]
)
def test_a_tuning_that_proves_nothing(
    spec: OperatorSpec, tmp_path: Path, more: dict[str, object]
) -> None:
    spec.rows = spec.rows[:1]
    with History.open(tmp_path / "history") as history:
        tuned(history, spec, {1: 800.0, 2: 700.0}, **more)
        assert chain(spec, history) == ["affine f32 baseline cpu_v1"]


@pytest.mark.parametrize(
    "why",
    ["within the noise", "another source", "a value no longer listed", "last rung not measured"],
)
def test_what_proves_nothing(spec: OperatorSpec, tmp_path: Path, why: str) -> None:
    more: dict[str, object] = {
        "within the noise": {"noise": 0.3},
        "a value no longer listed": {"params": {"STEP": 7}},
    }.get(why, {})
    with History.open(tmp_path / "history") as history:
        if why != "last rung not measured":
            measured(history, spec, "cpu_v2", 1000, 900.0)
        measured(history, spec, "cpu_v1", 1000, 700.0, **more)
        if why == "another source":
            source = spec.row("cpu_v1").path
            source.write_text(source.read_text() + "\n")
        assert tuned_for(spec, spec.signature.choices()[0], history) == {}


def test_the_library_takes_each_range_and_is_made_again(
    spec: OperatorSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with History.open() as history:
        measured(history, spec, "cpu_v2", 1000, 900.0)
        measured(history, spec, "cpu_v1", 1000, 700.0, params={"STEP": 2})
    out = tmp_path / "out"
    words = ("--out", str(out), "--name", "mine", "--verify", "full")
    code, said = opwright("ship", str(spec.folder), *words)
    assert code == 0, said
    manifest = out / "share" / "mine" / "manifest.json"
    rows = {r["variant"]: r for r in json.loads(manifest.read_text())["verification"]}
    ranged = "affine f32 baseline cpu_v1 STEP=2 n=500..2000"
    assert rows[ranged]["verdict"] == "held" and rows[ranged]["cases"] >= 3
    lib = load(out / "lib" / "libmine.so", "mine")
    for n in (499, 500, 1000, 2000, 2001):
        x, result = np.ones(n, np.float32), np.zeros(n, np.float32)
        assert lib.mine_affine(*map(ctypes.byref, map(dltensor, (x, result))), None, None) == 0
        expected = ranged if 500 <= n <= 2000 else "affine f32 baseline cpu_v2"
        assert lib.mine_last_variant().decode() == expected
        assert (result == 2.5).all()
    # From the manifest alone, on a machine that measured nothing.
    monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path / "home"))
    again = ("--out", str(tmp_path / "again"), "--verify", "none")
    code, said = opwright("ship", "--from", str(manifest), *again)
    assert code == 0 and "the bytes are those of the manifest" in said
    code, said = opwright(
        "ship",
        str(spec.folder),
        "--out",
        str(tmp_path / "plain"),
        "--name",
        "mine",
        "--no-tuned",
        "--verify",
        "none",
    )
    assert code == 0 and "n=500" not in said
