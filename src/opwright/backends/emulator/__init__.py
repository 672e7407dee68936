"""CUDA-dialect kernels with no GPU: built for the host, run with every access checked."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from opwright.backends.base import Array, Artifact, Backend, Ceiling, Probe
from opwright.backends.cpu.probe import memory_available
from opwright.backends.emulator.device import EmulatorDevice
from opwright.emulator.profiles import load_profile
from opwright.spec.dtypes import DType
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Operand, Signature
from opwright.toolchain.compilers import pick_compiler

DEVICE = "h200"  # whose limits launches have to keep, unless another is asked for
_CHECKED = 10  # bytes of host memory that a byte of checked device memory takes


class EmulatorBackend(Backend):
    """Runs rows of the ``cuda`` dialect and finds what they do wrong; it keeps no time."""

    name: ClassVar[str] = "emulator"
    dialects: ClassVar[tuple[str, ...]] = ("cuda",)
    timed: ClassVar[bool] = False
    watched: ClassVar[bool] = True

    def probe(self) -> Probe:
        """See ``Backend.probe``."""
        title = load_profile(DEVICE).title
        threads = len(os.sched_getaffinity(0))
        reason = _why_not()
        return Probe(
            backend=self.name,
            available=not reason,
            device=f"SIMT emulator with the limits of {title}",
            reason=reason,
            threads=threads,
            fingerprint=f"emulator {platform.machine()} {DEVICE}",
        )

    def memory_available(self) -> int:
        """See ``Backend.memory_available``."""
        return memory_available() // _CHECKED

    def measure_ceilings(self, progress: Callable[[str], None]) -> tuple[Ceiling, ...]:
        """None: nothing is timed here."""
        return ()

    def missing(self, kernel: Kernel) -> str:
        """See ``Backend.missing``."""
        if kernel.block is None or kernel.grid is None:
            return "its row gives no block= and grid= to launch it with"
        if kernel.strided:
            return "its row says strided=True, and this backend gives kernels no strides"
        if kernel.packs:
            return "its row says packs=, and this backend has no packed calls"
        foreign = [flag for flag in kernel.flags if not flag.startswith("-D")]
        if foreign:
            return f"its flags {' '.join(foreign)} are for another compiler than the host's"
        return ""

    def build(
        self,
        signature: Signature,
        kernel: Kernel,
        dtypes: Mapping[str, DType],
        params: Mapping[str, int],
        *,
        counted: bool = False,
    ) -> Artifact:
        """See ``Backend.build``; branches are counted only in what was built ``counted``."""
        from opwright.backends.emulator.building import build_kernel

        return build_kernel(signature, kernel, dtypes, params, counted)

    def open(
        self,
        time_limit: float,
        env: Mapping[str, str] | None = None,
        *,
        device: str = DEVICE,
        counters: bool = False,
        sample: int = 0,
    ) -> EmulatorDevice:
        """See ``Backend.open``; ``device`` names the profile whose limits launches have to keep.

        With ``counters``, ``EmulatorDevice.counted`` tells what the memory accesses cost. With
        ``sample``, so many blocks of a grid are run and the others left out.
        """
        return EmulatorDevice(time_limit, env or {}, load_profile(device), counters, sample)

    def bind(
        self, artifact: Artifact
    ) -> Callable[[Sequence[Operand], Array, Sequence[int | float], int], None]:
        """Not possible: raises ``UsageError``."""
        raise UsageError(
            f"{artifact.kernel} is for a device that is emulated in a process of its own, so it "
            "cannot be called in this one"
        )


def _why_not() -> str:
    try:
        pick_compiler()
    except MachineError as error:
        return str(error)
    if not any(map(shutil.which, ("addr2line", "llvm-addr2line", "llvm-addr2line-14"))):
        return (
            "no addr2line to find source lines with: it comes with binutils (apt install binutils)"
        )
    return ""
