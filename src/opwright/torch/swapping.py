"""Operators replaced within a model: what was and was not and why, what it changed, and undo."""

from __future__ import annotations

import copy
import inspect
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from opwright.bench.stats import Ratio, noise_floor, paired_ratio, verdict
from opwright.spec.errors import DTypeError, ShapeError, UsageError
from opwright.spec.operator import OperatorSpec
from opwright.torch.elements import inputs_of, settle
from opwright.torch.registration import packet

# Seconds that compare() spends on timing, and the rounds it takes at least and at most.
BUDGET = 4.0
ROUNDS = (7, 40)

# A place where something was replaced: a module's path, or the number of a function's call.
Site = tuple[str, int]


class OperatorModule(torch.nn.Module):
    """An operator as a module without parameters, called with the operator's tensors."""

    def __init__(self, operator: OperatorSpec) -> None:
        super().__init__()
        self.operator = operator.name
        self._call = packet(operator)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The operator with its default attributes."""
        return self._call(*inputs)

    def extra_repr(self) -> str:
        """The operator's name."""
        return self.operator


@dataclass(frozen=True)
class Entry:
    """One module or function: where, what it is, what took its place, or why nothing did."""

    where: str
    what: str
    by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        outcome = f"replaced by {self.by}" if self.by else f"kept: {self.reason}"
        return f"{self.where} ({self.what}): {outcome}"


@dataclass(frozen=True)
class SwapReport:
    """What ``swap`` did, and for functions what their calls since then came to."""

    replaced: tuple[Entry, ...]
    kept: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.replaced, *self.kept))) or "nothing was replaced"


@dataclass
class _Module:
    """One module's replacement, at every place that holds the module."""

    name: str
    original: torch.nn.Module
    replacement: torch.nn.Module
    places: list[tuple[torch.nn.Module, str]]

    def put(self, module: torch.nn.Module) -> None:
        for parent, attribute in self.places:
            parent._modules[attribute] = module


class _Swap:
    """Everything replaced in one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules: list[_Module] = []
        self.kept: list[Entry] = []
        self.functions: dict[Any, Any] = {}
        self.names: dict[Any, str] = {}
        self.original_class = type(model)
        self.called: Counter[str] = Counter()
        self.not_called: Counter[tuple[str, str]] = Counter()
        # None: every site. Only compare and bisect choose.
        self.enabled: Collection[Site] | None = None
        # The sites in the order they ran, where bisect wants to know it.
        self.order: list[Site] | None = None
        self.numbers: Counter[str] = Counter()

    def ran(self, site: Site) -> None:
        """Note that a replacement runs."""
        if self.order is not None:
            self.order.append(site)


_swaps: WeakKeyDictionary[torch.nn.Module, _Swap] = WeakKeyDictionary()


def swap(
    model: torch.nn.Module, replacements: Mapping[Any, Any], *, only: str = ""
) -> torch.nn.Module:
    """Replace modules and functions within ``model``, in place, and return it.

    A key is a class of modules or a function of torch. A class is replaced, where a module is
    exactly of it, by what its value gives: an operator, a module (copied for each place), or a
    function of the old module that returns the new one (None keeps it); a class of modules is
    called with the old module if its constructor takes an argument. A function, under every name
    that torch has for it (``torch.tanh``, ``x.tanh()``), is replaced in the calls within the
    model's ``forward`` by an operator or by a function of the same parameters; calls that an
    operator has no kernel for go to torch. ``only`` limits modules to paths that begin with it.

    ``report`` says what was replaced and what not and why, ``undo`` takes it back.

    Raises ``UsageError`` for a model that was swapped before, and for what can be no replacement.
    """
    if model in _swaps:
        raise UsageError("this model has replacements already: owt.undo(model) takes them back")
    state = _Swap(model)
    classes = {k: v for k, v in replacements.items() if isinstance(k, type)}
    for key, value in replacements.items():
        if key not in classes:
            _add_function(state, key, value)
        elif not issubclass(key, torch.nn.Module):
            raise UsageError(f"{key.__name__} is no class of modules, nor a function of torch")
    if type(model) in classes:
        raise UsageError(
            f"the model itself is a {type(model).__name__}: there is nothing around it"
        )
    places: dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = {}
    for parent in model.modules():
        for attribute, child in parent._modules.items():
            if child is not None:
                places.setdefault(child, []).append((parent, attribute))
    for name, module in model.named_modules():
        if module is not model:
            _swap_module(state, name, module, classes, places[module], only)
    for found in state.modules:
        found.put(found.replacement)
    if state.functions:
        model.__class__ = _with_functions(type(model))
    _swaps[model] = state
    return model


def _swap_module(
    state: _Swap,
    name: str,
    module: torch.nn.Module,
    classes: Mapping[type, Any],
    places: list[tuple[torch.nn.Module, str]],
    only: str,
) -> None:
    what = type(module).__name__
    key = next((k for k in classes if type(module) is k), None)
    if key is None:
        near = next((k for k in classes if isinstance(module, k)), None)
        if near is not None:
            reason = f"it is a class of its own, derived from {near.__name__}"
            state.kept.append(Entry(name, what, reason=reason))
        return
    if not name.startswith(only):
        state.kept.append(Entry(name, what, reason=f"its path does not begin with {only}"))
        return
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        state.kept.append(Entry(name, what, reason="it has hooks, which would be lost"))
        return
    new = _replacement(classes[key], module)
    if new is None:
        state.kept.append(Entry(name, what, reason="the function given left it"))
        return
    new.train(module.training)
    state.modules.append(_Module(name, module, new, places))
    site = (name, 0)
    new.register_forward_pre_hook(lambda *_: state.ran(site))


def _replacement(value: Any, module: torch.nn.Module) -> torch.nn.Module | None:
    if isinstance(value, OperatorSpec):
        if lost := [name for name, _ in module.named_parameters()]:
            raise UsageError(
                f"{value.name} cannot take the place of a {type(module).__name__}, as it would not "
                f"get its {' and '.join(lost)}: replace the function that the module calls, such "
                "as torch.nn.functional.linear"
            )
        return OperatorModule(value)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value)
    if not callable(value):
        raise UsageError(f"{value!r} cannot take the place of a {type(module).__name__}")
    plain = isinstance(value, type) and not _required(value)
    new = value() if plain else value(module)
    if new is not None and not isinstance(new, torch.nn.Module):
        raise UsageError(
            f"{getattr(value, '__name__', value)} gave a {type(new).__name__} in place of a "
            f"{type(module).__name__}; a module is needed"
        )
    return new


def _required(value: type) -> bool:
    """Whether a class's constructor cannot be called without arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        p.kind in kinds and p.default is p.empty
        for p in inspect.signature(value).parameters.values()
    )


def _add_function(state: _Swap, function: Any, value: Any) -> None:
    name = getattr(function, "__name__", "")
    homes = (torch, torch.Tensor, torch.nn.functional, torch.special)
    found = {
        getattr(home, n)
        for home in homes
        for n in (name, f"__{name}__")
        if name and callable(getattr(home, n, None))
    }
    if not callable(function) or not any(f is function for f in found):
        raise UsageError(f"{function!r} is neither a class of modules nor a function of torch")
    if isinstance(value, OperatorSpec):
        replacement: Any = _operator_call(state, name, value)
    elif callable(value):
        replacement = lambda original, args, kwargs: value(*args, **kwargs)  # noqa: E731
    else:
        raise UsageError(f"{value!r} cannot take the place of {name}")
    state.names[name] = value.name if isinstance(value, OperatorSpec) else _named(value)
    for one in found:
        state.functions[one] = (name, replacement)


def _named(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _operator_call(state: _Swap, name: str, spec: OperatorSpec) -> Callable[..., Any]:
    """Calls that an operator has a kernel for, and torch's own function for the others."""
    call = packet(spec)
    signature = spec.signature
    optional = [p.type.optional for p in signature.inputs]
    least, most = optional.count(False), len(optional) + len(signature.scalars)

    def replaced(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = ""
        if kwargs or not least <= len(args) <= most:
            reason = "it is called with arguments that the operator has not"
        elif not all(
            isinstance(a, torch.Tensor) or (a is None and may_be_left_out)
            for a, may_be_left_out in zip(args, optional, strict=False)
        ):
            reason = "it is called with something that is no tensor"
        else:
            try:
                settle(spec, inputs_of(spec, args))
            except (DTypeError, ShapeError) as error:
                reason = str(error)
        if reason:
            state.called[name] -= 1
            state.not_called[name, reason] += 1
            return original(*args, **kwargs)
        return call(*args)

    return replaced


class _Functions(TorchFunctionMode):
    """Replaces the functions of a swap while the model's forward runs."""

    def __init__(self, state: _Swap) -> None:
        super().__init__()
        self.state = state

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = self.state.functions.get(func)
        if found is None:
            return func(*args, **(kwargs or {}))
        name, replacement = found
        state = self.state
        site = (f"{name}()", state.numbers[name])
        state.numbers[name] += 1
        if state.enabled is not None and site not in state.enabled:
            return func(*args, **(kwargs or {}))
        state.ran(site)
        state.called[name] += 1
        return replacement(func, args, kwargs or {})


def _with_functions(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The model's class with a forward that runs under the mode of its swap."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = _swaps.get(self)
        if state is None:  # a copy of a swapped model: its modules are replaced, not its functions
            return cls.forward(self, *args, **kwargs)
        state.numbers.clear()
        with _Functions(state):
            return cls.forward(self, *args, **kwargs)

    return type(f"Swapped{cls.__name__}", (cls,), {"forward": forward})


def _state(model: torch.nn.Module) -> _Swap:
    if model not in _swaps:
        raise UsageError("nothing is replaced in this model: owt.swap(model, {...}) does")
    return _swaps[model]


def report(model: torch.nn.Module) -> SwapReport:
    """What ``swap`` replaced in ``model``, what it did not, and why.

    Raises ``UsageError`` for a model that is not swapped.
    """
    state = _state(model)
    replaced = [
        Entry(m.name, type(m.original).__name__, by=_described(m.replacement))
        for m in state.modules
    ]
    kept = list(state.kept)
    for name, by in state.names.items():
        calls = state.called[name]
        where = f"{name}, {calls} calls so far"
        replaced.append(Entry(where, "function", by=by))
    for (name, reason), calls in state.not_called.items():
        kept.append(Entry(f"{name}, {calls} calls so far", "function", reason=reason))
    return SwapReport(tuple(replaced), tuple(kept))


def _described(module: torch.nn.Module) -> str:
    extra = module.operator if isinstance(module, OperatorModule) else ""
    return extra or type(module).__name__


def undo(model: torch.nn.Module) -> torch.nn.Module:
    """Take back what ``swap`` replaced in ``model`` and return it.

    A module that was replaced comes back as it was then, with its parameters of then.
    """
    state = _state(model)
    _put_back(model, state)
    del _swaps[model]
    return model


def _put_back(model: torch.nn.Module, state: _Swap) -> None:
    for found in state.modules:
        found.put(found.original)
    model.__class__ = state.original_class


@contextmanager
def _only(model: torch.nn.Module, sites: Collection[Site] | None) -> Iterator[None]:
    """Only these replacements within the block; None for all of them."""
    state = _state(model)
    before, own = state.enabled, type(model)
    state.enabled = sites
    for found in state.modules:
        chosen = sites is None or (found.name, 0) in sites
        found.put(found.replacement if chosen else found.original)
    if sites is not None and not any(where.endswith("()") for where, _ in sites):
        model.__class__ = state.original_class  # without the mode, which costs every function 1 us
    try:
        yield
    finally:
        state.enabled = before
        model.__class__ = own
        for found in state.modules:
            found.put(found.replacement)


def outputs(model: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """The floating-point tensors that the model returns, always with the same random numbers."""
    # What the fork uses up is given back at its end, so the next run starts from the same state.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        result = model(*inputs)
    leaves = pytree.tree_leaves(result)
    found = [x.detach().clone() for x in leaves if isinstance(x, torch.Tensor)]
    found = [x for x in found if x.is_floating_point()]
    if not found:
        raise UsageError("the model returns no floating-point tensors that could be compared")
    return found


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """The largest absolute difference; infinite where NaN or an infinity is not where it was."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        first, second = x.double(), y.double()
        same = (first == second) | (first.isnan() & second.isnan())
        off = torch.where(same, 0.0, (first - second).abs()).nan_to_num(torch.inf, torch.inf)
        worst = max(worst, float(off.max()) if off.numel() else 0.0)
    return worst


@dataclass(frozen=True)
class Comparison:
    """A model with its replacements beside itself without them.

    Differences are the largest absolute ones of the output: ``difference`` between the two,
    ``output_noise`` between two runs of the original, ``original_error`` and ``swapped_error`` from
    the original in float64 (None where it cannot run so), ``size`` the output's largest magnitude.
    ``time`` is the ratio of times, swapped over original, ``time_noise`` what the original differs
    from itself in the same rounds, ``faster`` the verdict by both.
    """

    difference: float
    output_noise: float
    size: float
    original_error: float | None
    swapped_error: float | None
    time: Ratio
    time_noise: float
    faster: str

    def __str__(self) -> str:
        lines = [
            f"output: differs by at most {self.difference:.2g} (largest value {self.size:.3g}); "
            f"the original differs from itself by {self.output_noise:.2g}"
        ]
        if self.original_error is not None and self.swapped_error is not None:
            lines.append(
                f"from the original in float64: the original is off by {self.original_error:.2g}, "
                f"the swapped one by {self.swapped_error:.2g}"
            )
        lines.append(
            f"time: {self.time.median:.3f} [{self.time.low:.3f}, {self.time.high:.3f}] times the "
            f"original's: {self.faster} (the original differs from itself by "
            f"{100 * self.time_noise:.1f} %)"
        )
        return "\n".join(lines)


def compare(model: torch.nn.Module, *inputs: Any, budget: float = BUDGET) -> Comparison:
    """A/B of a swapped model on a batch: output and forward time, each beside its noise floor.

    ``budget`` is the seconds spent on timing. Raises ``UsageError`` for a model that is not
    swapped.
    """
    _state(model)
    with _only(model, ()):
        original = outputs(model, inputs)
        again = outputs(model, inputs)
        precise = _in_float64(model, inputs)
    swapped = outputs(model, inputs)
    times = _timed(model, inputs, budget)
    ratio = paired_ratio(times["swapped"], times["original"])
    noise = noise_floor(times["original"], times["again"])
    return Comparison(
        difference=distance(original, swapped),
        output_noise=distance(original, again),
        size=max(float(x.abs().max()) if x.numel() else 0.0 for x in original),
        original_error=None if precise is None else distance(original, precise),
        swapped_error=None if precise is None else distance(swapped, precise),
        time=ratio,
        time_noise=noise,
        faster=verdict(ratio, noise),
    )


def _in_float64(model: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """The output of the model as it now is, in float64; None where it does not run in it."""

    def widened(x: Any) -> Any:
        wide = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.double() if wide else x

    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # for what the model makes itself
        twin = copy.deepcopy(model).double()
        return outputs(twin, tuple(pytree.tree_map(widened, inputs)))
    except (RuntimeError, TypeError):  # a copy that cannot be made, an operator without float64
        return None
    finally:
        torch.set_default_dtype(default)


def _timed(
    model: torch.nn.Module, inputs: tuple[Any, ...], budget: float
) -> dict[str, list[float]]:
    choices: dict[str, Collection[Site] | None] = {"original": (), "swapped": None, "again": ()}
    times: dict[str, list[float]] = {name: [] for name in choices}
    started = time.perf_counter()
    with torch.no_grad():
        for number in range(ROUNDS[1] + 1):
            if number > ROUNDS[0] and time.perf_counter() - started > budget:
                break
            # In turns forwards and backwards, so that no one always comes first.
            for name in list(choices)[:: 1 if number % 2 else -1]:
                with _only(model, choices[name]):
                    begun = time.perf_counter_ns()
                    model(*inputs)
                    times[name].append(float(time.perf_counter_ns() - begun))
    return {name: values[1:] for name, values in times.items()}  # the first round warms up


@dataclass(frozen=True)
class Bisection:
    """Which replacement moved the output.

    ``site`` is the module's path or the function and the number of its call (from 0); ``by`` what
    replaced it. ``alone`` is how far the output moves with it as the only replacement, ``total``
    with all of them, ``sites`` how many there are, ``runs`` how often the model ran.
    """

    site: str
    by: str
    alone: float
    total: float
    sites: int
    runs: int

    def __str__(self) -> str:
        return (
            f"{self.site} ({self.by}) moved the output: alone by {self.alone:.2g}, all "
            f"{self.sites} replacements together by {self.total:.2g} ({self.runs} runs)"
        )


def bisect(
    model: torch.nn.Module, *inputs: Any, tolerance: float | None = None
) -> Bisection | None:
    """The replacement in a swapped model that moves its output past ``tolerance``, if one does.

    Replacements are taken in the order they run, and by halves the first is found with which the
    output is off by more: by more than half of what all are together, without a ``tolerance``.
    None where the output does not move that far at all.

    Raises ``UsageError`` for a model that is not swapped, or in which no replacement runs.
    """
    state = _state(model)
    runs = 0

    def moved(sites: Collection[Site] | None) -> float:
        nonlocal runs
        runs += 1
        with _only(model, sites):
            return distance(original, outputs(model, inputs))

    with _only(model, ()):
        original = outputs(model, inputs)
    state.order = []
    total = moved(None)
    order = list(dict.fromkeys(state.order))
    state.order = None
    if not order:
        raise UsageError("none of the replacements runs on these inputs")
    limit = total / 2 if tolerance is None else tolerance
    if not total > limit:
        return None
    low, high = 0, len(order)
    while high - low > 1:
        middle = (low + high) // 2
        if moved(order[:middle]) > limit:
            high = middle
        else:
            low = middle
    where, number = found = order[high - 1]
    name = where.removesuffix("()")
    if where.endswith("()"):
        shown, by = f"call {number} of {name}", state.names[name]
    else:
        module = next(m for m in state.modules if m.name == where)
        shown, by = where, _described(module.replacement)
    return Bisection(shown, by, moved([found]), total, len(order), runs + 1)
