"""Opwright: get the op right, then make it fast.

Declare a compute operator once by its formula, write kernels for it, and take them through one
loop: build, verify, measure, and keep the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Annotated as Tensor

    from opwright.dispatch.operator import Operator as Operator
    from opwright.dispatch.operator import operator as operator
    from opwright.spec.errors import OpwrightError as OpwrightError
    from opwright.spec.kernel import Kernel as Kernel
    from opwright.spec.kernel import cdiv as cdiv
    from opwright.spec.signature import T as T
    from opwright.spec.signature import U as U
    from opwright.spec.signature import V as V
    from opwright.spec.tolerance import Tolerance as Tolerance

__version__ = "0.1.0"

# Imported on first use: 'opwright --help' has no need of NumPy, which takes longer than all else.
_HOMES = {
    "Kernel": "opwright.spec.kernel",
    "Operator": "opwright.dispatch.operator",
    "OpwrightError": "opwright.spec.errors",
    "T": "opwright.spec.signature",
    "Tensor": "opwright.spec.signature",
    "Tolerance": "opwright.spec.tolerance",
    "U": "opwright.spec.signature",
    "V": "opwright.spec.signature",
    "cdiv": "opwright.spec.kernel",
    "operator": "opwright.dispatch.operator",
}

__all__ = [
    "Kernel",
    "Operator",
    "OpwrightError",
    "T",
    "Tensor",
    "Tolerance",
    "U",
    "V",
    "cdiv",
    "operator",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opwright' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
