"""opwright tune: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import click
import pytest

from cli.tool import declare, finish, operator, opwright, plain, start, wait_for
from operators import RIGHT
from opwright.catalog.find import Target
from opwright.cli.common import duration
from opwright.history.store import History

USLEEP = 'extern "C" int usleep(unsigned);'
BODY = RIGHT + "\n#if MODE == 0\nusleep(300);\n#elif MODE == 2\n#error no\n#endif\n"


@pytest.fixture
def target(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr("opwright.tune.search.FINAL_ROUNDS", 20)
    return operator(tmp_path, {"v1": plain(BODY, USLEEP)}, {"v1": ', tune={"MODE": [0, 1, 2]}'})


def test_a_tuning_as_text_and_as_json(target: Target) -> None:
    ran = opwright("tune", target.reference, "--budget", "120s", "--shape", "2000")
    assert ran.code == 0
    assert re.search(r"MODE=1 +held .*won", ran.out)
    assert re.search(r"MODE=2 +does-not-compile +- +- +-", ran.out)
    assert re.search(
        r"MODE=1 is the fastest, \d+\.\d\d times as fast as the default \(3 of 3", ran.out
    )
    assert "--param MODE=2" in ran.out
    again = opwright("tune", target.reference, "--budget", "120s", "--shape", "2000", "--json").json
    [tuned] = again["data"]["tuned"]
    assert tuned["winner"] == {"MODE": 1} and tuned["default"] == {"MODE": 0}
    assert tuned["gain"] > 2 and tuned["complete"] and not tuned["too_short"]
    assert {c["params"]["MODE"]: c["outcome"] for c in tuned["configurations"]} == {
        **{0: "held", 1: "held", 2: "does-not-compile"}
    }
    assert [f["kind"] for f in again["findings"]] == ["does-not-compile"]


def test_a_budget_too_small_says_so(target: Target) -> None:
    ran = opwright("tune", target.reference, "--budget", "1ms", "--shape", "2000")
    assert ran.code == 0
    assert "too short to compare anything with the default: it stays, MODE=0" in ran.out


def test_nothing_that_holds_ends_with_1(tmp_path: Path, own_home: Path) -> None:
    none = operator(tmp_path, {"v1": "#error no"}, {"v1": ', tune={"MODE": [0, 1]}'})
    ran = opwright("tune", none.reference, "--budget", "120s", "--shape", "9")
    assert ran.code == 1
    assert "no configuration held (2 of 2 configurations tried)" in ran.out


def test_export_and_import(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "t4.json"
    assert opwright("tune", target.reference, "--export", file).code == 5
    opwright("tune", target.reference, "--budget", "120s", "--shape", "2000")
    assert opwright("tune", target.reference, "--export", file).code == 0
    assert len(json.loads(file.read_text())["results"]) == 3
    with History.open() as history:
        before = {c.params["MODE"]: c for c in history.configurations("affine")}
        history._db.execute("DELETE FROM configurations")
    ran = opwright("tune", target.reference, "--import", file, "--json").json
    assert ran["data"]["imported"] == 3
    with History.open() as history:
        after = {c.params["MODE"]: c for c in history.configurations("affine")}
    assert {m: (c.outcome, c.place, c.artifact_key) for m, c in after.items()} == {
        m: (c.outcome, c.place, c.artifact_key) for m, c in before.items()
    }
    assert opwright("tune", "matmul", "--import", file).code == 5
    assert opwright("tune", "matmul", "--import", tmp_path / "none").code == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--budget", "soon"], 2, "'soon' is no duration such as 60s"),
        (["--budget", "0s"], 2, "no duration"),
        (["--budget", "-3s"], 2, "no duration"),
        (["--budget", "nan"], 2, "no duration"),
        (["--budget", "30h"], 2, "no duration"),
        (["--strategy", "guess"], 2, "'guess' is not among auto, exhaustive"),
        (["--strategy", "local,random"], 2, "--strategy 'local,random': give one of auto"),
        (["--cache", "warm,cold"], 2, "--cache 'warm,cold': give one of warm, cold"),
        (["--shape", "m=3"], 2, "m"),
        (["--threads", "0"], 2, "--threads '0'"),
        (["--dtype", "f99"], 2, "f99"),
        (["--backend", "cuda"], 3, "no backend 'cuda'"),
    ],
)
def test_bad_input(target: Target, words: list[str], code: int, said: str) -> None:
    ran = opwright("tune", target.reference, *words)
    assert ran.code == code
    assert said in ran.err


def test_an_audit_that_is_no_json(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    for text in ("no", "[" * 100_000):
        file.write_text(text)
        ran = opwright("tune", target.reference, "--shapes-from", file)
        assert ran.code == 2
        assert f"--shapes-from {file}: not JSON" in ran.err


@pytest.mark.parametrize(
    "rows", ["", ', "operators": 3', ', "operators": [3]', ', "operators": [{"name": 1}]']
)
def test_an_audit_that_is_damaged(target: Target, tmp_path: Path, rows: str) -> None:
    file = tmp_path / "audit.json"
    file.write_text('{"format": "opwright-audit-1"' + rows + "}")
    ran = opwright("tune", target.reference, "--shapes-from", file)
    assert ran.code == 2
    assert f"--shapes-from {file}: a damaged audit: " in ran.err


def test_an_operator_without_tunables(tmp_path: Path, own_home: Path) -> None:
    ran = opwright("tune", operator(tmp_path, {"v1": RIGHT}).reference)
    assert ran.code == 5
    assert "no kernel has tunables" in ran.err


ELSEWHERE = '''
@operator(dtypes={"T": ["f32"]}, flops="n")
def twice(x: Tensor[T, "n"]) -> Tensor[T, "n"]:
    """2 x"""
    return 2 * x

twice.kernels(
    Kernel("cpu_v1.cpp", change="loop", tune={"MODE": [0, 1]}),
    Kernel("npu_v1.cpp", change="of a machine that is not here", tune={"MODE": [0, 1]}),
    Kernel("npu_v2.cpp", change="of the same machine", tune={"MODE": [0, 1]}),
)
'''
TWICE = """extern "C" void twice(const T* x, T* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = 2 * x[i];
}
"""


def test_what_cannot_run_here_is_said_and_the_others_are_tuned(
    tmp_path: Path, own_home: Path
) -> None:
    sources = dict.fromkeys(("cpu_v1.cpp", "npu_v1.cpp", "npu_v2.cpp"), TWICE)
    folder = declare(tmp_path / "twice", ELSEWHERE, sources)
    ran = opwright("tune", folder, "--budget", "1ms")
    assert ran.code == 0
    [line] = [line for line in ran.out.splitlines() if "npu" in line]  # one reason, one line
    assert re.match(r"\S+/npu_v1, \S+/npu_v2: no backend 'npu' is installed", line)
    assert "twice/cpu_v1 f32" in ran.out
    alone = opwright("tune", f"{folder}/npu_v1")
    assert alone.code == 3 and "nothing can be tuned on this machine" in alone.err


def test_a_kernel_that_cannot_win_has_one_line(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwright.tune.search.FINAL_ROUNDS", 20)
    slow = plain(RIGHT + "\nusleep(MODE);\n", USLEEP)
    rows = {"v1": ', tune={"MODE": [3000, 1]}', "v2": ', tune={"MODE": [2, 3]}'}
    ladder = operator(tmp_path, {"v1": slow, "v2": slow}, rows)
    words = ("tune", ladder.reference, "--budget", "120s", "--shape", "2000")
    text = opwright(*words)
    assert text.code == 0
    [line] = [line for line in text.out.splitlines() if "cpu_v1" in line]
    assert re.fullmatch(
        r"affine/cpu_v1: \d\.\d+ ms at best, \d+\.\d times as slow as cpu_v2: not tuned; "
        r"name it to tune it",
        line,
    )
    first, passed = opwright(*words, "--json").json["data"]["tuned"]
    assert (first["kernel"], first["passed_over"]) == ("cpu_v2", "")
    assert passed["kernel"] == "cpu_v1" and "times as slow as cpu_v2" in passed["passed_over"]
    assert passed["winner"] == {"MODE": 3000} and len(passed["configurations"]) == 1
    named = opwright("tune", f"{ladder.reference}/cpu_v1", *words[2:])
    assert "MODE=1 is the fastest" in named.out


def test_durations() -> None:
    written = ("60s", "2m", "500ms", "1h", "7", "1.5m", 8.0)  # the last a default
    assert [duration(value) for value in written] == [60, 120, 0.5, 3600, 7, 90, 8]
    for value in ("nan", "inf", "-1", "0", "0.4ms", "2d", "25h", "1e1", ""):
        with pytest.raises(click.BadParameter, match="is no duration such as 60s"):
            duration(value)


def test_ctrl_c_keeps_what_is_known_and_ends_with_130(target: Target) -> None:
    words = ("tune", target.reference, "--budget", "100s", "--shape", "2000")
    process = start(*words, "--strategy", "halving", "--json")

    def measured() -> bool:
        with History.open() as history:
            return any(c.times for c in history.configurations("affine"))

    wait_for(measured, 60)
    process.send_signal(signal.SIGINT)
    ran = finish(process)
    if ran.code != 0:  # it may have been done just then
        assert ran.code == 130
        [tuned] = ran.json["data"]["tuned"]
        assert tuned["interrupted"]
        assert any(c["median_ns"] for c in tuned["configurations"])


MODEL = {
    "format": "opwright-audit-1",
    "operators": [
        {
            "operator": "opwright::affine",
            "shapes": [[size]],
            "dtypes": [dtype],
            "calls": calls,
            "seconds": seconds,
        }
        for size, dtype, calls, seconds in (
            *((40, "float32", 100, 0.1), (50, "float32", 2, 3.0), (60, "bfloat16", 1, 2.0)),
            *((50, "float32", 1, 0.5), (70, "int32", 9, 9.0)),
        )
    ],
}


@pytest.mark.parametrize("as_json", [False, True])
def test_the_shapes_of_a_model_those_first_that_took_most_time(
    target: Target, tmp_path: Path, as_json: bool
) -> None:
    audit = tmp_path / "audit.json"
    content = {"command": "audit", "data": {"operators": MODEL["operators"]}}
    audit.write_text(json.dumps(content if as_json else MODEL))
    words = ("tune", target.reference, "--shapes-from", audit, "--budget", "1ms", "--json")
    tuned = opwright(*words).json["data"]["tuned"]
    assert [(t["shape"]["n"], t["dtypes"]) for t in tuned] == [
        (50, "f32"),
        (60, "bf16"),
        (40, "f32"),
    ]
    tuned = opwright(*words, "--dtype", "bf16").json["data"]["tuned"]
    assert [t["shape"]["n"] for t in tuned] == [60]
    assert opwright(*words, "--shape", "9").code == 2


def test_attributes_and_cold_caches(target: Target) -> None:
    words = ("tune", target.reference, "--shape", "2000", "--budget", "120s", "--json")
    cold = opwright(*words, "--cache", "cold", "--attr", "scale=3").json["data"]["tuned"][0]
    assert (cold["cache"], cold["winner"]) == ("cold", {"MODE": 1})
    with History.open() as history:
        kept = history.configurations("affine")
        assert {c.cache for c in kept} == {"cold"}
        assert {c.times.calls for c in kept if c.times} == {1}
    warm = opwright(*words).json["data"]["tuned"][0]
    assert warm["cache"] == "warm"
    with History.open() as history:  # one is not taken for the other
        assert {c.cache for c in history.configurations("affine", place="won")} == {"cold", "warm"}
    assert opwright(*words, "--cache", "warm,cold").code == 2
    assert opwright(*words, "--attr", "scal=3").code == 2


def test_an_extra_that_is_not_installed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, words in (
        ("distributed", ["--cluster", "tcp://127.0.0.1:1"]),
        ("optuna", ["--strategy", "optuna"]),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        ran = opwright("tune", target.reference, "--shape", "9", *words)
        assert ran.code == 3
        assert f"{module} cannot be imported" in ran.err
        assert "pip install 'opwright[" in ran.err
