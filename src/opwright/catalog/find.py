"""Operators by name (entry points ``opwright.operators``), by folder, kernels also by file."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from opwright.spec.errors import DeclarationError, OpwrightError, UnknownNameError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec

GROUP = "opwright.operators"
DECLARATION = "op.py"


@dataclass(frozen=True)
class Target:
    """What a command works on. ``reference`` is how a command line names the operator."""

    spec: OperatorSpec
    kernels: tuple[Kernel, ...]
    reference: str
    one_kernel: bool


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def operator_names() -> list[str]:
    """The names of the installed operators."""
    return sorted(_points())


def load_operator(name: str) -> OperatorSpec:
    """The installed operator called ``name``; raises ``UnknownNameError`` with the nearest."""
    points = _points()
    if name not in points:
        raise UnknownNameError("operator", name, points)
    loaded = points[name].load()
    if not isinstance(loaded, OperatorSpec):
        raise DeclarationError(f"entry point {name} = {points[name].value} is not an operator")
    return loaded


def load_folder(folder: Path) -> OperatorSpec:
    """The one operator that ``folder/op.py`` declares.

    Raises ``DeclarationError`` with the place where the file fails, or when it declares none or
    several.
    """
    path = (folder / DECLARATION).resolve()
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {DECLARATION}, so it is no operator's folder; "
            "'opwright new NAME' makes one"
        )
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            break
    else:
        name = f"_opwright_operator_{abs(hash(path)):x}"
        loader = importlib.util.spec_from_file_location(name, path)
        assert loader is not None and loader.loader is not None
        module = importlib.util.module_from_spec(loader)
        sys.modules[name] = module
        try:
            loader.loader.exec_module(module)
        except OpwrightError:
            del sys.modules[name]
            raise
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, KeyboardInterrupt):
                raise
            raise DeclarationError(_place(error, path)) from error
    found = {id(v): v for v in vars(module).values() if isinstance(v, OperatorSpec)}
    own = [spec for spec in found.values() if spec.folder == path.parent]
    if not own:
        raise DeclarationError(f"{path}:1: no operator is declared here; @operator declares one")
    if len(own) > 1:
        places = ", ".join(f"{s.name} (line {s.place.rpartition(':')[2]})" for s in own)
        raise DeclarationError(
            f"{own[1].place}: one folder holds one operator, and here are several: {places}"
        )
    return own[0]


def _place(error: BaseException, path: Path) -> str:
    """``file:line: Kind: message`` of an error, at the deepest line of the declaration's file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == str(path)), 0)
    return f"{path}:{line}: {type(error).__name__}: {error}"


def find(text: str) -> Target:
    """What ``text`` names: an operator, ``operator/kernel``, a folder, or a kernel's source file.

    Raises ``UnknownNameError`` with the nearest names, ``UsageError`` for a path that is no
    operator's.
    """
    path = Path(text)
    looks_like_path = text.startswith((".", "/", "~")) or text.endswith(os.sep)
    points = _points()
    head, slash, tail = text.rstrip("/").partition("/")
    if head in points and not looks_like_path:
        spec = load_operator(head)
        if not slash:
            return Target(spec, spec.rows, head, one_kernel=False)
        return Target(spec, (spec.row(tail),), head, one_kernel=True)
    try:
        path = path.expanduser()
        path.stat()
    except RuntimeError as error:  # no such user
        raise UsageError(f"{text}: {error}") from None
    except OSError as error:
        # What is merely not there may still be a kernel without its suffix.
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise UsageError(f"{text[:80]}: {error.strerror}") from None
    if path.is_dir():
        spec = load_folder(path)
        return Target(spec, spec.rows, reference(spec), one_kernel=False)
    if path.parent.is_dir() and (path.parent / DECLARATION).is_file():
        spec = load_folder(path.parent)
        return Target(spec, (spec.row(path.name),), reference(spec), one_kernel=True)
    if path.is_file():
        raise UsageError(f"{text}: no {DECLARATION} beside it declares the operator it belongs to")
    if looks_like_path:
        raise UsageError(f"{text}: no such file or folder")
    raise UnknownNameError("operator", head, points)


def reference(spec: OperatorSpec) -> str:
    """How a command line names ``spec``: its installed name, else its folder."""
    point = _points().get(spec.name)
    if point is not None and point.value.partition(":")[0] == spec.formula.__module__:
        return spec.name
    folder = Path(os.path.relpath(spec.folder))
    shown = spec.folder if ".." in folder.parts else folder
    return str(shown) if shown.is_absolute() or shown == Path() else f"./{shown}"
