"""Every error Opwright raises. ``exit_code`` is what the command line ends with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class OpwrightError(Exception):
    """Base of all errors: something was found wrong (exit code 1)."""

    exit_code: ClassVar[int] = 1


class UsageError(OpwrightError):
    """The request cannot be understood: unknown names, malformed options (exit code 2)."""

    exit_code = 2


class UnknownNameError(UsageError, LookupError):
    """A name that does not exist; the message offers the nearest names that do."""

    def __init__(self, what: str, name: str, known: Iterable[str], where: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names)}"
        if not names:
            hint = "there are none"
        super().__init__(f"no {what} named {name!r}{f' in {where}' if where else ''}; {hint}")


class DeclarationError(UsageError):
    """An operator or kernel row is declared wrongly; the message starts with file and line."""


class DTypeError(OpwrightError, TypeError):
    """An element type that does not fit, or that no kernel serves (also a ``TypeError``)."""

    exit_code = 2


class ShapeError(OpwrightError, ValueError):
    """Shapes that do not agree with the declaration or one another (also a ``ValueError``)."""

    exit_code = 2


class MachineError(OpwrightError):
    """This machine lacks something: a compiler, a device, memory (exit code 3)."""

    exit_code = 3


class BuildError(OpwrightError):
    """A kernel does not compile or link; ``diagnostics`` is the compiler's own text.

    ``kind`` is what a finding about it is called, ``line`` the source line it points at (from 1, 0
    when unknown).
    """

    kind: ClassVar[str] = "does-not-compile"

    def __init__(self, message: str, diagnostics: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics
        self.line = line


class MissingFunctionError(BuildError):
    """The source compiles but does not define the function that the declaration implies."""

    kind = "missing-function"


class NothingSelectedError(OpwrightError):
    """The filters given leave no kernel or case to work on (exit code 5)."""

    exit_code = 5
