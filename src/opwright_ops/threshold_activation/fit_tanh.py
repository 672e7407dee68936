"""Fits the coefficients of the tanh kernels and prints ``tanh_coefficients.h``.

    python src/opwright_ops/threshold_activation/fit_tanh.py > \
        src/opwright_ops/threshold_activation/tanh_coefficients.h

Two approximations, both minimax (Remez exchange, 40 digits, so that every machine prints the same):

* ``table``: on 32 intervals of |x|, the quartic in r = |x| - (left end) of least absolute error.
  The intervals are those of the top 5 bits of |x| + 1 below 16: eight each of width 1/8 in [0, 1],
  1/4 in [1, 3], 1/2 in [3, 7] and 1 in [7, 15]: narrow where tanh bends.
* ``expm1``: q of least relative error in expm1(2 r) = r q(r) on |r| <= ln(2) / 4, a degree for
  float and one for double.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import groupby

import numpy as np

DIGITS = 40
GRID = 240
QUARTIC = 4
ENTRIES_PER_OCTAVE = 8
OCTAVES = 4
EXPM1_DEGREE = {"float": 5, "double": 10}

Function = Callable[[Decimal], Decimal]


@dataclass(frozen=True)
class Fit:
    """Coefficients of the given powers and the largest weighted error where they were fitted."""

    coefficients: tuple[Decimal, ...]
    error: Decimal


def tanh(x: Decimal) -> Decimal:
    """The hyperbolic tangent to about ``DIGITS`` digits."""
    e = (2 * x).exp()
    return (e - 1) / (e + 1)


def solve(matrix: list[list[Decimal]], right: list[Decimal]) -> list[Decimal]:
    """The solution of a small dense linear system, by elimination with row exchanges."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    solution = [Decimal(0)] * n
    for k in reversed(range(n)):
        known = sum((rows[k][j] * solution[j] for j in range(k + 1, n)), Decimal(0))
        solution[k] = (rows[k][n] - known) / rows[k][k]
    return solution


def evaluate(coefficients: Sequence[Decimal], powers: Sequence[int], x: Decimal) -> Decimal:
    """The sum of ``coefficients[i] * x**powers[i]``."""
    terms = (c * x**p for c, p in zip(coefficients, powers, strict=True))
    return sum(terms, Decimal(0))


def minimax(
    function: Function, weight: Function, powers: Sequence[int], low: Decimal, high: Decimal
) -> Fit:
    """The combination of ``powers`` whose weighted error on [low, high] is least.

    Remez exchange on a grid that is dense at both ends, as the points of extreme error are; zero
    is left out, where a fit without a constant has no error to balance.
    """
    steps = [Decimal(i) / GRID for i in range(GRID + 1)]
    grid = [x for s in steps if (x := low + (high - low) * (3 - 2 * s) * s * s)]
    values = [function(x) for x in grid]
    weights = [weight(x) for x in grid]
    extremes = len(powers) + 1
    points = [round(i * (len(grid) - 1) / (extremes - 1)) for i in range(extremes)]
    for _ in range(50):
        matrix = [
            [*(grid[p] ** power for power in powers), (-1) ** i / weights[p]]
            for i, p in enumerate(points)
        ]
        *coefficients, _ = solve(matrix, [values[p] for p in points])
        errors = [
            w * (evaluate(coefficients, powers, x) - v)
            for x, v, w in zip(grid, values, weights, strict=True)
        ]
        runs = groupby(range(len(grid)), key=lambda i: errors[i] > 0)
        found = [max(run, key=lambda i: abs(errors[i])) for _, run in runs]
        while len(found) > extremes:
            found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
        if found == points:
            return Fit(tuple(coefficients), max(map(abs, errors)))
        points = found
    raise ArithmeticError(f"no minimax fit of powers {powers} on [{low}, {high}] in 50 exchanges")


def interval(entry: int) -> tuple[Decimal, Decimal]:
    """The ends of the interval of |x| that the table's ``entry`` serves.

    An entry's number is the low 5 bits of the float |x| + 1 shifted right by 20: 2 bits of exponent
    and 3 of mantissa. The exponent of 1 ends in 11, so [0, 1] comes last.
    """
    exponent = (entry // ENTRIES_PER_OCTAVE + 1) % OCTAVES
    scale = Decimal(2) ** exponent
    step = Decimal(1) / ENTRIES_PER_OCTAVE
    low = scale * (1 + entry % ENTRIES_PER_OCTAVE * step) - 1
    return low, low + scale * step


def fit_entry(entry: int) -> Fit:
    """The quartic of one entry, all five coefficients.

    At 0 the constant is 0 and the slope 1, so that subnormal and small numbers pass unchanged.
    """
    low, high = interval(entry)
    fixed = (Decimal(0), Decimal(1)) if low == 0 else ()
    powers = range(len(fixed), QUARTIC + 1)
    fit = minimax(
        lambda r: tanh(low + r) - evaluate(fixed, range(len(fixed)), r),
        lambda r: Decimal(1),
        powers,
        Decimal(0),
        high - low,
    )
    return Fit(fixed + fit.coefficients, fit.error)


def fit_expm1(degree: int) -> Fit:
    """The polynomial q of expm1(2 r) = r q(r); its error is relative."""
    quarter = Decimal(2).ln() / 4

    def quotient(r: Decimal) -> Decimal:
        return ((2 * r).exp() - 1) / r

    return minimax(quotient, lambda r: 1 / quotient(r), range(degree + 1), -quarter, quarter)


def c_float(value: Decimal) -> str:
    """The nearest float, as C++ writes it."""
    text = f"{np.float32(float(value)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def c_double(value: Decimal) -> str:
    """The nearest double, as C++ writes it."""
    text = f"{float(value):.17g}"
    return text if "." in text or "e" in text else f"{text}.0"


def array(kind: str, name: str, values: Sequence[str]) -> Iterator[str]:
    """The lines that define a constant array, four values a line."""
    yield f"alignas(64) inline constexpr {kind} {name}[{len(values)}] = {{"
    for start in range(0, len(values), 4):
        yield "    " + " ".join(f"{value}," for value in values[start : start + 4])
    yield "};"


def header() -> str:
    """The text of ``tanh_coefficients.h``."""
    with localcontext() as context:
        context.prec = DIGITS
        entries = [fit_entry(entry) for entry in range(OCTAVES * ENTRIES_PER_OCTAVE)]
        lines = [
            "// Written by fit_tanh.py, which says what is fitted. Do not edit; run",
            "//     python fit_tanh.py > tanh_coefficients.h",
            "#pragma once",
            "",
            "namespace coefficients {",
            "",
            "// tanh(left + r) = table0 + r (table1 + r (table2 + r (table3 + r table4))): largest",
            f"// absolute error {max(fit.error for fit in entries):.2e} before rounding.",
        ]
        for power in range(QUARTIC + 1):
            values = [c_float(fit.coefficients[power]) for fit in entries]
            lines += array("float", f"table{power}", values)
        for kind, degree in EXPM1_DEGREE.items():
            fit = fit_expm1(degree)
            to_c = c_float if kind == "float" else c_double
            lines += [
                "",
                "// expm1(2 r) = r (q[0] + r (q[1] + ...)) for |r| <= ln(2) / 4: largest relative",
                f"// error {fit.error:.2e} before rounding.",
                *array(kind, f"expm1_{kind}", [to_c(c) for c in fit.coefficients]),
            ]
        return "\n".join([*lines, "", "}  // namespace coefficients", ""])


if __name__ == "__main__":
    print(header(), end="")
