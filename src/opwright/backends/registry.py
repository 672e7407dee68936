"""Backends by name, from the entry points ``opwright.backends``; loaded when first asked for."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from opwright.backends.base import Backend
from opwright.spec.errors import MachineError

GROUP = "opwright.backends"


def backend_names() -> list[str]:
    """The names of the installed backends."""
    return sorted({point.name for point in entry_points(group=GROUP)})


@cache
def backend_named(name: str) -> Backend:
    """The backend called ``name``.

    Raises ``MachineError`` saying which there are: a platform asked for is never replaced.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            backend = point.load()()
            assert isinstance(backend, Backend)
            return backend
    raise MachineError(
        f"no backend {name!r} is installed, so its kernels cannot be built or run here; "
        f"installed: {', '.join(backend_names()) or 'none'}"
    )
