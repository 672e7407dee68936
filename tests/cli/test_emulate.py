"""opwright emulate, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tool import opwright

CLEAN = """#include <cstdio>
__global__ void k(int* p) {
  p[threadIdx.x] = 1;
}
int main(int argc, char** argv) {
  int* p;
  cudaMalloc(&p, 128);
  k<<<1, argc > 1 ? 33 : 32>>>(p);
  cudaFree(p);
  std::printf("done %d\\n", argc);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("emulate") / "p.cu"
    path.write_text(CLEAN)
    return path


def test_a_clean_program_ends_with_0(program: Path) -> None:
    ran = opwright("emulate", program)
    assert ran.code == 0
    assert ran.out.startswith("done 1\n")
    assert "0 findings" in ran.out


def test_what_follows_the_dashes_goes_to_the_program(program: Path) -> None:
    ran = opwright("emulate", program, "--", "--json")
    assert ran.code == 1
    assert ran.out.startswith("done 2\n")
    assert (
        f"{program}:3: p.cu: out-of-bounds: write of 4 bytes 0 bytes past the end of p" in ran.out
    )
    assert f"show again: opwright emulate {program} --device h200 -- --json" in ran.out


def test_json_is_one_envelope(program: Path) -> None:
    content = opwright("emulate", program, "--json", "--counters", "--", "x").json
    assert content["data"]["stdout"] == "done 2\n"
    assert [f["kind"] for f in content["findings"]] == ["out-of-bounds"]
    assert content["data"]["launches"][0]["block_x"] == 33
    assert content["data"]["counters"][0]["requests"] == 1


@pytest.mark.parametrize("style", ["sarif", "junit", "github"])
def test_documents_are_all_that_is_on_stdout(program: Path, style: str) -> None:
    ran = opwright("emulate", program, "--format", style, "--", "x")
    assert ran.code == 1
    if style == "sarif":
        assert json.loads(ran.out)["runs"][0]["results"][0]["ruleId"] == "out-of-bounds"
    elif style == "junit":
        assert ET.fromstring(ran.out).get("failures") == "1"
    else:
        assert ran.out.startswith("::error file=")


def test_what_cannot_be_run(program: Path, tmp_path: Path) -> None:
    unknown = opwright("emulate", program, "--device", "h300")
    assert unknown.code == 2
    assert "h100" in unknown.err and "h200" in unknown.err
    assert opwright("emulate", tmp_path / "none.cu").code == 2
    (tmp_path / "ptx.cu").write_text('__global__ void k() { asm("exit;"); }\nint main() {}\n')
    ptx = opwright("emulate", tmp_path / "ptx.cu")
    assert ptx.code == 3
    assert "ptx.cu:1: inline PTX (asm) is not emulated" in ptx.err
    (tmp_path / "bad.cu").write_text("int main() { return undeclared; }\n")
    bad = opwright("emulate", tmp_path / "bad.cu")
    assert bad.code == 1
    assert "bad.cu:1:" in bad.err
