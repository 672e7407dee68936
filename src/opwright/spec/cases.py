"""Cases: concrete inputs for an operator, and the matrix of them that verification runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.errors import MachineError, UnknownNameError, UsageError
from opwright.spec.kernel import Kernel
from opwright.spec.operator import OperatorSpec
from opwright.spec.signature import (
    Array,
    Leading,
    Operand,
    Scalar,
    Signature,
    leading_text,
    parse_shape,
    shape_text,
)
from opwright.spec.tolerance import ulp

# A case of the matrix does at most this many operations or moves this many elements: the oracle and
# the slowest rung then take milliseconds.
MATRIX_COST = 5e6

_SIZES = (*range(10), 13, 15, 16, 17, 31, 33)  # every remainder of loops by 2, 4 and 8
_LONG_SIZES = (255, 256, 257, 1000)
# Full and not quite full blocks of the sizes at which kernels cut long dimensions.
_VERY_LONG_SIZES = (1024, 4096, 4099, 65537)
# Several tiles in each of three dimensions, no two alike; and two alike, in another number.
_UNEQUAL_SIZES = ((61, 127, 251), (40, 40, 24))


@dataclass(frozen=True)
class Case:
    """Concrete inputs, reproducible from this description alone.

    ``absent`` are the optional operands that the call leaves out.
    """

    dtypes: Mapping[str, DType]
    dims: Mapping[str, int]
    leading: Leading = ()
    values: str = "typical"
    layout: str = "contiguous"
    seed: int = 0
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [short_dtypes(self.dtypes)] if self.dtypes else []
        words += self.words
        words += [f"values={self.values}", f"layout={self.layout}", f"seed={self.seed}"]
        words += [f"{name}={value}" for name, value in self.attributes.items()]
        return " ".join(words)

    @property
    def words(self) -> list[str]:
        """The sizes as reports show them, and what is left out."""
        words = [f"{dim}={size}" for dim, size in self.dims.items()]
        # One leading dimension is a named size too, unless it broadcasts.
        if self.leading and (len(self.leading) > 1 or not isinstance(self.leading[0], int)):
            words.append(f"shape={leading_text(self.leading)}")
        return words + [f"without {name}" for name in self.absent]

    def recorded(self, signature: Signature) -> dict[str, int]:
        """The sizes as the history keeps them: the dimensions, and the items where several."""
        items = signature.items(self.leading)
        return dict(self.dims) if items == 1 else {**self.dims, "...": items}

    def options(self, signature: Signature) -> str:
        """The command-line options that select exactly this case."""
        chosen = f"--values {self.values} --layout {self.layout} --seed {self.seed}"
        return " ".join([*self._sizes(signature), chosen, *self._given()])

    def sizes(self, signature: Signature) -> str:
        """The same without values, layout and seed: the options of what measures."""
        return " ".join([*self._sizes(signature), *self._given()])

    def _sizes(self, signature: Signature) -> list[str]:
        words = [f"--dtype {short_dtypes(self.dtypes)}"] if self.dtypes else []
        return [*words, f"--shape {shlex.quote(shape_text(signature, self.dims, self.leading))}"]

    def _given(self) -> list[str]:
        words = [f"--without {name}" for name in self.absent]
        return [*words, *(f"--attr {name}={value}" for name, value in self.attributes.items())]


def operand_bytes(spec: OperatorSpec, case: Case) -> int:
    """Bytes that running ``case`` takes at its peak, the float64 copies of the oracle included."""
    elements = sum(
        math.prod(spec.signature.shape(p, case.dims, case.leading)) for p in spec.signature.tensors
    )
    own = spec.bytes_moved(case.dims, case.leading, case.dtypes, case.absent)
    # The arrays here, their copy on the device, and for each element the oracle, its bound and
    # two temporaries of the comparison in float64.
    return 2 * own + 32 * elements


def make_inputs(spec: OperatorSpec, case: Case) -> list[Operand]:
    """The input arrays of ``case``, laid out as it says, the same for the same description."""
    inputs: list[Operand] = []
    for index, param in enumerate(spec.signature.inputs):
        if param.name in case.absent:
            inputs.append(None)
            continue
        shape = spec.signature.shape(param, case.dims, case.leading)
        dtype = spec.signature.dtype(param, case.dtypes)
        random = np.random.default_rng([case.seed, index, *map(ord, case.values)])
        make = VALUES.get(case.values)
        if make is None:
            raise UnknownNameError("kind of values", case.values, VALUES)
        numbers = make(random, shape, _Context(spec, case, dtype, index))
        inputs.append(lay_out(_stored(numbers, dtype), case.layout, index))
    return inputs


def _stored(numbers: Array, dtype: DType) -> Array:
    if dtype.kind == "int":
        numbers = np.clip(np.nan_to_num(np.rint(numbers)), dtype.lowest, dtype.highest)
    with np.errstate(all="ignore"):
        return np.asarray(numbers, dtype=np.float64).astype(dtype.numpy)


@dataclass(frozen=True)
class _Context:
    spec: OperatorSpec
    case: Case
    dtype: DType
    index: int  # of the input

    def thresholds(self) -> list[float]:
        found = [
            self.case.attributes.get(t, t) if isinstance(t, str) else t
            for t in self.spec.thresholds
        ]
        return [float(t) for t in found if isinstance(t, int | float)]


_Random = np.random.Generator
_Shape = tuple[int, ...]


def _typical(random: _Random, shape: _Shape, about: _Context) -> Array:
    if about.dtype.kind == "int":
        # Sums of a thousand products stay in int32, so that results are defined.
        lowest, highest = max(about.dtype.lowest, -1000), min(about.dtype.highest, 1000)
        return random.integers(int(lowest), int(highest) + 1, shape)
    return random.standard_normal(shape)


def _wide(random: _Random, shape: _Shape, about: _Context) -> Array:
    if about.dtype.kind == "int":
        return random.integers(int(about.dtype.lowest), int(about.dtype.highest) + 1, shape)
    # Magnitudes spread over 12 binary orders, both signs: small results beside large ones.
    return random.choice([-1.0, 1.0], shape) * np.exp2(random.uniform(-8, 4, shape))


def _subnormal(random: _Random, shape: _Shape, about: _Context) -> Array:
    # One tensor of several, by the seed: products of two such would be nothing but zeros.
    if about.index != about.case.seed % len(about.spec.signature.inputs):
        return _typical(random, shape, about)
    smallest = about.dtype.smallest_subnormal
    # The smallest normal number is 1 / 2u steps.
    steps = min(2.0**7, 0.5 / about.dtype.unit_roundoff - 1) if about.dtype.unit_roundoff else 1
    return smallest * np.rint(random.uniform(-steps, steps, shape))


def _tiny(random: _Random, shape: _Shape, about: _Context) -> Array:
    # Products of two stay normal numbers of float32.
    exponent = -8 if about.dtype.name == "f16" else -50
    return random.standard_normal(shape) * 2.0**exponent


def _huge(random: _Random, shape: _Shape, about: _Context) -> Array:
    # Products of two, summed over thousands, stay finite in float32.
    exponent = 12 if about.dtype.name == "f16" else 50
    return random.standard_normal(shape) * 2.0**exponent


def _overflow(random: _Random, shape: _Shape, about: _Context) -> Array:
    return random.uniform(0.5, 1.0, shape) * about.dtype.highest


def _special(random: _Random, shape: _Shape, about: _Context) -> Array:
    numbers = random.standard_normal(shape)
    flat = numbers.reshape(-1)
    values = (np.nan, np.inf, -np.inf, 0.0, -0.0)
    for value in values:
        if flat.size:
            flat[random.integers(0, flat.size, 1 + flat.size // 200)] = value
    # At the end too, where vectorised loops have code of its own for what is left over.
    if flat.size > len(values):
        flat[-1] = values[(about.case.seed - 1) % len(values)]
    return numbers


def _zero_or_infinite(random: _Random, shape: _Shape, about: _Context) -> Array:
    # The first tensor is mostly zeros, which meet infinities and NaN in the others: 0 times either
    # is NaN, also where a kernel would leave out the product.
    first = np.asarray(random.integers(0, 8, shape) == 0, dtype=np.float64)
    values = random.standard_normal(shape)
    if about.index:
        rare = random.integers(0, 16, shape)
        values = np.select([rare == 0, rare == 1], [np.inf, np.nan], values)
    return values if about.index else first


def _offset(random: _Random, shape: _Shape, _: _Context) -> Array:
    # All far below zero and close together: what starts a maximum at 0 or at -1e4, or takes the
    # difference of two large sums, has nothing left. Every float type holds it.
    return random.standard_normal(shape) * 4 - 20000


def _near_thresholds(random: _Random, shape: _Shape, about: _Context) -> Array:
    points = np.array(about.thresholds() or [0.0, 1.0])
    exact = _stored(points, about.dtype).astype(np.float64)
    steps = (-64, -2, -1, 0, 1, 2, 64) if about.dtype.kind == "float" else (-1, 0, 1)
    near = [exact + step * ulp(exact, about.dtype) for step in steps]
    return random.choice(np.concatenate(near), shape)


def _extremes(random: _Random, shape: _Shape, about: _Context) -> Array:
    return random.choice([about.dtype.lowest, about.dtype.highest, 0.0, 1.0], shape)


VALUES: Mapping[str, Callable[[_Random, _Shape, _Context], Array]] = {
    "typical": _typical,
    "whole": lambda random, shape, _: random.integers(-4, 5, shape).astype(np.float64),
    "ones": lambda _random, shape, _: np.ones(shape),
    "same-sign": lambda random, shape, _: random.uniform(0.5, 1.5, shape),
    "zeros": lambda _random, shape, _: np.zeros(shape),
    "negative-zeros": lambda _random, shape, _: np.negative(np.zeros(shape)),
    "wide": _wide,
    "tiny": _tiny,
    "subnormal": _subnormal,
    "huge": _huge,
    "overflow": _overflow,
    "special": _special,
    "zero-or-infinite": _zero_or_infinite,
    "offset": _offset,
    "thresholds": _near_thresholds,
    "extremes": _extremes,
}

_INTEGER_VALUES = ("typical", "whole", "ones", "zeros", "wide", "thresholds", "extremes")

MIXED = ("first-transposed", "others-transposed")  # only the first input, or all but the first
LAYOUTS = (
    *("contiguous", "transposed", "offset", "padded", "stepped", "reversed", "expanded"),
    *MIXED,
)


def lay_out(array: Array, layout: str, index: int = 0) -> Array:
    """An array of equal shape and (but for ``expanded``) values, in another memory layout.

    ``index`` is its place among the operator's tensors, which layouts of ``MIXED`` ask about.
    """
    if layout in MIXED:
        layout = "transposed" if (index == 0) == (layout == MIXED[0]) else "contiguous"
    if layout == "contiguous" or (array.ndim == 0 and layout in LAYOUTS):
        return array
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "offset":
        memory = np.empty(array.size + 1, array.dtype)
        view = memory[1:].reshape(array.shape)
        view[...] = array
        return view
    if layout == "padded":  # rows of a wider array
        memory = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
        view = memory[..., : array.shape[-1]]
        view[...] = array
        return view
    if layout in ("stepped", "reversed"):
        step = 2 if layout == "stepped" else -1
        memory = np.zeros((*array.shape[:-1], array.shape[-1] * abs(step)), array.dtype)
        view = memory[..., ::step]
        view[...] = array
        return view
    if layout == "expanded":
        if array.size == 0:
            return array
        return np.broadcast_to(array[:1], array.shape)
    raise UnknownNameError("layout", layout, LAYOUTS)


def _cost(spec: OperatorSpec, dims: Mapping[str, int], leading: Leading) -> float:
    elements = sum(
        math.prod(spec.signature.shape(p, dims, leading)) for p in spec.signature.tensors
    )
    return max(spec.flops(dims, leading) / 2, elements)


def _affordable(spec: OperatorSpec, dims: Mapping[str, int], leading: Leading) -> bool:
    return _cost(spec, dims, leading) <= MATRIX_COST


def _tile_edges(kernels: Iterable[Kernel]) -> list[int]:
    tiles = {size for k in kernels for choices in k.tune.values() for size in choices if size > 1}
    return sorted({tile + step for tile in tiles for step in (-1, 0, 1)})


def shapes(spec: OperatorSpec, kernels: Sequence[Kernel]) -> list[tuple[dict[str, int], Leading]]:
    """The shapes of the matrix: equal sizes, all different, each long or degenerate in turn."""
    signature = spec.signature
    if set(signature.dims) == {signature.ellipsis}:
        edges = [s for s in _tile_edges(kernels) if s not in _SIZES]
        plain = [(s,) for s in (*_SIZES, 63, 64, 65, 127, *edges, *_LONG_SIZES, *_VERY_LONG_SIZES)]
        several = [(), (3, 5), (2, 3, 4), (0, 5), (5, 0), (17, 1), (1, 257)]
        every = [({signature.ellipsis: math.prod(s)}, s) for s in [*several, *plain]]
        return [(dims, leading) for dims, leading in every if _affordable(spec, dims, leading)]
    named = [d for d in signature.dims if d != signature.ellipsis]
    found: dict[tuple[tuple[int, ...], Leading], None] = {}

    def add(sizes: Mapping[str, int], leading: Leading | None = None) -> bool:
        if leading is None:
            leading = (3,) if signature.ellipsis else ()
        if signature.ellipsis:
            sizes = {**sizes, signature.ellipsis: math.prod(map(int, leading))}  # type: ignore[arg-type]
        dims = {d: sizes[d] for d in signature.dims}
        if _affordable(spec, dims, leading):
            found[tuple(dims.values()), leading] = None
            return True
        return False

    alone: list[int] = [0, 1, *_LONG_SIZES]
    for size in sorted({*_SIZES, *_tile_edges(kernels), 63, 64, 65, 127, 128, 129}):
        if not add(dict.fromkeys(named, size)):
            alone.append(size)
    for dim in named:
        for size in (*alone, *_VERY_LONG_SIZES):
            # Of many dimensions, those beside the long one are smaller.
            for first, step in ((7, 6), (2, 1), (2, 0)):
                others = {d: first + step * i for i, d in enumerate(named)}
                if add({**others, dim: size}):
                    break
            if size in alone:
                add({**dict.fromkeys(named, 1), dim: size})
    for sizes in _UNEQUAL_SIZES:
        for turn in range(len(sizes)):
            turned = sizes[turn:] + sizes[:turn]
            add({d: turned[i % len(sizes)] for i, d in enumerate(named)})
    if signature.ellipsis:
        for leading in ((), (0,), (1,), (2, 3), (5, 1, 2), (257,)):
            add(dict.fromkeys(named, 13), leading)
    for leads in _broadcast(len(signature.batched)):
        add(dict.fromkeys(named, 9), leads)
    if signature.broadcasts:
        add(dict.fromkeys(named, 0), ((2,),) * len(signature.batched))
        add({d: 5 + i for i, d in enumerate(named)}, ((3, 7),) * len(signature.batched))
        mixed = [(2, 1), (3,)] * len(signature.batched)
        add({d: 6 + i for i, d in enumerate(named)}, tuple(mixed[: len(signature.batched)]))
    return [(dict(zip(signature.dims, sizes, strict=True)), lead) for sizes, lead in found]


def _broadcast(inputs: int) -> list[tuple[tuple[int, ...], ...]]:
    """Leading dimensions of so many inputs: the same, none at all in some, and stretched."""
    same: list[tuple[int, ...]] = [(1,), (3,), (2, 3), (0,), (2, 1, 2), (40,)]
    if not inputs:
        return []
    found = [(lead,) * inputs for lead in same]
    if inputs > 1:
        for first, others in (
            ((3,), ()),
            ((), (3,)),
            ((2, 1), (1, 3)),
            ((1, 3), (2, 1)),
            ((0,), (1,)),
        ):
            found.append((first, *[others] * (inputs - 1)))
    return found


def matrix(
    spec: OperatorSpec, dtypes: Mapping[str, DType], kernels: Sequence[Kernel]
) -> Iterator[Case]:
    """Every case that verification runs for one assignment of element types.

    All shapes with typical values and with whole numbers (which have exact answers), then on three
    shapes every kind of values and every layout. Where a kernel takes strides, all shapes once more
    in one layout after the other. Where operands are optional, all shapes once more without one or
    more of them, and so every kind of values, layout and attribute.
    """
    # Attributes without a default still need some value.
    attributes = spec.signature.settle_scalars(spec.signature.usual_attributes, dtypes)
    base = Case(dtypes, {}, attributes=attributes)
    floats = any(spec.signature.dtype(p, dtypes).kind == "float" for p in spec.signature.inputs)
    kinds = [v for v in VALUES if floats or v in _INTEGER_VALUES]
    every = shapes(spec, kernels)
    for dims, leading in every:
        for values in ("typical", "whole"):
            yield replace(base, dims=dims, leading=leading, values=values)
    layouts = LAYOUTS[1:] if len(spec.signature.inputs) > 1 else LAYOUTS[1 : -len(MIXED)]
    if any(kernel.strided for kernel in kernels):
        for index, (dims, leading) in enumerate(every):
            layout = layouts[index % len(layouts)]
            yield replace(base, dims=dims, leading=leading, layout=layout)
    partial = left_out(spec.signature)
    for index, (dims, leading) in enumerate(every if partial else ()):
        absent = partial[index % len(partial)]
        yield replace(base, dims=dims, leading=leading, values="whole", absent=absent)
    middle = [s for s in every if 64 <= _cost(spec, *s) <= MATRIX_COST / 10] or every
    # Two with room in every dimension for what the values are about, and the last, a long one.
    roomy = [s for s in middle if min(s[0].values(), default=0) >= 5] or middle
    chosen = [roomy[len(roomy) // 3], roomy[len(roomy) // 2], middle[-1]]
    for seed, (dims, leading) in enumerate(chosen, 1):
        for values in kinds:
            yield replace(base, dims=dims, leading=leading, values=values, seed=seed)
        for layout in layouts:
            yield replace(base, dims=dims, leading=leading, layout=layout, seed=seed)
    dims, leading = chosen[0]
    for absent in partial:
        for values in kinds:
            yield replace(base, dims=dims, leading=leading, values=values, seed=1, absent=absent)
        for layout in layouts:
            yield replace(base, dims=dims, leading=leading, layout=layout, seed=1, absent=absent)
    yield from _attribute_cases(spec, base, chosen[0])


def left_out(signature: Signature) -> list[tuple[str, ...]]:
    """What calls leave out: each optional operand alone and, of several, all of them."""
    optional = tuple(p.name for p in signature.inputs if p.type.optional)
    alone: list[tuple[str, ...]] = [(name,) for name in optional]
    return [*alone, optional] if len(optional) > 1 else alone


def _attribute_cases(
    spec: OperatorSpec, base: Case, shape: tuple[dict[str, int], Leading]
) -> Iterator[Case]:
    """Attributes away from their defaults: floats together, every other by itself."""
    dims, leading = shape
    scalars = spec.signature.scalars
    sets: list[dict[str, Scalar]] = []
    for factor in (-1.75, 0.1, 3.0):
        changed: dict[str, Scalar] = {}
        for index, scalar in enumerate(scalars, 1):
            if scalar.type is float:
                near = float(base.attributes[scalar.name])
                # An infinite default is a limit that is off; a finite one turns it on.
                near = near if math.isfinite(near) else 1.0
                if scalar.allows(value := factor * (near + 0.3 * index)):
                    changed[scalar.name] = value
        sets.append(changed)
    for scalar in scalars:
        usual = base.attributes[scalar.name]
        if scalar.type is bool:
            sets.append({scalar.name: not usual})
        elif scalar.type is int:
            least = min(0, int(usual))  # a formula may take -1 as "the last" without meaning to
            several = [n for s in (-1, 1, 2) if (n := int(usual) + s) >= least]
            sets += [{scalar.name: n} for n in several if scalar.allows(n)]
        sets += [{scalar.name: word} for word in scalar.words if word != usual]
    for seed, changed in enumerate(sets, 1):
        if not changed:
            continue
        attributes = spec.signature.settle_scalars({**base.attributes, **changed}, base.dtypes)
        varied = replace(base, dims=dims, leading=leading, seed=seed, attributes=attributes)
        if any(type(value) is int for value in changed.values()) and not _accepted(spec, varied):
            continue
        for values in ("typical", "thresholds", "special"):
            yield replace(varied, values=values)
        for absent in left_out(spec.signature):
            yield replace(varied, absent=absent)


def _accepted(spec: OperatorSpec, case: Case) -> bool:
    """Whether the formula takes these attributes: an integer may be an axis or have to divide."""
    output = spec.signature.shape(spec.signature.output, case.dims, case.leading)
    try:
        return spec.oracle(make_inputs(spec, case), case.attributes).shape == output
    except Exception:  # whatever a formula raises for what it is not made for
        return False


def selected_case(
    spec: OperatorSpec,
    dtypes: Mapping[str, DType],
    shape: str,
    values: str = "typical",
    layout: str = "contiguous",
    seed: int = 0,
    attributes: Mapping[str, object] | None = None,
    absent: Sequence[str] = (),
) -> Case:
    """The one case that options describe; raises ``UsageError`` for what does not exist."""
    optional = [p.name for p in spec.signature.inputs if p.type.optional]
    for name in absent:
        if name not in optional:
            raise UnknownNameError("optional operand", name, optional, spec.name)
    left_out = tuple(name for name in optional if name in absent)
    if values not in VALUES:
        raise UnknownNameError("kind of values", values, VALUES)
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    if seed < 0:
        raise UsageError(f"--seed {seed}: seeds are numbers from 0 up")
    dims, leading = parse_shape(spec.signature, shape)
    settled = spec.signature.settle_scalars(attributes or {}, dtypes)
    return Case(dtypes, dims, leading, values, layout, seed, settled, left_out)


def check_memory(spec: OperatorSpec, case: Case, available: int) -> None:
    """Raise ``MachineError`` before allocating when ``case`` cannot fit in ``available`` bytes."""
    needed = operand_bytes(spec, case)
    if needed > available:
        raise MachineError(
            f"{spec.name} at {case} needs {needed / 2**30:.1f} GiB with the oracle's copies; "
            f"{available / 2**30:.1f} GiB is available. Choose a smaller --shape"
        )
