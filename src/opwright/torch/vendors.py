"""Vendors' plugins for torch: which are installed, and why one is not usable."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version

# Module, the device it adds, and whose it is.
KNOWN = {
    "torch_npu": ("npu", "Huawei Ascend"),
    "torch_supa": ("supa", "Biren"),
    "torch_br": ("supa", "Biren"),
    "torch_musa": ("musa", "Moore Threads"),
    "torch_mlu": ("mlu", "Cambricon"),
    "torch_gcu": ("gcu", "Enflame"),
    "torch_sdaa": ("sdaa", "Tecorigin"),
    "intel_extension_for_pytorch": ("xpu", "Intel"),
    "habana_frameworks": ("hpu", "Intel Gaudi"),
    "torch_xla": ("xla", "Google"),
    "torch_neuronx": ("xla", "AWS Neuron"),
    "torch_directml": ("privateuseone", "Microsoft DirectML"),
}

# Seconds that importing a plugin and counting its devices may take.
TIME_LIMIT = 60.0

_PROBE = """
import importlib, sys
import torch
module, device = sys.argv[1:]
importlib.import_module(module)
face = getattr(torch, device, None)
available = getattr(face, "is_available", None)
if available is not None and not available():
    raise SystemExit(f"torch.{device}.is_available() is False: the driver sees no device")
torch.empty(1, device=device)
"""


@dataclass(frozen=True)
class Plugin:
    """One plugin that is installed; ``reason`` says why it is not usable, empty where it is."""

    module: str
    device: str
    vendor: str
    version: str
    reason: str

    def __str__(self) -> str:
        state = f"not usable: {self.reason}" if self.reason else "usable"
        return f"{self.module} {self.version} ({self.vendor}, device {self.device}): {state}"


def plugins() -> list[Plugin]:
    """The plugins installed here, each tried in a process of its own.

    Known ones by the name of their module, others by torch's entry points (``torch.backends``).
    """
    named = {
        point.value.split(":")[0].split(".")[0] for point in entry_points(group="torch.backends")
    }
    modules = [*KNOWN, *sorted(named - KNOWN.keys())]
    return [_plugin(name) for name in modules if importlib.util.find_spec(name) is not None]


def _plugin(module: str) -> Plugin:
    device, vendor = KNOWN.get(module, ("privateuseone", "unknown"))
    try:
        installed = version(module)
    except PackageNotFoundError:
        installed = "of unknown version"
    return Plugin(module, device, vendor, installed, _why_not(module, device))


def _why_not(module: str, device: str) -> str:
    """A plugin whose driver is missing may end the process that imports it; so not this one."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PROBE, module, device],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"importing it took more than {TIME_LIMIT:.0f} s"
    if tried.returncode == 0:
        return ""
    if tried.returncode < 0:
        return f"importing it ended the process with signal {-tried.returncode}"
    lines = tried.stderr.strip().splitlines()
    return lines[-1] if lines else f"importing it ended with exit code {tried.returncode}"
