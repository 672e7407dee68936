"""From an annotated formula to named dimensions, element types, and the C function they imply."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from opwright.spec.dtypes import DTYPES, DType, dtype_named, short_dtypes
from opwright.spec.errors import DTypeError, ShapeError, UnknownNameError, UsageError

Array = NDArray[Any]
Operand = Array | None  # of an input that a call may leave out: None where it does
# The leading dimensions of a call: those of "...", or of "#..." those of each input that has it
# (in order; empty where none has any).
Leading = tuple[int, ...] | tuple[tuple[int, ...], ...]
Scalar = float | int | bool | str


@dataclass(frozen=True)
class DTypeVar:
    """A name for an element type that each call settles, such as ``T``."""

    name: str


@dataclass(frozen=True)
class Misspelt:
    """What ``Tensor[...]`` gives where it is written wrongly.

    The declaration that uses it says so, as only that knows its own file and line.
    """

    fault: str

    def __or__(self, _: object) -> Misspelt:
        return self

    __ror__ = __or__


@dataclass(frozen=True)
class TensorType:
    """What ``Tensor[T, "m k"]`` means: the element type's name and the dimensions.

    A dimension is a name, a fixed size, or ``...`` for any number of leading dimensions. Those of
    ``#...`` broadcast; each item that they count is computed by itself. ``| None`` makes it
    ``optional``: a call may leave the tensor out.
    """

    dtype: str
    dims: tuple[str | int, ...]
    optional: bool = False

    def __or__(self, other: object) -> TensorType:
        return replace(self, optional=True) if other is None else NotImplemented

    __ror__ = __or__

    @property
    def open(self) -> bool:
        """Whether there are leading dimensions of any number."""
        return self.dims[:1] in (("...",), ("#...",))

    @property
    def own(self) -> tuple[str | int, ...]:
        """The dimensions after the leading ones: those of one item."""
        return self.dims[1:] if self.open else self.dims

    def __str__(self) -> str:
        own = f'Tensor[{self.dtype}, "{" ".join(map(str, self.dims))}"]'
        return f"{own} | None" if self.optional else own


if TYPE_CHECKING:
    # A type checker reads Tensor[T, "m k"] as Annotated[<any array>, "m k"].
    from typing import Annotated as Tensor
    from typing import TypeAlias

    from opwright.spec.kernel import Kernel

    T: TypeAlias = Array
    U: TypeAlias = Array
    V: TypeAlias = Array
else:
    T, U, V = DTypeVar("T"), DTypeVar("U"), DTypeVar("V")

    class Tensor:
        """Annotation of a tensor: ``Tensor[T, "m k"]``, ``Tensor["i32", "n"]``.

        The first part is a dtype variable (or its name) or an element type's name; the second
        gives the dimensions in jaxtyping's notation: names, sizes, and a leading ``...``, which
        may stand without quotes where it is alone, or ``#...`` for leading dimensions that
        broadcast. ``bias: Tensor[T, "n"] | None = None`` may be left out of a call.
        """

        def __class_getitem__(cls, item: object) -> TensorType | Misspelt:
            if isinstance(item, tuple) and len(item) == 2 and item[1] is ...:
                item = item[0], "..."
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], str)):
                return Misspelt(f'Tensor[{item!r}] should be like Tensor[T, "m k"]')
            dtype, dims = item
            if isinstance(dtype, DTypeVar | DType):
                dtype = dtype.name
            if not (isinstance(dtype, str) and dtype.isidentifier()):
                return Misspelt(
                    f"Tensor's element type {dtype!r} should be a variable such as T or a dtype "
                    f"such as {', '.join(DTYPES)}"
                )
            try:
                return TensorType(dtype, _parse_dims(dims))
            except UsageError as error:
                return Misspelt(str(error))


def _parse_dims(text: str) -> tuple[str | int, ...]:
    dims: list[str | int] = []
    for position, word in enumerate(text.split()):
        if word in ("...", "#..."):
            if position:
                raise UsageError(f"dimensions {text!r}: {word!r} can only come first")
            dims.append(word)
        elif word.isdecimal() and int(word) < 2**63:
            dims.append(int(word))
        elif word.isidentifier():
            dims.append(word)
        else:
            raise UsageError(
                f"dimensions {text!r}: {word!r} is neither a name, nor a size, nor '...'"
            )
    return tuple(dims)


@dataclass(frozen=True)
class TensorParam:
    """A tensor argument (or the output, named ``out``)."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Limit:
    """What a number may be, as ``0 < scale < inf`` declares it; NaN is never within.

    An end that is ``open`` does not belong to it.
    """

    text: str
    low: float
    high: float
    low_open: bool
    high_open: bool

    def __str__(self) -> str:
        return self.text

    def holds(self, value: float) -> bool:
        """Whether ``value`` is within."""
        above = self.low < value if self.low_open else self.low <= value
        below = value < self.high if self.high_open else value <= self.high
        return above and below


@dataclass(frozen=True)
class ScalarParam:
    """An attribute: a ``float``, ``int`` or ``bool``, or one word of ``words``; maybe a default.

    A number may have a ``limit``.

    A word reaches the kernel as its index, for which the kernel's source has a constant
    (``activation_relu`` for the word ``relu`` of ``activation``).
    """

    name: str
    type: type[float] | type[int] | type[bool] | type[str]
    default: Scalar | None = None
    words: tuple[str, ...] = ()
    limit: Limit | None = None

    @property
    def c(self) -> str:
        """Its C type."""
        whole = "std::int64_t"
        return {float: "double", int: whole, bool: "bool", str: whole}[self.type]

    @property
    def constants(self) -> dict[str, int]:
        """The names that kernels have for the words, and their values."""
        return {f"{self.name}_{word}": index for index, word in enumerate(self.words)}

    @property
    def usual(self) -> Scalar:
        """Its default; where there is none, some value that it can have."""
        if self.default is not None:
            return self.default
        return self.words[0] if self.words else self.type(1)

    def allows(self, number: Any) -> bool:
        """Whether ``number`` is within its limit, if it has one."""
        return self.limit is None or self.limit.holds(number)

    def value(self, setting: Scalar) -> float | int:
        """What the C function gets for ``setting``."""
        return self.words.index(setting) if isinstance(setting, str) else setting


# C++ keywords, macros of its headers, and names that the kernel's own translation unit needs.
RESERVED = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t "
    "char32_t class compl concept const const_cast consteval constexpr constinit continue co_await "
    "co_return co_yield decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires "
    "return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq "
    "EOF INFINITY NAN NULL assert errno linux stderr stdin stdout unix "
    "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t "
    "opw out std threads".split()
)

# Functions of the C library. A kernel with such a name clashes with its declaration in <cmath>, or
# takes its place in every library of the process.
C_LIBRARY = frozenset(
    [
        f"{name}{suffix}"
        for name in (
            "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 "
            "exp10 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp "
            "lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint "
            "nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sincos sinh "
            "sqrt tan tanh tgamma trunc y0 y1 yn".split()
        )
        for suffix in ("", "f", "l")
    ]
    + "abort abs accept access alarm atexit atof atoi atol bind bsearch calloc clock close connect "
    "ctime daylight difftime div dprintf drem exit fclose ffs fflush finite fopen fork fprintf "
    "fputs fread free fscanf fseek ftell fwrite gamma getc getenv gets gmtime index isalpha "
    "isdigit isinf isnan isspace kill labs ldiv link listen llabs main malloc memchr memcmp memcpy "
    "memmove memset mktime nice open pause perror pipe printf putc puts qsort raise rand random "
    "read realloc remove rename rewind rindex scalb scanf select send setenv sigaction signal "
    "significand sleep sprintf srand srandom sscanf stat strcat strchr strcmp strcpy strlen "
    "strncmp strncpy strstr strtod strtol sync system time times tmpfile tolower toupper truncate "
    "ungetc unlink wait write".split()
)


def check_c_name(what: str, name: str) -> None:
    """Raise ``UsageError`` where ``name`` cannot be a name of our own in C++ source."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"{what} {name!r} cannot be a name in C++: use A-Z, a-z, 0-9 and _")
    if name in RESERVED:
        raise UsageError(
            f"{what} {name!r}: the name has a meaning in C++ or to Opwright; choose another"
        )
    if "__" in name or re.match(r"_[A-Z]", name) or name.startswith("opw_"):
        raise UsageError(f"{what} {name!r}: C++ and Opwright keep such names to themselves")


@dataclass(frozen=True)
class Signature:
    """A declared signature. ``dims`` are the named dimensions in the C function's order.

    The order is the output's dimensions, then those that only inputs have, as they first appear. A
    leading ``...`` becomes one dimension of the C function: ``n`` when it is all there is, else
    ``batch``; a leading ``#...`` does not reach it, as it computes one item.
    ``assignments`` are the combinations of element types that the variables can have. ``rows``
    is the dimension that counts independent rows, if one does: see ``OperatorSpec``.
    """

    name: str
    inputs: tuple[TensorParam, ...]
    output: TensorParam
    scalars: tuple[ScalarParam, ...]
    dims: tuple[str, ...]
    assignments: tuple[Mapping[str, DType], ...]
    ellipsis: str
    rows: str = ""

    @property
    def tensors(self) -> tuple[TensorParam, ...]:
        """Inputs in order, then the output."""
        return (*self.inputs, self.output)

    @cached_property
    def variables(self) -> dict[str, tuple[DType, ...]]:
        """The dtype variables with all that each can be, in some assignment or other."""
        return {
            v: tuple(dict.fromkeys(a[v] for a in self.assignments)) for v in self.assignments[0]
        }

    @cached_property
    def broadcasts(self) -> bool:
        """Whether leading dimensions broadcast."""
        return self.output.type.dims[:1] == ("#...",)

    @cached_property
    def batched(self) -> tuple[TensorParam, ...]:
        """The inputs whose leading dimensions broadcast."""
        return tuple(p for p in self.inputs if p.type.dims[:1] == ("#...",))

    def items(self, leading: Leading) -> int:
        """How many items the leading dimensions count; 1 where they are the kernel's own."""
        return math.prod(self.joined(leading)) if self.broadcasts else 1

    def joined(self, leading: Leading) -> tuple[int, ...]:
        """The leading dimensions of the output: those of the inputs by NumPy's broadcasting.

        Raises ``ShapeError`` naming two inputs whose sizes differ, neither being 1.
        """
        if not self.broadcasts:
            return leading  # type: ignore[return-value]
        leads = list(zip(self.batched, leading, strict=False))
        joined: list[int] = []
        owner: list[int] = []  # of each size, the position of its input
        for position, (param, given) in enumerate(leads):
            own: tuple[int, ...] = given  # type: ignore[assignment]
            more = [1] * (len(own) - len(joined))
            joined[:0], owner[:0] = more, [position for _ in more]
            for axis, size in enumerate(own, len(joined) - len(own)):
                if joined[axis] == 1:
                    joined[axis], owner[axis] = size, position
                elif size not in (1, joined[axis]):
                    other, lead = leads[owner[axis]]
                    raise ShapeError(
                        f"{self.name}: the leading dimensions {lead} of {other.name} and {own} of "
                        f"{param.name} do not broadcast: {joined[axis]} and {size} are not the "
                        "same, and neither is 1"
                    )
        return tuple(joined)

    def stacked(self, dims: Mapping[str, int], leading: Leading) -> dict[str, int]:
        """The sizes that a kernel is called with where inputs without gaps have this shape.

        Those are of one item, with the rows of all the items that are stacked.
        """
        sizes = dict(dims)
        if not self.rows:
            return sizes
        leads = [lead for lead in leading if isinstance(lead, tuple)]
        for back, extent in enumerate(reversed(self.joined(leading)), 1):
            for param, lead in zip(self.batched, leads, strict=True):
                own = lead[-back] if back <= len(lead) else 1
                if own != (extent if self.rows in param.type.own else 1):
                    return sizes
            sizes[self.rows] *= extent
        return sizes

    def dtype(self, param: TensorParam, dtypes: Mapping[str, DType]) -> DType:
        """The element type of ``param`` when the variables are ``dtypes``."""
        return dtypes.get(param.type.dtype) or dtype_named(param.type.dtype)

    def compute(self, dtypes: Mapping[str, DType]) -> DType:
        """The widest type that a kernel is expected to accumulate in, over all the tensors.

        Integers with a ``float`` attribute beside them are computed with in float32.
        """
        types = [DTYPES[self.dtype(p, dtypes).compute] for p in self.tensors]
        if any(s.type is float for s in self.scalars) and all(d.kind == "int" for d in types):
            return DTYPES["f32"]
        return max(types, key=lambda d: (d.kind == "float", d.bytes))

    def choices(self) -> list[dict[str, DType]]:
        """Every assignment of the dtype variables, in the order of the declaration."""
        return [dict(assignment) for assignment in self.assignments]

    def check_native(self, param: TensorParam, given: np.dtype[Any]) -> None:
        """Raise ``DTypeError`` for numbers in the other order of bytes."""
        if not given.isnative:
            native = given.newbyteorder("=")
            raise DTypeError(
                f"{self.name}: {param.name} is {given.str}, whose bytes are in the order that "
                f"is not this machine's; kernels take {native}. Pass {param.name}.astype"
                f"({str(native)!r})"
            )

    def settle_dtypes(self, arrays: Sequence[np.dtype[Any] | None]) -> dict[str, DType]:
        """The variables' element types for inputs of these NumPy dtypes, None for one left out.

        Raises ``DTypeError`` naming both dtypes where two disagree or no declared one fits.
        """
        settled: dict[str, DType] = {}
        owner: dict[str, str] = {}
        known = {d.numpy: d for d in DTYPES.values()}
        there = [(p, d) for p, d in zip(self.inputs, arrays, strict=True) if d is not None]
        for param, given in there:
            self.check_native(param, given)
            wanted = param.type.dtype
            if wanted in settled and given != settled[wanted].numpy:
                raise DTypeError(
                    f"{self.name}: {owner[wanted]} is {settled[wanted].numpy} and {param.name} is "
                    f"{given}; both are {wanted}, so they must be the same. Convert one of them"
                )
            options = self.variables.get(wanted) or (dtype_named(wanted),)
            found = known.get(given)
            if found is None or found not in options:
                if wanted in self.variables and len({p.type.dtype for p in self.inputs}) > 1:
                    break  # what this can be depends on the others
                has = ", ".join(f"{d.name} ({d.numpy})" for d in options)
                raise DTypeError(
                    f"{self.name}: {param.name} is {given}, for which there is no kernel; "
                    f"{wanted if wanted in self.variables else param.name} can be {has}. "
                    "Convert the array, or add the dtype to the declaration"
                )
            if wanted in self.variables:
                settled[wanted] = found
                owner[wanted] = param.name
        else:
            for assignment in self.assignments:
                if all(assignment[v] == d for v, d in settled.items()):
                    return dict(assignment)
        mixture = " and ".join(f"{p.name} is {g}" for p, g in there)
        raise DTypeError(
            f"{self.name}: {mixture}, for which together there is no kernel; there can be "
            f"{'; '.join(map(short_dtypes, self.assignments))}. Convert one of them, or add the "
            "row to the declaration"
        )

    def settle_dims(
        self, shapes: Sequence[tuple[int, ...] | None]
    ) -> tuple[dict[str, int], Leading]:
        """Sizes of the named dimensions and the leading ones, from the inputs' shapes.

        The shape of an input that is left out is None.

        Raises ``ShapeError`` naming both arrays and sizes where they do not agree.
        """
        sizes: dict[str, int] = {}
        owner: dict[str, str] = {}
        leading: tuple[int, ...] | None = None
        lead_owner = ""
        each: list[tuple[int, ...]] = []
        for param, shape in zip(self.inputs, shapes, strict=True):
            if shape is None:
                continue
            fixed = param.type.own
            extra = len(shape) - len(fixed)
            if extra < 0 or (extra > 0 and not param.type.open):
                at_least = "at least " if param.type.open else ""
                raise ShapeError(
                    f"{self.name}: {param.name} has shape {shape}, {len(shape)} dimensions; "
                    f"{param.type} needs {at_least}{len(fixed)}"
                )
            if param.type.open and self.broadcasts:
                each.append(shape[:extra])
            elif param.type.open:
                if leading is None:
                    leading, lead_owner = shape[:extra], param.name
                elif leading != shape[:extra]:
                    raise ShapeError(
                        f"{self.name}: the leading dimensions '...' are {leading} in {lead_owner} "
                        f"and {shape[:extra]} in {param.name}; they must be the same"
                    )
            for dim, size in zip(fixed, shape[extra:], strict=True):
                if isinstance(dim, int):
                    if dim != size:
                        raise ShapeError(
                            f"{self.name}: {param.name} has shape {shape}; {param.type} needs "
                            f"{dim} where it has {size}"
                        )
                elif sizes.setdefault(dim, size) != size:
                    raise ShapeError(
                        f"{self.name}: {dim} is {sizes[dim]} in {owner[dim]} and {size} in "
                        f"{param.name} (shape {shape}); they must be the same"
                    )
                else:
                    owner.setdefault(dim, param.name)
        leading = leading or ()
        if self.ellipsis:
            sizes[self.ellipsis] = math.prod(leading)
        settled = {dim: sizes[dim] for dim in self.dims}
        if not any(each):
            return settled, leading
        self.joined(tuple(each))
        return settled, tuple(each)

    def shape(
        self, param: TensorParam, dims: Mapping[str, int], leading: Leading = ()
    ) -> tuple[int, ...]:
        """The shape of ``param`` at these sizes and leading dimensions."""
        own = tuple(dim if isinstance(dim, int) else dims[dim] for dim in param.type.own)
        if not (param.type.open and leading):
            return own
        if self.broadcasts and param in self.batched:
            lead: tuple[int, ...] = leading[self.batched.index(param)]  # type: ignore[assignment]
            return lead + own
        return self.joined(leading) + own

    def check_dims(self, names: Mapping[str, int]) -> None:
        """Raise ``UnknownNameError`` for a name that is none of this signature's dimensions."""
        for name in names:
            if name not in self.dims:
                raise UnknownNameError("dimension", name, self.dims, self.name)

    def settle_scalars(
        self, given: Mapping[str, object], dtypes: Mapping[str, DType]
    ) -> dict[str, Scalar]:
        """Attributes with defaults filled in.

        Floats are rounded to float32 where the kernels compute in it, as NumPy and torch round a
        Python scalar to the array's type: so the formula and a kernel that casts see one value.
        """
        known = {s.name for s in self.scalars}
        for name in given:
            if name not in known:
                raise UnknownNameError("attribute", name, known, self.name)
        single = self.compute(dtypes).name == "f32"
        settled: dict[str, Scalar] = {}
        for scalar in self.scalars:
            value = given.get(scalar.name, scalar.default)
            if value is None and scalar.default is None:
                raise UsageError(f"{self.name}: attribute {scalar.name} has no default: give it")
            settled[scalar.name] = found = _scalar(self.name, scalar, value, single)
            if not scalar.allows(found):
                rounded = f", in float32 {found}" if scalar.allows(value) else ""
                raise UsageError(
                    f"{self.name}: attribute {scalar.name} is {value}{rounded}; it should be "
                    f"{scalar.limit}"
                )
        return settled

    def values(
        self,
        dims: Mapping[str, int],
        attributes: Mapping[str, Scalar],
        strides: Sequence[int] = (),
        walk: Sequence[int] = (0,),
    ) -> list[int | float]:
        """What the C function gets after the tensors: dimensions, strides, settled attributes.

        Where leading dimensions broadcast, what leads from item to item follows, for which
        ``spec.strides.walk`` gives the numbers.
        """
        own = (s.value(attributes[s.name]) for s in self.scalars)
        return [*dims.values(), *strides, *own, *(walk if self.broadcasts else ())]

    @property
    def usual_attributes(self) -> dict[str, Scalar]:
        """Some value for each attribute that has no default."""
        return {s.name: s.usual for s in self.scalars if s.default is None}

    @property
    def constants(self) -> dict[str, int]:
        """The constants that a kernel's source has for the words of its attributes."""
        return {name: value for s in self.scalars for name, value in s.constants.items()}

    def c_constants(self) -> list[str]:
        """Their definitions in C++, a line each."""
        return [f"constexpr std::int64_t {n} = {v};" for n, v in self.constants.items()]

    @property
    def strides(self) -> tuple[str, ...]:
        """What the C function of a strided row calls the strides, input by input: ``a_m_stride``.

        Of two dimensions of one tensor with the same name the second is ``a_m_stride_2``.
        """
        return tuple(name for param in self.inputs for name in self._strides_of(param))

    def _strides_of(self, param: TensorParam) -> list[str]:
        names: list[str] = []
        for dim in param.type.own if self.broadcasts else param.type.dims:
            name = f"{param.name}_{self.ellipsis if dim == '...' else dim}_stride"
            again = names.count(name) + sum(n.startswith(f"{name}_") for n in names)
            names.append(f"{name}_{again + 1}" if again else name)
        return names

    def dims_of(self, param: TensorParam) -> tuple[str, ...]:
        """The dimensions of one tensor that have a name, as the C function calls them."""
        named = (d for d in param.type.dims if isinstance(d, str) and d != "#...")
        return tuple(dict.fromkeys(self.ellipsis if d == "..." else d for d in named))

    def c_prototype(
        self, dtypes: Mapping[str, DType] | None = None, kernel: Kernel | None = None
    ) -> str:
        """The C function that the file of ``kernel`` defines, or of a row that asks for no more.

        With ``dtypes`` the element types are concrete C++ types, else the variables' names.
        """

        return self._calling(dtypes, kernel, "")

    def c_functions(self, dtypes: Mapping[str, DType] | None, kernel: Kernel) -> dict[str, str]:
        """All the C functions that the file of ``kernel`` defines, by name; the operator's first.

        Of a row that packs an input: the bytes that it takes packed, packing it, and the operator
        with the packed bytes in its place.
        """
        found = {self.name: self._calling(dtypes, kernel, "")}
        for param in self.inputs:
            if param.name == kernel.packs:
                sizes = [f"std::int64_t {dim}" for dim in self.dims_of(param)]
                strides = self._strides_of(param) if kernel.strided else []
                from_ = f"const {self._c_type(param, dtypes)}* {param.name}"
                steps = [f"std::int64_t {stride}" for stride in strides]
                packing = ", ".join([from_, "void* packed", *sizes, *steps])
                found |= {
                    f"{self.name}_packed_bytes": f"std::int64_t {self.name}_packed_bytes"
                    f"({', '.join(sizes)})",
                    f"{self.name}_pack": f"void {self.name}_pack({packing})",
                    f"{self.name}_packed": self._calling(dtypes, kernel, param.name),
                }
        if dtypes is None:
            return {name: text.replace("std::", "") for name, text in found.items()}
        return found

    def _c_type(self, param: TensorParam, dtypes: Mapping[str, DType] | None) -> str:
        if dtypes is None and param.type.dtype in self.variables:
            return param.type.dtype
        return self.dtype(param, dtypes or {}).c

    def _calling(
        self, dtypes: Mapping[str, DType] | None, kernel: Kernel | None, packed: str
    ) -> str:
        """The operator's C function; with the input ``packed``, that which takes it packed."""
        arguments = [
            "const void* packed"
            if p.name == packed
            else f"const {self._c_type(p, dtypes)}* {p.name}"
            for p in self.inputs
        ]
        arguments.append(f"{self._c_type(self.output, dtypes)}* {self.output.name}")
        arguments += [f"std::int64_t {dim}" for dim in self.dims]
        if kernel is not None and kernel.strided:
            others = (p for p in self.inputs if p.name != packed)
            arguments += [f"std::int64_t {s}" for p in others for s in self._strides_of(p)]
        arguments += [f"{s.c} {s.name}" for s in self.scalars]
        text = f"void {self.name}{'_packed' if packed else ''}({', '.join(arguments)})"
        return text if dtypes is not None else text.replace("std::", "")

    def c_prelude(self, dtypes: Mapping[str, DType], kernel: Kernel) -> str:
        """Text put before the source of ``kernel``.

        It declares the function, so that a kernel of another signature is a compile error at its
        own line, and defines ``opw_entry``, through which any kernel is called the same way.
        """
        export = 'extern "C" __attribute__((visibility("default")))'
        lines = [
            "#include <cstdint>",
            '#include "opwright/call.h"',
            *(['#include "opwright/items.h"'] if self.broadcasts else []),
            '#include "opwright/types.h"',
            "using std::int64_t;",
            *self.c_constants(),
            *(f"{export} {text};" for text in self.c_functions(dtypes, kernel).values()),
        ]

        def entry(name: str, statements: Sequence[str]) -> None:
            lines.extend(
                [
                    export,
                    f"inline __attribute__((used)) void {name}(const opw::Call* call) {{",
                    "    opw::detail::current_threads = call->threads;",
                    "    [[maybe_unused]] const opw::Value* values = call->values;",
                    *(f"    {statement}" for statement in statements),
                    "}",
                ]
            )

        entry("opw_entry", self._entry(dtypes, kernel, ""))
        for param in self.inputs:
            if param.name != kernel.packs:
                continue
            sizes = [f"call->values[{i}].i" for i in range(len(self.dims_of(param)))]
            strides = self._strides_of(param) if kernel.strided else []
            steps = [f"call->values[{len(sizes) + i}].i" for i in range(len(strides))]
            from_ = f"static_cast<const {self.dtype(param, dtypes).c}*>(call->tensors[0])"
            packing = ", ".join([from_, "call->tensors[1]", *sizes, *steps])
            entry(
                "opw_packed_bytes",
                [
                    f"*static_cast<std::int64_t*>(call->tensors[0]) = "
                    f"{self.name}_packed_bytes({', '.join(sizes)});"
                ],
            )
            entry("opw_pack", [f"{self.name}_pack({packing});"])
            entry("opw_entry_packed", self._entry(dtypes, kernel, param.name))
        return "\n".join([*lines, ""])

    def _entry(self, dtypes: Mapping[str, DType], kernel: Kernel, packed: str) -> list[str]:
        """The call of the operator's C function with what is in a ``Call``, for every item."""
        arguments: list[str] = []
        for index, param in enumerate(self.tensors):
            const = "const " if index < len(self.inputs) else ""
            c_type = "void" if param.name == packed else self.dtype(param, dtypes).c
            arguments.append(f"static_cast<{const}{c_type}*>(tensors[{index}])")
        told = [p for p in self.inputs if kernel.strided and p.name != packed]
        sizes = len(self.dims) + sum(len(self._strides_of(p)) for p in told)
        numbers = [f"values[{index}].i" for index in range(sizes)]
        stacking = self._stacking(told, numbers) if self.rows else []
        arguments += numbers
        for index, scalar in enumerate(self.scalars, sizes):
            member = "f" if scalar.type is float else "i"
            convert = " != 0" if scalar.type is bool else ""
            arguments.append(f"values[{index}].{member}{convert}")
        called = f"{self.name}{'_packed' if packed else ''}({', '.join(arguments)});"
        if not self.broadcasts:
            return ["void* const* tensors = call->tensors;", called]
        bytes_ = ", ".join(f"sizeof({self.dtype(p, dtypes).c})" for p in self.tensors)
        return [
            f"constexpr std::int64_t sizes[] = {{{bytes_}}};",
            f"const opw::Value* walk = values + {sizes + len(self.scalars)};",
            "std::int64_t rank = walk[0].i;",
            *stacking,
            f"const auto item = [=](void* const* tensors) {{ {called} }};",
            "opw::detail::for_items(call->tensors, sizes, walk, rank, item);",
        ]

    def _stacking(self, told: Sequence[TensorParam], numbers: list[str]) -> list[str]:
        """Statements that stack the items of a call.

        In ``numbers``, the sizes and the strides of ``told`` that the C function gets, what they
        change is replaced.
        """
        size = dict(zip(self.dims, numbers, strict=False))
        steps: list[str] = []
        mask = 0
        for index, param in enumerate(self.tensors):
            own = param.type.own
            if self.rows not in own:
                steps.append("0")
                continue
            at = own.index(self.rows)
            if param in told:
                before = told[: told.index(param)]
                stride = len(self.dims) + sum(len(self._strides_of(p)) for p in before) + at
                steps.append(numbers[stride])
                numbers[stride] = f"steps[{index}]"
                mask |= 1 << index
            else:
                # A row of what is row-major: if the rows are not outermost, no items are stacked.
                inner = [str(d) if isinstance(d, int) else size[d] for d in own[at + 1 :]]
                steps.append(" * ".join(inner) or "1")
        rows = self.dims.index(self.rows)
        numbers[rows] = "rows"
        return [
            f"std::int64_t steps[] = {{{', '.join(steps)}}};",
            f"const std::int64_t rows = opw::detail::stack_rows(walk, {size[self.rows]}, steps, "
            f"{mask}, rank);",
        ]


def check_list(what: str, words: object) -> None:
    """Raise ``UsageError`` where ``words`` is no list of different words: one alone, say."""
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise UsageError(f"{what}: expected a list, got {words!r}")
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise UsageError(f"{what}: {word!r} is no text")
        if word in words[:index]:
            raise UsageError(f"{what}: {word!r} is there twice")


def _scalar(operator: str, param: ScalarParam, value: object, single: bool) -> Scalar:
    if param.words:
        if not isinstance(value, str):
            raise UsageError(
                f"{operator}: attribute {param.name} is one of {', '.join(param.words)}, got "
                f"{value!r}"
            )
        if value not in param.words:
            raise UnknownNameError(f"{param.name}", value, param.words, operator)
        return str(value)
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if param.type is bool and isinstance(value, bool | np.bool_):
        return bool(value)
    if param.type is int and integral:
        if not -(2**63) <= int(value) < 2**63:  # type: ignore[call-overload]
            raise UsageError(f"{operator}: attribute {param.name}={value} does not fit int64")
        return int(value)  # type: ignore[call-overload,no-any-return]
    if param.type is float and (integral or isinstance(value, float | np.floating)):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise UsageError(f"{operator}: attribute {param.name} does not fit float64") from None
        with np.errstate(over="ignore", under="ignore"):
            return float(np.float32(number)) if single else number
    raise UsageError(
        f"{operator}: attribute {param.name} is a {param.type.__name__}, got {value!r}"
    )


def _annotations(formula: Callable[..., Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations, those that are text evaluated where the formula stands."""
    name = formula.__name__
    try:
        found = inspect.get_annotations(formula)
    except Exception as error:  # from Python 3.14 on they are evaluated here
        raise UsageError(f"{name}: an annotation fails: {_shown(error)}") from None
    names = getattr(inspect.unwrap(formula), "__globals__", {})
    for parameter, annotation in found.items():
        try:
            # Twice: text in quotes is quoted again by 'from __future__ import annotations'.
            for _ in range(2):
                if isinstance(found[parameter], str):
                    found[parameter] = eval(found[parameter], dict(names), dict(scope))
        except Exception as error:
            what = "return" if parameter == "return" else f"parameter {parameter}"
            # A tool that takes the quotes off "m" makes a name of it, that nothing has.
            hint = '; dimensions are text: Tensor[T, "m k"]' * isinstance(error, NameError)
            raise UsageError(
                f"{name}: {what}: the annotation {annotation} fails: {_shown(error)}{hint}"
            ) from None
    return found


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def signature_of(
    formula: Callable[..., Any],
    dtypes: Mapping[str, Sequence[str]],
    scope: Mapping[str, Any] | None = None,
    rows: str = "",
    limits: Sequence[str] = (),
) -> Signature:
    """Read the signature off an annotated formula.

    ``scope`` are the local names where the formula stands, for annotations that are text. Raises
    ``UsageError`` saying which parameter is declared wrongly and how it should be.
    """
    name = formula.__name__
    check_c_name("operator", name)
    if name in C_LIBRARY:
        raise UsageError(
            f"operator {name!r}: the C library has a function of this name, which a kernel would "
            f"replace; call it {name}_op, say"
        )
    annotations = _annotations(formula, scope or {})
    inputs: list[TensorParam] = []
    scalars: list[ScalarParam] = []
    for parameter in inspect.signature(formula).parameters.values():
        where = f"{name}: parameter {parameter.name}"
        check_c_name(f"{name}: parameter", parameter.name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"{where}: an operator has a fixed list of parameters, no * or **")
        kind = annotations.get(parameter.name)
        if isinstance(kind, Misspelt):
            raise UsageError(f"{where}: {kind.fault}")
        meant = [one for one in get_args(kind) if one is not NoneType]
        if len(meant) == 1 and isinstance(meant[0], TensorType):
            kind = meant[0] | None  # Optional[...], in which typing does not apply the type's "|"
        has_default = parameter.default is not parameter.empty
        if isinstance(kind, TensorType):
            if kind.optional != has_default or (has_default and parameter.default is not None):
                whole = replace(kind, optional=True)
                raise UsageError(
                    f"{where}: a tensor cannot have a default; one that a call may leave out is "
                    f"written {parameter.name}: {whole} = None"
                )
            if scalars or parameter.kind is parameter.KEYWORD_ONLY:
                raise UsageError(f"{where}: tensors come before attributes, and before any *")
            inputs.append(TensorParam(parameter.name, kind))
        elif kind in (float, int, bool) or get_origin(kind) is Literal:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise UsageError(f"{where}: an attribute is given by name, so it goes after the /")
            words = _words(where, kind) if get_origin(kind) is Literal else ()
            of: Any = str if words else kind
            scalar = ScalarParam(parameter.name, of, words=words)
            if has_default:
                default = _scalar(name, scalar, parameter.default, single=False)
                scalar = replace(scalar, default=default)
            scalars.append(scalar)
        else:
            shown = "no annotation" if kind is None else repr(kind)
            raise UsageError(
                f'{where}: expected Tensor[T, "..."] for a tensor or float, int, bool or '
                f'Literal["...", "..."] for an attribute, got {shown}'
            )
    returned = annotations.get("return")
    if isinstance(returned, Misspelt):
        raise UsageError(f"{name}: return: {returned.fault}")
    if not isinstance(returned, TensorType):
        raise UsageError(f'{name}: the return annotation should be like Tensor[T, "m n"]')
    if returned.optional:
        raise UsageError(f"{name}: return: there always is a result, so no '| None'")
    if all(p.type.optional for p in inputs):
        raise UsageError(f"{name}: an operator needs at least one tensor that is always given")
    _check_optional(name, inputs)
    output = TensorParam("out", returned)
    signature = _assemble(name, inputs, output, _limited(name, scalars, limits), dtypes)
    return _stacked(signature, rows) if rows else signature


def _check_optional(name: str, inputs: Sequence[TensorParam]) -> None:
    """Raise ``UsageError`` where a call without an optional tensor would leave a size open."""
    always = [p for p in inputs if not p.type.optional]
    dims = {dim for p in always for dim in p.type.dims}
    for param in inputs:
        if not param.type.optional:
            continue
        where = f"{name}: {param.name}, which a call may leave out,"
        if param.type.dims[:1] == ("#...",):
            raise UsageError(
                f"{where} cannot have leading dimensions that broadcast ('#...'); let it have "
                "'...' or none"
            )
        for dim in param.type.dims:
            if isinstance(dim, str) and dim not in dims:
                raise UsageError(
                    f"{where} is the only one with the dimension {dim!r}, so that no call without "
                    "it has a size for that; give the dimension to a tensor that is always there"
                )


def _limited(name: str, scalars: list[ScalarParam], limits: Sequence[str]) -> list[ScalarParam]:
    """The attributes with their ``limits``; raises ``UsageError`` for one that means nothing."""
    check_list(f"{name}: limits", limits)
    found: dict[str, Limit] = {}
    for text in limits:
        attribute, limit = _limit(f"{name}: limits: {text!r}", text)
        numbers = [s.name for s in scalars if s.type in (float, int)]
        if attribute not in numbers:
            raise UnknownNameError("number", attribute, numbers, f"the attributes of {name}")
        if attribute in found:
            raise UsageError(f"{name}: limits: {attribute} has two; write one, as 0 < x <= 1")
        found[attribute] = limit
    limited = [replace(s, limit=found.get(s.name)) for s in scalars]
    for scalar in limited:
        if not scalar.allows(scalar.usual):
            what = "has no default, and 1" if scalar.default is None else "has a default that"
            raise UsageError(f"{name}: attribute {scalar.name} {what} is not {scalar.limit}")
    return limited


def _limit(where: str, text: str) -> tuple[str, Limit]:
    """The attribute that ``text`` is about and its limit: ``0 < scale < inf``, ``n >= 1``."""
    wrong = UsageError(f"{where} should be like '0 < scale < inf': a name between numbers")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise wrong from None
    if not isinstance(node, ast.Compare):
        raise wrong
    sides = [node.left, *node.comparators]
    names = [i for i, n in enumerate(sides) if isinstance(n, ast.Name) and n.id != "inf"]
    if len(names) != 1:
        raise wrong
    (at,) = names
    ends: dict[bool, tuple[float, bool]] = {}  # the upper one by True
    for index, operation in enumerate(node.ops):
        other = index + 1 if index == at else index
        if at not in (index, index + 1) or not isinstance(
            operation, ast.Lt | ast.LtE | ast.Gt | ast.GtE
        ):
            raise wrong
        try:
            end = float(ast.unparse(sides[other]).replace(" ", ""))
        except ValueError:
            raise wrong from None
        strict = isinstance(operation, ast.Lt | ast.Gt)
        above = isinstance(operation, ast.Lt | ast.LtE) == (other > at)
        if above in ends:
            raise wrong
        ends[above] = end, strict
    low, low_open = ends.get(False, (-math.inf, False))
    high, high_open = ends.get(True, (math.inf, False))
    text = " ".join(text.split())
    return ast.unparse(sides[at]), Limit(text, low, high, low_open, high_open)


def _stacked(signature: Signature, rows: str) -> Signature:
    """``signature`` with its dimension of independent rows; raises ``UsageError``."""
    where = f"{signature.name}: rows={rows!r}"
    if rows not in signature.dims:
        raise UnknownNameError("dimension", str(rows), signature.dims, f"{signature.name}: rows")
    if not signature.broadcasts:
        raise UsageError(f"{where}: rows are stacked over '#...', which no tensor has")
    if rows not in signature.output.type.own:
        raise UsageError(f"{where}: the output has no such dimension to stack results along")
    for param in signature.tensors:
        if param.type.own.count(rows) > 1:
            raise UsageError(f"{where}: it stands twice in {param.name}")
    return replace(signature, rows=rows)


def _words(where: str, kind: Any) -> tuple[str, ...]:
    words = get_args(kind)
    for word in words:
        if not (isinstance(word, str) and re.fullmatch(r"[A-Za-z0-9_]+", word)):
            raise UsageError(
                f"{where}: {word!r} cannot be a word of an attribute, which is made of A-Z, a-z, "
                "0-9 and _ as a constant's name has it"
            )
    return words


def _assemble(
    name: str,
    inputs: list[TensorParam],
    output: TensorParam,
    scalars: list[ScalarParam],
    dtypes: Mapping[str, Sequence[str]],
) -> Signature:
    used = list(dict.fromkeys(p.type.dtype for p in (*inputs, output)))
    names = [p.name for p in inputs] + [s.name for s in scalars]
    if not isinstance(dtypes, Mapping):
        raise UsageError(f'{name}: dtypes={dtypes!r} should be like {{"T": ["f32", "bf16"]}}')
    assignments = _assignments(name, dtypes, used, names)
    variables = list(assignments[0])
    for word in used:
        if word not in variables and word not in DTYPES:
            near = difflib.get_close_matches(word, DTYPES, n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(
                f"{name}: {word!r} is neither a dtype ({', '.join(DTYPES)}) nor in "
                f"dtypes={{{', '.join(map(repr, dtypes))}}}{hint}"
            )
    always = {p.type.dtype for p in inputs if not p.type.optional}
    for param in (*(p for p in inputs if p.type.optional), output):
        variable = param.type.dtype
        if variable not in variables or variable in always:
            continue
        settled: dict[tuple[DType, ...], DType] = {}
        for assignment in assignments:
            given = tuple(assignment[v] for v in variables if v in always)
            if settled.setdefault(given, found := assignment[variable]) != found:
                where = "the output" if param is output else f"{param.name}, which may be left out"
                raise UsageError(
                    f"{name}: {variable} is only in {where}, so no call could settle it: "
                    f"{settled[given]} or {found}"
                )
    marks = {p.type.dims[0] for p in (*inputs, output) if p.type.open}
    if len(marks) > 1:
        raise UsageError(f"{name}: leading dimensions are '...' or '#...' throughout, not both")
    if "#..." in marks and not output.type.open:
        raise UsageError(
            f"{name}: the output has no '#...', so there is no place for the items' results"
        )
    if "#..." in marks and not any(p.type.own for p in inputs):
        raise UsageError(f"{name}: beside '#...' no dimension is left for the kernel; use '...'")
    known = [dim for p in inputs for dim in p.type.dims]
    for dim in output.type.dims:
        if isinstance(dim, str) and dim not in known:
            raise UsageError(f"{name}: dimension {dim!r} of the output is in no input")
    everything = [
        dim
        for p in (output, *inputs)
        for dim in p.type.dims
        if isinstance(dim, str) and dim != "#..."
    ]
    ellipsis = ""
    if "..." in everything:
        ellipsis = "n" if set(everything) == {"..."} else "batch"
        if ellipsis in everything:
            raise UsageError(f"{name}: beside '...', no dimension can be called {ellipsis!r}")
    dims = tuple(dict.fromkeys(ellipsis if dim == "..." else dim for dim in everything))
    for dim in dims:
        check_c_name(f"{name}: dimension", dim)
        if dim in names or dim in variables:
            raise UsageError(f"{name}: dimension {dim!r} is also the name of something else")
    taken = {*names, *variables, *dims, name}
    for scalar in scalars:
        for constant in scalar.constants:
            if constant in taken:
                raise UsageError(
                    f"{name}: {constant!r}, a constant for a word of {scalar.name}, is also the "
                    "name of something else"
                )
            taken.add(constant)
    return Signature(
        name=name,
        inputs=tuple(inputs),
        output=output,
        scalars=tuple(scalars),
        dims=dims,
        assignments=assignments,
        ellipsis=ellipsis,
    )


def _assignments(
    name: str, dtypes: Mapping[str, Sequence[str]], used: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, DType], ...]:
    """The rows of ``dtypes``; of several keys, each with each, the first slowest."""
    result: list[dict[str, DType]] = [{}]
    for key, options in dtypes.items():
        variables = key.split()
        for variable in variables:
            if variable in DTYPES:
                raise UsageError(f"{name}: dtypes={{{key!r}: ...}} would hide the dtype {variable}")
            if variable not in used:
                raise UsageError(f"{name}: no tensor uses the dtype variable {variable!r}")
            check_c_name(f"{name}: dtype variable", variable)
            if variable in names or variable == name:
                raise UsageError(
                    f"{name}: {variable!r} is a dtype variable, which reaches kernels as a macro, "
                    "and the name of something else"
                )
            if variable in result[0] or variables.count(variable) > 1:
                raise UsageError(f"{name}: the dtype variable {variable!r} is there twice")
        check_list(f"{name}: dtypes of {key}", options)
        if not (options and variables):
            raise UsageError(f"{name}: dtype variable {key} has no dtypes")
        rows: list[dict[str, DType]] = []
        for option in options:
            words = option.split()
            if len(words) not in (1, len(variables)):
                raise UsageError(
                    f"{name}: dtypes of {key}: {option!r} should name one dtype, or one for each "
                    f"of {', '.join(variables)}"
                )
            found = [dtype_named(word) for word in words] * (len(variables) // len(words))
            rows.append(dict(zip(variables, found, strict=True)))
            if rows[-1] in rows[:-1]:
                raise UsageError(f"{name}: dtypes of {key}: {option!r} is there twice")
        result = [{**chosen, **row} for chosen in result for row in rows]
    return tuple(result)


def shape_text(signature: Signature, dims: Mapping[str, int], leading: Leading) -> str:
    """Sizes as ``parse_shape`` reads them."""
    words = [f"{dim}={size}" for dim, size in dims.items() if dim != signature.ellipsis]
    if signature.ellipsis or (signature.broadcasts and leading):
        words.insert(0, f"...={leading_text(leading)}")
    return ",".join(words)


def leading_text(leading: Leading) -> str:
    """Leading dimensions as ``--shape`` takes them: ``2x3``, ``scalar``, or ``2x1|1x3``."""
    if not leading or isinstance(leading[0], int):
        return "x".join(map(str, leading)) or "scalar"
    each = dict.fromkeys(map(leading_text, leading)) if len(set(leading)) == 1 else leading
    return "|".join(x if isinstance(x, str) else leading_text(x) for x in each)


def parse_shape(signature: Signature, text: str) -> tuple[dict[str, int], Leading]:
    """Read ``m=17,n=1,k=257``; a ``...`` part is ``...=2x3`` or its one size (``n=1000``).

    Leading dimensions that broadcast may be left away, or given for each input: ``...=2x1|1x3``.

    Returns the named sizes and the leading dimensions. Raises ``UsageError`` where a size is
    missing, negative or no number, ``UnknownNameError`` for a name the signature has not.
    """
    dims: dict[str, int] = {}
    leading: tuple[int, ...] = ()
    leads: tuple[tuple[int, ...], ...] | None = None
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals and not signature.ellipsis:
            sizes_like = ",".join(f"{d}=..." for d in signature.dims)
            raise UsageError(f"--shape {text!r}: write sizes as {sizes_like or repr('')}")
        if not equals:
            name, value = "...", name
        if name == "..." and signature.broadcasts:
            if leads is not None:
                raise UsageError(f"--shape {text!r}: {name} is given twice")
            leads = _leads(signature, text, value)
            continue
        if name == "..." and signature.ellipsis:
            name = signature.ellipsis
            words = [] if value == "scalar" else value.split("x")
        elif name in signature.dims:
            words = [value]
        else:
            raise UnknownNameError("dimension", name, signature.dims, signature.name)
        if name in dims:
            raise UsageError(f"--shape {text!r}: {name} is given twice")
        sizes = _sizes(text, value, words)
        if name == signature.ellipsis:
            leading = sizes
        dims[name] = math.prod(sizes)
    lacking = [d for d in signature.dims if d not in dims]
    if lacking:
        raise UsageError(f"--shape {text!r}: no size given for {', '.join(lacking)}")
    settled = {d: dims[d] for d in signature.dims}
    return settled, leading if leads is None or not any(leads) else leads


def _sizes(text: str, value: str, words: Sequence[str]) -> tuple[int, ...]:
    if not all(w.isdecimal() for w in words):
        raise UsageError(f"--shape {text!r}: {value!r} is no size (a number from 0 up)")
    # Longer numbers are beyond int64 and, from 4300 digits on, beyond int().
    sizes = tuple(int(w) if len(w) < 40 else 2**63 for w in words)
    if any(size >= 2**63 for size in sizes) or math.prod(sizes) >= 2**63:
        raise UsageError(f"--shape {text!r}: {value} does not fit int64")
    return sizes


def _leads(signature: Signature, text: str, value: str) -> tuple[tuple[int, ...], ...]:
    """The leading dimensions of every input that has them, from one text or one for each."""
    names = [p.name for p in signature.batched]
    parts = [part.strip() for part in value.split("|")]
    if len(parts) not in (1, len(names)):
        raise UsageError(
            f"--shape {text!r}: write the leading dimensions once, or with | between for each of "
            f"{', '.join(names)}"
        )
    each = [_sizes(text, part, [] if part == "scalar" else part.split("x")) for part in parts]
    leads = tuple(each * (len(names) // len(each)))
    signature.joined(leads)
    return leads
