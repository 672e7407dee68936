"""A new operator's folder, copied from the skeleton of the operator library."""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from opwright.spec.errors import OpwrightError, UsageError
from opwright.spec.signature import C_LIBRARY, RESERVED

PLACEHOLDER = "skeleton"


def scaffold(name: str, parent: Path) -> Path:
    """Make ``parent/name``, a working operator called ``name``, and return it.

    Raises ``UsageError`` for a name that cannot name a C function or a folder that exists.
    """
    if (
        not (name.isidentifier() and name.isascii())
        or name in RESERVED | C_LIBRARY
        or name[0] == "_"
    ):
        raise UsageError(
            f"{name!r} cannot name an operator: it becomes a C function, so use letters, digits "
            "and _, beginning with a letter, no word of C++ and no function of the C library"
        )
    folder = parent / name
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name or remove it")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with (
            as_file(files("opwright_ops") / f"_{PLACEHOLDER}") as source,
            tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as unfinished,
        ):
            made = Path(unfinished) / name
            made.mkdir()
            for file in sorted(source.iterdir()):
                if file.is_file() and file.suffix != ".pyc" and file.name != "__init__.py":
                    text = file.read_text().replace(PLACEHOLDER, name)
                    (made / file.name.replace(PLACEHOLDER, name)).write_text(text)
            shutil.move(made, folder)
    except OSError as error:
        raise OpwrightError(f"cannot make {folder}: {error.strerror or error}") from error
    return folder
