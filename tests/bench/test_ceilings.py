"""Ceilings: looked up, kept, and what they say about a measured time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opwright.backends.base import Ceiling, Probe
from opwright.bench.ceilings import Ceilings, Judgement, ensure, judge, load, roofline, save
from opwright.spec.errors import MachineError, OpwrightError, UnknownNameError

# A machine whose numbers divide well: 100 GFLOP/s and 20 GB/s by one thread, balance 5 flop/byte.
FMA = (Ceiling("fma f32", 100.0, "GFLOP/s", 1), Ceiling("fma f32", 250.0, "GFLOP/s", 4))
F64 = (Ceiling("fma f64", 50.0, "GFLOP/s", 1), Ceiling("fma f64", 150.0, "GFLOP/s", 4))
MEMORY = (
    Ceiling("read", 15.0, "GB/s", 1),
    Ceiling("copy", 20.0, "GB/s", 1),
    Ceiling("read", 45.0, "GB/s", 4),
    Ceiling("copy", 40.0, "GB/s", 4),
)
DOT = (Ceiling("dot bf16", 200.0, "GFLOP/s", 1), Ceiling("dot bf16", 600.0, "GFLOP/s", 4))
AMX = (
    Ceiling("amx bf16", 2000.0, "GFLOP/s", 1),
    Ceiling("amx bf16", 7000.0, "GFLOP/s", 4),
    Ceiling("amx int8", 4000.0, "GOP/s", 1),
    Ceiling("amx int8", 14000.0, "GOP/s", 4),
)
PLAIN = Ceilings("abc123", FMA + F64 + MEMORY, "2025-01-01T00:00:00+00:00")
MATRIX = Ceilings("abc123", FMA + F64 + MEMORY + DOT + AMX, "2025-01-01T00:00:00+00:00")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWRIGHT_HOME", str(tmp_path))
    return tmp_path


# --- look-ups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("f32", "fma f32"),
        ("f64", "fma f64"),
        ("f16", "fma f32"),
        ("bf16", "amx bf16"),
        ("i8", "amx int8"),
        ("u8", "amx int8"),
    ],
)
def test_the_fastest_arithmetic_of_each_type(dtype: str, name: str) -> None:
    found = MATRIX.flops(dtype, 1)
    assert found is not None
    assert found.name == name


def test_bf16_falls_back_to_what_the_machine_has() -> None:
    with_dot = Ceilings("m", FMA + DOT, "now").flops("bf16", 1)
    assert with_dot == DOT[0]
    assert PLAIN.flops("bf16", 1) == FMA[0]


def test_a_slow_dot_does_not_lower_the_ceiling() -> None:
    slow = Ceilings("m", (*FMA, Ceiling("dot bf16", 60.0, "GFLOP/s", 1)), "now")
    assert slow.flops("bf16", 1) == FMA[0]


def test_integers_have_a_ceiling_only_where_one_was_measured() -> None:
    assert PLAIN.flops("i8", 1) is None
    assert MATRIX.flops("i32", 1) is None


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="f32"):
        PLAIN.flops("f33", 1)


@pytest.mark.parametrize(
    ("threads", "value"),
    [(1, 100.0), (2, 200.0), (3, 250.0), (4, 250.0), (5, 250.0), (64, 250.0)],
)
def test_threads_scale_one_thread_up_to_what_all_reach(threads: int, value: float) -> None:
    assert PLAIN.flops("f32", threads) == Ceiling("fma f32", value, "GFLOP/s", threads)


def test_without_one_thread_nothing_is_made_up() -> None:
    only_all = Ceilings("m", FMA[1:], "now")
    assert only_all.flops("f32", 2) is None
    assert only_all.flops("f32", 4) == FMA[1]


def test_memory_is_the_better_of_reading_and_copying() -> None:
    assert PLAIN.memory(1) == MEMORY[1]
    assert PLAIN.memory(4) == MEMORY[2]
    assert PLAIN.memory(2) == Ceiling("copy", 40.0, "GB/s", 2)
    assert Ceilings("m", FMA, "now").memory(1) is None


# --- the roofline ---------------------------------------------------------------------------------


def test_compute_bound() -> None:
    # 1000 GFLOP over 100 GFLOP/s is 10 s; 20 GB over 20 GB/s is 1 s.
    found = roofline(1e12, 20e9, PLAIN, "f32", 1)
    assert found is not None
    assert (found.bound, found.seconds, found.gflops) == ("compute", 10.0, 100.0)
    assert found.intensity == 50.0
    assert (found.compute, found.memory) == (FMA[0], MEMORY[1])


def test_memory_bound() -> None:
    found = roofline(10e9, 20e9, PLAIN, "f32", 1)
    assert found is not None
    assert (found.bound, found.seconds, found.gflops) == ("memory", 1.0, 10.0)


def test_costs_of_one_kind_only() -> None:
    copy = roofline(0, 20e9, PLAIN, "f32", 1)
    assert copy is not None
    assert (copy.bound, copy.seconds, copy.gflops, copy.intensity) == ("memory", 1.0, 0.0, 0.0)
    pure = roofline(1e11, 0, PLAIN, "f32", 1)
    assert pure is not None
    assert (pure.bound, pure.seconds, pure.intensity) == ("compute", 1.0, math.inf)


def test_without_ceilings_there_is_no_roofline() -> None:
    assert roofline(1.0, 1.0, Ceilings("m", (), "now"), "f32", 1) is None
    assert roofline(1.0, 0.0, PLAIN, "i32", 1) is None
    integers = roofline(1e9, 20e9, PLAIN, "i32", 1)
    assert integers is not None
    assert (integers.bound, integers.seconds, integers.compute) == ("memory", 1.0, None)


@pytest.mark.parametrize("cost", [(0, 0), (-1, 5), (5, -1), (math.nan, 1), (1, math.inf)])
def test_a_cost_that_cannot_be_is_refused(cost: tuple[float, float]) -> None:
    with pytest.raises(OpwrightError, match="has no roofline"):
        roofline(*cost, PLAIN, "f32", 1)


# --- judgements -----------------------------------------------------------------------------------


def judged(seconds: float, flops: float, bytes: float, cache: Any, **more: Any) -> Judgement:
    options = {"ceilings": PLAIN, "dtype": "f32", "threads": 1, **more}
    found = judge(seconds=seconds, flops=flops, bytes=bytes, cache=cache, **options)
    assert found is not None
    return found


def test_half_the_roofline() -> None:
    found = judged(20.0, 1e12, 20e9, "cold")
    assert (found.share, found.label, found.warning) == (0.5, "", "")
    assert (found.gflops, found.gbs) == (50.0, 1.0)
    assert found.words == "50%"
    memory = judged(4.0, 1e9, 20e9, "cold")
    assert (memory.share, memory.label) == (0.25, "")


def test_above_the_compute_ceiling_the_measurement_is_broken() -> None:
    just = judged(1e12 / 104e9, 1e12, 1e9, "warm")
    assert (just.label, just.warning) == ("", "")
    for cache in ("warm", "cold"):
        found = judged(1e12 / 106e9, 1e12, 1e9, cache)
        assert found.label == found.words == "broken measurement"
        assert found.share is None
        assert "106 GFLOP/s" in found.warning
        assert "100 GFLOP/s" in found.warning
        assert "fma f32, 1 thread)" in found.warning


def test_above_the_memory_ceiling_from_cold_caches_it_is_broken_too() -> None:
    assert judged(20e9 / 22.9e9, 0, 20e9, "cold").label == ""
    found = judged(20e9 / 23.1e9, 0, 20e9, "cold")
    assert found.label == "broken measurement"
    assert "copy, 1 thread)" in found.warning


def test_b3_a_copy_that_stays_in_the_cache_is_no_bandwidth() -> None:
    # 1 MiB copied again and again: 2 MiB of traffic, 10 times as fast as memory can.
    traffic = 2 << 20
    hot = judged(traffic / 200e9, 0, traffic, "warm")
    assert hot.label == hot.words == "in cache"
    assert hot.share is None
    assert hot.warning == ""
    cold = judged(traffic / 10e9, 0, traffic, "cold")
    assert (cold.label, cold.share) == ("", 0.5)
    assert judged(traffic / 200e9, 0, traffic, "cold").label == "broken measurement"


def test_in_the_cache_the_share_is_that_of_arithmetic() -> None:
    found = judged(1.0, 60e9, 30e9, "warm")
    assert (found.label, found.share) == ("in cache", 0.6)


def test_a_warm_run_within_the_memory_ceiling_is_judged_by_the_roofline() -> None:
    found = judged(2.0, 1e9, 20e9, "warm")
    assert (found.label, found.share) == ("", 0.5)


def test_threads_and_types_choose_the_ceiling() -> None:
    assert judged(1.0, 125e9, 1e9, "cold", threads=4).share == 0.5
    assert judged(1.0, 25e9, 1e9, "cold", dtype="f64").share == 0.5
    assert judged(1.0, 1000e9, 1e9, "cold", ceilings=MATRIX, dtype="bf16").share == 0.5


def test_nothing_is_judged_without_a_ceiling() -> None:
    none = Ceilings("m", (), "now")
    common: dict[str, Any] = {"seconds": 1.0, "cache": "cold", "dtype": "f32", "threads": 1}
    assert judge(flops=1.0, bytes=1.0, ceilings=none, **common) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(OpwrightError, match="is no time"):
        judged(seconds, 1.0, 1.0, "cold")


# --- kept -----------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(own_home: Path) -> None:
    assert load("abc123") is None
    save(MATRIX)
    assert load("abc123") == MATRIX
    save(PLAIN)
    assert load("abc123") == PLAIN
    assert load("other") is None
    assert [path.name for path in (own_home / "ceilings").iterdir()] == ["abc123.json"]


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda kept: kept.pop(key)


def _first(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda kept: kept["ceilings"][0].update({key: value})


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "no machine": _without("machine"),
    "no time": _without("measured"),
    "no ceilings": _without("ceilings"),
    "empty": lambda kept: kept.update(ceilings=[]),
    "another machine's": lambda kept: kept.update(machine="other"),
    "a list": lambda kept: kept.update(ceilings=[[1, 2]]),
    "a number": lambda kept: kept.update(measured=5),
    "no name": _first("name", 3),
    "no unit": _first("unit", None),
    "more fields": _first("extra", 1),
    "zero": _first("value", 0.0),
    "infinite": _first("value", math.inf),
    "not a number": _first("value", math.nan),
    "text": _first("value", "fast"),
    "no threads": _first("threads", 0),
    "half a thread": _first("threads", 1.5),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_counts_as_none(
    own_home: Path, damage: Callable[[dict[str, Any]], None]
) -> None:
    save(PLAIN)
    path = own_home / "ceilings" / "abc123.json"
    kept = json.loads(path.read_text())
    damage(kept)
    path.write_text(json.dumps(kept))
    assert load("abc123") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'"text"'])
def test_so_does_what_is_no_such_file(own_home: Path, content: bytes) -> None:
    save(PLAIN)
    (own_home / "ceilings" / "abc123.json").write_bytes(content)
    assert load("abc123") is None


@pytest.mark.parametrize("machine", ["", "../abc", "a/b", "a b"])
def test_a_fingerprint_cannot_name_another_folder(machine: str) -> None:
    with pytest.raises(OpwrightError, match="no machine's fingerprint"):
        load(machine)


def test_a_folder_that_cannot_be_written_is_a_machine_error(own_home: Path) -> None:
    (own_home / "ceilings").write_text("a file where the folder should be")
    with pytest.raises(MachineError, match="OPWRIGHT_HOME"):
        save(PLAIN)


# --- measured once --------------------------------------------------------------------------------


class FakeBackend:
    def __init__(self) -> None:
        self.measured = 0

    def measure_ceilings(self, progress: Callable[[str], None]) -> tuple[Ceiling, ...]:
        self.measured += 1
        progress("fma f32")
        return (Ceiling("fma f32", 100.0 + self.measured, "GFLOP/s", 1),)


def test_a_machine_is_measured_once_and_again_on_request() -> None:
    backend: Any = FakeBackend()
    probe = Probe("cpu", True, "a CPU", fingerprint="abc123")
    said: list[str] = []
    first = ensure(backend, probe, said.append)
    assert first.machine == "abc123"
    assert first.ceilings[0].value == 101.0
    assert said == ["fma f32"]
    assert ensure(backend, probe, said.append) == first
    assert backend.measured == 1

    again = ensure(backend, probe, said.append, again=True)
    assert again.ceilings[0].value == 102.0
    assert ensure(backend, probe, said.append) == again

    other = Probe("cpu", True, "a CPU", fingerprint="def456")
    assert ensure(backend, other, said.append).machine == "def456"
    assert backend.measured == 3
