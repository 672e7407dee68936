"""The audit: what ran, where, how often; planted fallbacks; saved shapes; plugins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opwright.torch as owt
from opwright.catalog.shapes import shapes_from
from opwright.cli import main
from opwright.cli.bench import weighted
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import NothingSelectedError, UsageError
from opwright.torch import cost as costs
from opwright.torch import vendors
from opwright_ops import matmul, threshold_activation

# An accelerator whose activation is computed on the host without a word.
PLANTED = """
import torch

library = torch.library.Library("owt_planted{name}", "DEF")
library.define("activation(Tensor x) -> Tensor")

def activation(x):
    torch.tanh(torch.zeros(x.shape)){planted}
    return torch.empty_like(x)

library.impl("activation", activation, "Meta")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4, device="meta")

    def forward(self, x):
        return torch.ops.owt_planted{name}.activation(self.linear(x))

def build():
    return Model(), torch.empty(2, 8, device="meta")
"""


def model_file(folder: Path, name: str, planted: bool) -> str:
    source = PLANTED.replace("{name}", name)
    line = "torch.tanh(torch.zeros(x.shape))"
    source = source.replace(f"    {line}{{planted}}\n", f"    {line}\n" if planted else "")
    path = folder / f"model{name}.py"
    path.write_text(source)
    return f"{path}:build"


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["audit", *words])


def test_a_planted_silent_fallback_ends_with_1(tmp_path: Path) -> None:
    bad = model_file(tmp_path, "_bad", planted=True)
    result = run(bad, "--fail-on", "fallback")
    assert result.exit_code == 1
    assert "owt_planted_bad::activation: asked to run on meta, ran on cpu" in result.output
    assert "aten::tanh" in result.output
    again = model_file(tmp_path, "_again", planted=True)
    assert run(again).exit_code == 0  # seen, but not asked to fail on it
    third = model_file(tmp_path, "_third", planted=True)
    findings = json.loads(run(third, "--fail-on", "fallback", "--json").stdout)["findings"]
    assert [f["kind"] for f in findings] == ["fallback"]


def test_without_a_fallback_it_ends_with_0(tmp_path: Path) -> None:
    result = run(model_file(tmp_path, "_good", planted=False), "--fail-on", "fallback,copy")
    assert result.exit_code == 0, result.output
    assert "aten::addmm" in result.output


def test_work_left_on_the_host_is_found_with_the_device_given() -> None:
    with owt.audit("meta") as audit:
        x = torch.ones(3, 4)
        (x * 2).to("meta") + 1
        torch.tensor(1.0) * 2  # a single number is on the host everywhere
    assert {row.operator for row in audit.fallbacks} == {"aten::mul.Tensor"}
    assert all(row.ran == "cpu" for row in audit.fallbacks)
    (copy,) = audit.copies
    assert (copy.source, copy.target, copy.calls, copy.bytes) == ("cpu", "meta", 1, 48)
    kinds = [f.kind for f in audit.findings()]
    assert sorted(kinds) == ["copy", "fallback"]


def test_calls_shapes_and_backward_passes_are_counted() -> None:
    w = torch.randn(5, 6, requires_grad=True)
    x = torch.randn(4, 5)
    with owt.audit() as audit:
        for _ in range(3):
            (x @ w).sum().backward()
    rows = {(r.operator, r.shapes): r for r in audit.rows}
    forward = rows["aten::mm", ((4, 5), (5, 6))]
    assert (forward.calls, forward.device, forward.ran, forward.reason) == (3, "cpu", "cpu", "")
    assert forward.flops == 2 * 4 * 5 * 6
    assert forward.bytes == 4 * (4 * 5 + 5 * 6 + 4 * 6)
    assert forward.dtypes == ("float32", "float32")
    assert rows["aten::mm", ((5, 4), (4, 6))].calls == 3  # the gradient of w
    assert audit.device == "cpu" and not audit.fallbacks
    assert 0 < sum(r.seconds for r in audit.rows) <= audit.seconds
    assert sum(r.share for r in audit.rows) <= 1


def test_our_operators_are_seen_with_their_own_cost() -> None:
    product = owt.register(matmul)
    product(torch.ones(2, 3), torch.ones(3, 4))
    with owt.audit() as audit:
        product(torch.ones(2, 3), torch.ones(3, 4))
    row = next(r for r in audit.rows if r.operator == "opwright::matmul")
    assert row.flops == 2 * 2 * 3 * 4
    assert audit.device == "cpu" and not audit.findings()


def test_what_only_looks_at_memory_costs_nothing() -> None:
    with owt.audit() as audit:
        torch.ones(4, 4).t().contiguous()
    rows = {r.operator: r for r in audit.rows}
    assert (rows["aten::t"].flops, rows["aten::t"].bytes) == (0, 0)
    assert rows["aten::clone"].bytes == 2 * 64


def test_the_order_is_by_share_times_distance_from_the_roofline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opwright.backends.base import Ceiling
    from opwright.bench.ceilings import Ceilings
    from opwright.torch import auditing

    made = Ceilings(
        "m", (Ceiling("fma f32", 1e9, "GFLOP/s", 1), Ceiling("copy", 1e9, "GB/s", 1)), ""
    )
    monkeypatch.setattr(auditing, "ceilings_here", lambda: made)
    with owt.audit() as audit:
        torch.ones(64, 64) @ torch.ones(64, 64)
    row = next(r for r in audit.rows if r.operator == "aten::mm")
    # No machine is that fast, so nearly all of the time could be saved.
    assert row.least_seconds == pytest.approx(3 * 64 * 64 * 4 / 1e18, rel=1e-6)
    assert row.gain == pytest.approx(row.share, rel=1e-3)
    gains = [r.gain for r in audit.rows if r.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert costs.least_seconds(1, 1, torch.float32, None, 1) is None


def test_without_ceilings_no_gain_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from opwright.torch import auditing

    monkeypatch.setattr(auditing, "ceilings_here", lambda: None)
    with owt.audit() as audit:
        torch.ones(4) * 2
    assert all(r.gain is None for r in audit.rows)
    assert "opwright doctor --measure" in str(audit)


def test_a_chrome_trace_has_every_call(tmp_path: Path) -> None:
    with owt.audit(trace=True) as audit:
        for _ in range(4):
            torch.ones(3).tanh()
    audit.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events].count("aten::tanh") == 4
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["ts"] >= 0 for e in events)
    starts = [e["ts"] for e in events]
    assert starts == sorted(starts)
    with owt.audit() as plain:
        torch.ones(1)
    with pytest.raises(UsageError, match="trace=True"):
        plain.save_trace(tmp_path / "none.json")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    with owt.audit() as audit, torch.no_grad():
        for rows in (2, 2, 5):
            model(torch.randn(rows, 8))
            torch.randn(rows, 3).bfloat16() @ torch.randn(3, 3).bfloat16()
    audit.save(tmp_path / "audit.json")
    return str(tmp_path / "audit.json")


def test_saved_shapes_are_an_operators_own(saved: str) -> None:
    used = [(u.shape, short_dtypes(u.dtypes), u.calls) for u in shapes_from(saved, matmul)]
    assert sorted(used[:3]) == [  # the bias of addmm is no operand of a matrix product
        ("m=2,n=16,k=8", "f32", 2),
        ("m=2,n=3,k=3", "bf16", 2),
        ("m=2,n=4,k=16", "f32", 2),
    ]
    assert [calls for _, _, calls in used] == [2, 2, 2, 1, 1, 1]
    tanh = shapes_from(f"{saved}:aten::tanh", threshold_activation)
    assert [(u.shape, u.calls) for u in tanh] == [("...=2x16", 2), ("...=5x16", 1)]


def test_shapes_that_are_not_there(saved: str, tmp_path: Path) -> None:
    with pytest.raises(NothingSelectedError, match=r"aten::tanh"):
        shapes_from(saved, threshold_activation)
    with pytest.raises(UsageError, match="No such file"):
        shapes_from(str(tmp_path / "missing.json"), matmul)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="audit --save"):
        shapes_from(str(tmp_path / "other.json"), matmul)


@pytest.mark.parametrize("name", ["calls", "seconds"])
@pytest.mark.parametrize("value", [None, "2", [], -1, True, float("nan"), float("inf")])
def test_counts_that_are_no_numbers(saved: str, name: str, value: Any) -> None:
    content = json.loads(Path(saved).read_text())
    for row in content["operators"]:
        row[name] = value
    Path(saved).write_text(json.dumps(content))
    with pytest.raises(UsageError, match=f"a damaged audit: {name} of aten::.* is .*, no number"):
        shapes_from(saved, matmul)


def test_verify_takes_the_shapes_of_an_audit(saved: str) -> None:
    words = ["verify", "threshold_activation/cpu_v2_branchfree", "--json"]
    result = CliRunner().invoke(main, [*words, "--shapes-from", f"{saved}:aten::tanh"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["data"]["reports"]
    assert [(k["dtypes"], k["cases"]) for k in report["kernels"]] == [("f32", 2)]
    both = CliRunner().invoke(main, [*words, "--shapes-from", saved, "--shape", "3"])
    assert both.exit_code == 2


def test_bench_weights_the_shapes_by_calls() -> None:
    from types import SimpleNamespace as Fake

    def table(case: str, a: float | None, witness: float) -> Any:
        row = Fake(kernel=Fake(name="a"), summary=None if a is None else Fake(median=a))
        other = Fake(kernel=Fake(name="b"), summary=Fake(median=1.0))
        setup = Fake(case=case, threads=1, cache="warm")
        return Fake(
            setup=setup, rows=[row, other], witness="w", witness_summary=Fake(median=witness)
        )

    text = weighted([table("x", 10.0, 30.0), table("y", 5.0, 7.0)], {"x": 3, "y": 20})
    assert "a 130 ns" in text and "b 23.0 ns" in text and "w 230 ns" in text
    text = weighted([table("x", 10.0, 30.0), table("y", None, 7.0)], {"x": 3, "y": 20})
    assert "a " not in text.partition("cache:")[2]  # no time for all the calls


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.py:build"], 2, "no such file"),
        (["nowhere.py"], 2, "my_model.py:build"),
        (["{file}:missing"], 2, "no function missing"),
        (["{file}:wrong"], 2, "RuntimeError: as planned"),
        (["{file}:number"], 2, "returns a int"),
        (["{file}:nested"], 2, "the model of {file}:nested fails on its inputs: TypeError: "),
        (["{file}:pair", "--train"], 2, "AttributeError: 'tuple' object has no attribute 'sum'"),
        (["{file}:number", "--fail-on", "everything"], 2, "everything"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(
        "import torch\n\n"
        "def wrong():\n    raise RuntimeError('as planned')\n\n"
        "def number():\n    return 3\n\n"
        "def nested():\n    return torch.nn.Linear(3, 3), (torch.ones(3),)\n\n"
        "def pair():\n    return lambda x: (x, x), torch.ones(3)\n"
    )
    result = run(*[w.replace("{file}", str(file)) for w in words])
    assert result.exit_code == code and message.replace("{file}", str(file)) in result.output


PLUGIN = {
    "raises": ("raise ImportError('libplugin.so: cannot open shared object file')", "cannot open"),
    "kills": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
    "no_device": ("", "no_such_device"),
}


@pytest.mark.parametrize("name", PLUGIN)
def test_a_plugin_that_is_not_usable_says_why(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, reason = PLUGIN[name]
    (tmp_path / f"torch_planted_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(vendors, "KNOWN", {f"torch_planted_{name}": ("no_such_device", "Nobody")})
    (found,) = owt.plugins()
    assert reason in found.reason and "not usable" in str(found)
    assert f"torch_planted_{name}" not in sys.modules


def test_a_usable_plugin_has_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_planted_fine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(vendors, "KNOWN", {"torch_planted_fine": ("cpu", "Somebody")})
    (found,) = owt.plugins()
    assert found.reason == ""
