"""The manifest: what a shipped library was made of, and enough to make it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.catalog.find import load_folder
from opwright.ship.plan import Plan, Variant, check_names
from opwright.spec.dtypes import short_dtypes
from opwright.spec.errors import OpwrightError, UnknownNameError, UsageError
from opwright.spec.operator import OperatorSpec, parse_dtypes

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read: ``root`` is the folder it lies in, ``data`` its content."""

    root: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """The library's name."""
        return str(self.data["name"])


def source_files(folder: Path) -> dict[str, bytes]:
    """The files of an operator's folder that belong to it, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(
            part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts
        )
        and path.suffix not in (".pyc", ".o", ".so")
    }


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def variant_entry(variant: Variant, flags: tuple[str, ...]) -> dict[str, Any]:
    """One variant as the manifest has it."""
    return {
        "operator": variant.spec.name,
        "dtypes": short_dtypes(variant.dtypes),
        "path": variant.path,
        "kernel": variant.kernel.name,
        "params": dict(variant.params),
        "low": list(variant.low),
        "high": list(variant.high),
        "isa": variant.kernel.isa,
        "threads": variant.kernel.threads,
        "fast_math": variant.kernel.fast_math,
        "flags": list(flags),
    }


def read_manifest(path: Path) -> Manifest:
    """The manifest at ``path``; raises ``UsageError`` where it is none."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no manifest: {error}") from None
    needed = {"format", "name", "version", "target", "operators", "variants", "library", "compiler"}
    if not isinstance(data, dict) or not needed <= data.keys():
        raise UsageError(f"{path} is no manifest of a shipped library")
    if data["format"] != FORMAT:
        raise UsageError(
            f"{path} has format {data['format']}; this version of Opwright reads format {FORMAT}"
        )
    return Manifest(path.parent, data)


def operators_of(manifest: Manifest) -> list[OperatorSpec]:
    """The operators, from the sources beside the manifest.

    Raises ``OpwrightError`` where a source is not what the manifest says.
    """
    found: list[OperatorSpec] = []
    for entry in manifest.data["operators"]:
        folder = manifest.root / "src" / entry["name"]
        for name, expected in entry["sources"].items():
            file = folder / name
            if not file.is_file():
                raise UsageError(f"{file}: the manifest lists it, and it is not there")
            if sha256(file.read_bytes()) != expected:
                raise OpwrightError(
                    f"{file} is not the source that the library was made of (its SHA-256 differs)"
                )
        found.append(load_folder(folder))
    return found


def plan_of(manifest: Manifest, operators: list[OperatorSpec]) -> Plan:
    """The plan that the manifest records, variant by variant."""
    data = manifest.data
    check_names(data["name"], data["version"])
    by_name = {spec.name: spec for spec in operators}
    variants: list[Variant] = []
    for entry in data["variants"]:
        spec = by_name.get(entry["operator"])
        if spec is None:
            raise UnknownNameError("operator", entry["operator"], by_name, "the manifest")
        row = spec.row(entry["kernel"])
        chosen = parse_dtypes(spec.signature, entry["dtypes"]) if entry["dtypes"] else [{}]
        if len(chosen) != 1:
            raise UsageError(f"the manifest's variant {entry} selects {len(chosen)} element types")
        params = row.params(entry["params"])
        symbol = f"opw_variant_{len(variants)}"
        low, high = tuple(entry["low"]), tuple(entry["high"])
        variants.append(Variant(spec, row, chosen[0], params, entry["path"], symbol, low, high))
    passed_over = tuple(data.get("passed_over", ()))
    return Plan(
        data["name"],
        data["version"],
        data["target"]["machine"],
        tuple(operators),
        tuple(variants),
        passed_over,
    )
