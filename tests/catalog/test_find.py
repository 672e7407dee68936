"""Finding operators and kernels by name, by folder and by file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.tool import declare, operator
from operators import RIGHT
from opwright.catalog.find import find, load_folder, load_operator, operator_names, reference
from opwright.spec.errors import DeclarationError, UnknownNameError, UsageError
from opwright_ops import matmul


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return operator(tmp_path, {"right": RIGHT, "other": RIGHT}).spec.folder


def test_installed_operators_by_name() -> None:
    assert {"matmul", "threshold_activation"} <= set(operator_names())
    assert load_operator("matmul") is matmul
    whole = find("matmul")
    assert whole.spec is matmul
    assert (whole.kernels, whole.reference, whole.one_kernel) == (matmul.rows, "matmul", False)
    one = find("matmul/cpu_v3_tiled")
    assert ([k.name for k in one.kernels], one.one_kernel) == (["cpu_v3_tiled"], True)
    assert find("matmul/cpu_v3_tiled.cpp").kernels == one.kernels
    assert find(str(matmul.folder / "cpu_v3_tiled.cpp")).reference == "matmul"


@pytest.mark.parametrize(
    "text", ["affine", "affine/", "./affine", "./affine/", "{here}/affine", "../{name}/affine"]
)
def test_a_folder_in_every_spelling(folder: Path, text: str) -> None:
    here = folder.parent
    found = find(text.format(here=here, name=here.name))
    assert found.spec.folder == folder
    assert [k.name for k in found.kernels] == ["cpu_right", "cpu_other"]
    assert found.reference == "./affine"
    assert not found.one_kernel


@pytest.mark.parametrize(
    "text",
    ["affine/cpu_other", "./affine/cpu_other", "affine/cpu_other.cpp", "{here}/affine/cpu_other"],
)
def test_a_kernel_in_every_spelling(folder: Path, text: str) -> None:
    found = find(text.format(here=folder.parent))
    assert [k.name for k in found.kernels] == ["cpu_other"]
    assert (found.reference, found.one_kernel) == ("./affine", True)
    # What it is called by leads back to it.
    assert find(f"{found.reference}/{found.kernels[0].name}") == found


def test_from_elsewhere_the_reference_is_the_whole_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert reference(find(str(folder)).spec) == str(folder)
    monkeypatch.chdir(folder)
    assert find(".").reference == "."
    assert find("cpu_right.cpp").kernels[0].name == "cpu_right"
    assert find("./cpu_right").kernels[0].name == "cpu_right"


def test_a_folder_of_an_installed_operators_name_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
@operator(dtypes={"T": ["f32"]})
def matmul(a: Tensor[T, "m k"], b: Tensor[T, "k n"]) -> Tensor[T, "m n"]:
    return a @ b
"""
    declare(tmp_path / "matmul", text, {})
    assert find("matmul").spec is matmul
    mine = find("./matmul")
    assert mine.spec is not matmul
    assert mine.reference == "./matmul"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("affin", UnknownNameError, "no operator named 'affin'"),
        ("matmul/cpu_v9", UnknownNameError, "no kernel named 'cpu_v9' in matmul"),
        ("affine/cpu_rigth", UnknownNameError, "did you mean cpu_right"),
        ("./nowhere", UsageError, "./nowhere: no such file or folder"),
        ("empty", UsageError, "empty has no op.py"),
        ("lone.cpp", UsageError, "no op.py beside it"),
        ("loop", UsageError, "loop: "),
        ("y" * 300, UsageError, "name too long"),
    ],
)
def test_what_is_not_there(folder: Path, text: str, error: type[UsageError], message: str) -> None:
    (folder.parent / "empty").mkdir()
    (folder.parent / "lone.cpp").write_text("")
    (folder.parent / "loop").symlink_to("loop")
    with pytest.raises(error, match="(?i)" + message.replace(".", r"\.")):
        find(text)


def test_a_declaration_is_loaded_once(folder: Path) -> None:
    assert load_folder(folder) is load_folder(Path("affine"))
    assert find("affine").spec is find(str(folder)).spec


def test_a_failed_declaration_is_loaded_anew(tmp_path: Path) -> None:
    """Mended in an editor while a notebook has it: the next try sees the new text."""
    before = set(sys.modules)
    (tmp_path / "op.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(DeclarationError, match=r"op\.py:1: ZeroDivisionError"):
            load_folder(tmp_path)
    assert set(sys.modules) == before
    (tmp_path / "op.py").unlink()
    declare(
        tmp_path / "mended",
        '@operator(dtypes={"T": ["f32"]})\n'
        'def mended(x: Tensor[T, "n"]) -> Tensor[T, "n"]:\n    return x\n',
        {},
    )
    assert load_folder(tmp_path / "mended").name == "mended"


def test_an_error_of_a_module_that_it_imports_is_at_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unsound_helper.py").write_text("x = 1\ny = 2\ndef f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "op.py").write_text("import os\nimport unsound_helper\n")
    with pytest.raises(DeclarationError, match=r"/op\.py:2: SyntaxError: .*unsound_helper\.py"):
        load_folder(tmp_path)


def test_an_operator_imported_by_another_is_not_declared_twice(tmp_path: Path) -> None:
    text = """
from opwright_ops import matmul
@operator(dtypes={"T": ["f32"]})
def twice(x: Tensor[T, "n"]) -> Tensor[T, "n"]:
    return 2 * x
again = twice
"""
    folder = declare(tmp_path / "twice", text, {})
    assert load_folder(folder).name == "twice"
