"""What a kernel's source is told, and what its author is told when it does not fit."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from kernels import F32, HEAD, RIGHT, add, build, kernel

from opwright import T, Tensor
from opwright.backends.cpu import CpuBackend
from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import BuildError
from opwright.spec.operator import OperatorSpec

EXPECTED = 'extern "C" void add(const T* a, const T* b, T* out, int64_t n, int64_t mode);'


@OperatorSpec.declare(dtypes={"T": ["f32"]})
def Py_GetVersion(x: Tensor[T, "..."]) -> Tensor[T, "..."]:  # noqa: N802
    """A copy, under the name of a function that this process has already."""
    return x


def test_tunables_and_element_types_are_macros(tmp_path: Path) -> None:
    text = 'static_assert(sizeof(T) == 8 && BLOCK == 32, "macros");\n' + RIGHT
    row = kernel(tmp_path, "macros", text, tune={"BLOCK": [16, 32]})
    f64 = dtype_named("f64")
    artifact = CpuBackend().build(add.signature, row, {"T": f64}, {"BLOCK": 32})
    assert artifact.kernel == "cpu_macros"
    assert artifact.source_hash == hashlib.sha256(text.encode()).hexdigest()
    assert {"-DT=double", "-DBLOCK=32"} <= set(artifact.flags)
    assert not artifact.cached
    assert CpuBackend().build(add.signature, row, {"T": f64}, {"BLOCK": 32}).cached
    with pytest.raises(BuildError, match="macros"):
        CpuBackend().build(add.signature, row, {"T": f64}, {"BLOCK": 16})


def test_the_rows_instruction_set_reaches_the_compiler(tmp_path: Path) -> None:
    needs = "#if !defined(__AVX2__)\n#error built without AVX2\n#endif\n"
    if CpuBackend().missing(kernel(tmp_path, "any", RIGHT, isa="avx2")).startswith("not x86"):
        pytest.skip("no x86-64")
    assert build(tmp_path, "vector", needs + RIGHT, isa="avx2").isa == "avx2"
    with pytest.raises(BuildError, match="without AVX2"):
        build(tmp_path, "scalar", needs + RIGHT)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("empty", "// nothing here\n", "defines no function add with C linkage"),
        ("other_name", RIGHT.replace("void add", "void addition"), "defines no function add"),
        # Another type makes an overload with C++ linkage, or with C linkage a conflict.
        (
            "overload",
            RIGHT.replace('extern "C" ', "").replace("const T* b", "const double* b"),
            "defines no function add",
        ),
        ("types", RIGHT.replace("const T* b", "const double* b"), "with another signature"),
        ("count", RIGHT.replace(", int64_t mode", "").replace("(void)mode", ""), "another"),
        ("result", RIGHT.replace("void add", "int add"), "defines add with another signature"),
    ],
)
def test_the_expected_signature_is_shown(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(BuildError) as caught:
        build(tmp_path, name, text)
    message = str(caught.value)
    assert said in message
    assert EXPECTED in message
    assert f"cpu_{name}.cpp" in message
    assert "T=f32" in message


def test_other_errors_are_the_compilers_own(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "typo", RIGHT.replace("out[i] =", "uot[i] ="))
    assert "uot" in caught.value.diagnostics
    assert EXPECTED not in str(caught.value)
    with pytest.raises(BuildError, match="helper") as caught:
        build(tmp_path, "helper", "void helper();\n" + RIGHT.replace("(void)mode", "helper()"))
    assert EXPECTED not in str(caught.value)


TESTS_FOR_NAN = (
    "#include <cmath>\n" + HEAD + "    for (int64_t i = 0; i < n; ++i)"
    " out[i] = std::isnan(a[i]) ? 0 : b[i];\n}\n"
)


@pytest.mark.parametrize(
    ("flag", "text", "warned"),
    [
        ("-ffast-math", TESTS_FOR_NAN, True),
        ("-Ofast", HEAD + "    (void)a, (void)b; if (n) *out = -__builtin_inff();\n}\n", True),
        ("-ffast-math", RIGHT, False),
        ("-ffast-math", "// no isnan here\n/* nor INFINITY */\n" + RIGHT, False),
        ("-freciprocal-math", TESTS_FOR_NAN, False),
        ("-O2", TESTS_FOR_NAN, False),
    ],
)
def test_fast_math_beside_tests_for_nan_is_warned_of(
    tmp_path: Path, flag: str, text: str, warned: bool
) -> None:
    artifact = build(tmp_path, "fast", text, flags=(flag,))
    assert artifact.fast_math == (flag != "-O2")
    assert ("NaN and infinity do not occur" in artifact.warnings) == warned


def test_a_kernel_named_like_a_function_of_the_process_is_the_one_called(tmp_path: Path) -> None:
    row = kernel(
        tmp_path,
        "version",
        'extern "C" void Py_GetVersion(const T* x, T* out, int64_t n) {\n'
        "    for (int64_t i = 0; i < n; ++i) out[i] = x[i];\n}\n",
    )
    artifact = CpuBackend().build(Py_GetVersion.signature, row, {"T": F32}, {})
    x = np.arange(10, dtype=np.float32)
    out = np.zeros(10, np.float32)
    CpuBackend().bind(artifact)([x], out, (10,), 1)
    np.testing.assert_array_equal(out, x)
