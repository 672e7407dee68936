"""Which kernel serves a call: verified on this machine, and the fastest known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opwright.spec.dtypes import DType
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Array


@dataclass(frozen=True)
class Choice:
    """The kernel chosen, ready to run in this process."""

    kernel: str
    run: Callable[[Sequence[Array], Array, Sequence[int | float], int], None]
    threads: int


def choose(
    spec: OperatorSpec, kernel: str, dtypes: Mapping[str, DType], dims: Mapping[str, int]
) -> Choice:
    """The kernel that serves these element types and sizes."""
    raise NotImplementedError
