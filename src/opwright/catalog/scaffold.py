"""A new operator's folder, copied from the skeleton of the operator library."""

from __future__ import annotations

import ast
import keyword
import re
import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from opwright.catalog.find import DECLARATION
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.signature import C_LIBRARY, check_c_name

PLACEHOLDER = "skeleton"


def scaffold(name: str, parent: Path) -> Path:
    """Make ``parent/name``, a working operator called ``name``, and return it.

    Raises ``UsageError`` for a name that cannot name a C function or a folder that exists.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise UsageError(
            f"{name!r} cannot name an operator: it becomes a function in Python and C++, so use "
            "letters, digits and _, beginning with a letter"
        )
    check_c_name("operator", name)
    if name in C_LIBRARY or keyword.iskeyword(name):
        whose = "Python" if keyword.iskeyword(name) else "the C library"
        raise UsageError(f"{name!r} is a word of {whose}; choose another, {name}_op say")
    folder = parent / name
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name or remove it")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with (
            as_file(files("opwright_ops") / f"_{PLACEHOLDER}") as source,
            tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as unfinished,
        ):
            if name in _names(source / DECLARATION):
                raise UsageError(
                    f"{name!r} is used inside a new operator's {DECLARATION}; choose another name"
                )
            made = Path(unfinished) / name
            made.mkdir()
            for file in sorted(source.iterdir()):
                if file.is_file() and file.suffix != ".pyc" and file.name != "__init__.py":
                    text = file.read_text().replace(PLACEHOLDER, name)
                    (made / file.name.replace(PLACEHOLDER, name)).write_text(text)
            shutil.move(made, folder)
    except OSError as error:
        raise MachineError(f"cannot make {folder}: {error.strerror or error}") from error
    return folder


def _names(declaration: Path) -> set[str]:
    """The names that the skeleton's own declaration uses, and that an operator would replace."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(declaration.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found - {PLACEHOLDER}
