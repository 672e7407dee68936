"""The tree in an empty prefix, used as the HOWTO says by C, C++, Python, NumPy and torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from ship.tools import howto, need, python, run


def test_c_by_pkg_config(prefix: Path, tmp_path: Path) -> None:
    need("cc", "pkg-config")
    (tmp_path / "program.c").write_text(howto("c")[0])
    env = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run(["pkg-config", "--cflags", "--libs", "fastops"], env).split()
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run(["cc", *warnings, "program.c", *flags, "-o", "program"], cwd=tmp_path)
    said = run([str(tmp_path / "program")], {"LD_LIBRARY_PATH": str(prefix / "lib")})
    # [[1,2,3],[4,5,6]] times [[1,0],[0,1],[1,1]]
    assert said == "4 5 10 11\n"


@pytest.mark.parametrize("standard", ["c11", "c++17"])
def test_beside_dlpack_s_own_header(prefix: Path, tmp_path: Path, standard: str) -> None:
    need("cc")
    tvm_ffi = pytest.importorskip("tvm_ffi")
    found = list(Path(tvm_ffi.__file__).parent.rglob("dlpack/dlpack.h"))
    if not found:
        pytest.skip("this tvm_ffi has no dlpack.h")
    own = "#include <dlpack/dlpack.h>\n"
    include = "#include <fastops.h>\n"
    for text in (own + include, include, include + own):
        source = tmp_path / "source"
        source.write_text(text + "DLManagedTensor *managed;\n")
        language = "c" if standard == "c11" else "c++"
        flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-std={standard}", "-x", language]
        folders = [f"-I{prefix / 'include'}", f"-I{found[0].parents[1]}"]
        run(["cc", *flags, *folders, str(source)])


def test_cpp_by_find_package(prefix: Path, tmp_path: Path) -> None:
    need("cmake", "c++", "make")
    (tmp_path / "CMakeLists.txt").write_text(howto("cmake")[0])
    (tmp_path / "program.cpp").write_text(howto("cpp")[0])
    build = tmp_path / "build"
    run(["cmake", "-S", str(tmp_path), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"])
    run(["cmake", "--build", str(build)])
    *values, by, path = run([str(build / "program")], {"FASTOPS_FORCE": "baseline"}).split()
    # tanh(-1), tanh(1/4), and 3 * 2
    assert [float(v) for v in values] == pytest.approx([-0.761594, 0.244919, 6.0], abs=1e-6)
    assert (by, path) == ("by", "baseline")


def test_a_version_too_old_is_not_found(prefix: Path, tmp_path: Path) -> None:
    need("cmake", "c++", "make")
    text = howto("cmake")[0].replace("fastops 0.1 REQUIRED", "fastops 1.0 QUIET")
    (tmp_path / "program.cpp").write_text("int main() {}\n")
    text = text.split("add_executable")[0] + 'message("found=${fastops_FOUND}")\n'
    (tmp_path / "CMakeLists.txt").write_text(text)
    run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_PREFIX_PATH={prefix}"])
    cache = (tmp_path / "b" / "CMakeCache.txt").read_text()
    assert "fastops_DIR:PATH=fastops_DIR-NOTFOUND" in cache


def test_python_with_only_numpy(prefix: Path, tmp_path: Path) -> None:
    (wheel,) = (prefix / "python").glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, "--disable-pip-version-check", "--target", str(site), str(wheel)])
    packages = Path(sysconfig.get_paths()["platlib"])
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    code = howto("python")[0] + (
        "import importlib.util as u\n"
        "print([m for m in ('opwright', 'ml_dtypes', 'torch') if u.find_spec(m)])\n"
    )
    # -S: without the site's packages, so only what is in the folder.
    said = run([sys.executable, "-S", "-c", code], {"PYTHONPATH": str(site)}).splitlines()
    assert said[0] == "[[5.0, 14.0], [14.0, 50.0]]"
    tanh = np.tanh(np.array([0.0, 1.0, 2.0])).tolist()
    row, linear = eval(said[1])
    assert row == pytest.approx(tanh, abs=1e-6)
    assert linear == [30.0, 40.0, 50.0]
    assert said[2].startswith("('threshold_activation', 'f32', ")
    assert said[3] == "[]"


def test_the_wheel_refuses_in_python_s_terms(prefix: Path, tmp_path: Path) -> None:
    (wheel,) = (prefix / "python").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path, "zip")
    code = """
import fastops, numpy as np
a = np.ones((2, 3), np.float32)
def refused(kind, call):
    try:
        call()
    except kind as error:
        print(type(error).__name__, error)
    else:
        print("not refused")
refused(ValueError, lambda: fastops.matmul(a, a))
refused(TypeError, lambda: fastops.matmul(a, a.T.astype(np.float64)))
refused(TypeError, lambda: fastops.matmul(a, a.T, gamma=1))
refused(TypeError, lambda: fastops.matmul(a.astype(">f4"), a.T))
refused(ValueError, lambda: fastops.matmul(a, a.T, out=a[:, :2][:1]))
refused(fastops.Error, lambda: fastops.force("avx3"))
fastops.force("baseline")
c = fastops.matmul(a, a[:, ::-1].T, threads=2)
print(fastops.active(), c.tolist(), fastops.last_variant()[2])
"""
    said = python(code, env={"PYTHONPATH": str(tmp_path)}).splitlines()
    assert said[0] == "ValueError matmul: k is 3 in a and 2 in b; they must be the same"
    assert said[1].startswith("TypeError matmul: no variant is for these element types: a is f32 ")
    assert "b is f64" in said[1] and "there are: f32; f64; bf16" in said[1]
    assert said[2] == "TypeError matmul has no attribute gamma"
    assert said[3].startswith("TypeError element type >f4")
    assert said[4].startswith("ValueError matmul: m is ")
    assert "no path is called 'avx3'" in said[5]
    assert said[6] == "baseline [[3.0, 3.0], [3.0, 3.0]] baseline"


def test_torch_by_tvm_ffi(prefix: Path) -> None:
    pytest.importorskip("tvm_ffi")
    pytest.importorskip("torch")
    code = howto("python")[1].replace("dist/lib", str(prefix / "lib"))
    assert python(code) == f"{[[4.0] * 5] * 3}\n"


def test_numpy_by_tvm_ffi(library: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    assert tvm_ffi.__version__ == "0.1.15"
    ops = tvm_ffi.load_module(str(library))
    x = np.array([[-1.0, 0.25, 2.0], [0.5, 3.0, -2.0]])
    out = np.empty((3, 2))
    ops.threshold_activation(x.T, out, 0.3, 2.0)  # beta at its default
    assert out == pytest.approx(np.where(x > 0.3, 2.0 * x, np.tanh(x)).T, abs=1e-12)
    ops.threshold_activation(x.T, out, 0, 2, None)  # integers for floats, None for the default
    assert out == pytest.approx(np.where(x > 0, 2.0 * x, np.tanh(x)).T, abs=1e-12)


def test_tvm_ffi_raises_what_is_wrong(library: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    torch = pytest.importorskip("torch")
    ops = tvm_ffi.load_module(str(library))
    a = torch.ones(2, 3)
    with pytest.raises(ValueError, match="k is 3 in a and 2 in b"):
        ops.matmul(a, a, torch.empty(2, 2))
    with pytest.raises(TypeError, match="b is f64"):
        ops.matmul(a, a.T.double(), torch.empty(2, 2))
    with pytest.raises(TypeError, match="2 arguments; it takes 3 tensors"):
        ops.matmul(a, a)
    with pytest.raises(TypeError, match="b is no tensor"):
        ops.matmul(a, 3, torch.empty(2, 2))
    with pytest.raises(TypeError, match="alpha should be a number"):
        ops.threshold_activation(a, torch.empty(2, 3), 1.0, "much")
    with pytest.raises(ValueError, match="out overlaps a"):
        ops.matmul(a[:, :2], a[:, 1:], a[:, :2])
    out = torch.empty(2, 2, dtype=torch.bfloat16)
    ops.matmul(a.bfloat16(), a.bfloat16().T, out)
    assert out.float().tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_forced_path_that_cannot_be_is_an_error_everywhere(library: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import ctypes
import numpy as np
from pathlib import Path
from ship.tools import dltensor, load
lib = load(Path({str(library)!r}))
a, out = np.ones((2, 2), np.float32), np.full((2, 2), 7, np.float32)
refs = [ctypes.byref(dltensor(t)) for t in (a, a.copy(), out)]
status = lib.fastops_matmul(*refs, None, None)
print(status, out[0, 0], lib.fastops_last_error().decode(), lib.fastops_active())
print(lib.fastops_force(None), lib.fastops_active().decode() in lib.fastops_variants().decode())
"""
    said = python(code, env={"FASTOPS_FORCE": "avx3"}).splitlines()
    assert said[0].startswith("12 7.0 matmul: FASTOPS_FORCE: no path is called 'avx3'; there are:")
    assert said[0].endswith(" None")
    assert said[1] == "0 True"
    assert "FASTOPS_FORCE" not in os.environ


def test_jax_by_tvm_ffi(prefix: Path) -> None:
    pytest.importorskip("jax_tvm_ffi")
    text = (prefix / "README.md").read_text()
    lines = text.split("## JAX")[1].split("```python\n")[1].split("```")[0]
    code = lines.replace("lib/libfastops.so", str(prefix / "lib" / "libfastops.so"))
    assert python(code + "print(jax.numpy.unique(out))") == "[6.]\n"


def test_readme_lines(prefix: Path) -> None:
    text = (prefix / "README.md").read_text()
    pytest.importorskip("tvm_ffi")
    pytest.importorskip("torch")
    lines = text.split("## PyTorch")[1].split("```python\n")[1].split("```")[0]
    code = lines.replace("lib/libfastops.so", str(prefix / "lib" / "libfastops.so"))
    # ones(4, 6) times ones(6, 5)
    assert python(code + "print(out.unique().tolist())") == "[6.0]\n"
    for word in ("pkg-config", "find_package", "jax_tvm_ffi", "FASTOPS_FORCE", "opwright check"):
        assert word in text
