"""Opwright: get the op right, then make it fast.

Declare a compute operator once by its formula, write kernels for it, and take them through one
loop: build, verify, measure, and keep the history.
"""

from opwright.dispatch.operator import Operator, operator
from opwright.spec.errors import OpwrightError
from opwright.spec.kernel import Kernel
from opwright.spec.signature import T, Tensor, U, V
from opwright.spec.tolerance import Tolerance

__all__ = ["Kernel", "Operator", "OpwrightError", "T", "Tensor", "Tolerance", "U", "V", "cdiv", "operator"]
__version__ = "0.1.0"


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up: how many tiles of ``b`` cover ``a``."""
    return -(-a // b)
