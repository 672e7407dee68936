"""A tolerance has to reject what is known to be wrong, or nothing verified with it counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from opwright import T, Tensor, Tolerance
from opwright.report.findings import Finding
from opwright.spec.cases import matrix
from opwright.spec.operator import OperatorSpec
from opwright.verify.trust import untrusted


def spec_with(tolerance: Tolerance | None, dtype: str = "f32") -> OperatorSpec:
    @OperatorSpec.declare(dtypes={"T": [dtype]}, tolerance=tolerance, thresholds=[1.0])
    def ramp(x: Tensor[T, ...]) -> Tensor[T, ...]:
        return np.where(x > 1, 2 * x, x)

    return ramp


def found(spec: OperatorSpec) -> list[Finding]:
    dtypes = spec.signature.choices()[0]
    return untrusted(spec, dtypes, list(matrix(spec, dtypes, ())), "./ramp")


def names(spec: OperatorSpec) -> set[str]:
    return {str(f.details["variant"]) for f in found(spec)}


def test_the_derived_tolerance_rejects_every_cheat() -> None:
    for dtype in ("f32", "f64", "bf16", "f16", "i32"):
        assert names(spec_with(None, dtype)) == set()


def test_a_loose_one_lets_cheats_pass_and_is_found() -> None:
    loose = spec_with(Tolerance(terms=lambda x: 1e9 + 0 * x, depth="1"))
    assert names(loose) == {
        "returns zeros",
        "computes half the elements",
        "exactly one element wrong",
    }
    [first, *_] = found(loose)
    assert first.kind == "tolerance"
    assert first.kernel == ""
    assert first.file == __file__ and first.line > 0
    assert first.command == "opwright verify ./ramp --dtype f32"
    assert "Nothing verified with it can be trusted" in first.message


def test_one_that_misses_a_single_element_is_found() -> None:
    """Wide enough for an eighth more, and for no zero of a large result."""
    wide = spec_with(Tolerance(terms=lambda x: 1e6 * (2 + np.abs(x)), depth="10"))
    assert names(wide) == {"exactly one element wrong"}


def test_a_known_wrong_variant_that_passes_is_found() -> None:
    spec = spec_with(None)

    @spec.known_wrong("the threshold itself is above it")
    def includes(x: Any) -> Any:
        return np.where(x >= 1, 2 * x, x)

    @spec.known_wrong("right, in truth")
    def right(x: Any) -> Any:
        return np.where(x > 1, x + x, x)

    @spec.known_wrong("another shape")
    def reshaped(x: Any) -> Any:
        return np.zeros(3)

    assert names(spec) == {"right, in truth"}


def test_values_that_only_some_cases_have_are_tried() -> None:
    """Differs for NaN alone, which typical values have not."""
    spec = spec_with(None)

    @spec.known_wrong("NaN becomes 0")
    def drops(x: Any) -> Any:
        return np.where(np.isnan(x), 0.0, np.where(x > 1, 2 * x, x))

    assert names(spec) == set()


def test_without_cases_there_is_nothing_to_say() -> None:
    spec = spec_with(Tolerance(terms=lambda x: 1e9 + 0 * x, depth="1"))
    assert untrusted(spec, spec.signature.choices()[0], [], "./ramp") == []
