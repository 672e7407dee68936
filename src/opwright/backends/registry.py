"""Backends by name, from the entry points ``opwright.backends``; loaded when first asked for."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from opwright.backends.base import Backend
from opwright.spec.errors import MachineError
from opwright.spec.kernel import Kernel

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


def backend_for(kernel: Kernel, wanted: str | None = None) -> Backend:
    """The backend that runs ``kernel``: ``wanted``, else its dialect's own, else one that has it.

    Of several, the first that is available here; where none is, the first, whose ``probe`` says why
    not. Raises ``MachineError`` where no installed backend has the dialect, or ``wanted`` has not.
    """
    if wanted is not None:
        backend = backend_named(wanted)
        if kernel.backend not in backend.dialects:
            raise MachineError(
                f"{kernel.name} is written for {kernel.backend}; backend {wanted!r} runs: "
                f"{', '.join(backend.dialects)}"
            )
        return backend
    installed = [backend_named(name) for name in backend_names()]
    speaking = [backend for backend in installed if kernel.backend in backend.dialects]
    if not speaking:
        return backend_named(kernel.backend)
    speaking.sort(key=lambda backend: backend.name != kernel.backend)
    return next((b for b in speaking if b.probe().available), speaking[0])
