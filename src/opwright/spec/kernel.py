"""A kernel row: one implementation of an operator, in one source file, for one backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import DeclarationError, UsageError
from opwright.spec.isa import isa_named
from opwright.spec.signature import check_c_name, check_list

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

    ``place`` is the row's own file and line. Raises ``DeclarationError``, which begins with it, for
    a value that cannot be meant.
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
    place: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.place:
            frame = sys._getframe(2)  # past the __init__ that dataclass makes
            object.__setattr__(self, "place", f"{frame.f_code.co_filename}:{frame.f_lineno}")
        try:
            self._check()
        except UsageError as error:
            raise place_error(self.place, error) from None
        if not self.backend:
            object.__setattr__(self, "backend", self.name.split("_")[0])

    def _check(self) -> None:
        if not (isinstance(self.file, str) and self.name.isidentifier()):
            raise UsageError(
                f"kernel file {self.file!r}: the name before the suffix must be a word"
            )
        name = self.name
        if not isinstance(self.tune, Mapping):
            raise UsageError(f'{name}: tune={self.tune!r} should be like {{"TILE": [8, 16]}}')
        for tunable, choices in self.tune.items():
            check_c_name(f"{name}: tunable", tunable)
            listed = isinstance(choices, Sequence) and len(choices) > 0
            if not listed or not all(type(c) is int for c in choices):
                raise UsageError(
                    f"{name}: tunable {tunable} needs a list of integers, got {choices!r}"
                )
            if len(set(choices)) < len(choices):
                raise UsageError(f"{name}: tunable {tunable} lists a value twice: {choices!r}")
        isa_named(self.isa)
        check_list(f"{name}: dtypes", self.dtypes)
        check_list(f"{name}: flags", self.flags)
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
