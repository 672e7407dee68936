"""What the ladder's memory instructions cost, against counts worked out by hand.

All at m = n = k = 64 in f32 with arrays aligned as cudaMalloc does: rows of 256 bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cli.tool import opwright
from opwright.catalog.find import find
from opwright.inspect.kernel import Inspection, inspect
from opwright.inspect.model import passes
from opwright.spec.cases import selected_case

LADDER = find("matmul")


@cache
def inspected(name: str, size: int = 64, sample: int = 0) -> Inspection:
    [kernel] = [k for k in LADDER.kernels if k.name == name]
    case = selected_case(
        LADDER.spec, LADDER.spec.signature.choices()[0], f"m={size},n={size},k={size}"
    )
    return inspect(LADDER.spec, kernel, case, device="h200", sample=sample, registers=False)


def rows(name: str, size: int = 64, sample: int = 0) -> dict[str, tuple[int, int, int]]:
    """Requests, sectors and wavefronts by operation and array."""
    found: dict[str, tuple[int, int, int]] = {}
    for c in inspected(name, size, sample).lines:
        if c.operation == "branch":
            continue
        key = f"{c.operation} {c.array}"
        old = found.get(key, (0, 0, 0))
        found[key] = (old[0] + c.requests, old[1] + c.sectors, old[2] + c.wavefronts)
    return found


def test_naive() -> None:
    """128 warps, 32 rows each: every request for A touches 32 rows, those for B one element."""
    assert rows("cuda_v1_naive") == {
        "load a": (128 * 64, 128 * 64 * 32, 0),
        "load b": (128 * 64, 128 * 64, 0),
        "store out": (128, 128 * 32, 0),
    }


def test_coalesced() -> None:
    assert rows("cuda_v2_coalesced") == {
        "load a": (128 * 64, 128 * 64, 0),
        "load b": (128 * 64, 128 * 64 * 4, 0),
        "store out": (128, 128 * 4, 0),
    }


@pytest.mark.parametrize(("name", "store"), [("cuda_v3_tiled", 8), ("cuda_v4_padded", 1)])
def test_tiled(name: str, store: int) -> None:
    """16 blocks of 8 warps, 4 tiles of k. A warp has 2 rows of 16: twice 64 bytes, 4 sectors.

    It stores a column of 16 to rows of 16 words, 2 of which cover the banks: 4 banks, 8 words each.
    """
    warps, tiles = 128, 4
    assert rows(name) == {
        "load a": (warps * tiles, warps * tiles * 4, 0),
        "load b": (warps * tiles, warps * tiles * 4, 0),
        "store a_tile": (warps * tiles, 0, warps * tiles * store),
        "store b_tile": (warps * tiles, 0, warps * tiles),
        "load a_tile": (warps * tiles * 16, 0, warps * tiles * 16),
        "load b_tile": (warps * tiles * 16, 0, warps * tiles * 16),
        "store out": (warps, warps * 4, 0),
    }


def test_float4() -> None:
    """4 blocks of 32 warps, 2 tiles of k; 8 warps copy each tile, 16 bytes a lane: 16 sectors.

    Such a store takes 4 passes. Loads of A's tile are one element of 16 bytes for a whole warp.
    """
    assert rows("cuda_v5_float4") == {
        "load a": (4 * 8 * 2, 4 * 8 * 2 * 16, 0),
        "load b": (4 * 8 * 2, 4 * 8 * 2 * 16, 0),
        "store a_tile": (4 * 8 * 2, 0, 4 * 8 * 2 * 4),
        "store b_tile": (4 * 8 * 2, 0, 4 * 8 * 2 * 4),
        "load a_tile": (4 * 32 * 2 * 8, 0, 4 * 32 * 2 * 8),
        "load b_tile": (4 * 32 * 2 * 32, 0, 4 * 32 * 2 * 32),
        "store out": (128, 128 * 4, 0),
    }


def test_registers() -> None:
    """1 block of 8 warps, 4 tiles of k. Fours of A are stored to rows of 68 words: 2-way."""
    found = rows("cuda_v6_registers")
    assert found["load a"] == (8 * 4, 8 * 4 * 16, 0)
    assert found["load b"] == (8 * 4, 8 * 4 * 16, 0)
    assert found["store a_tile"] == (8 * 4 * 4, 0, 8 * 4 * 4 * 2)
    assert found["store b_tile"] == (8 * 4, 0, 8 * 4 * 4)
    assert found["load a_tile"][0] == found["load b_tile"][0] == 8 * 64
    assert found["store out"] == (8 * 4, 8 * 4 * 16, 0)


def test_nothing_is_found_in_the_ladder() -> None:
    for kernel in LADDER.kernels:
        if kernel.backend == "cuda":
            assert inspected(kernel.name).fault is None


def of_256(name: str) -> Inspection:
    return inspected(name, 256, sample=8)


def test_each_rung_is_predicted_to_be_faster() -> None:
    times = [of_256(k.name).estimate for k in LADDER.kernels if k.backend == "cuda"]
    worst = [e.worst for e in times if e is not None]
    assert len(worst) == 6
    assert worst[0] > worst[1] > worst[2] > worst[3]
    # 64 blocks of v5 and 16 of v6 leave SMs idle: compare what there is to do.
    names = ("cuda_v4_padded", "cuda_v5_float4", "cuda_v6_registers")
    work = [sum(map(passes, of_256(name).lines)) for name in names]
    assert work[0] > 1.4 * work[1] > 2.8 * work[2]


def test_the_advice_leads_from_rung_to_rung() -> None:
    def about(name: str, words: str) -> set[str]:
        found = [a for a in of_256(name).advice if words in a.text]
        return {Path(a.file).read_text().splitlines()[a.line - 1].strip() for a in found}

    [scattered] = about("cuda_v1_naive", "sectors a request")
    assert scattered.startswith("sum += ")
    assert not about("cuda_v2_coalesced", "sectors a request")
    assert about("cuda_v2_coalesced", "copy tiles to shared memory")
    assert not about("cuda_v3_tiled", "copy tiles to shared memory")
    [conflicting] = about("cuda_v3_tiled", "8.0-way bank conflict")
    assert conflicting.startswith("a_tile[x][y] =")
    assert not about("cuda_v4_padded", "bank conflict")
    assert about("cuda_v4_padded", "results a thread in registers")


def test_a_sample_is_scaled_to_the_grid() -> None:
    """All blocks of this grid do the same, so that any of them stand for all."""
    assert inspected("cuda_v2_coalesced", 64, 4).sampled
    assert inspected("cuda_v2_coalesced", 64, 4).blocks_run == 4
    assert rows("cuda_v2_coalesced", 64, 4) == rows("cuda_v2_coalesced", 64)


def test_the_command() -> None:
    ran = opwright(
        "inspect", "matmul/cuda_v3_tiled", "--shape", "m=64,n=64,k=64", "--device", "a100", "--json"
    )
    data = ran.json["data"]
    assert ran.code == 0
    assert (data["device"], data["ran_on"], data["sampled"]) == ("a100", "emulator", False)
    stores = [r for r in data["lines"] if (r["operation"], r["array"]) == ("store", "a_tile")]
    assert [(r["conflict"], r["excess"]) for r in stores] == [(8.0, 512 * 7)]
    assert data["intensity"] == 2 * 64**3 / (3 * 64 * 64 * 4)
    text = opwright("inspect", "matmul/cuda_v3_tiled", "--shape", "m=64,n=64,k=64").out
    assert "8.0-way" in text
    assert "bound by L1 and shared memory" in text


def test_an_unknown_device_is_told_the_names_there_are() -> None:
    ran = opwright("inspect", "matmul/cuda_v3_tiled", "--device", "h300")
    assert ran.code == 2
    assert "a100" in ran.err
    assert "h200" in ran.err


def test_one_kernel_of_the_dialect_has_to_be_named() -> None:
    assert opwright("inspect", "matmul").code == 2
    ran = opwright("inspect", "matmul/cpu_v1_naive", "--shape", "m=4,n=4,k=4")
    assert ran.code == 2
    assert "is a kernel for cpu" in ran.err


def test_without_peaks_no_time_is_predicted() -> None:
    ran = opwright(
        "inspect", "matmul/cuda_v2_coalesced", "--shape", "m=8,n=8,k=8", "--device", "br106m"
    )
    assert ran.code == 0
    assert "uncalibrated" in ran.out
    assert "at least" not in ran.out.partition("uncalibrated")[2]


def test_nothing_to_launch() -> None:
    ran = opwright("inspect", "matmul/cuda_v2_coalesced", "--shape", "m=0,n=8,k=8")
    assert ran.code == 0
    assert "nothing is launched" in ran.out
