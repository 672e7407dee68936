"""What a declaration means, and how a wrong one is refused: in its own place, naming the fault."""

# ruff: noqa: F821 - dimensions are text, no names
import math
import re
import textwrap
from pathlib import Path
from typing import Any, Literal

import pytest

from opwright import Kernel, T, Tensor, U, V, operator
from opwright.spec.cases import matrix
from opwright.spec.dtypes import DTYPES
from opwright.spec.errors import DeclarationError, OpwrightError, UnknownNameError, UsageError
from opwright.spec.kernel import cdiv
from opwright.spec.operator import evaluate

HEADER = """\
from typing import Literal
from opwright import Kernel, T, Tensor, Tolerance, U, V, operator
import numpy as np

"""


def declare(tmp_path: Path, source: str, future: bool = False) -> dict[str, Any]:
    """Run ``source`` as the file ``op.py``, as a user's declaration is run."""
    path = tmp_path / "op.py"
    text = HEADER + textwrap.dedent(source)
    path.write_text("from __future__ import annotations\n" * future + text)
    names: dict[str, Any] = {"__name__": "op"}
    # The test's own __future__ import must not reach the source.
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    return names


def refused(tmp_path: Path, source: str, future: bool = False) -> tuple[int, str]:
    """The line (of ``source``, from 1) and the message with which ``source`` is refused."""
    with pytest.raises(DeclarationError) as caught:
        declare(tmp_path, source, future)
    place = re.match(rf"{re.escape(str(tmp_path / 'op.py'))}:(\d+): (.+)", str(caught.value))
    assert place is not None, str(caught.value)
    return int(place[1]) - HEADER.count("\n") - future, place[2]


# ----------------------------------------------------------------- the C function that follows


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("written", ['None | Tensor[V, "n"]', 'Optional[Tensor[V, "n"]]'])
def test_an_operand_may_be_optional(tmp_path: Path, future: bool, written: str) -> None:
    """What it alone would settle follows from the rest: here its element type, by the rows."""
    op = declare(
        tmp_path,
        f"""
        from typing import Optional

        @operator(dtypes={{"T V": ["i8 i32", "f32 f32"]}})
        def op(
            x: Tensor[T, "... n"],
            b: {written} = None,
            s: Tensor[T, "..."] | None = None,
        ) -> Tensor[V, "... n"]:
            return x
        """,
        future,
    )["op"]
    assert [p.type.optional for p in op.signature.inputs] == [False, True, True]
    assert [str(p.type) for p in op.signature.inputs] == [
        'Tensor[T, "... n"]', 'Tensor[V, "n"] | None', 'Tensor[T, "..."] | None',
    ]  # fmt: skip
    assert op.signature.c_prototype(kernel=Kernel("cpu_v1.cpp", strided=True)) == (
        "void op(const T* x, const V* b, const T* s, V* out, int64_t batch, int64_t n, "
        "int64_t x_batch_stride, int64_t x_n_stride, int64_t b_n_stride, int64_t s_batch_stride)"
    )
    settled = op.signature.settle_dtypes([DTYPES["i8"].numpy, None, None])
    assert settled == {"T": DTYPES["i8"], "V": DTYPES["i32"]}
    assert op.signature.settle_dims([(2, 3, 5), None, None]) == ({"batch": 6, "n": 5}, (2, 3))


def test_matmul_of_the_design() -> None:
    @operator(dtypes={"T": ["f32", "bf16", "f16"]}, flops="2*m*n*k", torch="torch.matmul")
    def matmul(a: Tensor["T", "m k"], b: Tensor["T", "k n"]) -> Tensor["T", "m n"]:
        """Matrix product."""
        return a @ b

    signature = matmul.signature
    assert signature.c_prototype() == (
        "void matmul(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k)"
    )
    assert signature.c_prototype({"T": DTYPES["bf16"]}) == (
        "void matmul(const opw::bf16* a, const opw::bf16* b, opw::bf16* out, std::int64_t m, "
        "std::int64_t n, std::int64_t k)"
    )
    assert [d["T"].name for d in signature.choices()] == ["f32", "bf16", "f16"]
    assert matmul.flops({"m": 3, "n": 5, "k": 7}) == 2 * 3 * 5 * 7
    assert matmul.__doc__ == "Matrix product."
    assert matmul.name == "matmul"


def test_elementwise_gets_the_number_of_elements_and_its_attributes() -> None:
    @operator(dtypes={"T": ["f32"]})
    def act(
        x: Tensor[T, "..."], alpha: float, steps: int = 3, above: bool = True
    ) -> Tensor[T, "..."]:
        return x * alpha * steps * above

    assert act.signature.c_prototype() == (
        "void act(const T* x, T* out, int64_t n, double alpha, int64_t steps, bool above)"
    )
    assert [s.default for s in act.signature.scalars] == [None, 3, True]


def test_leading_dimensions_beside_named_ones_are_the_batch() -> None:
    @operator(dtypes={"T": ["f32"]})
    def rows(x: Tensor[T, "... d"], w: Tensor[T, "d"]) -> Tensor[T, "... d"]:
        return x * w

    assert rows.signature.c_prototype() == (
        "void rows(const T* x, const T* w, T* out, int64_t batch, int64_t d)"
    )


def test_dtype_variables_fixed_dtypes_and_fixed_sizes() -> None:
    @operator(dtypes={"T": ["i8", "u8"], "U": ["f32", "f64"]})
    def dequantize(
        x: Tensor[T, "m 4"],
        scale: Tensor[U, ""],
        shift: Tensor["i32", "m"],
    ) -> Tensor[U, "m"]:
        return x.sum(axis=1) * scale + shift

    signature = dequantize.signature
    assert signature.c_prototype({"T": DTYPES["u8"], "U": DTYPES["f64"]}) == (
        "void dequantize(const std::uint8_t* x, const double* scale, const std::int32_t* shift, "
        "double* out, std::int64_t m)"
    )
    assert signature.c_prototype() == (
        "void dequantize(const T* x, const U* scale, const int32_t* shift, U* out, int64_t m)"
    )
    assert len(signature.choices()) == 4


def test_rows_of_element_types_are_the_only_combinations() -> None:
    @operator(dtypes={"T U V": ["f32", "i8 i8 i32", "u8 i8 i32"], "W": ["f32", "f64"]})
    def mixed(a: Tensor[T, "m k"], b: Tensor[U, "k"], c: Tensor["W", "m"]) -> Tensor[V, "m"]:
        return a @ b

    assert [[d.name for d in chosen.values()] for chosen in mixed.signature.choices()] == [
        ["f32", "f32", "f32", "f32"],
        ["f32", "f32", "f32", "f64"],
        ["i8", "i8", "i32", "f32"],
        ["i8", "i8", "i32", "f64"],
        ["u8", "i8", "i32", "f32"],
        ["u8", "i8", "i32", "f64"],
    ]
    assert list(mixed.signature.choices()[0]) == ["T", "U", "V", "W"]
    assert mixed.signature.c_prototype() == (
        "void mixed(const T* a, const U* b, const W* c, V* out, int64_t m, int64_t k)"
    )


def test_an_attribute_of_several_words_is_an_index_with_constants() -> None:
    @operator(dtypes={"T": ["f32"]})
    def act(
        x: Tensor[T, "..."], how: Literal["none", "relu6", "2nd"], and_then: Literal["no"] = "no"
    ) -> Tensor[T, "..."]:
        return x

    signature = act.signature
    assert signature.c_prototype() == (
        "void act(const T* x, T* out, int64_t n, int64_t how, int64_t and_then)"
    )
    prelude = signature.c_prelude({"T": DTYPES["f32"]}, Kernel("cpu_v1.cpp"))
    constants = {"how_none": 0, "how_relu6": 1, "how_2nd": 2, "and_then_no": 0}
    for name, value in constants.items():
        assert f"constexpr std::int64_t {name} = {value};" in prelude
    settled = signature.settle_scalars({"how": "2nd"}, {"T": DTYPES["f32"]})
    assert settled == {"how": "2nd", "and_then": "no"}
    assert signature.values({"n": 7}, settled) == [7, 2, 0]


def test_leading_dimensions_that_broadcast_do_not_reach_the_kernel() -> None:
    @operator(dtypes={"T": ["f32"]}, flops="2*m*n*k")
    def product(a: Tensor[T, "#... m k"], b: Tensor[T, "#... k n"]) -> Tensor[T, "#... m n"]:
        return a @ b

    assert product.signature.c_prototype() == (
        "void product(const T* a, const T* b, T* out, int64_t m, int64_t n, int64_t k)"
    )
    assert product.signature.strides == ("a_m_stride", "a_k_stride", "b_k_stride", "b_n_stride")
    assert product.signature.ellipsis == ""


def test_an_operator_without_any_dimension() -> None:
    @operator(dtypes={"T": ["f32"]})
    def twice(x: Tensor[T, ""]) -> Tensor[T, ""]:
        return 2 * x

    assert twice.signature.c_prototype() == "void twice(const T* x, T* out)"
    assert twice.bench == ("",)


def test_presets_of_shapes() -> None:
    @operator(dtypes={"T": ["f32"]}, bench={"small": ["n=1", "n=2"], "big": ["n=9"]})
    def twice(x: Tensor[T, "n"]) -> Tensor[T, "n"]:
        return x

    assert twice.bench == ("n=1", "n=2")
    assert twice.presets["big"] == ("n=9",)


@pytest.mark.parametrize("future", [False, True])
def test_annotations_may_be_text_and_use_local_names(tmp_path: Path, future: bool) -> None:
    names = declare(
        tmp_path,
        """
        def make():
            from opwright import Tensor as Local, T as Element
            size = "k 3"
            @operator(dtypes={"T": ["f32"]})
            def local(x: Local[Element, size], w: "Tensor[T, 'k']") -> Local[Element, size]:
                return x * w[:, None]
            return local
        local = make()
        """,
        future,
    )
    assert names["local"].signature.c_prototype() == (
        "void local(const T* x, const T* w, T* out, int64_t k)"
    )


@pytest.mark.parametrize("file", ["<stdin>", "/no/such/folder/ipykernel_7/1.py"])
def test_declared_at_a_prompt_kernels_are_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpu_v1.cpp").write_text("")
    source = textwrap.dedent(
        """
        @operator(dtypes={"T": ["f32"]})
        def typed(x: Tensor[T, "..."]) -> Tensor[T, "..."]:
            return x
        typed.kernels(Kernel("cpu_v1.cpp"))
        """
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(HEADER + source, file, "exec", dont_inherit=True), names)
    assert names["typed"].rows[0].path == tmp_path / "cpu_v1.cpp"


# ------------------------------------------------------------------------ wrong declarations

GOOD = 'def good(x: Tensor[T, "m k"]) -> Tensor[T, "m k"]:\n    return x\n'

WRONG: dict[str, tuple[str, str]] = {
    "unknown dtype of a variable": (
        '@operator(dtypes={"T": ["f31"]})\n' + GOOD,
        "no dtype named 'f31'; did you mean",
    ),
    "unknown fixed dtype": (
        '@operator()\ndef good(x: Tensor["f23", "m"]) -> Tensor["f32", "m"]:\n    return x\n',
        "'f23' is neither a dtype .* did you mean f32",
    ),
    "dtypes not declared": ("@operator()\n" + GOOD, "'T' is neither a dtype"),
    "dtypes is no table": ('@operator(dtypes=["f32"])\n' + GOOD, "should be like"),
    "one dtype, not in a list": ('@operator(dtypes={"T": "f32"})\n' + GOOD, "expected a list"),
    "no dtypes for a variable": ('@operator(dtypes={"T": []})\n' + GOOD, "T has no dtypes"),
    "a dtype twice": ('@operator(dtypes={"T": ["f32", "f32"]})\n' + GOOD, "'f32' is there twice"),
    "unused variable": ('@operator(dtypes={"T": ["f32"], "V": ["f32"]})\n' + GOOD, "'V'"),
    "variable hiding a dtype": (
        '@operator(dtypes={"i8": ["f32"]})\n'
        'def good(x: Tensor["i8", "m"]) -> Tensor["i8", "m"]:\n    return x\n',
        "would hide the dtype i8",
    ),
    "variable only in the output": (
        '@operator(dtypes={"T": ["f32"], "U": ["f32", "f64"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[U, "m"]:\n    return x\n',
        "U is only in the output",
    ),
    "variable named as a parameter": (
        '@operator(dtypes={"x": ["f32"]})\n'
        'def good(x: Tensor["x", "m"]) -> Tensor["x", "m"]:\n    return x\n',
        "'x' is a dtype variable",
    ),
    "variable that is a C++ word": (
        '@operator(dtypes={"int": ["f32"]})\n'
        'def good(x: Tensor["int", "m"]) -> Tensor["int", "m"]:\n    return x\n',
        "dtype variable 'int'",
    ),
    "output dimension in no input": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[T, "m q"]:\n    return x\n',
        "dimension 'q' of the output is in no input",
    ),
    "output leading dimensions in no input": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[T, "... m"]:\n    return x\n',
        r"dimension '\.\.\.' of the output is in no input",
    ),
    "missing annotation": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y) -> Tensor[T, "m"]:\n    return x\n',
        "parameter y: .* got no annotation",
    ),
    "annotation of another kind": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: str) -> Tensor[T, "m"]:\n    return x\n',
        "parameter y: .*str",
    ),
    "missing return annotation": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "m"]):\n    return x\n',
        "return annotation",
    ),
    "no tensor": (
        "@operator()\ndef good(x: float) -> Tensor['f32', '']:\n    return x\n",
        "at least one tensor",
    ),
    "tensor with a default": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, "m"] = None) -> Tensor[T, "m"]:\n    return x\n',
        r'parameter y: a tensor cannot have a default; .* y: Tensor\[T, "m"\] \| None = None',
    ),
    "optional tensor without its default": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, "m"] | None) -> Tensor[T, "m"]:\n    return x\n',
        r'parameter y: .* y: Tensor\[T, "m"\] \| None = None',
    ),
    "optional tensor with another default": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, "m"] | None = 0) -> Tensor[T, "m"]:\n'
        "    return x\n",
        r'parameter y: .* y: Tensor\[T, "m"\] \| None = None',
    ),
    "optional tensor written wrongly": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, 3] | None = None) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "parameter y: .*should be like Tensor",
    ),
    "only optional tensors": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"] | None = None) -> Tensor[T, "m"]:\n    return x\n',
        "at least one tensor that is always given",
    ),
    "optional result": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[T, "m"] | None:\n    return x\n',
        "return: there always is a result",
    ),
    "dimension of an optional tensor alone": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, "k m"] | None = None) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "y, which a call may leave out, is the only one with the dimension 'k'",
    ),
    "leading dimensions of an optional tensor alone": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[T, "... m"] | None = None) -> Tensor[T, "m"]:\n'
        "    return x\n",
        r"y, which a call may leave out, is the only one with the dimension '\.\.\.'",
    ),
    "leading dimensions of an optional tensor that broadcast": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "#... m"], y: Tensor[T, "#... m"] | None = None)'
        ' -> Tensor[T, "#... m"]:\n    return x\n',
        "y, which a call may leave out, cannot have leading dimensions that broadcast",
    ),
    "element type of an optional tensor alone": (
        '@operator(dtypes={"T": ["f32"], "U": ["i8", "u8"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[U, "m"] | None = None) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "U is only in y, which may be left out, so no call could settle it: i8 or u8",
    ),
    "tensor after an attribute": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(a: float, x: Tensor[T, "m"]) -> Tensor[T, "m"]:\n    return x\n',
        "parameter x: tensors come before attributes",
    ),
    "tensor by name only": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(*, x: Tensor[T, "m"]) -> Tensor[T, "m"]:\n    return x\n',
        "parameter x: tensors come before",
    ),
    "attribute by position only": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], a: float, /) -> Tensor[T, "m"]:\n    return x\n',
        "parameter a: an attribute is given by name",
    ),
    "any number of parameters": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(*x: Tensor[T, "m"]) -> Tensor[T, "m"]:\n    return x\n',
        "parameter x: .*no \\* or \\*\\*",
    ),
    "default of another type": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], a: int = 0.5) -> Tensor[T, "m"]:\n    return x\n',
        "attribute a is a int, got 0.5",
    ),
    "parameter that is a C++ word": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], template: float = 0.0) -> Tensor[T, "m"]:\n    return x\n',
        "parameter 'template'",
    ),
    "parameter that is a macro": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(NAN: Tensor[T, "m"]) -> Tensor[T, "m"]:\n'
        "    return NAN\n",
        "parameter 'NAN'",
    ),
    "parameter called out": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(out: Tensor[T, "m"]) -> Tensor[T, "m"]:\n'
        "    return out\n",
        "parameter 'out'",
    ),
    "parameter no compiler takes": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], \u03b1: float = 1.0) -> Tensor[T, "m"]:\n    return x\n',
        "parameter '\u03b1' cannot be a name",
    ),
    "operator that is a C++ word": (
        '@operator(dtypes={"T": ["f32"]})\ndef double(x: Tensor[T, "m"]) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "operator 'double'",
    ),
    "operator that is a function of C": (
        '@operator(dtypes={"T": ["f32"]})\ndef exp(x: Tensor[T, "m"]) -> Tensor[T, "m"]:\n'
        "    return np.exp(x)\n",
        "the C library has a function of this name",
    ),
    "operator without a name": (
        'operator(dtypes={"T": ["f32"]})(lambda x: x)\n',
        "operator '<lambda>'",
    ),
    "operator that is no function": (
        'operator(dtypes={"T": ["f32"]})(np.matmul)\n',
        "declared by a function",
    ),
    "dimension called as a parameter": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "x"]) -> Tensor[T, "x"]:\n'
        "    return x\n",
        "dimension 'x' is also the name of something else",
    ),
    "dimension called as a dtype variable": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "T"]) -> Tensor[T, "T"]:\n'
        "    return x\n",
        "dimension 'T' is also the name of something else",
    ),
    "dimension that is a C++ word": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "for"]) -> Tensor[T, "for"]:\n'
        "    return x\n",
        "dimension 'for'",
    ),
    "dimension called as '...' is": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "... batch"]) -> Tensor[T, "... batch"]:\n    return x\n',
        "no dimension can be called 'batch'",
    ),
    "dimensions that are no words": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "m+1"]) -> Tensor[T, "m"]:\n'
        "    return x\n",
        r"parameter x: dimensions 'm\+1': 'm\+1' is neither",
    ),
    "'...' that does not come first": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T, "m ..."]) -> Tensor[T, "m"]:\n'
        "    return x\n",
        r"parameter x: .*'\.\.\.' can only come first",
    ),
    "tensor without dimensions": (
        '@operator(dtypes={"T": ["f32"]})\ndef good(x: Tensor[T]) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "parameter x: Tensor.* should be like",
    ),
    "tensor of a NumPy dtype": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[np.float32, "m"]:\n    return x\n',
        "return: Tensor's element type",
    ),
    "row of two element types for three variables": (
        '@operator(dtypes={"T U V": ["f32", "i8 i32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[U, "m"]) -> Tensor[V, "m"]:\n    return x + y\n',
        "'i8 i32' should name one dtype, or one for each of T, U, V",
    ),
    "row that is there twice": (
        '@operator(dtypes={"T U": ["f32", "f32 f32"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[U, "m"]) -> Tensor[T, "m"]:\n    return x + y\n',
        "'f32 f32' is there twice",
    ),
    "row with an unknown dtype": (
        '@operator(dtypes={"T U": ["f32", "i8 i23"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[U, "m"]) -> Tensor[T, "m"]:\n    return x + y\n',
        "no dtype named 'i23'",
    ),
    "variable in two keys": (
        '@operator(dtypes={"T U": ["f32"], "U": ["f64"]})\n'
        'def good(x: Tensor[T, "m"], y: Tensor[U, "m"]) -> Tensor[T, "m"]:\n    return x + y\n',
        "the dtype variable 'U' is there twice",
    ),
    "rows that no call could tell apart": (
        '@operator(dtypes={"T V": ["f32", "f32 f64"]})\n'
        'def good(x: Tensor[T, "m"]) -> Tensor[V, "m"]:\n    return x\n',
        "V is only in the output, so no call could settle it: f32 or f64",
    ),
    "broadcasting and not": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "#... m"], y: Tensor[T, "... m"]) -> Tensor[T, "#... m"]:\n'
        "    return x + y\n",
        "leading dimensions are '...' or '#...' throughout, not both",
    ),
    "items without a place in the output": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "#... m"]) -> Tensor[T, "m"]:\n    return x\n',
        "the output has no '#...'",
    ),
    "items without a dimension": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "#..."]) -> Tensor[T, "#..."]:\n    return x\n',
        "beside '#...' no dimension is left for the kernel; use '...'",
    ),
    "broadcasting mark that is not first": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m #..."]) -> Tensor[T, "m"]:\n    return x\n',
        "'#...' can only come first",
    ),
    "word that is none": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], a: Literal["one", "t-w-o"]) -> Tensor[T, "m"]:\n'
        "    return x\n",
        "parameter a: 't-w-o' cannot be a word",
    ),
    "word that is a number": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], a: Literal[1, 2]) -> Tensor[T, "m"]:\n    return x\n',
        "parameter a: 1 cannot be a word",
    ),
    "word whose constant is a dimension": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "a_m"], a: Literal["m"]) -> Tensor[T, "a_m"]:\n    return x\n',
        "'a_m', a constant for a word of a, is also the name",
    ),
    "default that is no word": (
        '@operator(dtypes={"T": ["f32"]})\n'
        'def good(x: Tensor[T, "m"], a: Literal["one"] = "on") -> Tensor[T, "m"]:\n'
        "    return x\n",
        "no a named 'on' in good; did you mean one",
    ),
    "threshold naming words": (
        '@operator(dtypes={"T": ["f32"]}, thresholds=["a"])\n'
        'def good(x: Tensor[T, "m"], a: Literal["one"] = "one") -> Tensor[T, "m"]:\n'
        "    return x\n",
        "no attribute named 'a'",
    ),
    "flops with an unknown name": (
        '@operator(dtypes={"T": ["f32"]}, flops="2*m*j")\n' + GOOD,
        "cannot use 'j'; dimensions are m, k",
    ),
    "flops that call": ('@operator(dtypes={"T": ["f32"]}, flops="abs(m)")\n' + GOOD, "abs"),
    "flops that do not parse": ('@operator(dtypes={"T": ["f32"]}, flops="2*")\n' + GOOD, "'2\\*'"),
    "flops without quotes": ('@operator(dtypes={"T": ["f32"]}, flops=2)\n' + GOOD, "in quotes"),
    "flops that divide by an empty dimension": (
        '@operator(dtypes={"T": ["f32"]}, flops="m/k")\n' + GOOD,
        "no value at m=.*k=0",
    ),
    "threshold naming no attribute": (
        '@operator(dtypes={"T": ["f32"]}, thresholds=["alpha"])\n' + GOOD,
        "no attribute named 'alpha'",
    ),
    "threshold not in a list": (
        '@operator(dtypes={"T": ["f32"]}, thresholds="a")\n'
        'def good(x: Tensor[T, "m"], a: float = 1.0) -> Tensor[T, "m"]:\n    return x\n',
        "thresholds: expected a list",
    ),
    "threshold that is no number": (
        '@operator(dtypes={"T": ["f32"]}, thresholds=[None])\n' + GOOD,
        "thresholds: None is neither",
    ),
    "overflow of no known kind": (
        '@operator(dtypes={"T": ["i8"]}, overflow="clamp")\n' + GOOD,
        "overflow='clamp'",
    ),
    "bench shape of unknown dimension": (
        '@operator(dtypes={"T": ["f32"]}, bench=["m=1,q=2"])\n' + GOOD,
        "no dimension named 'q'",
    ),
    "bench shape lacking a dimension": (
        '@operator(dtypes={"T": ["f32"]}, bench=["m=1"])\n' + GOOD,
        "no size given for k",
    ),
    "bench shape that is no number": (
        '@operator(dtypes={"T": ["f32"]}, bench=["m=1,k=big"])\n' + GOOD,
        "'big' is no size",
    ),
    "bench shape that does not broadcast": (
        '@operator(dtypes={"T": ["f32"]}, bench=["...=2|3,m=1"])\n'
        'def good(x: Tensor[T, "#... m"], y: Tensor[T, "#... m"]) -> Tensor[T, "#... m"]:\n'
        "    return x + y\n",
        "leading dimensions .2,. of x and .3,. of y do not broadcast",
    ),
    "bench shape not in a list": (
        '@operator(dtypes={"T": ["f32"]}, bench="m=1,k=2")\n' + GOOD,
        "bench: expected a list",
    ),
    "may_flush of what no input is": (
        '@operator(dtypes={"T": ["f32"]}, may_flush=["bf16"])\n' + GOOD,
        "may_flush: no input of good can be bf16",
    ),
    "may_flush of what is not computed in float32": (
        '@operator(dtypes={"T": ["f64"]}, may_flush=["f64"])\n' + GOOD,
        "may_flush: f64 is not computed with in float32",
    ),
    "may_flush not in a list": (
        '@operator(dtypes={"T": ["f32"]}, may_flush="f32")\n' + GOOD,
        "may_flush: expected a list",
    ),
    "may_flush beside a tolerance": (
        '@operator(dtypes={"T": ["f32"]}, may_flush=["f32"], tolerance=Tolerance(ulps=2))\n' + GOOD,
        "may_flush is for derived tolerances",
    ),
    "rows of no dimension": (
        '@operator(dtypes={"T": ["f32"]}, rows="q")\n' + GOOD,
        "no dimension named 'q' in good: rows",
    ),
    "rows where nothing broadcasts": (
        '@operator(dtypes={"T": ["f32"]}, rows="m")\n' + GOOD,
        "rows='m': rows are stacked over '#...', which no tensor has",
    ),
    "rows that the output has not": (
        '@operator(dtypes={"T": ["f32"]}, rows="k")\n'
        'def good(x: Tensor[T, "#... m k"]) -> Tensor[T, "#... m"]:\n    return x.sum(-1)\n',
        "rows='k': the output has no such dimension",
    ),
    "rows that are columns too": (
        '@operator(dtypes={"T": ["f32"]}, rows="m")\n'
        'def good(x: Tensor[T, "#... m m"]) -> Tensor[T, "#... m"]:\n    return x.sum(-1)\n',
        "rows='m': it stands twice in x",
    ),
    **{
        f"limits {limit!r}": (
            f'@operator(dtypes={{"T": ["f32"]}}, limits={limit!r})\n'
            'def good(x: Tensor[T, "m"], by: float = 2.0, to: int = 3, n: bool = True) -> '
            'Tensor[T, "m"]:\n    return by * x\n',
            said,
        )
        for limit, said in (
            ("0 < by", "limits: expected a list"),
            (["0 < bye"], "no number named 'bye' in the attributes of good; did you mean by"),
            (["0 < n"], "no number named 'n'"),
            (["0 < by", "by < 5"], "by has two"),
            (["by > 2"], "attribute by has a default that is not by > 2"),
            (["4 <= to < 9"], "attribute to has a default that is not 4 <= to < 9"),
            (["by"], "should be like '0 < scale < inf'"),
            (["0 < by <"], "should be like '0 < scale < inf'"),
            (["by != 0"], "should be like '0 < scale < inf'"),
            (["0 < 1 < by"], "should be like '0 < scale < inf'"),
            (["0 < by > 1"], "should be like '0 < scale < inf'"),
            (["0 < by < to"], "should be like '0 < scale < inf'"),
            (["0 < by < f(2)"], "should be like '0 < scale < inf'"),
        )
    },
    "bench without presets": (
        '@operator(dtypes={"T": ["f32"]}, bench={})\n' + GOOD,
        "bench={} has no presets",
    ),
    "preset of no shapes": (
        '@operator(dtypes={"T": ["f32"]}, bench={"odd": []})\n' + GOOD,
        "has no shapes",
    ),
    "preset of a wrong shape": (
        '@operator(dtypes={"T": ["f32"]}, bench={"square": ["m=1,k=1"], "odd": ["m=1"]})\n' + GOOD,
        "no size given for k",
    ),
    "preset of several words": (
        '@operator(dtypes={"T": ["f32"]}, bench={"odd,square": ["m=1,k=1"]})\n' + GOOD,
        "the preset 'odd,square' should be one word",
    ),
    "torch without a module": (
        '@operator(dtypes={"T": ["f32"]}, torch="matmul")\n' + GOOD,
        "dotted path",
    ),
    "tolerance that is none": (
        '@operator(dtypes={"T": ["f32"]}, tolerance=1e-5)\n' + GOOD,
        "tolerance=1e-05 should be like",
    ),
    "tolerance with negative ulps": (
        '@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(ulps=-1))\n' + GOOD,
        "ulps=-1",
    ),
    "tolerance depth of unknown name": (
        '@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(depth="j"))\n' + GOOD,
        "cannot use 'j'",
    ),
    "tolerance terms of other parameters": (
        '@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(terms=lambda x, y: x))\n' + GOOD,
        "terms of the tolerance should take the formula's parameters",
    ),
}


@pytest.mark.parametrize("future", [False, True], ids=["", "future-annotations"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_declaration_is_refused_in_its_place(tmp_path: Path, name: str, future: bool) -> None:
    source, message = WRONG[name]
    line, found = refused(tmp_path, "\n\n" + source, future)
    assert line == 3
    assert re.search(message, found), found


@pytest.mark.parametrize("future", [False, True], ids=["", "future-annotations"])
def test_unknown_name_in_an_annotation_given_as_text(tmp_path: Path, future: bool) -> None:
    source = """
    @operator(dtypes={"T": ["f32"]})
    def good(x: "Tensr[T, 'm']") -> Tensor[T, "m"]:
        return x
    """
    line, found = refused(tmp_path, source, future)
    assert line == 2
    assert "parameter x" in found and "Tensr" in found


# ----------------------------------------------------------------------------------- kernels

WRONG_ROWS: dict[str, tuple[str, str]] = {
    "missing file": ('Kernel("cpu_v9.cpp")', "cpu_v9.cpp does not exist"),
    "file that is no word": ('Kernel("v-1.cpp")', "must be a word"),
    "empty tune list": ('Kernel("cpu_v1.cpp", tune={"TILE": []})', "TILE needs a list"),
    "tune of one number": ('Kernel("cpu_v1.cpp", tune={"TILE": 16})', "TILE needs a list"),
    "tune of fractions": ('Kernel("cpu_v1.cpp", tune={"TILE": [8, 0.5]})', "TILE needs a list"),
    "tune of truth values": ('Kernel("cpu_v1.cpp", tune={"TILE": [True]})', "TILE needs a list"),
    "tune value twice": ('Kernel("cpu_v1.cpp", tune={"TILE": [8, 8]})', "TILE lists a value twice"),
    "tune is a list": ('Kernel("cpu_v1.cpp", tune=["TILE"])', "tune="),
    "tunable that is no word": ('Kernel("cpu_v1.cpp", tune={"TILE-M": [8]})', "'TILE-M'"),
    "tunable that is a C++ word": ('Kernel("cpu_v1.cpp", tune={"int": [8]})', "'int'"),
    "tunable that is a dimension": ('Kernel("cpu_v1.cpp", tune={"m": [8]})', "tunable m, a macro"),
    "tunable that is a variable": ('Kernel("cpu_v1.cpp", tune={"T": [8]})', "tunable T, a macro"),
    "unknown instruction set": ('Kernel("cpu_v1.cpp", isa="avx3")', "no instruction set named"),
    "unknown dtype": ('Kernel("cpu_v1.cpp", dtypes=["f33"])', "no dtype named 'f33'"),
    "dtype not declared": ('Kernel("cpu_v1.cpp", dtypes=["f64"])', "not declared for f64"),
    "dtypes not in a list": ('Kernel("cpu_v1.cpp", dtypes="f32")', "dtypes: expected a list"),
    "flags not in a list": ('Kernel("cpu_v1.cpp", flags="-O3")', "flags: expected a list"),
    "threads that are no truth value": ('Kernel("cpu_v1.cpp", threads="no")', "threads='no'"),
    "strided that is no truth value": ('Kernel("cpu_v1.cpp", strided=1)', "strided=1 should be"),
    "two rows of one file": (
        'Kernel("cpu_v1.cpp"), Kernel("cpu_v1.cpp")',
        "two kernels are called cpu_v1",
    ),
    "two files of one name": (
        'Kernel("cpu_v1.cpp"), Kernel("cpu_v1.cc")',
        "two kernels are called cpu_v1",
    ),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_row_is_refused_at_its_own_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "cpu_v1.cpp").write_text("")
    (tmp_path / "cpu_v1.cc").write_text("")
    (tmp_path / "cpu_v0.cpp").write_text("")
    row, message = WRONG_ROWS[name]
    source = f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}good.kernels(\n    Kernel(\n'
    source += f'        "cpu_v0.cpp",\n    ),\n    {row},\n)\n'
    line, found = refused(tmp_path, source)
    assert line == 8
    assert re.search(message, found), found


TWO = """
@operator(dtypes={"T U": ["f32", "i8 i32"]})
def two(x: Tensor[T, "m"], y: Tensor[T, "m"]) -> Tensor[U, "m"]:
    return x + y
"""


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('packs="y"', "cpu_v1 packs y and cpu_v0 packs x: the rows of an operator pack the same"),
        ('dtypes=["i8"]', "dtypes=\\['i8'\\] leave none of the element types.*T=i8,U=i32"),
    ],
)
def test_rows_that_could_never_be_used(tmp_path: Path, second: str, message: str) -> None:
    (tmp_path / "cpu_v0.cpp").write_text("")
    (tmp_path / "cpu_v1.cpp").write_text("")
    rows = ['    Kernel("cpu_v0.cpp", packs="x"),', f'    Kernel("cpu_v1.cpp", {second}),']
    line, found = refused(tmp_path, "\n".join([TWO + "two.kernels(", *rows, ")\n"]))
    assert line == 7
    assert re.search(message, found), found


def test_the_list_of_kernels_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "cpu_v1.cpp").write_text("")
    source = (
        f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}' + 'good.kernels(Kernel("cpu_v1.cpp"))\n' * 2
    )
    line, found = refused(tmp_path, source)
    assert (line, "already has its list of kernels" in found) == (5, True)


def test_a_wrong_row_leaves_no_half_list(tmp_path: Path) -> None:
    (tmp_path / "cpu_v1.cpp").write_text("")
    names = declare(tmp_path, f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}')
    with pytest.raises(DeclarationError):
        names["good"].kernels(Kernel("cpu_v1.cpp"), Kernel("cpu_v2.cpp"))
    assert names["good"].rows == ()


def test_kernels_may_be_limited_to_fixed_dtypes(tmp_path: Path) -> None:
    (tmp_path / "cpu_v1.cpp").write_text("")
    names = declare(
        tmp_path,
        """
        @operator()
        def fixed(x: Tensor["i8", "m"]) -> Tensor["i32", "m"]:
            return x
        fixed.kernels(Kernel("cpu_v1.cpp", dtypes=["i8", "i32"]))
        """,
    )
    assert names["fixed"].rows[0].dtypes == ["i8", "i32"]


def test_a_row_knows_its_name_backend_and_parameters() -> None:
    row = Kernel("cuda_v2_tiled.cu", tune={"TILE": [8, 16]}, flags=["-Ofast"])
    assert (row.name, row.backend, row.defaults, row.fast_math) == (
        "cuda_v2_tiled",
        "cuda",
        {"TILE": 8},
        True,
    )
    assert row.params({"TILE": 16}) == {"TILE": 16}
    with pytest.raises(UsageError, match="TILE=9 is not among"):
        row.params({"TILE": 9})
    with pytest.raises(UsageError, match="no tunable 'BLOCK'; it has: TILE"):
        row.params({"BLOCK": 9})


def test_unknown_kernel_offers_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "cpu_v1_naive.cpp").write_text("")
    names = declare(
        tmp_path,
        f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}good.kernels(Kernel("cpu_v1_naive.cpp"))\n',
    )
    assert names["good"].row("cpu_v1_naive.cpp") is names["good"].row("cpu_v1_naive")
    with pytest.raises(UnknownNameError, match="did you mean cpu_v1_naive"):
        names["good"].row("cpu_v1_naiv")


# ------------------------------------------------------------------------------- known-wrong


def test_known_wrong_variants_take_the_formulas_parameters(tmp_path: Path) -> None:
    source = f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}'
    source += '@good.known_wrong("halved")\ndef bad(x, y):\n    return x / 2\n'
    line, found = refused(tmp_path, source)
    assert line == 4
    assert re.search(r"'halved' should take the formula's parameters \(x\)", found), found


def test_two_known_wrong_variants_of_one_name(tmp_path: Path) -> None:
    source = f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}'
    source += '@good.known_wrong("halved")\ndef bad(x):\n    return x / 2\n' * 2
    line, found = refused(tmp_path, source)
    assert (line, "two known-wrong variants" in found) == (7, True)


# -------------------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*m*n*k", 210.0),
        (" m // 2 + n ** 2 ", 26.0),
        ("-m + 0.5", -2.5),
        ("2*m*n*k + 1e3", 1210.0),
        ("7", 7.0),
    ],
)
def test_expressions(expression: str, value: float) -> None:
    assert evaluate(expression, {"m": 3, "n": 5, "k": 7}) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "m n", "m; n", "m.real", "m[0]", "__import__('os')", "'m'", "True", "m if m else n"),
        *("m < n", "1/0", "10.0**999", "(0-1)**0.5", "m\0", "1j"),
    ],
)
def test_what_is_no_expression(expression: str) -> None:
    with pytest.raises(UsageError):
        evaluate(expression, {"m": 3, "n": 5})


def test_expressions_of_huge_sizes_are_quick_and_finite() -> None:
    assert evaluate("2*m*n*k", dict.fromkeys("mnk", 2**62)) == 2.0**187
    with pytest.raises(UsageError, match="no value at m="):
        evaluate("m**m", {"m": 2**62})


@pytest.mark.parametrize(
    ("a", "b", "tiles"), [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2), (2**62 + 1, 2, 2**61 + 1)]
)
def test_cdiv(a: int, b: int, tiles: int) -> None:
    assert cdiv(a, b) == tiles


def test_every_error_of_a_declaration_is_opwrights() -> None:
    assert issubclass(DeclarationError, UsageError)
    assert issubclass(UsageError, OpwrightError)
    assert DeclarationError.exit_code == 2


def test_the_reserved_names_are_what_the_compiler_refuses() -> None:
    from keyword import kwlist

    from opwright.spec.signature import C_LIBRARY, RESERVED

    shared_with_python = {"and", "break", "class", "for", "if", "not", "or", "return", "while"}
    assert shared_with_python <= set(kwlist) & RESERVED
    # Every function of the C library that Python's math module is made of.
    import math

    from_c = {n for n in dir(math) if n in C_LIBRARY}
    assert {"exp", "tanh", "pow", "fabs", "floor", "sqrt", "erf"} <= from_c
    assert not {"relu", "softmax", "matmul", "gelu", "scale", "sum", "clip"} & C_LIBRARY


def test_module_scope_is_not_kept(tmp_path: Path) -> None:
    """The declaring frame's names serve the annotations alone."""
    names = declare(tmp_path, f'@operator(dtypes={{"T": ["f32"]}})\n{GOOD}')
    kept = vars(names["good"]).values()
    assert not any(value is names for value in kept)


def test_an_ellipsis_may_stand_without_quotes() -> None:
    @operator(dtypes={"T": ["f32"]})
    def same(x: Tensor[T, ...]) -> Tensor[T, "..."]:
        return x

    assert same.signature.c_prototype() == "void same(const T* x, T* out, int64_t n)"


@pytest.mark.parametrize(
    ("limit", "within", "outside"),
    [
        ("0 < by < inf", [5e-324, 1e308], [0.0, -1.0, math.inf, math.nan]),
        ("-128 <= by <= 127", [-128, 127, 0.5], [-128.5, 127.5, math.nan]),
        ("1 > by >= -1e-3", [0.5, -1e-3], [1, -0.002, -math.inf]),
        ("by >= 1", [1, math.inf], [0.9, -math.inf, math.nan]),
        ("-inf < by", [-1e308, math.inf], [-math.inf, math.nan]),
    ],
)
def test_limits_of_attributes(limit: str, within: list[float], outside: list[float]) -> None:
    @operator(dtypes={"T": ["f64"]}, limits=[limit])
    def shifted(x: Tensor[T, "n"], by: float = within[0]) -> Tensor[T, "n"]:
        return x + by

    settle = shifted.signature.settle_scalars
    for value in within:
        assert settle({"by": value}, {"T": DTYPES["f64"]}) == {"by": value}
    for value in outside:
        with pytest.raises(UsageError, match=f"attribute by is {value}; it should be {limit}"):
            settle({"by": value}, {"T": DTYPES["f64"]})
    # The matrix of cases keeps to them.
    for case in matrix(shifted, {"T": DTYPES["f64"]}, ()):
        value = case.attributes["by"]
        assert value in within or settle({"by": value}, {"T": DTYPES["f64"]})


def test_attributes_without_a_default_have_one_within_their_limit(tmp_path: Path) -> None:
    _, message = refused(
        tmp_path,
        """
        @operator(dtypes={"T": ["f32"]}, limits=["2 <= by"])
        def shifted(x: Tensor[T, "n"], by: int) -> Tensor[T, "n"]:
            return x + by
        """,
    )
    assert "attribute by has no default, and 1 is not 2 <= by" in message
