"""Operators of several element types and with words among their attributes, verified and called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mixed_operators import DECLARED, write_operator
from opwright.catalog.find import Target, find
from opwright.spec.cases import selected_case
from opwright.spec.errors import DTypeError, UnknownNameError
from opwright.spec.operator import parse_dtypes
from opwright.verify.engine import Options, Report, verify


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return find(str(write_operator(tmp_path_factory.mktemp("mixed") / "blend", "blend")))


def checked(target: Target) -> Report:
    return verify(target.spec, target.kernels, target.reference, Options(quick=True))


def wrong(folder: Path, name: str, right: str, instead: str) -> Report:
    """What is found where one piece of the right kernel is another."""
    source = DECLARED[name][1]
    assert source.count(right) == 1
    return checked(find(str(write_operator(folder / name, name, source.replace(right, instead)))))


def test_each_row_of_element_types_is_verified(blend: Target) -> None:
    report = checked(blend)
    assert report.findings == []
    assert [k.dtypes["V"].name for k in report.kernels] == ["f32", "bf16", "i32", "i32"]
    # NumPy's own sums of short integers are made in int32, so they are right as well.
    assert [k.witness_error for k in report.kernels[2:]] == [0, 0]


def test_sums_that_wrap_in_a_short_type_are_found(tmp_path: Path) -> None:
    right = "opw::acc_t<T> y = 0;"
    short = wrong(tmp_path, "blend", right, "V y = 0;")  # bf16 in bf16; int32 is V's own
    assert [k.verdict for k in short.kernels] == ["held", "wrong", "held", "held"]
    short = wrong(tmp_path / "short", "blend", right, "std::int16_t y = 0;")
    assert {k.verdict for k in short.kernels} == {"wrong"}


def test_a_word_that_is_not_heeded_is_found_with_its_option(tmp_path: Path) -> None:
    report = wrong(tmp_path, "blend", "if (after == after_negate) y = -y;", "")
    assert report.findings
    assert all("--attr after=negate" in f.command for f in report.findings)


def test_calls_settle_the_row_and_take_the_word(blend: Target) -> None:
    x = np.array([[100, -128, 7], [-1, 2, 3]], np.int8)
    w = np.array([127, 127, -2], np.int8)
    result = blend.spec(x, w)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [100 * 127 - 128 * 127 - 14, -127 + 254 - 6])
    np.testing.assert_array_equal(blend.spec(x, w, after="negate"), -result)
    np.testing.assert_array_equal(blend.spec(x, w, "relu"), [0, 121])
    with pytest.raises(UnknownNameError, match="did you mean relu"):
        blend.spec(x, w, after="rleu")
    with pytest.raises(DTypeError, match=r"x is int8 and w is float32.*T=i8,U=i8,V=i32"):
        blend.spec(x, w.astype(np.float32))
    with pytest.raises(DTypeError, match=r"out is int8; the result is int32"):
        blend.spec(x, w, out=np.zeros(2, np.int8))


def test_a_quantized_product_holds_and_its_wrong_variants_are_known(tmp_path: Path) -> None:
    """Any of the known-wrong variants that passed would be a finding of its own."""
    report = checked(find(str(write_operator(tmp_path / "quantized", "quantized"))))
    assert report.findings == []
    assert {k.verdict for k in report.kernels} == {"held"}
    assert {k.bound_origin for k in report.kernels} == {"derived from the formula"}


@pytest.mark.parametrize(
    ("right", "instead"),
    [
        ("std::nearbyint(y)", "std::trunc(y)"),
        ("std::nearbyint(y)", "std::round(y)"),
        ("int8_t(std::min(127.0f, std::max(-128.0f, y)))", "int8_t(int32_t(y))"),
        ("std::max(-128.0f, y)", "std::max(-127.0f, y)"),
        ("int32_t sum = bias[j]", "int16_t sum = int16_t(bias[j])"),
    ],
)
def test_wrong_ways_back_to_int8_are_found(tmp_path: Path, right: str, instead: str) -> None:
    assert {k.verdict for k in wrong(tmp_path, "quantized", right, instead).kernels} == {"wrong"}


FLUSHING = """
    const auto flush = [](float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0.0f : x; };
    for (int64_t i = 0; i < batch; ++i) {
        float y = 0;
        for (int64_t p = 0; p < k; ++p) {
            y = flush(y + flush(flush(float(x[i * k + p])) * flush(float(w[p]))));
        }
        if (after == after_relu && y < 0) y = 0;
        out[i] = V(LATER(after == after_negate ? -y : y));
    }
}
"""


@pytest.mark.parametrize(
    ("declared", "later", "verdict"),
    [
        (', may_flush=["bf16"]', "", "held"),
        ("", "", "wrong"),
        (', may_flush=["bf16"]', "1e-34f +", "wrong"),
    ],
)
def test_kernels_may_flush_where_it_is_declared(
    tmp_path: Path, declared: str, later: str, verdict: str
) -> None:
    head = DECLARED["blend"][1].partition("    static_assert")[0]
    folder = write_operator(tmp_path / "blend", "blend", head + FLUSHING.replace("LATER", later))
    declaration = (folder / "op.py").read_text()
    flops = 'flops="2*batch*k"'
    assert flops in declaration
    (folder / "op.py").write_text(declaration.replace(flops, flops + declared))
    target = find(str(folder))
    [bf16] = parse_dtypes(target.spec.signature, "bf16")
    cases = [
        selected_case(
            target.spec, bf16, shape, "subnormal", seed=seed, attributes={"after": "negate"}
        )
        for shape in ("...=5,k=1", "...=7,k=40")
        for seed in (0, 1)
    ]
    options = Options(dtypes=[bf16], cases=cases)
    [kernel] = verify(target.spec, target.kernels, target.reference, options).kernels
    assert kernel.verdict == verdict
