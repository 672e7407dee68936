"""Bad arguments of every kind give a status and a message, and nothing is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ship.tools import CODES, DLTensor, dltensor, load

Change = Callable[["Matmul"], Any]


class Context(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("parallel_for", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    ]


class Attrs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("threshold", ctypes.c_double),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("later", ctypes.c_double),
    ]


class Matmul:
    """A good call of 3 x 4 times 4 x 2, for tests to spoil."""

    def __init__(self) -> None:
        # In the middle of more memory than any spoilt call that is accepted could reach.
        self.memory = np.full(4096, 7.0, np.float32)
        self.arrays = [np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)]
        self.out = self.memory[2048:2054].reshape(3, 2)
        self.a, self.b, self.c = map(dltensor, (*self.arrays, self.out))
        self.given: list[DLTensor | None] = [self.a, self.b, self.c]
        self.attrs: Attrs | None = None
        self.context: Context | None = None

    def set(self, name: str, **fields: Any) -> None:
        for field, value in fields.items():
            tensor = getattr(self, name)
            setattr(tensor, field, tensor.numbers(value) if isinstance(value, list) else value)

    def leave_out(self, index: int) -> None:
        self.given[index] = None

    def overlap(self, name: str, array: np.ndarray[Any, Any], index: int) -> None:
        self.given[index] = dltensor(array)

    def call(self, library: ctypes.CDLL) -> int:
        refs = [None if t is None else ctypes.byref(t) for t in self.given]
        extra = [None if x is None else ctypes.byref(x) for x in (self.attrs, self.context)]
        return int(library.fastops_matmul(*refs, *extra))


def spoil(name: str, **fields: Any) -> Change:
    return lambda call: call.set(name, **fields)


def context(**fields: Any) -> Change:
    def change(call: Matmul) -> None:
        call.context = Context(ctypes.sizeof(Context), 0, None, None)
        for field, value in fields.items():
            setattr(call.context, field, value)

    return change


def attrs(size: int, later: float = 0.0) -> Change:
    def change(call: Matmul) -> None:
        call.attrs = Attrs(size, 0.0, 0.0, 0.0, later)

    return change


def replace(index: int, make: Callable[[Matmul], np.ndarray[Any, Any]]) -> Change:
    return lambda call: call.overlap("", make(call), index)


BIG = 2**62

BAD: dict[str, tuple[str, str, Change]] = {
    "a is null": ("NULL", "a is NULL", lambda c: c.leave_out(0)),
    "b is null": ("NULL", "b is NULL", lambda c: c.leave_out(1)),
    "out is null": ("NULL", "out is NULL", lambda c: c.leave_out(2)),
    "data of an input null": ("NULL", "a has elements", spoil("a", data=None)),
    "data of the output null": ("NULL", "out has elements", spoil("c", data=None)),
    "shape of an input null": ("NULL", "shape is NULL", spoil("a", shape=None)),
    "shape of the output null": ("NULL", "shape is NULL", spoil("c", shape=None)),
    "input on a GPU": ("DEVICE", "device type 2", spoil("a", device_type=2)),
    "output on a GPU": ("DEVICE", "device type 2", spoil("c", device_type=2)),
    "device type 0": ("DEVICE", "device type 0", spoil("b", device_type=0)),
    "device type negative": ("DEVICE", "device type -5", spoil("b", device_type=-5)),
    "rank negative": ("RANK", "a has -1 dimensions", spoil("a", ndim=-1)),
    "rank lowest": ("RANK", "-2147483648", spoil("a", ndim=-(2**31))),
    "rank beyond all": ("RANK", "a has 65", spoil("a", ndim=65, shape=[1] * 65, strides=None)),
    "rank 1 for a matrix": ("RANK", "a has 1 dimensions", spoil("a", ndim=1)),
    "rank 0 for a matrix": ("RANK", "b has 0 dimensions", spoil("b", ndim=0)),
    "leading dimensions that the output lacks": (
        "RANK",
        "out has 0 leading dimensions",
        spoil("b", ndim=3, shape=[5, 4, 2], strides=None),
    ),
    "rank of the output": ("RANK", "out has 1", spoil("c", ndim=1)),
    "element type unknown code": ("DTYPE", "code 9", spoil("a", code=9)),
    "element type complex": ("DTYPE", "code 5", spoil("a", code=5)),
    "element type integer": ("DTYPE", "a is i32 (int32), b is f32 (float32)", spoil("a", code=0)),
    "element type of 8 bits": ("DTYPE", "8 bits", spoil("a", bits=8)),
    "element type of 0 bits": ("DTYPE", "0 bits", spoil("b", bits=0)),
    "element type of 24 bits": ("DTYPE", "24 bits", spoil("b", bits=24)),
    "vector elements": ("DTYPE", "4 lanes", spoil("a", lanes=4)),
    "no lanes": ("DTYPE", "0 lanes", spoil("a", lanes=0)),
    "two element types": ("DTYPE", "b is f64", spoil("b", bits=64)),
    "output of another type": ("DTYPE", "out is f64", spoil("c", bits=64)),
    "output of a narrower type": ("DTYPE", "out is bf16", spoil("c", code=4, bits=16)),
    "bfloat16 of 32 bits": ("DTYPE", "code 4, 32 bits", spoil("a", code=4)),
    "size negative": ("SHAPE", "dimension 0 of a is -3", spoil("a", shape=[-3, 4])),
    "size lowest": ("SHAPE", "dimension 1 of b", spoil("b", shape=[4, -(2**63)])),
    "size of the output negative": ("SHAPE", "out is -1", spoil("c", shape=[3, -1])),
    "inner sizes differ": ("SHAPE", "k is 4 in a and 3 in b", spoil("b", shape=[3, 2])),
    "rows of the output": ("SHAPE", "m is 3 in a and 2 in out", spoil("c", shape=[2, 2])),
    "columns of the output": ("SHAPE", "n is 2 in b and 1 in out", spoil("c", shape=[3, 1])),
    "empty against full": ("SHAPE", "k is 4 in a and 0 in b", spoil("b", shape=[0, 2])),
    "output transposed": ("SHAPE", "in out", spoil("c", shape=[2, 3])),
    "elements pass int64": ("OVERFLOW", "more bytes", spoil("a", shape=[2**40, 2**40])),
    "bytes pass int64": ("OVERFLOW", "more bytes", spoil("a", shape=[1, 2**61])),
    "output passes int64": ("OVERFLOW", "more bytes", spoil("c", shape=[2**62, 2])),
    "stride in bytes passes": ("OVERFLOW", "stride 0 of a", spoil("a", strides=[BIG, 1])),
    "stride passes downwards": ("OVERFLOW", "stride 1 of a", spoil("a", strides=[4, -BIG])),
    "strides pass together": ("OVERFLOW", "past the end", spoil("a", strides=[BIG // 4, 2**58])),
    "strides pass memory": ("OVERFLOW", "past the end", spoil("a", strides=[-(2**58), 1])),
    "stride of the output passes": ("OVERFLOW", "of out", spoil("c", strides=[1, BIG])),
    "byte offset passes": ("OVERFLOW", "byte_offset of b", spoil("b", byte_offset=2**64 - 1)),
    "input between elements": ("ALIGNMENT", "a begins", spoil("a", byte_offset=1)),
    "output between elements": ("ALIGNMENT", "out begins", spoil("c", byte_offset=2)),
    "output expanded": ("STRIDES", "share one place", spoil("c", strides=[0, 1])),
    "output expanded in columns": ("STRIDES", "share one place", spoil("c", strides=[2, 0])),
    "output overlapping itself": ("STRIDES", "share one place", spoil("c", strides=[1, 1])),
    "output overlapping backwards": ("STRIDES", "share", spoil("c", strides=[-1, 1])),
    "output is an input": (
        "OVERLAP",
        "out overlaps a",
        replace(0, lambda c: c.memory[2048:2060].reshape(3, 4)),
    ),
    "output's end is an input's start": (
        "OVERLAP",
        "out overlaps b",
        replace(1, lambda c: c.memory[2053:2061].reshape(4, 2)),
    ),
    "output between an input's elements": (
        "OVERLAP",
        "out overlaps a",
        replace(0, lambda c: c.memory[2040:2088:4].reshape(3, 4)),
    ),
    "output in an expanded input": (
        "OVERLAP",
        "out overlaps a",
        replace(0, lambda c: np.broadcast_to(c.memory[2050:2051], (3, 4))),
    ),
    "output in a reversed input": (
        "OVERLAP",
        "out overlaps a",
        replace(0, lambda c: c.memory[2053:2041:-1].reshape(3, 4)),
    ),
    "attributes without size": ("ATTRIBUTE", "struct_size", attrs(0)),
    "attributes too small": ("ATTRIBUTE", "struct_size of the attributes is 7", attrs(7)),
    "attributes used of a later version": ("ATTRIBUTE", "more than the 8", attrs(40, 1.0)),
    "context without size": ("CONTEXT_STATUS", "struct_size", context(struct_size=0)),
    "context too small": ("CONTEXT_STATUS", "struct_size", context(struct_size=16)),
    "threads negative": ("CONTEXT_STATUS", "-1 threads", context(threads=-1)),
}


def test_there_are_at_least_forty_kinds() -> None:
    assert len(BAD) >= 40


@pytest.mark.parametrize("kind", BAD)
def test_bad_argument(library: Path, kind: str) -> None:
    status, words, change = BAD[kind]
    lib = load(library)
    call = Matmul()
    change(call)
    before = call.memory.copy()
    got = call.call(lib)
    message = lib.fastops_last_error().decode()
    assert got == CODES[status], message
    assert message.startswith("matmul: "), message
    assert words in message
    assert (call.memory == before).all()


GOOD: dict[str, Change] = {
    "as it is": lambda call: None,
    "strides absent": spoil("a", strides=None),
    "strides absent in the output": spoil("c", strides=None),
    "attributes of today": attrs(8),
    "attributes of a later version, unused": attrs(40),
    "a context of defaults": context(),
    "a context of a later version": context(struct_size=64),
    "more threads than exist": context(threads=1000),
    "output in every other place": spoil("c", strides=[4, 2]),
    "output by columns": spoil("c", strides=[1, 3]),
    "output backwards": spoil("c", strides=[-2, -1]),
    "columns side by side": lambda c: (
        c.set("c", strides=[8, 1]),
        c.overlap("", c.memory[2040:2072].reshape(4, 8)[:, 2:4], 1),
    ),
    "halves of one matrix": lambda c: (
        c.set("c", strides=[6, 1]),
        c.overlap("", c.memory[2046:2070].reshape(4, 6)[:, :2], 1),
    ),
    "an input expanded": replace(0, lambda c: np.broadcast_to(np.float32(1.0), (3, 4))),
}


@pytest.mark.parametrize("kind", GOOD)
def test_good_arguments_that_look_odd(library: Path, kind: str) -> None:
    lib = load(library)
    call = Matmul()
    GOOD[kind](call)
    assert call.call(lib) == 0, lib.fastops_last_error()
    strides = np.array([2, 1])
    if call.c.strides:
        strides = np.ctypeslib.as_array((ctypes.c_int64 * 2).from_address(call.c.strides)).copy()
    written = np.lib.stride_tricks.as_strided(
        call.memory[2048:], (3, 2), [int(s) * 4 for s in strides]
    )
    if kind in ("columns side by side", "halves of one matrix"):
        assert (written == 7.0 * 4).all()
    else:
        assert (written == 4.0).all()
    written[...] = 7.0
    assert (call.memory == 7.0).all()


def test_empty_tensors_need_no_memory(library: Path) -> None:
    lib = load(library)
    call = Matmul()
    call.set("a", data=None, shape=[3, 0], strides=None)
    call.set("b", data=None, shape=[0, 2], strides=None)
    assert call.call(lib) == 0
    assert (call.out == 0).all()
    nothing = Matmul()
    nothing.set("a", data=None, shape=[0, 4])
    nothing.set("c", data=None, shape=[0, 2])
    assert nothing.call(lib) == 0


# Either small, or too large for any memory: a size between would be accepted and not be there.
sizes = st.sampled_from([0, 1, 2, 3, 4, 5, -1, 2**62, -(2**63)])
strides = st.sampled_from([0, 1, 2, 3, 4, 5, -1, -4, 2**62, -(2**62), 2**63 - 1, -(2**63)])
tensors = st.fixed_dictionaries(
    {},
    optional={
        "ndim": st.sampled_from([-1, 0, 1, 2, 3, 65, 2**31 - 1]),
        "shape": st.lists(sizes, min_size=3, max_size=3),
        "strides": st.one_of(st.none(), st.lists(strides, min_size=3, max_size=3)),
        "code": st.integers(0, 6),
        "bits": st.sampled_from([0, 1, 8, 16, 32, 64, 128]),
        "lanes": st.sampled_from([0, 1, 2]),
        "device_type": st.sampled_from([0, 1, 2, -1]),
        "byte_offset": st.sampled_from([0, 1, 4, 8, 64, 2**63, 2**64 - 4]),
    },
)


@settings(max_examples=400, deadline=None)
@given(a=tensors, b=tensors, c=tensors)
def test_fuzzed_tensors(
    library: Path, a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    lib = load(library)
    memory = np.full(3 * 65536, 7.0, np.float32)
    call = Matmul()
    for index, (name, fields) in enumerate((("a", a), ("b", b), ("c", c))):
        # All in memory that a small stride cannot leave.
        call.set(name, data=memory.ctypes.data + 4 * (65536 * index + 32768))
        call.set(name, **fields)
    before = memory.copy()
    status = call.call(lib)
    if status:
        assert lib.fastops_last_error().decode().startswith("matmul: ")
        assert (memory == before).all()
        return
    shape = [list((ctypes.c_int64 * 2).from_address(t.shape)) for t in (call.a, call.b, call.c)]
    (m, k), (k_again, n), out_shape = shape
    assert k == k_again and out_shape == [m, n]
    changed = int((memory != before).sum())
    # Elements of 7 times 7, summed k times, in whatever type was read; each written once.
    assert changed <= m * n * max(1, call.c.bits // 32)
    if call.c.bits == 32 and m * n and k:
        assert changed == m * n
        assert set(memory[memory != before]) == {49.0 * k}
