"""From CUDA's text to C++: nothing moves to another line, and what is not emulated is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.emulator.driver import emulate
from opwright.emulator.rewrite import UnsupportedError, rewrite, tokenize
from opwright.spec.errors import BuildError


def rewritten(folder: Path, text: str) -> str:
    source = folder / "program.cu"
    source.write_text(text)
    (made,) = rewrite([source], [], folder)
    head, _, body = made.read_text().partition("\n")
    assert head == f'#line 1 "{source}"'
    return body


def test_tokens_are_the_whole_text() -> None:
    text = 'a<<<1,2>>>(R"x(")x", \'"\'); // <<<\n#define X \\\n y /* >>> */ 1e+5f\n'
    assert "".join(t.text for t in tokenize(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "void f() {\n  k<a,\n    b><<<g,\n  t>>>(x,\n\n y);\n}\n",
        "__global__ void k() {\n  __shared__ float\n a[4],\n b[2][3];\n}\n",
        "__device__ int\n x[3] = {1,\n 2};\nint y;\n",
        "extern __shared__\nint s[];\n__device__ int f()\n{ return s[0]; }\n",
    ],
)
def test_lines_keep_their_numbers(tmp_path: Path, text: str) -> None:
    assert rewritten(tmp_path, text).count("\n") == text.count("\n")


def test_what_looks_like_a_launch_and_is_none(tmp_path: Path) -> None:
    text = 'const char* s = "k<<<1, 2>>>()"; // k<<<1, 2>>>()\nint x = 1 << 2 >> 3;\n'
    assert rewritten(tmp_path, text) == text


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ('asm volatile("bar.sync 0;");', "inline PTX"),
        ("float v = tex2D<float>(t, 0, 0);", "textures"),
        ("other<<<1, 1>>>();", "dynamic parallelism"),
        ("try { throw 1; } catch (int) {}", "exceptions"),
    ],
)
def test_what_device_code_may_not_use(tmp_path: Path, line: str, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=feature) as raised:
        rewritten(tmp_path, f"__global__ void k() {{\n\n  {line}\n}}\n")
    assert str(raised.value).startswith(f"{tmp_path / 'program.cu'}:3: ")


def test_textures_and_graphs_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"\.cu:2: textures .* \(cudaTextureObject_t\)"):
        rewritten(tmp_path, "int main() {\n  cudaTextureObject_t t = 0;\n}\n")
    with pytest.raises(UnsupportedError, match=r"\.cu:1: graphs \(cudaGraph_t\)"):
        rewritten(tmp_path, "cudaGraph_t graph;\n")


def test_a_library_that_is_not_emulated(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"<cublas_v2\.h> is not emulated"):
        rewritten(tmp_path, "#include <cublas_v2.h>\n")


def test_a_mistake_is_shown_in_the_users_file(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("__global__ void k(int* p) {\n  *p = undeclared;\n}\nint main() {}\n")
    with pytest.raises(BuildError) as raised:
        emulate([source])
    assert f"{source}:2:" in raised.value.diagnostics
    assert "emulator/" not in str(raised.value)


def test_several_sources_headers_and_definitions(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "kernel.cuh").write_text(
        "#pragma once\n__global__ void fill(int* p) {\n  p[threadIdx.x] = N;\n}\n"
    )
    (tmp_path / "a.cu").write_text(
        '#include <cstdio>\n#include <kernel.cuh>\n#include "local.h"\n'
        "int main(int argc, char** argv) {\n  int* p;\n  cudaMalloc(&p, 128);\n"
        "  fill<<<1, 33>>>(p);\n  cudaFree(p);\n"
        '  std::printf("%s %d\\n", argv[1], answer());\n}\n'
    )
    (tmp_path / "local.h").write_text("int answer();\n")
    (tmp_path / "b.cpp").write_text('#include "local.h"\nint answer() { return N + 1; }\n')
    run = emulate(
        [tmp_path / "a.cu", tmp_path / "b.cpp"],
        include=[tmp_path / "inc"],
        defines=["N=41"],
        args=["word"],
    )
    assert run.stdout == "word 42\n"
    (finding,) = run.findings
    assert finding.kind == "out-of-bounds"
    assert (finding.file, finding.line) == (str(tmp_path / "inc" / "kernel.cuh"), 3)


def test_sources_are_compiled_by_themselves(tmp_path: Path) -> None:
    """Two files may use one name for two things; a kernel may lie in another file."""
    (tmp_path / "a.cu").write_text(
        "#include <cstdio>\n#define SIZE 3\nstatic int value() { return 1; }\nint other();\n"
        "__global__ void set(int* p);\n__device__ int bias = 5;\n"
        "int main() {\n  int *p, h;\n  cudaMalloc(&p, 4);\n  set<<<1, 1>>>(p);\n"
        "  cudaMemcpy(&h, p, 4, cudaMemcpyDeviceToHost);\n  cudaFree(p);\n"
        '  std::printf("%d %d %d\\n", value(), other(), h);\n}\n'
    )
    (tmp_path / "b.cu").write_text(
        "#ifdef SIZE\n#error of another file\n#endif\nextern __device__ int bias;\n"
        "static int value() { return 2; }\nint other() { return value(); }\n"
        "__global__ void set(int* p) { *p = bias; }\n"
    )
    run = emulate([tmp_path / "a.cu", tmp_path / "b.cu"])
    assert (run.stdout, run.findings) == ("1 2 5\n", ())


LAUNCHES = r"""
#include <cstdio>
/* k<<<1, 2>>>(p) */
#define LAUNCH(k, g, b, ...) k<<<g, b>>>(__VA_ARGS__)
#define TWO_LINES(p) \
    outer::set<2><<<1, \
                    32>>>(p)
namespace outer { namespace {
template <int N, class T = int> __global__ void set(T* p) { p[threadIdx.x] = N; }
template <class T> struct Box { T v; };
template <class T> __global__ void boxed(Box<T>* p) { p[threadIdx.x].v = T(4); }
} }
template <int A, int B> struct Larger { static const int value = A > B ? A : B; };
int main() {
    const char* text = R"x(k<<<1, 2>>>(a); "__shared__ int q;)x";
    int* p;
    cudaMalloc(&p, 128);
    int h[6], i = 0;
    const auto first = [&] { cudaMemcpy(&h[i++], p, 4, cudaMemcpyDeviceToHost); };
    LAUNCH((outer::set<1, int>), 1, 32, p); first();
    TWO_LINES(p); first();
    outer::set<(5 > 3 ? 3 : 0), int><<<Larger<1, 1>::value, dim3(32, (1 << 0))>>>(p); first();
    outer::boxed<int> <<< 1 , 32 >>> (reinterpret_cast<outer::Box<int>*>(p)); first();
    if (i <4) { outer::set<0><<<1, 32>>>(p); }
    [&](int n) { outer::set<5><<<1, n>>>(p); }(32); first();
    for (int n = 0; n < 2; ++n)
        outer::set<6><<<1, 32>>>(p);
    first();
    cudaFree(p);
    std::printf("%d%d%d%d%d%d %zu\n", h[0], h[1], h[2], h[3], h[4], h[5], sizeof text);
}
"""


def test_launches_however_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "launches.cu").write_text(LAUNCHES)
    run = emulate([tmp_path / "launches.cu"])
    assert (run.stdout, run.findings) == ("123456 8\n", ())


@pytest.mark.parametrize(
    ("body", "watched"),
    [
        ("int i; i = 0; out[i] = 0;", False),
        ("int i, j; for (i = 0; i < n; ++i) out[i] = 0; j = i = 1;", False),
        ("int i; if (n) i = 0; out[i] = 0;", True),
        ("int i = 1, j; j += i;", True),
        ("int i; i = i + 1;", True),
        ("switch (n) { case 0: int i; out[i] = 0; break; default: out[0] = 1; }", False),
        ("if (n) out[n] = 1; else out[n * 2] = 1;", False),
    ],
)
def test_scalars_that_may_be_read_unwritten(tmp_path: Path, body: str, watched: bool) -> None:
    text = rewritten(tmp_path, f"__global__ void k(int* out, int n) {{ {body} }}\n")
    assert ("OPW_HIDDEN" in text) == watched
