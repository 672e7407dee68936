"""Running one case of one kernel, several times over, with everything around it guarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opwright.backends.base import Artifact, Buffers, Device, Fault, Outcome, Placement
from opwright.backends.operands import packed_room, packing_operands
from opwright.spec.dtypes import DType, dtype_named
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Array, Operand
from opwright.verify.compare import Verdict, judge
from opwright.verify.prepare import Prepared

POISON = (0xFF, 0xA5)  # NaN for every float; a small negative number
MANY_THREADS = 8  # more than most machines grant
WATCH_MS = 20
MOST_PACKED = 64  # times the size of an input, which no packing needs


@dataclass(frozen=True)
class Problem:
    """What went wrong in one launch; ``output`` is the last of what the kernel printed.

    ``file``, ``line``, ``details`` and ``also`` are as in ``Fault``.
    """

    kind: str
    message: str
    threads: int
    output: str = ""
    file: str = ""
    line: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Checked:
    """One case run: the problem if there was one, else the verdict on the kernel's ``output``.

    Both are there when the output itself is wrong.
    """

    problem: Problem | None
    verdict: Verdict | None = None
    output: Array | None = None


@dataclass(frozen=True)
class Workers:
    """Where a kernel runs: ``limited`` grants OpenMP kernels fewer threads than they ask for.

    ``watched`` is the backend's: reads of what nobody wrote, and races, are then found in any run.
    """

    device: Device
    limited: Device | None = None
    watched: bool = False


@dataclass(frozen=True)
class _Launch:
    device: Device
    placement: Placement
    poison: int
    threads: int
    watch_ms: int = 0


def _plan(
    workers: Workers, kernel: Kernel, threads: int | None, number: int, watch: bool
) -> list[_Launch]:
    """The launches of one case.

    Ending at a guard page, twice, over different poison; and beginning at one, with two threads
    and with many in turn where the kernel uses them. Every other case has them in reverse, so that
    cases in a row call the kernel with the same addresses and other values. Where every access is
    watched one launch each way is enough: another over other poison could show nothing more.
    """
    one = threads or 1
    if workers.watched:
        return [
            _Launch(workers.device, "end", POISON[number % 2], one),
            _Launch(workers.device, "begin", POISON[1 - number % 2], one),
        ]
    several = (2, MANY_THREADS)[number // 2 % 2] if kernel.threads else 1
    plan = [
        _Launch(workers.device, "end", POISON[0], one, WATCH_MS if watch else 0),
        _Launch(workers.device, "end", POISON[1], one),
        _Launch(workers.device, "begin", POISON[1], threads or several),
    ]
    if workers.limited is not None:
        plan.append(_Launch(workers.limited, "end", POISON[0], threads or MANY_THREADS))
    return plan[::-1] if number % 2 else plan


def run_case(
    workers: Workers,
    artifact: Artifact,
    kernel: Kernel,
    prepared: Prepared,
    threads: int | None = None,
    number: int = 0,
    watch: bool = False,
) -> Checked:
    """Run one case by the plan above and stop at the first problem.

    ``threads`` fixes their number; ``number`` counts the cases, so that thread counts vary;
    ``watch`` looks at the output once more after the kernel has returned.
    """
    inputs, values = prepared.operands(kernel)
    uploaded: dict[tuple[int, Placement], Buffers] = {}
    first: tuple[Verdict, Array] | None = None
    repeated: list[Array] = []
    try:
        for launch in _plan(workers, kernel, threads, number, watch):
            key = (id(launch.device), launch.placement)
            if key not in uploaded:
                uploaded[key] = launch.device.upload(
                    inputs, ("out", prepared.shape, prepared.output), launch.placement
                )
            launch.device.launch(
                artifact,
                uploaded[key],
                values,
                launch.threads,
                launch.poison,
                launch.watch_ms,
            )
            outcome = launch.device.synchronize()
            if outcome.fault is not None:
                return Checked(_problem(outcome.fault, launch.threads))
            assert outcome.output is not None
            verdict = _judge(outcome.output, prepared)
            if verdict.kind:
                untouched = _holds(outcome.output, launch.poison) & verdict.wrong.reshape(-1)
                if untouched.any():
                    # A byte may be the right kind of wrong by chance, over two poisons hardly.
                    other = POISON[launch.poison == POISON[0]]
                    launch.device.launch(artifact, uploaded[key], values, launch.threads, other)
                    again = launch.device.synchronize().output
                    untouched &= again is not None and _holds(again, other)
                problem = _wrong(verdict, untouched, outcome.output.shape, launch.threads)
                return Checked(problem, verdict, outcome.output)
            first = first or (verdict, outcome.output)
            if launch.device is workers.device and launch.placement == "end":
                repeated.append(outcome.output)
    finally:
        for buffers in uploaded.values():
            buffers.free()
    assert first is not None
    if kernel.packs and (found := _packed_calls(workers, artifact, kernel, prepared, threads)):
        return found
    if kernel.deterministic and len({output.tobytes() for output in repeated}) > 1:
        return Checked(_not_repeatable(threads or 1), *first)
    return Checked(None, *first)


def _packed_calls(
    workers: Workers, artifact: Artifact, kernel: Kernel, prepared: Prepared, threads: int | None
) -> Checked | None:
    """What is wrong with packing, and with the call that takes packed bytes; None when nothing is.

    Once ending at a guard page and once beginning at one, over different poison.
    """
    names = [name for name, _ in prepared.inputs]
    given = prepared.views if kernel.strided else [array for _, array in prepared.inputs]
    array = given[names.index(kernel.packs)]
    assert array is not None  # what is packed is never optional
    array, sizes, told = packing_operands(prepared.signature, kernel, array, prepared.case.dims)
    several, u8 = 2 if kernel.threads else 1, dtype_named("u8")
    places: tuple[tuple[Placement, int, int], ...] = (
        ("end", POISON[0], threads or 1),
        ("begin", POISON[1], threads or several),
    )
    for placement, poison, number in places:

        def launch(
            entry: str,
            inputs: Sequence[tuple[str, Operand]],
            output: tuple[str, tuple[int, ...], DType],
            values: Sequence[int | float],
            placement: Placement = placement,
            poison: int = poison,
            number: int = number,
        ) -> Outcome:
            buffers = workers.device.upload(inputs, output, placement)
            try:
                called = replace(artifact, entry=entry)
                workers.device.launch(called, buffers, values, number, poison)
                return workers.device.synchronize()
            finally:
                buffers.free()

        def wrong(problem: Problem) -> Checked:
            return Checked(replace(problem, message=f"packed call: {problem.message}"))

        said = launch(Artifact.PACKED_BYTES, [], ("bytes", (8,), u8), sizes)
        if said.fault is not None:
            return wrong(_problem(said.fault, number))
        assert said.output is not None
        nbytes = int(said.output.view(np.int64)[0])
        most = MOST_PACKED * array.size * array.itemsize + (1 << 20)
        if not 0 <= nbytes <= most:
            message = f"{nbytes} bytes for {kernel.packs} packed, of {array.nbytes} bytes itself"
            return wrong(Problem("wrong-values", message, number))
        name = f"{kernel.packs} packed"
        made = launch(
            Artifact.PACK, [(kernel.packs, array)], (name, (packed_room(nbytes),), u8), told
        )
        if made.fault is not None:
            return wrong(_problem(made.fault, number))
        assert made.output is not None
        beyond = np.flatnonzero(made.output[nbytes:] != poison)
        if beyond.size:
            message = (
                f"packing wrote past the {nbytes} bytes asked for, up to {int(beyond[-1]) + 1} past"
            )
            return wrong(Problem("beside-output", message, number))
        inputs, values = prepared.operands(kernel, made.output)
        result = launch(
            Artifact.PACKED_CALL, inputs, ("out", prepared.shape, prepared.output), values
        )
        if result.fault is not None:
            return wrong(_problem(result.fault, number))
        assert result.output is not None
        verdict = _judge(result.output, prepared)
        if verdict.kind:
            problem = wrong(Problem(verdict.kind, verdict.message, number)).problem
            return Checked(problem, verdict, result.output)
    return None


def _judge(output: Array, prepared: Prepared) -> Verdict:
    """As ``judge``; the same bytes as before, which take a fiftieth to compare, hold as before."""
    for held, verdict in prepared.held:
        if np.array_equal(_bytes(output), _bytes(held)):
            return verdict
    verdict = judge(output, prepared.expected, prepared.output)
    if not verdict.kind:
        prepared.held[:] = [(output, verdict)]
    return verdict


def _bytes(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _problem(fault: Fault, threads: int) -> Problem:
    return Problem(
        fault.kind,
        fault.message,
        threads,
        fault.output,
        fault.file,
        fault.line,
        fault.details,
        tuple(_problem(other, threads) for other in fault.also),
    )


def _not_repeatable(threads: int) -> Problem:
    return Problem(
        "not-repeatable",
        "the same inputs gave two different outputs; if that is meant (atomics, say), write "
        "deterministic=False in the kernel's row",
        threads,
    )


def _holds(output: Array, poison: int) -> NDArray[np.bool_]:
    """Which elements, in one row, consist of bytes of ``poison``."""
    raw = np.frombuffer(output.tobytes(), dtype=np.uint8).reshape(output.size, -1)
    return np.asarray((raw == poison).all(axis=1))


def _wrong(
    verdict: Verdict, untouched: NDArray[np.bool_], shape: tuple[int, ...], threads: int
) -> Problem:
    if not untouched.any():
        return Problem(verdict.kind, verdict.message, threads)
    first = np.unravel_index(int(np.argmax(untouched)), shape or (1,))
    return Problem(
        "unwritten",
        f"{int(untouched.sum())} of {untouched.size} elements were never written, the first at "
        f"[{', '.join(str(int(i)) for i in first)}]: they still hold what was in the output before",
        threads,
    )
