"""A kernel row: one implementation of an operator, in one source file, for one backend."""

from __future__ import annotations

import ast
import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
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
            if not (isinstance(choices, Sequence) and choices):
                raise UsageError(
                    f"{name}: tunable {tunable} needs a list of integers, got {choices!r}"
                )
        # Before their values are looked at: range(10**9) is a list, too.
        size = math.prod(map(len, self.tune.values()))
        if size > LARGEST_SPACE:
            raise UsageError(
                f"{name}: tune has {size:,} combinations; at most {LARGEST_SPACE:,} are searched. "
                "Shorten the lists"
            )
        for tunable, choices in self.tune.items():
            if not all(type(c) is int for c in choices):
                raise UsageError(
                    f"{name}: tunable {tunable} needs a list of integers, got {choices!r}"
                )
            if len(set(choices)) < len(choices):
                raise UsageError(f"{name}: tunable {tunable} lists a value twice: {choices!r}")
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
            _check_condition(self.name, condition, self.tune)
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
        for condition in self.when:
            try:
                if not _meets(params, _compiled(condition)[0]):
                    return condition
            except ZeroDivisionError:
                shown = ", ".join(f"{t}={v}" for t, v in params.items())
                raise UsageError(
                    f"{self.name}: when={condition!r} divides by 0 at {shown}"
                ) from None
        return ""

    def space(self) -> Iterator[dict[str, int]]:
        """Every configuration that meets ``when``, the default first, the last tunable fastest.

        A condition is evaluated as soon as its tunables have values, once for all that follow.
        """
        names = [*self.tune]
        due: list[list[CodeType]] = [[] for _ in range(len(names) + 1)]
        for condition in self.when:
            code, used = _compiled(condition)
            due[max((names.index(name) + 1 for name in used), default=0)].append(code)
        params: dict[str, int] = {}

        def follow(at: int, divided: bool) -> Iterator[dict[str, int]]:
            for code in due[at]:
                if divided:  # by 0, which a condition listed before that one may rule out
                    break
                try:
                    if not _meets(params, code):
                        return
                except ZeroDivisionError:
                    divided = True
            if at == len(names):
                if not (divided and self.broken(params)):
                    yield dict(params)
                return
            tunable = names[at]
            for value in self.tune[tunable]:
                params[tunable] = value
                yield from follow(at + 1, divided)

        return follow(0, False)

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


_ALLOWED = frozenset(
    {
        *(ast.BoolOp, ast.And, ast.Or),
        *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
        *(ast.UnaryOp, ast.USub, ast.Not),
        *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
        *(ast.Name, ast.Load),
    }
)


def _check_condition(name: str, condition: str, tunables: Collection[str]) -> None:
    """Raise ``UsageError`` for what is no condition on ``tunables``; nothing of it is run."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except SyntaxError as error:
        raise UsageError(f"{name}: when={condition!r} is no condition: {error.msg}") from None
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            integer = isinstance(node, ast.Constant) and type(node.value) is int
            if not integer and type(node) not in _ALLOWED:
                refused = node if isinstance(node, ast.expr) else parent
                raise UsageError(
                    f"{name}: when={condition!r}: cannot use {ast.unparse(refused)!r}; a condition "
                    f"is made of the tunables ({', '.join(tunables) or 'none'}), integers, "
                    "+ - * // %, comparisons, and, or, not"
                )
            if isinstance(node, ast.Name) and node.id not in tunables:
                raise UnknownNameError("tunable", node.id, tunables, f"{name}: when={condition!r}")


@functools.cache
def _compiled(condition: str) -> tuple[CodeType, frozenset[str]]:
    """A checked condition as Python's code, and the tunables in it.

    Once for all configurations: parsing takes 17 us, running the code less than one.
    """
    tree = ast.parse(condition.strip(), mode="eval")
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return compile(tree, "when", "eval"), names


_NOTHING: dict[str, Any] = {"__builtins__": {}}  # what a condition can name beside tunables


def _meets(params: Mapping[str, int], condition: CodeType) -> bool:
    return bool(eval(condition, _NOTHING, params))


def place_error(place: str, error: UsageError | ShapeError) -> DeclarationError:
    """The same complaint with the file and line it is about in front."""
    return DeclarationError(f"{place}: {error}")


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up: how many tiles of ``b`` cover ``a``."""
    return -(-a // b)
