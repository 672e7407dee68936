"""What bad input gets: kernels that misbehave, names that do not exist, sizes that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.tool import Ran, declare, operator, opwright
from operators import RIGHT, SIGNATURE

# Each kernel with the kind of its finding and what its message has to say.
ZOO = {
    "broken": (
        "// whole\n\nint three = four;\n",
        "does-not-compile",
        "cpu_broken.cpp:3:13: error:",
    ),
    "missing": (
        "// whole\nvoid other(int) {}\n",
        "missing-function",
        'extern "C" void affine(const T* x, T* out, int64_t n, double scale);',
    ),
    "mangled": (
        "// whole\n" + SIGNATURE.replace("double scale", "float scale") + " { (void)x; }",
        "missing-function",
        'extern "C" void affine(const T* x, T* out, int64_t n, double scale);',
    ),
    "crashes": ("*(volatile int*)8 = 1;", "crash", "null pointer (address 0x8)"),
    "hangs": ("for (volatile int i = 0;;) i = i + 1;", "hang", "still running after 0.3 s"),
    "aborts": ("__builtin_abort();", "abort", "abort() was called"),
    "throws": ("throw 42;", "exception", "it threw"),
    "exits": (
        '// whole\nextern "C" void exit(int);\n' + SIGNATURE + " { exit(int(n * 0) + 3); }",
        "exit",
        "exit code 3",
    ),
    "reads_past": (
        RIGHT + "volatile float sink = float(x[n + 1]); (void)sink;",
        "out-of-bounds",
        "read 5 bytes past the end of x (which is 4 bytes long)",
    ),
    "writes_past": (
        RIGHT + "out[n] = T(0.0f);",
        "out-of-bounds",
        "write 1 byte past the end of out (which is 4 bytes long)",
    ),
    "reads_before": (
        RIGHT + "volatile float sink = float(x[-1]); (void)sink;",
        "out-of-bounds",
        "read 4 bytes before the start of x (which is 4 bytes long)",
    ),
    "writes_beside": (
        RIGHT + "out[-2] = T(0.0f);",
        "beside-output",
        "4 bytes before the start of out changed, 5 to 8 bytes away",
    ),
    "writes_input": (
        RIGHT + "volatile char* p = (char*)x; p[0] = p[0];",
        "writes-input",
        "write into the input x, at byte 0",
    ),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bodies = {"first": RIGHT, **{name: body for name, (body, _, _) in ZOO.items()}, "last": RIGHT}
    return operator(tmp_path_factory.mktemp("zoo"), bodies).spec.folder


@pytest.fixture(scope="module")
def as_json(zoo: Path) -> Ran:
    return opwright("verify", zoo, "--dtype", "f32", "--shape", "10", "--timeout", "0.3", "--json")


@pytest.fixture(scope="module")
def as_text(zoo: Path) -> Ran:
    return opwright("verify", zoo, "--dtype", "f32", "--shape", "10", "--timeout", "0.3")


def only(found: list[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    [one] = [f for f in found if all(f[name] == value for name, value in wanted.items())]
    return one


@pytest.mark.parametrize("name", ZOO)
def test_a_finding_names_kernel_case_and_fault(name: str, as_json: Ran, zoo: Path) -> None:
    _, kind, message = ZOO[name]
    finding = only(as_json.json["findings"], kernel=f"cpu_{name}")
    assert finding["kind"] == kind
    assert message in finding["message"]
    assert finding["operator"] == "affine"
    assert finding["file"] == str(zoo / f"cpu_{name}.cpp")
    assert finding["case"].startswith("f32")
    assert finding["command"].startswith(f"opwright verify {zoo}/cpu_{name} --dtype f32")
    report = only(as_json.json["data"]["reports"][0]["kernels"], kernel=f"cpu_{name}")
    built = kind not in ("does-not-compile", "missing-function")
    assert report["verdict"] == ("wrong" if built else "failed")
    assert report["held"] == 0


def test_the_tool_goes_on_and_ends_with_1(as_json: Ran) -> None:
    assert as_json.code == 1
    verdicts = {k["kernel"]: k["verdict"] for k in as_json.json["data"]["reports"][0]["kernels"]}
    assert len(verdicts) == len(ZOO) + 2
    assert verdicts["cpu_first"] == verdicts["cpu_last"] == "held"


def test_a_compile_error_is_shown_at_the_users_line(as_text: Ran, zoo: Path) -> None:
    assert f"{zoo}/cpu_broken.cpp:3: affine/cpu_broken: does-not-compile: " in as_text.out
    [said] = [s for s in as_text.out.splitlines() if f" {zoo}/cpu_broken.cpp:3:13: error:" in s][:1]
    assert "four" in said
    # The compiler's own text too, with the line it is about.
    assert "int three = four;" in as_text.out


def test_the_text_says_the_same(as_text: Ran) -> None:
    assert as_text.code == 1
    for name, (_, kind, message) in ZOO.items():
        assert f"affine/cpu_{name}: {kind}: " in as_text.out
        assert message in as_text.out
        assert f"cpu_{name}  " in as_text.out
    assert "Traceback" not in as_text.out + as_text.err


@pytest.mark.parametrize("command", ["verify", "bench", "list", "history"])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("matmull", "no operator named 'matmull'; did you mean matmul?"),
        (
            "matmul/cpu_v3_tield",
            "no kernel named 'cpu_v3_tield' in matmul; did you mean cpu_v3",
        ),
        ("./nowhere", "./nowhere: no such file or folder"),
        ("a" * 300, "File name too long"),
        ("~nobody-of-that-name/x", "Could not determine home directory"),
    ],
)
def test_unknown_names_get_the_nearest(command: str, name: str, hint: str) -> None:
    ran = opwright(command, name)
    assert ran.code == 2
    assert hint in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--dtype", "f23"], "no dtype named 'f23' in matmul; did you mean f32"),
        (["--dtype", "u8"], "--dtype u8 selects none of f32; f64; bf16; f16; T=i8,U=i8,V=i32"),
        (["--shape", "m=1,n=1,l=1"], "no dimension named 'l' in matmul"),
        (["--shape", "m=1,n=1"], "no size given for k"),
        (["--shape", "m=1,n=1,k=-1"], "'-1' is no size"),
        (["--shape", "m=1,n=1,k=x"], "'x' is no size"),
        (["--shape", "17"], "write sizes as m=...,n=...,k=..."),
        (["--shape", "m=1,n=1,k=1", "--attr", "scale=2"], "no attribute named 'scale' in matmul"),
        (["--param", "BLOK=16"], "no tunable named 'BLOK' in matmul; did you mean BLOCK"),
        (["--param", "BLOCK=17"], "BLOCK=17 is not among [64, 16, 32, 128]"),
        (["--param", "BLOCK=x"], "'x' is no integer"),
        (["--param", "BLOCK"], "write it as NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_unknown_selections_are_usage_errors(command: str, options: list[str], hint: str) -> None:
    ran = opwright(command, "matmul/cpu_v3_tiled", *options)
    assert ran.code == 2, ran.err
    assert hint in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["verify", "matmul", "--values", "typicl"], "did you mean typical"),
        (["verify", "matmul", "--layout", "transposd"], "did you mean transposed"),
        (["verify", "matmul", "--seed", "nan"], "--seed"),
        (["verify", "matmul", "--seed", "-1"], "--seed"),
        (["verify", "matmul", "--attr", "x=1"], "--attr needs --shape"),
        (
            ["verify", "linear_int8", "--shape", "...=1,n=1,k=1", "--attr", "scale=-1"],
            "attribute scale is -1.0; it should be 0 < scale < inf",
        ),
        (["verify", "matmul", "--threads", "0"], "--threads"),
        (["verify", "matmul", "--timeout", "nan"], "'nan' is no duration such as 60s"),
        (["verify", "matmul", "--timeout", "inf"], "'inf' is no duration such as 60s"),
        (["verify", "matmul", "--format", "xml"], "--format"),
        (["verify", "matmul", "--json", "--format", "sarif"], "choose one"),
        (["bench", "matmul", "--budget", "nan"], "'nan' is no duration such as 60s"),
        (["bench", "matmul", "--cache", "tepid"], "'tepid' is not among cold, warm"),
        (["bench", "matmul", "--cache", ","], "write some of cold, warm"),
        (["bench", "matmul", "--threads", "1,0"], "numbers from 1 to 1024"),
        (["run", "matmul", "--threads", "two"], "numbers from 1 to 1024"),
        (["compare", "1", "x"], "'x' is not a valid int"),
        (["restore", "matmul/cpu_v3_tiled"], "names no version"),
        (["history", "matmul", "--limit", "0"], "--limit"),
        (["verify"], "Missing argument"),
        (["verify", "matmul", "--no-such-option"], "No such option"),
    ],
)
def test_options_that_cannot_be_meant(words: list[str], hint: str) -> None:
    ran = opwright(*words)
    assert ran.code == 2
    assert hint in ran.err


def test_filters_that_leave_nothing_end_with_5(zoo: Path) -> None:
    ran = opwright("verify", "matmul", "--seed", "77")
    assert ran.code == 5
    assert "no case of matmul's matrix has seed=77" in ran.err


def test_a_platform_that_is_not_here_is_an_error_that_says_why(zoo: Path) -> None:
    """B6: never a result from elsewhere."""
    for command in ("verify", "bench"):
        ran = opwright(command, "matmul", "--backend", "cuda")
        assert ran.code == 3
        assert "no backend 'cuda' is installed" in ran.err
        assert "installed: cpu" in ran.err
        assert ran.out == ""


DECLARED = """
@operator(dtypes={"T": ["f32"]}, flops="2*n", bench=["n=50"])
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    return scale * x + 1

affine.kernels(Kernel("cpu_v1.cpp"), Kernel("opencl_v1.cl"))
"""


def test_a_kernel_of_another_platform_does_not_stop_those_of_this_one(tmp_path: Path) -> None:
    right = SIGNATURE + "{" + RIGHT + "}"
    folder = declare(tmp_path / "both", DECLARED, {"cpu_v1.cpp": right, "opencl_v1.cl": ""})
    for words in (["verify", folder, "--shape", "9"], ["bench", folder, "--budget", "0.1"]):
        ran = opwright(*words, "--json")
        assert ran.code == 0
        data = ran.json["data"]
        rows = data["reports"][0]["kernels"] if "reports" in data else data["tables"][0]["rows"]
        assert [(row["kernel"], row["verdict"]) for row in rows] == [
            ("cpu_v1", "held"),
            ("opencl_v1", "not-run"),
        ]
        assert "no backend 'opencl' is installed" in rows[1]["reason"]
        # The other platform's kernel alone: an error, not an empty success.
        alone = opwright(words[0], folder / "opencl_v1", *words[2:])
        assert alone.code == 3
        assert "no backend 'opencl' is installed" in alone.err


@pytest.mark.parametrize("command", ["verify", "bench"])
@pytest.mark.parametrize(
    "shape", ["m=1000000,n=1000000,k=1", "m=1,n=1,k=9000000000000000000", "m=4000000000,n=1,k=999"]
)
def test_shapes_that_do_not_fit_are_refused_before_allocating(command: str, shape: str) -> None:
    ran = opwright(command, "matmul/cpu_v1_naive", "--dtype", "f32", "--shape", shape)
    assert ran.code == 3
    assert "needs" in ran.err and "GiB is available" in ran.err
    assert "Choose a smaller --shape" in ran.err


PLACES = {
    "syntax": ("x = 1\ndef f(:\n", "op.py:2: SyntaxError: "),
    "raises": ("import os\n\nraise KeyError('boo')\n", "op.py:3: KeyError: 'boo'"),
    "elsewhere": ("import json\njson.loads('{')\n", "op.py:2: JSONDecodeError: "),
    "exits": ("import sys\nsys.exit(0)\n", "op.py:2: SystemExit: 0"),
    "none": ("x = 1\n", "op.py:1: no operator is declared here"),
    "two": (
        "from opwright import T, Tensor, operator\n"
        + "".join(
            '@operator(dtypes={"T": ["f32"]})\n'
            f'def {name}(x: Tensor[T, "n"]) -> Tensor[T, "n"]:\n    return x\n'
            for name in ("one", "two")
        ),
        "op.py:5: one folder holds one operator, and here are several: one (line 2), two (line 5)",
    ),
    "misdeclared": (
        "from opwright import T, Tensor, operator\n\n"
        '@operator(dtypes={"T": ["f33"]})\ndef one(x: Tensor[T, "n"]) -> Tensor[T, "n"]:\n'
        "    return x\n",
        "op.py:3: no dtype named 'f33'",
    ),
    "null": ("x = 1\0\n", "op.py"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_declaration_that_fails_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    text, message = PLACES[name]
    (tmp_path / "op.py").write_text(text)
    ran = opwright("verify", tmp_path)
    assert ran.code == 2
    assert f"{tmp_path}/{message}" in ran.err
    assert "Traceback" not in ran.err


AFFINE = 'def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:\n    return '
# Line 1 and 2 are the imports.
FORMULAS = {
    "raises": (
        '@operator(dtypes={"T": ["f32"]})\n' + AFFINE + "scale * y\n",
        "op.py:5: the formula of affine fails at f32",
        "NameError: name 'y' is not defined",
    ),
    "other shape": (
        '@operator(dtypes={"T": ["f32"]})\n' + AFFINE + "x[:1]\n",
        "op.py:3: the formula of affine gives shape (1,) at f32",
        "where the declaration says (9,)",
    ),
    "nothing": (
        '@operator(dtypes={"T": ["f32"]})\n' + AFFINE + "print('formula at work')\n",
        "op.py:3: ",
        "real numbers are needed",
    ),
    "complex": ('@operator(dtypes={"T": ["f32"]})\n' + AFFINE + "x * 1j\n", "op.py:3: ", "complex"),
    "terms": (
        '@operator(dtypes={"T": ["f32"]}, tolerance=Tolerance(terms=lambda x, scale: x[99]))\n'
        + AFFINE
        + "scale * x + 1\n",
        "op.py:3: the tolerance of affine fails at f32",
        "IndexError",
    ),
    "witness": (
        '@operator(dtypes={"T": ["f32"]}, torch=lambda x, scale: x.nonsense())\n'
        + AFFINE
        + "scale * x + 1\n",
        "op.py:3: the witness of affine fails at f32",
        "nonsense",
    ),
    "no such witness": (
        '@operator(dtypes={"T": ["f32"]}, torch="torch.nonsense")\n' + AFFINE + "scale * x + 1\n",
        "op.py:3: torch='torch.nonsense' cannot be found",
        "nonsense",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_that_fails_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    if "witness" in name:
        pytest.importorskip("torch")
    declared, place, message = FORMULAS[name]
    source = SIGNATURE + "{" + RIGHT + "}"
    row = 'affine.kernels(Kernel("cpu_v1.cpp"))\n'
    folder = declare(tmp_path / "affine", declared + row, {"cpu_v1.cpp": source})
    ran = opwright("verify", folder, "--shape", "9", "--json")
    assert ran.code == 2
    assert f"{folder}/{place}" in ran.err
    assert message in ran.err
    assert ran.json["error"]["kind"] in ("DeclarationError", "UsageError")


def test_a_known_wrong_variant_that_fails_is_named(tmp_path: Path) -> None:
    declared = (
        '@operator(dtypes={"T": ["f32"]})\n'
        + AFFINE
        + "scale * x + 1\n@affine.known_wrong('off')\ndef off(x, scale):\n    return x.nothing\n"
        + 'affine.kernels(Kernel("cpu_v1.cpp"))\n'
    )
    source = SIGNATURE + "{" + RIGHT + "}"
    folder = declare(tmp_path / "affine", declared, {"cpu_v1.cpp": source})
    ran = opwright("verify", folder)
    assert ran.code == 2
    assert f"{folder}/op.py:8: the known-wrong variant 'off' of affine fails" in ran.err
