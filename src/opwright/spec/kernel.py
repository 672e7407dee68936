"""A kernel row: one implementation of an operator, in one source file, for one backend."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import operator as op
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.spec.dtypes import dtype_named
from opwright.spec.errors import DeclarationError, ShapeError, UnknownNameError, UsageError
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

LARGEST_SPACE = 1_000_000  # combinations; listing those that meet a condition takes seconds


@dataclass(frozen=True)
class Kernel:
    """One row of an operator's list.

    ``file`` is the source, relative to the declaration; its stem is the kernel's name and the part
    before the first ``_`` its backend. ``change`` says in one line what this rung changed.
    ``tune`` maps each tunable to the integers it may take, the first being the default; it reaches
    the source as a macro. ``when`` lists conditions on the tunables, such as ``"BLOCK % 8 == 0"``,
    that every configuration has to meet, the default one too. ``isa`` is an instruction set of
    ``opwright.spec.isa``, ``dtypes`` limits the element types (names such as ``"f32"``; the default
    is all the operator has), ``threads`` says that the kernel uses more than one, ``flags`` are
    further compiler options, ``deterministic=False`` that two runs may differ in the last bits.
    ``strided`` says that the C function takes the inputs' strides, and so inputs as they lie;
    ``packs`` names an input that further functions of the source put into a form of its own, once
    for many calls.
    ``block`` and ``grid`` are
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
    when: Sequence[str] = ()
    strided: bool = False
    packs: str = ""
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
        if not (isinstance(self.tune, Mapping) and all(isinstance(t, str) for t in self.tune)):
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
        size = math.prod(map(len, self.tune.values()))
        if size > LARGEST_SPACE:
            raise UsageError(
                f"{name}: tune has {size:,} combinations; at most {LARGEST_SPACE:,} are searched. "
                "Shorten the lists"
            )
        self._check_conditions()
        for option in ("threads", "deterministic", "strided"):
            if not isinstance(getattr(self, option), bool):
                raise UsageError(
                    f"{name}: {option}={getattr(self, option)!r} should be True or False"
                )
        isa_named(self.isa)
        check_list(f"{name}: dtypes", self.dtypes)
        check_list(f"{name}: flags", self.flags)
        for dtype in self.dtypes:
            dtype_named(dtype)

    def _check_conditions(self) -> None:
        check_list(f"{self.name}: when", self.when)
        for condition in self.when:
            _evaluate_condition(self.name, condition, self.defaults)
        if self.broken(self.defaults) and next(self.space(), None) is None:
            raise UsageError(
                f"{self.name}: no configuration meets when={list(self.when)!r}: the space of "
                f"{', '.join(self.tune)} is empty"
            )
        if condition := self.broken(self.defaults):
            shown = ", ".join(f"{t}={v}" for t, v in self.defaults.items())
            raise UsageError(
                f"{self.name}: the default configuration ({shown}, the first of each list) does "
                f"not meet when={condition!r}; reorder the lists"
            )

    def broken(self, params: Mapping[str, int]) -> str:
        """The first condition of ``when`` that ``params`` does not meet; empty when all hold."""
        unmet = (c for c in self.when if not _evaluate_condition(self.name, c, params))
        return next(unmet, "")

    def space(self) -> Iterator[dict[str, int]]:
        """Every configuration that meets ``when``, the default first, the last tunable fastest."""
        for values in itertools.product(*self.tune.values()):
            params = dict(zip(self.tune, values, strict=True))
            if not self.broken(params):
                yield params

    @functools.cached_property
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
        """The defaults overridden by ``chosen``.

        Raises ``UsageError`` for values not listed and for those that ``when`` excludes.
        """
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
        if condition := self.broken(params):
            shown = ", ".join(f"{t}={v}" for t, v in params.items())
            raise UsageError(f"{self.name}: {shown} does not meet when={condition!r} of its row")
        return params


_OPERATORS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: op.add,
    ast.Sub: op.sub,
    ast.Mult: op.mul,
    ast.FloorDiv: op.floordiv,
    ast.Mod: op.mod,
    ast.USub: op.neg,
    ast.Not: op.not_,
    ast.Eq: op.eq,
    ast.NotEq: op.ne,
    ast.Lt: op.lt,
    ast.LtE: op.le,
    ast.Gt: op.gt,
    ast.GtE: op.ge,
}


@functools.cache
def _parsed(condition: str) -> ast.expr:
    """Once for all configurations: parsing takes as long as evaluating, 17 us."""
    return ast.parse(condition.strip(), mode="eval").body


def _evaluate_condition(name: str, condition: str, params: Mapping[str, int]) -> bool:
    """Whether ``params`` meets ``condition``; raises ``UsageError`` for what is no condition."""

    def refuse(node: ast.expr) -> UsageError:
        return UsageError(
            f"{name}: when={condition!r}: cannot use {ast.unparse(node)!r}; a condition is made of "
            f"the tunables ({', '.join(params) or 'none'}), integers, + - * // %, comparisons, "
            "and, or, not"
        )

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in params:
                raise UnknownNameError("tunable", node.id, params, f"{name}: when={condition!r}")
            return params[node.id]
        if isinstance(node, ast.BoolOp):
            values = [walk(value) for value in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](walk(node.operand))
        if isinstance(node, ast.Compare) and all(type(o) in _OPERATORS for o in node.ops):
            sides = [walk(node.left), *map(walk, node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_OPERATORS[type(o)](a, b) for o, a, b in pairs)
        raise refuse(node)

    try:
        return bool(walk(_parsed(condition)))
    except SyntaxError as error:
        raise UsageError(f"{name}: when={condition!r} is no condition: {error.msg}") from None
    except ZeroDivisionError:
        shown = ", ".join(f"{t}={v}" for t, v in params.items())
        raise UsageError(f"{name}: when={condition!r} divides by 0 at {shown}") from None


def place_error(place: str, error: UsageError | ShapeError) -> DeclarationError:
    """The same complaint with the file and line it is about in front."""
    return DeclarationError(f"{place}: {error}")


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up: how many tiles of ``b`` cover ``a``."""
    return -(-a // b)
