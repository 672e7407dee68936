"""One launch of a kernel in the emulator, counted and explained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opwright.backends.base import Fault
from opwright.backends.emulator import EmulatorBackend
from opwright.backends.emulator.building import EmulatorArtifact, cuda_prelude
from opwright.backends.operands import contiguous, walk_over
from opwright.emulator.driver import Counter
from opwright.emulator.profiles import Profile, load_profile
from opwright.inspect.advice import Advice, Situation, advise
from opwright.inspect.model import SECTOR, Estimate, Work, estimate
from opwright.inspect.occupancy import Occupancy, Registers, occupancy, registers_of
from opwright.spec.cases import Case, check_memory, make_inputs
from opwright.spec.errors import MachineError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec

# Operations and elements of a launch that is counted whole: some seconds on two cores. A larger
# grid is sampled.
WHOLE = 3e8
_LEAST_BLOCKS = 16
TIME_LIMIT = 300.0


@dataclass(frozen=True)
class Inspection:
    """A launch: what it cost by line, and what follows from that on a device.

    ``lines`` are scaled to the whole grid where only ``blocks_run`` of its ``blocks`` were run.
    ``registers`` is None where they are not known, and ``no_registers`` then says why.
    ``estimate`` is None where the device's peaks are not published. ``fault`` is what was found.
    """

    kernel: Kernel
    case: Case
    profile: Profile
    grid: tuple[int, ...]
    block: tuple[int, ...]
    blocks_run: int
    shared_bytes: int
    lines: tuple[Counter, ...]
    work: Work
    registers: Registers | None
    no_registers: str
    occupancy: Occupancy | None
    estimate: Estimate | None
    advice: tuple[Advice, ...]
    fault: Fault | None
    seconds: float

    @property
    def blocks(self) -> int:
        """Blocks of the whole grid."""
        return self.work.blocks

    @property
    def sampled(self) -> bool:
        """Whether some blocks were left out."""
        return self.blocks_run < self.blocks

    @property
    def moved_bytes(self) -> int:
        """Bytes of global memory that the requests moved, repeats included."""
        return SECTOR * sum(c.sectors for c in self.lines if c.space == "global")

    @property
    def sectors_per_request(self) -> float:
        """Of all requests to global memory; 0 where there are none."""
        return _ratio(
            sum(c.sectors for c in self.lines if c.space == "global"),
            sum(c.requests for c in self.lines if c.space == "global"),
        )

    @property
    def conflict(self) -> float:
        """Passes through shared memory over the fewest possible; 0 where it is not used."""
        shared = [c for c in self.lines if c.space == "shared"]
        return _ratio(sum(c.wavefronts for c in shared), sum(c.ideal for c in shared))

    @property
    def intensity(self) -> float:
        """Declared operations for each byte of the operands: what an ideal cache would see."""
        return _ratio(self.work.flops, self.work.operand_bytes)

    @property
    def intensity_moved(self) -> float:
        """Declared operations for each byte that requests to global memory moved."""
        return _ratio(self.work.flops, self.moved_bytes)


def inspect(
    spec: OperatorSpec,
    kernel: Kernel,
    case: Case,
    *,
    device: str,
    params: Mapping[str, int] | None = None,
    sample: int | None = None,
    whole: float = WHOLE,
    registers: bool = True,
) -> Inspection:
    """Run ``kernel`` once on the inputs of ``case`` and say what it cost on ``device``.

    ``sample`` is the number of blocks to run, 0 for all; left out, a launch of more than ``whole``
    operations is sampled. ``registers`` asks ptxas, where it is on the machine.

    Raises ``UnknownNameError`` for a device without a profile, ``UsageError`` for a kernel that is
    not of the emulator's dialect, ``MachineError`` where it cannot run, ``BuildError``.
    """
    profile = load_profile(device)
    backend = EmulatorBackend()
    if kernel.backend not in backend.dialects:
        raise UsageError(
            f"{kernel.name} is a kernel for {kernel.backend}: inspect counts what kernels in the "
            f"dialect of {', '.join(backend.dialects)} do"
        )
    if reason := backend.probe().reason or backend.missing(kernel):
        raise MachineError(f"{kernel.name} cannot run here: {reason}")
    check_memory(spec, case, backend.memory_available())
    settled = kernel.params(params or {})
    artifact = backend.build(spec.signature, kernel, case.dtypes, settled, counted=True)
    assert isinstance(artifact, EmulatorArtifact)
    started = time.monotonic()
    grid, block = artifact.shape(case.dims)
    blocks = grid[0] * grid[1] * grid[2]
    flops = spec.flops(case.dims, case.leading)
    operand_bytes = spec.bytes_moved(case.dims, case.leading, case.dtypes, case.absent)
    cost = max(flops, float(operand_bytes))
    if sample is None:
        sample = max(_LEAST_BLOCKS, int(blocks * whole / cost)) if cost > whole else 0
    sample = 0 if sample >= blocks else sample
    inputs = contiguous(make_inputs(spec, case))
    named = [(p.name, a) for p, a in zip(spec.signature.inputs, inputs, strict=True)]
    output = spec.signature.dtype(spec.signature.output, case.dtypes)
    shape = spec.signature.shape(spec.signature.output, case.dims, case.leading)
    with backend.open(TIME_LIMIT, device=device, counters=True, sample=sample) as opened:
        buffers = opened.upload(named, (spec.signature.output.name, shape, output), "aligned")
        walk = walk_over(spec.signature, case.dims, inputs)
        values = spec.signature.values(case.dims, case.attributes, walk=walk)
        opened.launch(artifact, buffers, values)
        fault = opened.synchronize().fault
        launches, counted = opened.counted()
    launch = launches[-1] if launches else {}
    run = int(launch.get("blocks_run", blocks))
    lines = tuple(_scaled(c, blocks / run) for c in counted) if run else ()
    shared = int(launch.get("declared_shared", 0)) + int(launch.get("dynamic_shared", 0))
    asked: Registers | str = "not asked for"
    if registers:
        prelude = cuda_prelude(spec.signature, case.dtypes, settled)
        asked = registers_of(kernel.path, prelude, profile)
    known = asked if isinstance(asked, Registers) else None
    if (
        known is not None and known.stack == 0
    ):  # nvcc found registers for what seemed to need memory
        lines = tuple(c for c in lines if c.space != "local")
    threads = block[0] * block[1] * block[2]
    held = occupancy(profile, threads, shared, known.registers if known else None)
    work = Work(flops, operand_bytes, blocks, spec.signature.compute(case.dtypes).name == "f64")
    estimated = estimate(profile, work, lines) if blocks else None
    sizes = {n: a.nbytes for n, a in named if a is not None}
    situation = Situation(profile, work, lines, sizes, held, estimated)
    return Inspection(
        kernel=kernel,
        case=case,
        profile=profile,
        grid=grid,
        block=block,
        blocks_run=run,
        shared_bytes=shared,
        lines=lines,
        work=work,
        registers=known,
        no_registers="" if isinstance(asked, Registers) else asked,
        occupancy=held,
        estimate=estimated,
        advice=tuple(advise(situation)),
        fault=fault,
        seconds=time.monotonic() - started,
    )


def source_line(file: str, line: int) -> str:
    """A line of source without what surrounds it; empty where it cannot be read."""
    try:
        return Path(file).read_text(errors="replace").splitlines()[line - 1].strip()
    except (OSError, IndexError):
        return ""


def _scaled(counter: Counter, factor: float) -> Counter:
    if factor == 1:
        return counter
    return replace(
        counter,
        requests=round(counter.requests * factor),
        sectors=round(counter.sectors * factor),
        wavefronts=round(counter.wavefronts * factor),
        ideal=round(counter.ideal * factor),
        lanes=round(counter.lanes * factor),
        bytes_used=round(counter.bytes_used * factor),
        divergent=round(counter.divergent * factor),
        contention=round(counter.contention * factor),
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
