"""Fits the coefficients of the GELU by erf and prints ``normal_coefficients.h``.

    python -m opwright_ops.linear.fit_normal > src/opwright_ops/linear/normal_coefficients.h

The upper tail of the normal distribution is Q(a) = exp(-a^2 / 2) R(a), where R falls slowly from
1/2 to 0. With t = 1 / (1 + a / 3), which takes [0, inf) to (0, 1], R(a) = t p(t) with a polynomial
p of least relative error (Remez exchange, 40 digits, so that every machine prints the same).
"""

from __future__ import annotations

from decimal import Decimal, localcontext

from opwright_ops.threshold_activation.fit_tanh import DIGITS, array, c_float, minimax

DEGREE = 8
LARGEST = 14  # beyond 13.2 the tail is less than the smallest normal float
PI = Decimal("3.1415926535897932384626433832795028841972")


def mills(a: Decimal) -> Decimal:
    """R(a) for a >= 0: the tail's integral over its density, times that density at 0."""
    if a < 3:
        # Q(a) = 1/2 - exp(-a^2/2) / sqrt(2 pi) * (a + a^3/3 + a^5/(3 5) + ...)
        term = total = a
        odd = 1
        while abs(term) > Decimal(10) ** -(DIGITS + 2):
            odd += 2
            term = term * a * a / odd
            total += term
        return (a * a / 2).exp() / 2 - total / (2 * PI).sqrt()
    # Q(a) = density / (a + 1/(a + 2/(a + 3/(a + ...))))
    fraction = a
    for n in range(400, 0, -1):
        fraction = a + n / fraction
    return 1 / (fraction * (2 * PI).sqrt())


def header() -> str:
    """The text of ``normal_coefficients.h``."""
    with localcontext() as context:
        context.prec = DIGITS + 10

        def quotient(t: Decimal) -> Decimal:
            return mills(3 * (1 / t - 1)) / t

        low = 1 / (1 + Decimal(LARGEST) / 3)
        fit = minimax(quotient, lambda t: 1 / quotient(t), range(DEGREE + 1), low, Decimal(1))
        return "\n".join(
            [
                "// Written by fit_normal.py, which says what is fitted. Do not edit; run",
                "//     python -m opwright_ops.linear.fit_normal > normal_coefficients.h",
                "#pragma once",
                "",
                "namespace coefficients {",
                "",
                "// Q(a) = exp(-a^2 / 2) t (tail[0] + t (tail[1] + ...)) with t = 1/(1 + a/3), the",
                "// upper tail of the normal distribution for a >= 0: largest relative error",
                f"// {fit.error:.2e} before rounding.",
                *array("float", "tail", [c_float(c) for c in fit.coefficients]),
                "",
                "}  // namespace coefficients",
                "",
            ]
        )


if __name__ == "__main__":
    print(header(), end="")
