"""The import rules of the house: nothing imports upward, not even inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# From low to high; those on one line may not import one another.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("spec",),
    ("toolchain",),
    ("report",),
    ("emulator",),
    ("backends",),
    ("catalog",),
    ("history",),
    ("verify",),
    ("bench",),
    ("dispatch",),
    ("inspect", "tune", "ship"),
    ("torch",),
    ("cli",),
)
HEIGHT = {folder: height for height, layer in enumerate(LAYERS) for folder in layer}

# What the operator library, a plugin like any other, may use.
PUBLIC = "opwright"


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, text: str | None = None) -> Iterator[tuple[int, str]]:
    """Line and absolute name of all that the file imports, wherever in it.

    ``from a.b import c`` gives ``a.b.c``: whether c is a module or a name, its folder is the same.
    """
    name = name_of(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text() if text is None else text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, *filter(None, [module])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and _imports_by_name(node):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)
            elif isinstance(argument, ast.JoinedStr):
                first = argument.values[0]
                yield node.lineno, str(first.value) if isinstance(first, ast.Constant) else ""


def _imports_by_name(node: ast.Call) -> bool:
    called = node.func
    word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return word in ("import_module", "__import__")


def folder_of(name: str) -> str | None:
    """The layer of a module of ours; None for what is not ours, '' for the package itself."""
    parts = name.split(".")
    if parts[0] != "opwright":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in HEIGHT else ""


def violations(path: Path, text: str | None = None) -> list[str]:
    own = folder_of(name_of(path))
    assert own is not None
    found: list[str] = []
    for line, name in imported(path, text):
        other = folder_of(name)
        where = f"{path.relative_to(SOURCE)}:{line} imports {name}"
        if name.split(".")[0] == "opwright_ops":
            found.append(f"{where}: the operator library is a plugin, found by its entry point")
        if other is None or own == "":
            continue
        if other == "":
            # The package itself reaches everything; its version is no dependency.
            if name != "opwright.__version__":
                found.append(f"{where}: the package itself names everything; import from its home")
        elif other != own and HEIGHT[other] >= HEIGHT[own]:
            found.append(f"{where}: {other} is above {own}")
    return found


@pytest.mark.parametrize("path", modules("opwright"), ids=name_of)
def test_nothing_imports_upward(path: Path) -> None:
    assert violations(path) == []


def test_every_folder_has_its_layer() -> None:
    folders = {p.relative_to(SOURCE / "opwright").parts[0] for p in modules("opwright")}
    assert {f for f in folders if not f.endswith(".py")} <= set(HEIGHT)


@pytest.mark.parametrize("path", modules("opwright/spec"), ids=name_of)
def test_spec_is_pure_python_over_numpy(path: Path) -> None:
    """No input or output, no processes, no framework: nothing that could not run anywhere."""
    banned = {
        "subprocess",
        "ctypes",
        "multiprocessing",
        "socket",
        "os",
        "sqlite3",
        "torch",
        "click",
    }
    assert not {name.split(".")[0] for _, name in imported(path)} & banned


@pytest.mark.parametrize("path", modules("opwright_ops"), ids=name_of)
def test_the_operator_library_uses_public_names_only(path: Path) -> None:
    import opwright

    for line, name in imported(path):
        package, _, rest = name.partition(".")
        if package == PUBLIC:
            assert rest in opwright.__all__, f"{path.relative_to(SOURCE)}:{line} imports {name}"


@pytest.mark.parametrize("path", modules("opwright"), ids=name_of)
def test_the_library_neither_prints_nor_exits(path: Path) -> None:
    if folder_of(name_of(path)) == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "exit", "quit", "sys.exit", "os._exit"), (
                f"{path.relative_to(SOURCE)}:{node.lineno} calls {called}"
            )


@pytest.mark.parametrize(
    ("module", "text", "lines"),
    [
        ("opwright/spec/x.py", "from opwright.toolchain.paths import home", 1),
        ("opwright/spec/x.py", "from opwright.spec.errors import UsageError", 0),
        ("opwright/spec/x.py", "def f():\n    import opwright.verify.engine", 1),
        ("opwright/spec/x.py", "if TYPE_CHECKING:\n    from opwright.cli import main", 1),
        ("opwright/spec/x.py", "from ..backends import base", 1),
        ("opwright/spec/x.py", "from . import errors\nfrom .errors import UsageError", 0),
        ("opwright/spec/__init__.py", "from ..cli import main", 1),
        ("opwright/spec/x.py", "from opwright import cli", 1),
        ("opwright/spec/x.py", "from opwright import operator", 1),
        ("opwright/spec/x.py", "import opwright", 1),
        ("opwright/cli/x.py", "from opwright import __version__", 0),
        ("opwright/verify/x.py", "from opwright.backends.base import Device", 0),
        ("opwright/verify/x.py", "import importlib\nimportlib.import_module('opwright.bench')", 1),
        ("opwright/verify/x.py", "__import__(f'opwright.cli.{name}')", 1),
        ("opwright/tune/x.py", "import opwright.ship.pack", 1),
        ("opwright/cli/x.py", "import opwright.ship.pack, numpy", 0),
        ("opwright/verify/x.py", "import opwright_ops.matmul", 1),
        ("opwright/__init__.py", "from opwright.cli import main", 0),
    ],
)
def test_the_rule_sees(module: str, text: str, lines: int) -> None:
    assert len(violations(SOURCE / module, text)) == lines
