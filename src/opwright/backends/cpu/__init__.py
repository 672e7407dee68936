"""The CPU of this machine: kernels are C++ sources, run in a compiled worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from opwright.backends.base import Array, Artifact, Backend, Ceiling, FastCalls, Probe
from opwright.backends.cpu.device import CpuDevice
from opwright.backends.cpu.probe import memory_available, missing_isa, probe_cpu
from opwright.spec.dtypes import DType
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Operand, Signature


class CpuBackend(Backend):
    """Builds with the C++ compiler found here and runs on the processors this process may use."""

    name: ClassVar[str] = "cpu"

    def probe(self) -> Probe:
        """See ``Backend.probe``."""
        return probe_cpu()

    def memory_available(self) -> int:
        """See ``Backend.memory_available``."""
        return memory_available()

    def measure_ceilings(self, progress: Callable[[str], None]) -> tuple[Ceiling, ...]:
        """See ``Backend.measure_ceilings``."""
        from opwright.backends.cpu.ceilings import measure

        return measure(progress)

    def missing(self, kernel: Kernel) -> str:
        """See ``Backend.missing``."""
        return missing_isa(kernel.isa)

    def build(
        self,
        signature: Signature,
        kernel: Kernel,
        dtypes: Mapping[str, DType],
        params: Mapping[str, int],
    ) -> Artifact:
        """See ``Backend.build``.

        Where the source defines no such function or one of another signature, the error's message
        shows the one expected.
        """
        from opwright.backends.cpu.building import build_kernel

        return build_kernel(signature, kernel, dtypes, params)

    def build_own(self) -> None:
        """See ``Backend.build_own``: the worker, and what calls kernels in this process."""
        from opwright.backends.cpu.inprocess import runtime_path
        from opwright.backends.cpu.process import worker_program

        worker_program()
        runtime_path()

    def open(self, time_limit: float, env: Mapping[str, str] | None = None) -> CpuDevice:
        """See ``Backend.open``; raises ``MachineError`` where no worker can be built or started."""
        return CpuDevice(time_limit, env or {})

    def bind(
        self, artifact: Artifact
    ) -> Callable[[Sequence[Operand], Array, Sequence[int | float], int], None]:
        """See ``Backend.bind``.

        The function may be called by several threads at once and after a fork. Arrays must be
        C-contiguous, of the dtypes the artifact was built for, and kept by the caller.
        """
        from opwright.backends.cpu.inprocess import bind

        return bind(artifact)

    def fast_calls(self) -> FastCalls | None:
        """See ``Backend.fast_calls``; None for interpreters other than CPython with its lock."""
        from opwright.backends.cpu.fastcall import fast_calls

        return fast_calls()

    def bind_addresses(
        self, artifact: Artifact
    ) -> Callable[[Sequence[int | float]], Callable[..., None]]:
        """See ``Backend.bind_addresses``."""
        from opwright.backends.cpu.inprocess import bind_addresses

        return bind_addresses(artifact)
