"""--json: one object, nothing beside it on stdout, and the exit code in it, whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cli.tool import declare, finish, opwright, plain, start
from operators import RIGHT
from opwright.cli import COMMANDS

DECLARED = """
print("an operator that talks while it is loaded")
@operator(dtypes={"T": ["f32"]}, flops="2*n", bench=["n=50"])
def affine(x: Tensor[T, "..."], scale: float = 1.5) -> Tensor[T, "..."]:
    print("and while it is evaluated")
    return scale * x + 1

affine.kernels(Kernel("cpu_right.cpp", change="one loop"), Kernel("cpu_zeros.cpp"))
"""
ZEROS = "for (int64_t i = 0; i < n; ++i) out[i] = T(0.0f);"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"cpu_right.cpp": plain(RIGHT), "cpu_zeros.cpp": plain(ZEROS)}
    return declare(tmp_path_factory.mktemp("envelope") / "affine", DECLARED, files)


def test_every_command_that_succeeds(folder: Path, own_home: Path, tmp_path: Path) -> None:
    commands = {
        "new": ["new", "fresh", "--in", tmp_path / "made"],
        "list": ["list", folder],
        "verify": ["verify", folder / "cpu_right", "--shape", "9"],
        "bench": ["bench", folder / "cpu_right", "--budget", "0.1"],
        "run": ["run", folder / "cpu_right", "--budget", "0.1"],
        "history": ["history", folder],
        "compare": ["compare", "1", "1"],
        "restore": ["restore", f"{folder}/cpu_right@1"],
        "doctor": ["doctor"],
    }
    assert commands.keys() <= COMMANDS.keys()
    for name, words in commands.items():
        ran = opwright(*words, "--json")
        content = ran.json
        assert ran.code == 0, (name, ran)
        assert content["command"] == name
        assert content["error"] is None
        assert content["findings"] == []
        assert content["data"], name
        # And without --json it is text.
        with pytest.raises(ValueError):
            json.loads(opwright(*(words if name != "new" else ["doctor"])).out)


def test_findings_are_in_it(folder: Path, own_home: Path) -> None:
    for words in (["verify", folder, "--shape", "9"], ["bench", folder, "--budget", "0.1"]):
        ran = opwright(*words, "--json")
        assert ran.code == 1
        assert {(f["kind"], f["kernel"]) for f in ran.json["findings"]} == {
            ("wrong-values", "cpu_zeros")
        }
        assert ran.json["error"] is None


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["verify", "matmull"], 2, "UnknownNameError"),
        (["verify", "matmul", "--backend", "cuda"], 3, "MachineError"),
        (["verify", "matmul", "--seed", "77"], 5, "NothingSelectedError"),
        (["compare", "12345", "1"], 2, "UnknownNameError"),
        # What click itself refuses.
        (["verify"], 2, "MissingParameter"),
        (["verify", "matmul", "--frob"], 2, "NoSuchOption"),
        (["verify", "matmul", "--seed", "x"], 2, "BadParameter"),
        (["compare", "1"], 2, "MissingParameter"),
        (["frobnicate"], 2, "UsageError"),
    ],
)
def test_errors_are_in_it(words: list[str], code: int, kind: str) -> None:
    ran = opwright(*words, "--json")
    assert ran.code == code
    error = ran.json["error"]
    assert error["kind"] == kind
    assert error["message"] in ran.err
    assert ran.json["command"] == (words[0] if words[0] in COMMANDS else "")


def test_what_an_operator_prints_goes_to_stderr(folder: Path) -> None:
    ran = finish(start("verify", folder / "cpu_right", "--shape", "9", "--json"))
    assert ran.json["exit_code"] == 0
    assert "talks while it is loaded" in ran.err
    assert "while it is evaluated" in ran.err


def test_format_json_is_the_same_envelope(folder: Path) -> None:
    ran = opwright("verify", folder, "--shape", "9", "--format", "json")
    assert ran.json["findings"][0]["kind"] == "wrong-values"


def test_other_formats_have_stdout_to_themselves(folder: Path) -> None:
    words = ("verify", folder, "--shape", "9", "--format")
    sarif = opwright(*words, "sarif")
    assert sarif.code == 1
    assert json.loads(sarif.out)["runs"][0]["results"][0]["ruleId"] == "wrong-values"
    suite = ET.fromstring(opwright(*words, "junit").out)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    lines = opwright(*words, "github").out.splitlines()
    assert [line.partition(" ")[0] for line in lines if line] == ["::error"]


def test_what_was_found_before_an_error_is_kept(folder: Path) -> None:
    ran = opwright("verify", folder, "matmul", "--shape", "n=9", "--json")
    assert ran.code == 2  # matmul has no such shape
    assert [f["kernel"] for f in ran.json["findings"]] == ["cpu_zeros"]
    assert [r["operator"] for r in ran.json["data"]["reports"]] == ["affine"]
