"""A kernel row: one implementation of an operator, in one source file, for one backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import DeclarationError, UsageError
from opwright.spec.isa import isa_named

FAST_MATH_FLAGS = frozenset(
    {
        "-Ofast",
        "-ffast-math",
        "-funsafe-math-optimizations",
        "-ffinite-math-only",
        "-fassociative-math",
        "-freciprocal-math",
        "-fno-signed-zeros",
    }
)


@dataclass(frozen=True)
class Kernel:
    """One row of an operator's list.

    ``file`` is the source, relative to the declaration; its stem is the kernel's name and the part
    before the first ``_`` its backend. ``change`` says in one line what this rung changed.
    ``tune`` maps each tunable to the integers it may take, the first being the default; it reaches
    the source as a macro. ``isa`` is an instruction set of ``opwright.spec.isa``, ``dtypes`` limits
    the element types (names such as ``"f32"``; the default is all the operator has), ``threads``
    says that the kernel uses more than one, ``flags`` are further compiler options,
    ``deterministic=False`` that two runs may differ in the last bits. ``block`` and ``grid`` are
    launch shapes for backends that have them.

    Raises ``UsageError`` for a value that cannot be meant; ``Operator.kernels`` adds the place.
    """

    file: str
    change: str = ""
    tune: Mapping[str, Sequence[int]] = field(default_factory=dict)
    isa: str = "baseline"
    dtypes: Sequence[str] = ()
    threads: bool = False
    flags: Sequence[str] = ()
    deterministic: bool = True
    backend: str = ""
    block: Callable[..., Any] | None = None
    grid: Callable[..., Any] | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        name = Path(self.file).stem
        if not name.isidentifier():
            raise UsageError(
                f"kernel file {self.file!r}: the name before the suffix must be a word"
            )
        if not self.backend:
            object.__setattr__(self, "backend", name.split("_")[0])
        for tunable, choices in self.tune.items():
            if not tunable.isidentifier():
                raise UsageError(f"{name}: tunable {tunable!r} is no word that a macro can have")
            if not choices or not all(type(c) is int for c in choices):
                raise UsageError(
                    f"{name}: tunable {tunable} needs a list of integers, got {choices!r}"
                )
        isa_named(self.isa)
        for dtype in self.dtypes:
            dtype_named(dtype)

    @property
    def name(self) -> str:
        """The file's name without its suffix, which is also how commands name the kernel."""
        return Path(self.file).stem

    @property
    def path(self) -> Path:
        """The source file."""
        return self.folder / self.file

    @property
    def defaults(self) -> dict[str, int]:
        """The tunables at their default: the first value of each list."""
        return {tunable: choices[0] for tunable, choices in self.tune.items()}

    @property
    def fast_math(self) -> bool:
        """Whether the row asks for floating point that is not IEEE's; reports mark it."""
        return not FAST_MATH_FLAGS.isdisjoint(self.flags)

    def params(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """The defaults overridden by ``chosen``; raises ``UsageError`` for values not listed."""
        params = self.defaults
        for tunable, value in chosen.items():
            if tunable not in params:
                known = ", ".join(params) or "none"
                raise UsageError(f"{self.name} has no tunable {tunable!r}; it has: {known}")
            if value not in self.tune[tunable]:
                raise UsageError(
                    f"{self.name}: {tunable}={value} is not among {list(self.tune[tunable])}"
                )
            params[tunable] = value
        return params


def place_error(place: str, error: UsageError) -> DeclarationError:
    """The same complaint with the file and line it is about in front."""
    return DeclarationError(f"{place}: {error}")


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up: how many tiles of ``b`` cover ``a``."""
    return -(-a // b)
