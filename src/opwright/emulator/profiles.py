"""Device profiles: what is known of a device, each number with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.spec.errors import DeclarationError, UnknownNameError

Number = float | tuple[float, float]


@dataclass(frozen=True)
class Profile:
    """A device. ``values`` are numbers, or ranges where published figures differ.

    A number that is not in ``values`` is unknown. ``sources`` names the origin of each.
    """

    name: str
    title: str
    values: Mapping[str, Number]
    sources: Mapping[str, str]

    @property
    def calibrated(self) -> bool:
        """Whether speed and bandwidth are known, so that times can be predicted."""
        return "bytes_per_second" in self.values and "f32_flops" in self.values

    def get(self, key: str) -> Number | None:
        """A number, a range, or None where it is unknown."""
        return self.values.get(key)

    def environment(self, memory_limit: int) -> str:
        """The numbers the run-time needs; it may take ``memory_limit`` bytes of the host."""
        numbers = {key: value for key, value in self.values.items() if not isinstance(value, tuple)}
        numbers["host_memory_bytes"] = float(memory_limit)
        return f"name={self.title.replace(';', ',')};" + ";".join(
            f"{k}={v:.0f}" for k, v in numbers.items()
        )


def machines_dir() -> Path:
    """The folder of device profiles."""
    package = Path(__file__).resolve().parent
    installed = package / "machines"
    return installed if installed.is_dir() else package.parents[2] / "machines"


def profile_names() -> list[str]:
    """The devices there are profiles of."""
    return sorted(path.stem for path in machines_dir().glob("*.toml"))


def load_profile(name: str) -> Profile:
    """The profile called ``name``; raises ``UnknownNameError`` with the names there are."""
    path = machines_dir() / f"{name.lower()}.toml"
    if not path.is_file() or path.parent != machines_dir():
        names = profile_names()
        raise UnknownNameError("device profile", name, names, f"machines/ ({', '.join(names)})")
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    values: dict[str, Number] = {}
    sources: dict[str, str] = {}
    for key, entry in data.get("numbers", {}).items():
        if not isinstance(entry, dict) or "source" not in entry:
            raise DeclarationError(f"{path}: {key} needs a value and a source")
        sources[key] = entry["source"]
        if "range" in entry:
            low, high = entry["range"]
            values[key] = (float(low), float(high))
        elif "value" in entry:
            values[key] = float(entry["value"])
        else:
            raise DeclarationError(f"{path}: {key} has neither a value nor a range")
    return Profile(path.stem, data["title"], values, sources)
