"""T4: what goes out comes back, and what is no such file is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opwright.history.records import Configuration, Times
from opwright.spec.errors import UsageError
from opwright.tune import t4

HELD = Configuration(
    operator="affine",
    kernel="cpu_v1",
    backend="cpu",
    machine="m1",
    dtype="f32",
    shape={"n": 5000},
    threads=2,
    params={"BLOCK": 64, "UNROLL": 4},
    source_hash="ab",
    outcome="held",
    artifact_key="cd",
    compiler="g++ 12",
    flags=("-DBLOCK=64", "-mavx2"),
    isa="avx2",
    cases=55,
    build_seconds=0.5,
    place="won",
    times=Times(3e6, 2e6, 1e6, 4e6, (1e6, 2e6, 4e6), 7),
    noise=0.01,
)
FAILED = Configuration(
    "affine", "cpu_v1", "cpu", "m1", "f32", {"n": 5000}, 2, {"BLOCK": 8}, "ab", "hang", "2 s"
)


def test_what_other_tools_read() -> None:
    """The fields of the schema that BAT and Kernel Tuner publish, in milliseconds."""
    content = json.loads(t4.export([HELD, FAILED]))
    assert content["schema_version"] == "1.0.0"
    held, failed = content["results"]
    assert held["configuration"] == {"BLOCK": 64, "UNROLL": 4}
    assert held["times"] == {"compilation_time": 500, "runtimes": [1, 2, 4]}
    assert (held["invalidity"], held["correctness"]) == ("correct", 1)
    assert held["measurements"] == [{"name": "time", "value": 2, "unit": "ms"}]
    assert held["objectives"] == ["time"]
    assert (failed["invalidity"], failed["correctness"]) == ("timeout", 0)
    assert failed["times"]["runtimes"] == [] and "measurements" not in failed


@pytest.mark.parametrize(
    ("outcome", "invalidity"),
    [
        ("does-not-compile", "compile"),
        ("missing-function", "compile"),
        ("crash", "runtime"),
        ("abort", "runtime"),
        ("out-of-bounds", "correctness"),
        ("unwritten", "correctness"),
        ("not-repeatable", "correctness"),
    ],
)
def test_every_outcome_has_its_name(outcome: str, invalidity: str) -> None:
    failed = Configuration("o", "k", "cpu", "m", "", {}, 1, {}, "ab", outcome)
    text = t4.export([failed])
    assert json.loads(text)["results"][0]["invalidity"] == invalidity
    assert t4.load(text, "f")[0].outcome == outcome


def test_what_goes_out_comes_back() -> None:
    held, failed = t4.load(t4.export([HELD, FAILED]), "f")
    assert failed == FAILED
    assert held.times is not None
    # The interval is worked out anew from the samples: of three, the extremes.
    assert held.times.samples == pytest.approx((1e6, 2e6, 4e6))
    assert held.times.median_ns == pytest.approx(2e6)
    for name in ("params", "shape", "flags", "place", "cases", "noise", "artifact_key", "isa"):
        assert getattr(held, name) == getattr(HELD, name)


def changed(**values: Any) -> str:
    content = json.loads(t4.export([HELD]))
    result = content["results"][0]
    for path, value in values.items():
        *folders, last = path.split("__")
        place = result
        for folder in folders:
            place = place[folder]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no list of results"),
        ('{"results": 3}', "no list of results"),
        ('{"results": [], "schema_version": "2.0.0"}', r"T4 of version 2\.0\.0"),
        ('{"results": [], "schema_version": ""}', r"T4 of version \(none\)"),
        ('{"results": [3], "schema_version": "1.0.0"}', "result 0 cannot be used"),
        (changed(opwright=None), "does not say which operator"),
        (changed(opwright__machine=None), "it lacks 'machine'"),
        (changed(opwright__operator=3), "operator is 3, no text"),
        (changed(times__runtimes=[-1.0]), "runtimes are no times"),
        (changed(times__runtimes=[float("nan")]), "runtimes are no times"),
        (changed(times__runtimes=[]), "place is 'won'"),
        (changed(opwright__place="first"), "place is 'first'"),
        (changed(invalidity="compile"), "both compile and held"),
        (changed(invalidity="compile", opwright__outcome="does-not-compile"), "cannot be recorded"),
        (changed(configuration={"BLOCK": "64"}), "no integers"),
        (changed(opwright__threads=2**70), "threads is 1180591620717411303424, no whole number"),
        (changed(opwright__threads=-4), "threads is -4, no whole number"),
        (changed(opwright__cases=2**80), "cases is .* no whole number"),
        (changed(opwright__calls=1.5), "calls is 1.5, no whole number"),
        (changed(opwright__noise=float("nan")), "noise is nan, not finite"),
        (changed(opwright__first_ms=float("inf")), "first_ms is inf, not finite"),
        (changed(times__compilation_time=-1), "compilation_time is -1, not finite and from 0"),
        (changed(opwright__cache="hot"), "cache is 'hot', neither"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"f\.json: .*{said}|{said}"):
        t4.load(text, "f.json")
