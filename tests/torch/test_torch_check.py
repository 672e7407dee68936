"""The verdict: held for what is right, and each planted fault found and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opwright.torch as owt
from opwright.cli import main
from opwright.torch import registration
from opwright.torch.checking import dispatch_cost
from opwright.torch.kernels import Kernels
from opwright_ops import (
    linear,
    linear_int8,
    matmul,
    threshold_activation,
    threshold_activation_grad,
)
from torch_operators import write_operator

Own = Callable[[str], tuple[Any, Any]]


def failed(verdict: owt.Verdict) -> dict[str, str]:
    return {
        r.name.partition(":")[0].partition(" (")[0]: r.message
        for r in verdict.results
        if r.state == "failed"
    }


def test_a_right_operator_holds(own: Own) -> None:
    verdict = owt.check(own("square")[0], backend="aot_eager")
    assert verdict.held, str(verdict)
    assert {r.state for r in verdict.results} == {"held"}
    assert len(verdict.results) == 10
    assert verdict.own_us > 0 and verdict.torch_us > 0
    assert "us more" in str(verdict)


def test_an_operator_without_a_gradient_holds_when_it_says_so(own: Own) -> None:
    verdict = owt.check(own("ordered")[0], backend="aot_eager")
    assert verdict.held, str(verdict)
    assert any("refused" in r.message for r in verdict.results)


def test_gradients_are_checked_for_every_word(own: Own) -> None:
    verdict = owt.check(own("stepped")[0], backend="aot_eager")
    assert verdict.held, str(verdict)
    assert "refused: f32 how=whole" in str(verdict)


def test_a_wrong_gradient_is_named(own: Own) -> None:
    verdict = owt.check(own("product")[0], backend="aot_eager")
    assert not verdict.held
    assert set(failed(verdict)) == {"gradients against finite differences"}
    assert "@product.gradient" in str(verdict)


def planted(tmp_path: Path, name: str, call: Callable[..., Any], monkeypatch: Any) -> Any:
    """``square`` under another namespace, computed by ``call(right, x)``."""
    from opwright.catalog.find import load_folder

    spec = load_folder(write_operator(tmp_path / name, "square"))

    class Planted(Kernels):
        def call(self) -> Callable[..., torch.Tensor]:
            right = super().call()
            return lambda x: call(right, x)

    monkeypatch.setattr(registration, "Kernels", Planted)
    owt.register(spec, namespace=f"owt_planted_{name}")
    return owt.check(spec, backend="aot_eager")


def test_a_changed_input_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # D2
    def changes(right: Any, x: torch.Tensor) -> torch.Tensor:
        result = right(x)
        x.detach().mul_(2)
        return result

    verdict = planted(tmp_path, "changes", changes, monkeypatch)
    assert "schema" in failed(verdict)
    assert "let the kernel write to out alone" in str(verdict)


def test_strides_that_the_fake_kernel_does_not_give_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = planted(tmp_path, "strides", lambda right, x: right(x).T.contiguous().T, monkeypatch)
    assert "fake kernel" in failed(verdict)


def test_wrong_numbers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = planted(tmp_path, "numbers", lambda right, x: right(x) + 1, monkeypatch)
    assert "numbers against the oracle" in failed(verdict)
    assert "out of tolerance" in failed(verdict)["numbers against the oracle"]


def row_major(x: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(x.shape, device="meta").stride()


def without_a_step(x: torch.Tensor) -> torch.Tensor:
    stepped = x.stride() == tuple(2 * stride for stride in row_major(x))
    return x.as_strided(x.shape, row_major(x)) if stepped else x


# What a registration ignores: the operand as it takes it, and the first layout that it fails.
IGNORED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "strides": (lambda x: x.as_strided(x.shape, row_major(x)), "transposed"),
    "offset": (lambda x: x.as_strided(x.shape, x.stride(), 0), "offset"),
    "step": (without_a_step, "stepped"),
}


@pytest.mark.parametrize("what", IGNORED)
def test_what_ignores_the_layout_fails(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_as, layout = IGNORED[what]
    verdict = planted(tmp_path, f"ignores_{what}", lambda right, x: right(taken_as(x)), monkeypatch)
    found = failed(verdict)["non-contiguous, offset and expanded tensors"]
    assert found.startswith(f"f32: {layout} inputs, other numbers")


@pytest.mark.parametrize(
    "operator",
    [linear, linear_int8, matmul, threshold_activation, threshold_activation_grad],
    ids=lambda operator: operator.name,
)
def test_the_librarys_operators_hold(operator: Any) -> None:
    verdict = owt.check(operator, backend="aot_eager")
    assert verdict.held, str(verdict)


def test_an_output_that_is_an_input_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = planted(tmp_path, "aliases", lambda right, x: x, monkeypatch)
    assert "schema" in failed(verdict)


def test_the_command_and_its_exit_code(tmp_path: Path) -> None:
    folder = write_operator(tmp_path / "square", "square")
    # Its own file of another operator: the name is free in the namespace of the commands.
    words = ["check-torch", str(folder), "--backend", "aot_eager", "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["command"] == "check-torch" and data["data"]["held"] is True
    wrong = write_operator(tmp_path / "product", "product")
    result = CliRunner().invoke(main, ["check-torch", str(wrong), "--backend", "aot_eager"])
    assert result.exit_code == 1
    assert "gradients against finite differences" in result.output


def test_the_cost_of_a_call_is_measured(own: Own) -> None:
    ours, bare = dispatch_cost(own("axpb")[0])
    assert ours > 0 and bare > 0
