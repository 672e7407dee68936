"""Whether an operator behaves in torch as torch's own do: one verdict, each failure explained."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.autograd.gradcheck import GradcheckError

from opwright.bench.stats import summary
from opwright.spec.cases import Case, left_out, make_inputs, matrix
from opwright.spec.dtypes import DTYPES, DType, short_dtypes
from opwright.spec.errors import UsageError
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import Leading, Scalar
from opwright.torch.elements import TORCH_DTYPES, Given, as_numpy, as_tensor
from opwright.torch.registration import contraction, packet
from opwright.verify.compare import judge
from opwright.verify.prepare import expected_of, prepare

# Cases of the matrix, for each element type, whose numbers are compared with the oracle here;
# 'opwright verify' does all of them.
NUMBERS = 24

# The step of central differences in float64: the error is smallest near the third root of 1e-16.
STEP = 1e-5

State = Literal["held", "failed", "not run"]

_OPCHECK = {
    "test_schema": (
        "schema: inputs are left alone and not returned",
        "let the kernel write to out alone: its inputs are const, and the schema promises it",
    ),
    "test_autograd_registration": (
        "autograd is registered",
        "do not register kernels of your own for this name beside owt.register",
    ),
    "test_faketensor": (
        "fake kernel: shape, dtype, device and strides as the real one's",
        "make the return annotation say the shape and type that the kernel writes",
    ),
    "test_aot_dispatch_dynamic": (
        "traced with symbolic shapes, forward and backward",
        "let gradient functions compute from the arrays alone, with no branch on their values",
    ),
}


@dataclass(frozen=True)
class Result:
    """One check: what it is, how it ended, and where it failed what to change."""

    name: str
    state: State
    message: str = ""
    advice: str = ""

    def __str__(self) -> str:
        words = f"{self.state:8} {self.name}"
        words += f": {self.message}" if self.message else ""
        return words + (f"\n         -> {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Verdict:
    """All checks of one operator, and what a call costs.

    ``own_us`` and ``torch_us`` are the microseconds of processor time of a call with one element
    and of ``torch.tanh`` of one element.
    """

    operator: str
    results: tuple[Result, ...]
    own_us: float
    torch_us: float

    @property
    def held(self) -> bool:
        """Whether nothing failed."""
        return all(r.state != "failed" for r in self.results)

    def __str__(self) -> str:
        count = sum(r.state == "failed" for r in self.results)
        verdict = "held" if self.held else f"FAILED ({count} of {len(self.results)} checks)"
        lines = [f"{self.operator} in torch {torch.__version__}: {verdict}"]
        lines += [f"  {line}" for r in self.results for line in str(r).splitlines()]
        lines.append(
            f"  a call with one element takes {self.own_us:.1f} us, torch.tanh "
            f"{self.torch_us:.1f} us: {self.own_us - self.torch_us:.1f} us more"
        )
        return "\n".join(lines)


class _FailedError(Exception):
    """A check found something."""


def check(operator: OperatorSpec, *, backend: str = "inductor") -> Verdict:
    """Run every check of ``operator`` in torch, registering it where it is not yet.

    ``backend`` is the compiler that ``torch.compile`` is checked with.
    """
    checks = _Checks(operator, backend)
    results: list[Result] = []
    # First, as a compiler leaves processes of its own behind, which take the cores.
    own, bare = dispatch_cost(operator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, about itself
        for name, run, advice in checks.every():
            results.append(_outcome(name, run, advice))
        results[1:1] = checks.opcheck()
    return Verdict(operator.name, tuple(results), own, bare)


def _outcome(name: str, run: Callable[[], str], advice: str) -> Result:
    try:
        return Result(name, "held", run())
    except _SkippedError as skipped:
        return Result(name, "not run", str(skipped))
    except _FailedError as failed:
        return Result(name, "failed", str(failed), advice)
    except Exception as error:  # whatever torch or a kernel raises is what was found
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return Result(name, "failed", f"{type(error).__name__}: {first}", advice)


class _SkippedError(Exception):
    """A check does not apply."""


def dispatch_cost(operator: OperatorSpec) -> tuple[float, float]:
    """Processor time, in us, of a call of ``operator`` on one element and of ``torch.tanh``."""
    call = packet(operator)
    case = _case(operator, operator.signature.choices()[0], 1)
    inputs, given = _tensors(operator, case), list(case.attributes.values())
    one = torch.ones(1)
    times: dict[str, list[float]] = {"own": [], "torch": []}
    with torch.no_grad():
        for _ in range(30):
            for name, function in (("own", lambda: call(*inputs, *given)), ("torch", one.tanh)):
                # This thread's own time: the cores may be shared, and with one element no other
                # thread works for it.
                started = time.thread_time_ns()
                for _ in range(300):
                    function()
                times[name].append((time.thread_time_ns() - started) / 300e3)
    return summary(times["own"]).median, summary(times["torch"]).median


def _case(spec: OperatorSpec, dtypes: Mapping[str, DType], size: int = 0) -> Case:
    """Inputs of small sizes, different where they can be, or all of them ``size``."""
    signature = spec.signature
    sizes = {d: size or 3 + i for i, d in enumerate(signature.dims)}
    leading: Leading = ()
    if signature.broadcasts and not size:
        leading = tuple(((3,), (2, 1))[i % 2] for i in range(len(signature.batched)))
    if signature.ellipsis:
        leading = (1,) if size else (2, 3)
        sizes[signature.ellipsis] = 1 if size else 6
    attributes = signature.settle_scalars(signature.usual_attributes, dtypes)
    return Case(dtypes, sizes, leading, seed=1, attributes=attributes)


def _variants(spec: OperatorSpec, dtypes: Mapping[str, DType]) -> list[Case]:
    """The ways through the formula that a call chooses: by a word, a bool, what it leaves out."""
    base = _case(spec, dtypes)
    changes: list[dict[str, Scalar]] = [{}]
    for scalar in spec.signature.scalars:
        choices = (False, True) if scalar.type is bool else scalar.words
        usual = base.attributes[scalar.name]
        changes += [{scalar.name: choice} for choice in choices if choice != usual]
    return [
        replace(base, attributes={**base.attributes, **changed}, absent=absent)
        for changed in changes
        for absent in ((), *left_out(spec.signature))
    ]


def _shown(spec: OperatorSpec, case: Case) -> str:
    """What tells ``case`` from the other variants: element types, words, what is left out."""
    chosen = [s.name for s in spec.signature.scalars if s.words or s.type is bool]
    words = [short_dtypes(case.dtypes), *(f"{name}={case.attributes[name]}" for name in chosen)]
    return " ".join([*words, *(f"without {name}" for name in case.absent)])


def _tensors(spec: OperatorSpec, case: Case) -> list[Any]:
    return [None if a is None else as_tensor(a) for a in make_inputs(spec, case)]


def _strided(array: Any) -> torch.Tensor | None:
    """A tensor with the strides of ``array``, as far as torch has such; None of None."""
    if array is None:
        return None
    if any(stride < 0 for stride in array.strides):
        return as_tensor(array)
    if array.dtype == DTYPES["bf16"].numpy:
        bits = _strided(array.view(np.int16))
        assert bits is not None
        return bits.view(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # expanded arrays are read-only
        return torch.from_numpy(array)


class _Checks:
    def __init__(self, spec: OperatorSpec, backend: str) -> None:
        self.spec = spec
        self.backend = backend
        self.call = packet(spec)
        self.choices = spec.signature.choices()
        floats = [c for c in self.choices if self._differentiable(c)]
        # Gradients are checked in double where the operator has it.
        self.precise = next((c for c in floats if self._floats(c) == {"f64"}), None)
        self.first = floats[0] if floats else self.choices[0]

    def _differentiable(self, dtypes: Mapping[str, DType]) -> bool:
        signature = self.spec.signature
        return any(signature.dtype(p, dtypes).kind == "float" for p in signature.inputs)

    def _floats(self, dtypes: Mapping[str, DType]) -> set[str]:
        """The floating types among these."""
        signature = self.spec.signature
        every = (signature.dtype(p, dtypes) for p in signature.tensors)
        return {d.name for d in every if d.kind == "float"}

    def _sample(self, case: Case, grad: bool) -> tuple[list[Any], list[Any]]:
        tensors = _tensors(self.spec, case)
        if grad and self._gradients(case):
            tensors = _leaves(tensors)
        return tensors, list(case.attributes.values())

    def _gradients(self, case: Case) -> bool:
        """Whether calls on tensors that need gradients are taken."""
        tensors = _leaves(_tensors(self.spec, case))
        try:
            self.call(*tensors, *case.attributes.values())
        except UsageError:
            return False
        return any(t is not None and t.requires_grad for t in tensors)

    def every(self) -> list[tuple[str, Callable[[], str], str]]:
        name = self.spec.name
        return [
            (
                "numbers against the oracle",
                self.numbers,
                f"make the kernel right first: opwright verify {name}",
            ),
            (
                "non-contiguous, offset and expanded tensors",
                self.layouts,
                "let the kernel index by the sizes it is given, and a strided one by the strides",
            ),
            (
                "gradients against finite differences",
                self.gradients,
                f"correct the function that @{name}.gradient declares for this tensor",
            ),
            (
                f"compiled whole (fullgraph=True, {self.backend}) as eager",
                self.compiled,
                "a gradient function may not branch on values or leave torch; without a C++ "
                "compiler try backend='aot_eager'",
            ),
            (
                "exported by torch.export",
                self.exported,
                "let the formula's shapes follow from the inputs' shapes alone",
            ),
            (
                "under autocast",
                self.autocast,
                "declare bf16 among the operator's dtypes, or call it with autocast disabled",
            ),
        ]

    def opcheck(self) -> list[Result]:
        tensors, given = self._sample(_case(self.spec, self.first), grad=True)
        found = torch.library.opcheck(self.call.default, (*tensors, *given), raise_exception=False)
        results = []
        for test, outcome in found.items():
            name, advice = _OPCHECK.get(test, (test, ""))
            if outcome == "SUCCESS":
                results.append(Result(name, "held"))
            else:
                first = next((x for x in str(outcome).splitlines() if x.strip()), "")
                results.append(Result(name, "failed", first, advice))
        return results

    def numbers(self) -> str:
        count = 0
        for dtypes in self.choices:
            cases = list(matrix(self.spec, dtypes, self.spec.rows))
            for case in cases[:: max(1, len(cases) // NUMBERS)]:
                prepared = prepare(self.spec, case, with_witness=False)
                inputs = [_strided(a) for a in make_inputs(self.spec, case)]
                with torch.no_grad():
                    got = self.call(*inputs, *case.attributes.values())
                verdict = judge(as_numpy(got), prepared.expected, prepared.output)
                if verdict.kind:
                    raise _FailedError(f"{case}: {verdict.message}")
                count += 1
        return f"{count} cases"

    def layouts(self) -> str:
        count = 0
        for dtypes in self.choices:
            for case in _variants(self.spec, dtypes):
                plain = _tensors(self.spec, case)
                for layout, view in _VIEWS.items():
                    self._layout(case, layout, [None if x is None else view(x) for x in plain])
                    count += 1
        return f"{len(_VIEWS)} layouts, {count} calls"

    def _layout(self, case: Case, layout: str, inputs: Sequence[Given]) -> None:
        where = f"{_shown(self.spec, case)}: {layout} inputs"
        before = [x if x is None else as_numpy(x.clone()) for x in inputs]
        with torch.no_grad():
            got = self.call(*inputs, *case.attributes.values())
        # Not by the bits that contiguous tensors give: a kernel may add up in another order.
        signature = self.spec.signature
        output = signature.dtype(signature.output, case.dtypes)
        verdict = judge(as_numpy(got), expected_of(self.spec, case, before), output)
        if verdict.kind:
            raise _FailedError(f"{where}, other numbers: {verdict.message}")
        if got.stride() != torch.empty(got.shape, device="meta").stride():
            raise _FailedError(f"{where}, an output of strides {got.stride()}")
        for old, x in zip(before, inputs, strict=True):
            if old is not None and x is not None and not np.array_equal(old, as_numpy(x)):
                raise _FailedError(f"{where}, one of them changed")

    def gradients(self) -> str:
        worst, refused, taken = 0.0, [], False
        for dtypes in filter(self._differentiable, self.choices):
            for case in _variants(self.spec, dtypes):
                if not self._gradients(case):
                    refused.append(_shown(self.spec, case))
                    continue
                taken = True
                if dtypes is self.precise:
                    self._gradcheck(case)
                worst = max(worst, self._directional(case))
        if not taken:
            return "none: a call on a tensor that needs one is refused"
        of = f"; refused: {', '.join(refused)}" if refused else ""
        return f"off by at most {worst:.1e} of their size{of}"

    def _gradcheck(self, case: Case) -> None:
        tensors, given = self._sample(case, grad=True)
        there = [i for i, t in enumerate(tensors) if t is not None]

        def of_what_is_there(*some: torch.Tensor) -> Any:
            full = list(tensors)
            for position, x in zip(there, some, strict=True):
                full[position] = x
            return self.call(*full, *given)

        try:
            torch.autograd.gradcheck(of_what_is_there, tuple(tensors[i] for i in there))
        except GradcheckError as error:
            first = next(line for line in str(error).splitlines() if line.strip())
            raise _FailedError(f"{_shown(self.spec, case)}: {first}") from error

    def _directional(self, case: Case) -> float:
        """The gradient in a random direction beside the oracle's central difference in float64."""
        tensors, given = self._sample(case, grad=True)
        output = self.call(*tensors, *given)
        random = np.random.default_rng(0)
        weights = random.standard_normal(output.shape)
        output.backward(as_tensor(weights).to(output.dtype))
        # What the element type makes of the weights is what was differentiated.
        weights = as_numpy(as_tensor(weights).to(output.dtype)).astype(np.float64)
        numbers: list[Any] = [
            None if t is None else as_numpy(t).astype(np.float64) for t in tensors
        ]
        worst = 0.0
        for position, (param, tensor) in enumerate(
            zip(self.spec.signature.inputs, tensors, strict=True)
        ):
            if tensor is None:
                continue
            if tensor.grad is None:
                if tensor.requires_grad:
                    raise _FailedError(f"{_shown(self.spec, case)}: {param.name} got no gradient")
                continue
            direction = random.standard_normal(tuple(tensor.shape))
            there = []
            for sign in (1, -1):
                moved = list(numbers)
                moved[position] = numbers[position] + sign * STEP * direction
                there.append(np.sum(weights * self.spec.oracle(moved, case.attributes)))
            expected = (there[0] - there[1]) / (2 * STEP)
            got = float(np.sum(as_numpy(tensor.grad).astype(np.float64) * direction))
            scale = float(np.sum(np.abs(as_numpy(tensor.grad).astype(np.float64) * direction)))
            off = abs(got - expected) / max(scale, 1e-30)
            # Every gradient is rounded, and the difference quotient is good to 1e-9 or so.
            roundoff = DTYPES[short_name(tensor.dtype)].unit_roundoff
            if not off <= 1e-6 + 64 * roundoff:
                raise _FailedError(
                    f"{_shown(self.spec, case)}: the gradient of {param.name} is {got:.6g} in a "
                    f"direction where the formula's difference quotient is {expected:.6g}"
                )
            worst = max(worst, off)
        return worst

    def compiled(self) -> str:
        tensors, given = self._sample(_case(self.spec, self.first), grad=True)

        def twice(*inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.call(*inputs, *given)
            return result * 2

        expected = twice(*tensors)
        torch._dynamo.reset()
        got = torch.compile(twice, fullgraph=True, backend=self.backend)(*tensors)
        _same("output", got, expected)
        leaves = [t for t in tensors if t is not None and t.requires_grad]
        if not leaves:
            return "forward"
        both = [torch.autograd.grad(y.sum(), leaves, allow_unused=True) for y in (got, expected)]
        for a, b in zip(*both, strict=True):
            if a is not None or b is not None:
                _same("gradient", a, b)
        return "forward and backward"

    def exported(self) -> str:
        tensors, given = self._sample(_case(self.spec, self.first), grad=False)
        call = self.call

        class Whole(torch.nn.Module):
            def forward(self, *inputs: torch.Tensor) -> Any:
                return call(*inputs, *given)

        program = torch.export.export(Whole(), tuple(tensors))
        _same("output", program.module()(*tensors), call(*tensors, *given))
        return ""

    def autocast(self) -> str:
        single = next((c for c in self.choices if self._floats(c) <= {"f32"}), None)
        if single is None:
            raise _SkippedError("the operator has no f32, which autocast starts from")
        tensors, given = self._sample(_case(self.spec, single), grad=False)
        expected = self.call(*tensors, *given)
        has_bf16 = any(self._floats(c) == {"bf16"} for c in self.choices)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = self.call(*tensors, *given)
            mixed = [t.bfloat16() if i else t for i, t in enumerate(tensors)]
            if has_bf16:
                self.call(*mixed, *given)
        wanted = torch.bfloat16 if has_bf16 and contraction(self.spec) else expected.dtype
        if got.dtype != wanted:
            raise _FailedError(f"the result is {got.dtype}, not {wanted}")
        off = float((got.double() - expected.double()).abs().max()) if got.numel() else 0.0
        size = float(expected.double().abs().max()) if got.numel() else 0.0
        if off > 0.05 * size + 1e-6:
            raise _FailedError(f"off by {off:.2g} from the result without autocast")
        return f"computed in {str(got.dtype).removeprefix('torch.')}"


def _leaves(tensors: Sequence[Any]) -> list[Any]:
    """The same tensors, those of floating types needing gradients."""
    return [None if t is None else t.requires_grad_(t.is_floating_point()) for t in tensors]


def short_name(dtype: torch.dtype) -> str:
    """Opwright's name of torch's ``dtype``."""
    return next(name for name, known in TORCH_DTYPES.items() if known is dtype)


def _same(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    try:
        torch.testing.assert_close(got, expected, equal_nan=True)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise _FailedError(f"{what}: {' '.join(lines[:3])}") from error


def _offset(x: torch.Tensor) -> torch.Tensor:
    memory = torch.empty(x.numel() + 1, dtype=x.dtype)
    return memory[1:].view(x.shape).copy_(x)


def _stepped(x: torch.Tensor) -> torch.Tensor:
    memory = torch.zeros((*x.shape, 2), dtype=x.dtype)
    return memory.select(-1, 1).copy_(x)


_VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: (
        x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    ),
    "offset": _offset,
    "stepped": _stepped,
    "expanded": lambda x: x[:1].expand(x.shape) if x.ndim and x.numel() else x,
}
