"""What a library holds: for each operator and its element types the variants, best first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opwright.history.store import History
from opwright.ship.tuned import Tuned, tuned_for
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import NothingSelectedError, UsageError
from opwright.spec.isa import ISAS, Isa
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec, parse_dtypes
from opwright.spec.signature import check_c_name

# What a row's flags may not ask for: each would make the library need another at run time.
_OUTSIDE = ("-fopenmp", "-l", "-L", "-Wl,", "-fsanitize", "-flto", "-stdlib=", "--coverage")

# Where NEON belongs to every processor of the architecture, the baseline is NEON.
_BASELINE = {"aarch64": "neon"}


@dataclass(frozen=True)
class Variant:
    """One kernel, built for some element types and one instruction set.

    ``symbol`` is its name inside the library, ``path`` what ``FORCE`` calls its instruction set.
    ``low`` and ``high`` are the sizes, in the C function's order, that it is for; empty for all.
    """

    spec: OperatorSpec
    kernel: Kernel
    dtypes: Mapping[str, DType]
    params: Mapping[str, int]
    path: str
    symbol: str
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """``operator dtypes path kernel``, as the library itself names it.

        Tunables that are not at their default follow, and the range of sizes where there is one.
        """
        words = [self.spec.name, short_dtypes(self.dtypes) or "-", self.path, self.kernel.name]
        defaults = self.kernel.defaults
        words += [f"{t}={v}" for t, v in self.params.items() if defaults[t] != v]
        if self.low:
            ranges = zip(self.spec.signature.dims, self.low, self.high, strict=True)
            words.append(",".join(f"{dim}={low}..{high}" for dim, low, high in ranges))
        return " ".join(words)

    def takes(self, dims: Mapping[str, int]) -> bool:
        """Whether it is for these sizes."""
        sizes = [dims[d] for d in self.spec.signature.dims]
        return not self.low or all(
            low <= size <= high for low, size, high in zip(self.low, sizes, self.high, strict=True)
        )

    @property
    def isa(self) -> Isa:
        """Its instruction set."""
        return ISAS[self.kernel.isa]


@dataclass(frozen=True)
class Plan:
    """A library before it is built. ``passed_over`` says which kernels are left out, and why."""

    name: str
    version: str
    machine: str
    operators: tuple[OperatorSpec, ...]
    variants: tuple[Variant, ...]
    passed_over: tuple[str, ...] = field(default=())

    @property
    def prefix(self) -> str:
        """What macros and environment variables begin with."""
        return self.name.upper()

    @property
    def soname(self) -> str:
        """The name that programs linked with the library look for."""
        return f"lib{self.name}.so.{self.version.partition('.')[0]}"

    @property
    def file(self) -> str:
        """The library's file name, with the whole version."""
        return f"lib{self.name}.so.{self.version}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that a variant has, best first."""
        order = [path_name(isa, self.machine) for isa in ISAS]
        return tuple(p for p in reversed(order) if any(v.path == p for v in self.variants))

    def chain(self, spec: OperatorSpec, dtypes: Mapping[str, DType]) -> tuple[Variant, ...]:
        """The variants for these element types, best first."""
        return tuple(v for v in self.variants if v.spec is spec and v.dtypes == dtypes)

    def choices(self, spec: OperatorSpec) -> list[dict[str, DType]]:
        """The assignments of element types that some variant serves."""
        return [c for c in spec.signature.choices() if self.chain(spec, c)]


def path_name(isa: str, machine: str) -> str:
    """What a library for ``machine`` calls the instruction set ``isa``."""
    return _BASELINE.get(machine, isa) if isa == "baseline" else isa


def section_name(path: str) -> str:
    """The section of the library that holds all code meant for ``path``, and nothing else."""
    return f"opw_text_{path}"


def check_names(name: str, version: str) -> None:
    """Raise ``UsageError`` for what can be no library's name or version."""
    check_c_name("library", name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"library {name!r}: use a-z, 0-9 and _, as in fastops")
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise UsageError(f"--version {version!r}: write three numbers, as in 1.4.0")


def plan_library(
    name: str,
    version: str,
    machine: str,
    operators: Sequence[OperatorSpec],
    history: History | None = None,
    dtype: str = "",
) -> Plan:
    """Choose the variants: for each instruction set the last rung of the ladder that has it.

    ``dtype`` limits the element types, as ``--dtype`` does; without it the library serves all.

    With ``history``, what was measured faster on this machine comes before it for sizes near those.
    Raises ``UsageError`` for names that cannot be, ``NothingSelectedError`` where an operator has
    no kernel for this architecture.
    """
    check_names(name, version)
    if not operators:
        raise NothingSelectedError("no operator is given: name at least one")
    names = [spec.name for spec in operators]
    if len(set(names)) < len(names):
        raise UsageError(f"two of the operators have the same name: {', '.join(names)}")
    variants: list[Variant] = []
    passed_over: list[str] = []
    for spec in operators:
        usable = [row for row in spec.rows if _usable(spec, row, machine, passed_over)]
        wanted = parse_dtypes(spec.signature, dtype) if dtype else spec.signature.choices()
        for dtypes in wanted:
            by_path: dict[str, Kernel] = {}
            for row in usable:
                if spec.serves(row, dtypes):
                    by_path.pop(row.isa, None)  # a later rung, so a better one
                    by_path[row.isa] = row
            tuned = tuned_for(spec, dtypes, history) if history is not None else {}
            for row in reversed(by_path.values()):
                path = path_name(row.isa, machine)
                chain = [t for t in tuned.get(row.isa, ()) if t.kernel in usable]
                for t in (*chain, Tuned(row, row.defaults, (), ())):
                    symbol = f"opw_variant_{len(variants)}"
                    variants.append(
                        Variant(spec, t.kernel, dtypes, t.params, path, symbol, t.low, t.high)
                    )
            if by_path and "baseline" not in by_path:
                passed_over.append(
                    f"{spec.name} {short_dtypes(dtypes)}: no baseline kernel, so that the library "
                    f"needs {' or '.join(by_path)} for it"
                )
        if not any(v.spec is spec for v in variants):
            raise NothingSelectedError(
                f"{spec.name} has no kernel that a library for {machine} can hold"
                + "".join(f"; {reason}" for reason in passed_over)
            )
    return Plan(name, version, machine, tuple(operators), tuple(variants), tuple(passed_over))


def _usable(spec: OperatorSpec, row: Kernel, machine: str, passed_over: list[str]) -> bool:
    if row.backend != "cpu":
        return False
    if machine != "x86_64" and row.isa != "baseline":
        return False
    outside = [flag for flag in row.flags if flag.startswith(_OUTSIDE)]
    if outside:
        passed_over.append(
            f"{spec.name}/{row.name}: {' '.join(outside)} would make the library depend on another"
        )
    return not outside
