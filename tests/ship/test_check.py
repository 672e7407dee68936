"""The checklist: each item has a library for which it does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opwright.ship.check.instructions import allowed_in, needs_of, strays
from opwright.ship.check.items import Checked, Settings, check
from opwright.ship.elf import Elf
from opwright.ship.generate import CPUID
from opwright.spec.errors import UsageError
from opwright.spec.isa import ISAS
from ship.tools import RIGHT, affine_folder, howto, need, opwright, run


def ship(folder: Path, out: Path, *words: str) -> Path:
    code, said = opwright("ship", str(folder), "--out", str(out), "--name", "mine", *words)
    assert code == 0, said
    return out / "lib" / "libmine.so"


def found(library: Path, reloads: int = 100) -> Checked:
    return check(library, settings=Settings(quick=True, reloads=reloads))


def test_the_whole_list_for_the_library_of_the_howto(prefix: Path) -> None:
    need("objdump")
    line = howto("console")[0].splitlines()[1]
    assert line == "opwright check dist/lib/libfastops.so"
    code, said = opwright("check", str(prefix / "lib" / "libfastops.so"))
    assert code == 0, said
    items = [line.split(":")[0].split(maxsplit=1)[1] for line in said.splitlines()]
    for item in (
        "file symbols dependencies instructions header dispatch verified alignment threads fork"
    ).split():
        assert item in items
    assert "caller's own" in items and "unloading" in items
    assert "0 found" in said


# Faults planted in a kernel, the item that finds each, and words of what it says.
FAULTS = {
    "wrong at one size": (
        RIGHT + " if (n == 15) out[3] += 1.0f;",
        "",
        "verified: affine f32 baseline cpu_v1",
        "wrong-values",
    ),
    "writes beside its output": (RIGHT + " out[n] = 3.0f;", "", "verified", "signal 11"),
    "takes its input for aligned": (
        "if (reinterpret_cast<std::uintptr_t>(x) % 16 && n > 300 && n < 400) __builtin_trap();"
        + RIGHT,
        "",
        "alignment",
        "moved by",
    ),
    "keeps state between calls": (
        RIGHT + " counter = counter + n; if (counter > 500000) out[0] = 0;",
        "static volatile int64_t counter;",
        "threads",
        "differ from the same call alone",
    ),
    "keeps memory": (
        RIGHT + " leaked = std::malloc(4096); std::memset(leaked, 1, 4096);",
        "#include <cstdlib>\n#include <cstring>\nstatic void* volatile leaked;",
        "unloading",
        "kB",
    ),
    "never ends": (RIGHT + ' while (n == 15) asm volatile("");', "", "verified", "in time"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(tmp_path: Path, fault: str) -> None:
    need("objdump")
    body, before, item, words = FAULTS[fault]
    folder = affine_folder(tmp_path / "affine", body, before=before)
    library = ship(folder, tmp_path / "out", "--verify", "none")
    limit = 1.0 if fault == "never ends" else 10.0
    checked = check(library, settings=Settings(quick=True, reloads=1000, time_limit=limit))
    wrong = [i for i in checked.items if i.verdict == "found"]
    assert any(i.name.startswith(item) and words in i.text for i in wrong), wrong
    assert all(i.advice for i in wrong)


def test_ship_keeps_no_library_that_is_wrong(tmp_path: Path) -> None:
    folder = affine_folder(tmp_path / "affine", RIGHT + " if (n == 15) out[3] += 1.0f;")
    out = tmp_path / "out"
    code, said = opwright("ship", str(folder), "--out", str(out), "--name", "mine")
    assert code == 1
    assert "the library is wrong, so it was not kept" in said and "n=15" in said
    assert not [p for p in out.rglob("*") if p.is_file() or p.is_symlink()]


def test_the_command_reports_what_it_finds(tmp_path: Path) -> None:
    need("objdump")
    folder = affine_folder(tmp_path / "affine", RIGHT + " if (n == 15) out[3] += 1.0f;")
    library = ship(folder, tmp_path / "out", "--verify", "none")
    code, said = opwright("check", str(library), "--quick", "--json")
    assert code == 1
    document = json.loads(said)
    assert document["exit_code"] == 1
    (finding,) = document["findings"]
    assert finding["kind"] == "deployment" and "wrong-values" in finding["message"]
    assert finding["advice"] == "opwright verify affine/cpu_v1"


def test_other_bytes_and_other_sources(tmp_path: Path) -> None:
    need("objdump")
    library = ship(affine_folder(tmp_path / "affine"), tmp_path / "out", "--verify", "quick")
    real = library.resolve()
    real.write_bytes(real.read_bytes() + b"\0")
    (item,) = [i for i in found(library).items if i.verdict == "found"]
    assert item.name == "file" and "other bytes" in item.text
    source = tmp_path / "out" / "share" / "mine" / "src" / "affine" / "cpu_v1.cpp"
    source.write_text(source.read_text() + "\n")
    code, said = opwright("check", str(library))
    assert code == 1 and "cpu_v1.cpp is not the source that the library was made of" in said


def test_a_library_of_another_linker(tmp_path: Path) -> None:
    """Exports, dependencies and instructions of a library not linked by ship."""
    need("objdump", "c++")
    library = ship(affine_folder(tmp_path / "affine"), tmp_path / "out", "--verify", "none")
    source = tmp_path / "other.cpp"
    source.write_text(
        "#include <iostream>\n"
        '__attribute__((target("avx512f"))) void wide(float* x) {\n'
        "    for (int i = 0; i < 1024; ++i) x[i] *= 3; }\n"
        "void say() { std::cout << 1; }\n"
    )
    command = ["c++", "-O3", "-shared", "-fPIC", "-mprefer-vector-width=512", str(source)]
    run([*command, "-Wl,-rpath,/opt", "-o", str(library.resolve())])
    checked = found(library)
    wrong = {i.name: i.text for i in checked.items if i.verdict == "found"}
    assert "exports what it should not" in wrong["symbols"]
    assert "does not export __tvm_ffi_affine, mine_active" in wrong["symbols"]
    assert "needs libstdc++.so.6" in wrong["dependencies"]
    assert "searches /opt" in wrong["dependencies"]
    assert "in .text needs avx512" in wrong["instructions"]


def test_a_header_that_warns(tmp_path: Path) -> None:
    need("objdump")
    library = ship(affine_folder(tmp_path / "affine"), tmp_path / "out", "--verify", "none")
    header = tmp_path / "out" / "include" / "mine.h"
    header.write_text(header.read_text() + "static int unused;\n")
    (item,) = [i for i in found(library).items if i.verdict == "found"]
    assert item.name == "header" and "unused" in item.text


def test_what_is_no_library(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing")
    with pytest.raises(UsageError, match="is no ELF file"):
        check(text)
    with pytest.raises(UsageError, match="No such file"):
        check(tmp_path / "absent.so")
    code, said = opwright("check", str(text), "--on", "pentium")
    assert code == 2 and "no processor named 'pentium'" in said
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 100)
    with pytest.raises(UsageError, match="damaged"):
        Elf(damaged.read_bytes())


# Instructions as objdump prints them, and what Intel's manual says each needs.
INSTRUCTIONS = {
    "mov %rsp,%rbp": "",
    "addps %xmm1,%xmm0": "",
    "cvtdq2ps (%rax),%xmm3": "",
    "tzcnt %eax,%edx": "",  # also rep bsf, which every processor runs
    "verr %ax": "",
    "xgetbv": "",
    "pshufb %xmm1,%xmm0": "sse4",
    "roundps $0x8,%xmm0,%xmm0": "sse4",
    "popcnt %rax,%rax": "sse4",
    "pmulld %xmm1,%xmm0": "sse4",
    "vaddps %xmm1,%xmm0,%xmm2": "avx2",
    "vfmadd231ps (%rax),%ymm1,%ymm2": "avx2",
    "vzeroupper": "avx2",
    "shlx %rcx,%rax,%rdx": "avx2",
    "andn %rcx,%rax,%rdx": "avx2",
    "vcvtph2ps %xmm0,%ymm0": "avx2",
    "vaddps %zmm1,%zmm0,%zmm2": "avx512",
    "vaddps %ymm17,%ymm0,%ymm2": "avx512",
    "vmovaps %xmm31,%xmm0": "avx512",
    "vmovups %ymm0,(%rax){%k1}": "avx512",
    "kmovw %k1,%eax": "avx512",
    "vmulps (%rax){1to4},%xmm0,%xmm1": "avx512",
    "vpdpbusd %zmm1,%zmm0,%zmm2": "avx512_vnni",
    "vdpbf16ps %zmm1,%zmm0,%zmm2": "avx512_bf16",
    "tdpbf16ps %tmm2,%tmm1,%tmm0": "amx",
    "tilerelease": "amx",
    "ldtilecfg (%rax)": "amx",
}


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_what_an_instruction_needs(text: str) -> None:
    mnemonic, _, operands = text.partition(" ")
    assert needs_of(mnemonic, operands) == INSTRUCTIONS[text]


def test_where_instructions_may_be() -> None:
    assert allowed_in(".text") == allowed_in("opw_text_baseline") == frozenset()
    assert allowed_in("opw_text_nonsense") == frozenset()
    assert allowed_in("opw_text_avx2") == {"avx2", "sse4", "fma", "f16c", "bmi1", "bmi2"}
    assert "avx512" in allowed_in("opw_text_avx512") and "amx" not in allowed_in("opw_text_avx512")
    assert {"avx512_bf16", "avx512"} <= allowed_in("opw_text_avx512_bf16")
    assert "amx" in allowed_in("opw_text_amx_bf16")


def test_every_feature_can_be_asked_for() -> None:
    assert {f for isa in ISAS.values() for f in isa.features} <= CPUID.keys()


def test_an_instruction_in_the_wrong_section_is_found(tmp_path: Path) -> None:
    need("objdump", "c++")
    source = tmp_path / "s.cpp"
    source.write_text(
        "#define IN(s) __attribute__((section(s)))\n"
        'extern "C" IN("opw_text_avx2") void two() { asm("vaddps %ymm1, %ymm0, %ymm0"); }\n'
        'extern "C" IN("opw_text_baseline") void one() { asm("vaddps %ymm1, %ymm0, %ymm0"); }\n'
        'extern "C" IN("opw_text_avx512") void up() { asm("vaddps %zmm1, %zmm0, %zmm0"); }\n'
    )
    run(["c++", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "s.so")])
    (stray,) = strays(tmp_path / "s.so")[0]
    assert (stray.section, stray.needs) == ("opw_text_baseline", "avx2")
    assert stray.text == "vaddps %ymm1,%ymm0,%ymm0"
