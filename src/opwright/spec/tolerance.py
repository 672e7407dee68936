"""How far from the oracle a right kernel may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tolerance:
    """Placeholder."""

    terms: Callable[..., Any] | None = None
    depth: str = ""
    ulps: float = 0.5
