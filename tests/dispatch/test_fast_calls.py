"""Calls that were made before: the same results without Python, and only where nothing differs."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from operators import RIGHT, affine
from optional import moved
from optional import source as optional_source
from opwright.backends.registry import backend_named
from opwright.dispatch.choose import forget
from opwright.dispatch.operator import Operator
from opwright.spec.errors import (
    DTypeError,
    MachineError,
    OpwrightError,
    ShapeError,
    UsageError,
)
from opwright_ops import linear, matmul
from packed import linear as packing
from packed import source as packing_source
from strided import RIGHT as STRIDED_RIGHT
from strided import product

F32 = np.float32


def operator(folder: Path, body: str = RIGHT, row: str = "") -> Operator:
    spec = affine(folder, {"right": body}, {"right": row}).spec
    assert isinstance(spec, Operator)
    return spec


@pytest.fixture(scope="module")
def op(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return operator(tmp_path_factory.mktemp("fast"))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Grows by one with each call that goes through Python."""
    seen: list[str] = []
    real = Operator._call

    def counted(self: Operator, *given: Any) -> Any:
        seen.append(self.name)
        return real(self, *given)

    monkeypatch.setattr(Operator, "_call", counted)
    yield seen


def arrays(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape), np.full(shape, np.nan, F32)


def test_the_second_call_is_fast_and_right(op: Operator, slow: list[str]) -> None:
    for shape in ((5,), (2, 3), (), (0, 4)):
        x, out = arrays(*shape)
        assert op(x, out=out) is out
        slow.clear()
        for number in range(3):
            other, result = arrays(*shape)
            other += number
            assert op(other, out=result) is result
            np.testing.assert_array_equal(result, 1.5 * other.astype(float) + 1)
        assert slow == []
    with pytest.raises(ShapeError):
        op(arrays(5)[0], out=arrays(4)[1])


def test_a_call_without_an_output_makes_one(op: Operator, slow: list[str]) -> None:
    """Whether the first call had one or not."""
    for shape in ((6,), (2, 5), (), (0, 3)):
        for first in ({}, {"out": arrays(*shape)[1]}):
            forget(op)
            op(arrays(*shape)[0], **first)
            slow.clear()
            results = []
            for number in range(5):
                x = arrays(*shape)[0]
                x += number
                results.append((x, op(x)))
                assert op(x, out=(out := np.empty_like(x))) is out
            assert slow == []
            for x, result in results:  # each an array of its own, which later calls leave alone
                assert type(result) is np.ndarray
                assert result.dtype == F32 and result.shape == shape
                assert result.flags.c_contiguous and result.flags.writeable
                assert result.flags.owndata
                np.testing.assert_array_equal(result, 1.5 * x.astype(float) + 1)
            assert len({id(result) for _, result in results}) == 5


def test_there_must_be_room_for_a_large_result(
    op: Operator, slow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwright.dispatch.operands.SMALL", 1000)
    monkeypatch.setattr("opwright.dispatch.operator.SMALL", 1000)
    x, out = arrays(300)
    for _ in range(2):
        op(x, out=out)
        op(x)
    assert len(slow) == 3
    monkeypatch.setattr(type(backend_named("cpu")), "memory_available", lambda self: 1100)
    op(x, out=out)
    with pytest.raises(MachineError, match="the result"):
        op(x)


def test_attributes_of_calls_that_make_their_output(op: Operator, slow: list[str]) -> None:
    x = arrays(8)[0]
    three, four = 3.0, 4.0
    op(x, three)
    op(x, scale=four)
    slow.clear()
    np.testing.assert_array_equal(op(x, three), 3 * x + 1)
    np.testing.assert_array_equal(op(x, scale=four), 4 * x + 1)
    assert slow == []
    np.testing.assert_array_equal(op(x, four), 4 * x + 1)
    np.testing.assert_array_equal(op(x, scale=three), 3 * x + 1)
    assert len(slow) == 2
    forget(op)
    np.testing.assert_array_equal(op(x, three), 3 * x + 1)
    assert len(slow) == 3


def test_operators_of_the_catalog(slow: list[str]) -> None:
    """With dimensions before, bfloat16 and words as attributes."""
    random = np.random.default_rng(3)
    for dtype in (np.dtype(F32), np.dtype(ml_dtypes.bfloat16)):
        x, w, bias = (random.integers(-3, 4, s).astype(dtype) for s in ((2, 3, 4), (5, 4), (5,)))
        plain = x.astype(F32) @ w.astype(F32).T + bias.astype(F32)
        for number in range(3):
            if number == 1:
                slow.clear()
            results = [
                (linear(x, w, bias), plain),
                (linear(x, w, bias, "relu"), np.maximum(plain, 0)),
                (linear(x, w, bias, activation="relu"), np.maximum(plain, 0)),
                (matmul(x, w.T), plain - bias.astype(F32)),
                (matmul(x, np.ascontiguousarray(w.T)), plain - bias.astype(F32)),
            ]
            for result, expected in results:
                assert result.dtype == dtype
                np.testing.assert_array_equal(result.astype(F32), expected)
        assert slow == []


def test_types_that_were_unpickled_are_the_same(op: Operator, slow: list[str]) -> None:
    x = arrays(8)[0]
    op(x)
    slow.clear()
    for _ in range(3):
        other = pickle.loads(pickle.dumps(x))
        np.testing.assert_array_equal(op(other), 1.5 * x + 1)
    assert slow == []


def test_packed_inputs(tmp_path: Path, slow: list[str]) -> None:
    """What was packed anew is served by what is remembered, and nothing keeps it alive."""
    op = packing(tmp_path / "one", {"right": packing_source()}).spec
    other = packing(tmp_path / "other", {"right": packing_source()}).spec
    assert isinstance(op, Operator) and isinstance(other, Operator)
    random = np.random.default_rng(5)

    def whole(*shape: int) -> np.ndarray:
        return random.integers(-4, 5, shape).astype(F32)

    x, out = whole(4, 7), np.empty((4, 5), F32)
    op(x, op.pack(whole(5, 7)))
    slow.clear()
    gone = []
    for _ in range(3):
        w = whole(5, 7)
        packed = op.pack(w)
        gone.append(weakref.ref(packed))
        for _ in range(2):
            np.testing.assert_array_equal(op(x, packed), 2 * (x @ w.T))
            assert op(x, packed, out=out) is out
            np.testing.assert_array_equal(out, 2 * (x @ w.T))
    assert slow == []
    del packed
    assert [packed() for packed in gone] == [None] * 3

    w = whole(6, 7)
    np.testing.assert_array_equal(op(x, op.pack(w)), 2 * (x @ w.T))  # another shape
    np.testing.assert_array_equal(op(x, w), 2 * (x @ w.T))
    np.testing.assert_array_equal(op(x, op.pack(w)), 2 * (x @ w.T))
    assert len(slow) == 2
    with pytest.raises(UsageError, match="which only linear_op takes"):
        op(x, other.pack(w))
    with pytest.raises(DTypeError, match="float64"):
        op(x.astype(float), op.pack(w))
    forget(op)
    slow.clear()
    op(x, op.pack(w))
    assert len(slow) == 1


def test_threads_that_call_at_once(op: Operator, slow: list[str]) -> None:
    """Calls that make their outputs and calls that do not, while what is remembered is emptied."""
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full(8 + number % 2, number, F32)
        out = np.empty_like(x)
        for _ in range(3000):
            if (op(x) != 1.5 * number + 1).any() or (op(x, out=out) != 1.5 * number + 1).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        forget(op)
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(slow) < 2000  # of 24000


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Subclass(np.ndarray):
    pass


OTHERWISE: dict[str, Callable[[Operator, np.ndarray, np.ndarray], Any]] = {
    "another shape without an output": lambda op, x, out: op(x[:7]),
    "strides without an output": lambda op, x, out: op(x[::2]),
    "a subclass without an output": lambda op, x, out: op(x.view(Subclass)),
    "an attribute without an output": lambda op, x, out: op(x, 2.0),
    "by name": lambda op, x, out: op(x=x, out=out),
    "another shape": lambda op, x, out: op(x[:7], out=out[:7]),
    "another rank": lambda op, x, out: op(x[None], out=out[None]),
    "strides": lambda op, x, out: op(x[::2], out=out[:4]),
    "strides of the output": lambda op, x, out: op(x[:4], out=out[::2]),
    "a wider output": lambda op, x, out: op(x, out=out.astype(float)),
    "odd addresses": lambda op, x, out: op(np.zeros(33, np.uint8)[1:].view(F32), out=out),
    "bytes swapped": lambda op, x, out: op(x.astype(">f4"), out=out),
    "a subclass": lambda op, x, out: op(x.view(Subclass), out=out),
    "a subclass as the output": lambda op, x, out: op(x, out=out.view(Subclass)),
    "a list": lambda op, x, out: op([1.0], out=out),
    "an attribute": lambda op, x, out: op(x, 2.0, out=out),
    "a named attribute": lambda op, x, out: op(x, scale=2.0, out=out),
    "a wrong attribute": lambda op, x, out: op(x, skale=2.0, out=out),
    "read-only": lambda op, x, out: op(x, out=read_only(out)),
    "in place": lambda op, x, out: op(x, out=x),
    "too many arguments": lambda op, x, out: op(x, 1.0, 2.0, out=out),
    "nothing": lambda op, x, out: op(out=out),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_whatever_differs_goes_the_slow_way(op: Operator, slow: list[str], what: str) -> None:
    """And comes to what it would without any call before it."""
    x, out = arrays(8)
    op(x, out=out)

    def outcome() -> Any:
        try:
            return OTHERWISE[what](op, *arrays(8))
        except (OpwrightError, TypeError) as error:
            return type(error), str(error)

    slow.clear()
    found = outcome()
    assert len(slow) == 1
    forget(op)
    np.testing.assert_equal(found, outcome())


def test_overlapping_memory_is_looked_at_by_the_slow_way(op: Operator, slow: list[str]) -> None:
    memory = np.zeros(24, F32)
    x, out = memory[:8], memory[8:16]
    op(x, out=out)
    slow.clear()
    op(x, out=out)  # side by side
    assert slow == []
    with pytest.raises(UsageError, match="overlaps"):
        op(memory[:8], out=memory[7:15])
    with pytest.raises(UsageError, match="overlaps"):
        op(memory[7:15], out=memory[:8])
    assert len(slow) == 2


def test_attributes_are_known_again_by_identity(op: Operator, slow: list[str]) -> None:
    x, out = arrays(8)
    three, four = 3.0, 4.0
    for scale in (three, four):
        op(x, scale, out=out)
        op(x, scale=scale, out=out)
    slow.clear()
    for scale in (three, four, three):
        np.testing.assert_array_equal(op(x, scale, out=out), scale * x + 1)
        np.testing.assert_array_equal(op(x, scale=scale, out=out), scale * x + 1)
    np.testing.assert_array_equal(op(x, out=np.empty_like(x)), 1.5 * x + 1)
    assert len(slow) <= 1
    changing = np.array(2.0)  # a value that can change is looked at each time
    for value in (2.0, 7.0):
        changing[...] = value
        np.testing.assert_array_equal(op(x, changing[()], out=out), value * x + 1)


def test_as_many_calls_as_there_are(op: Operator) -> None:
    """More shapes than are remembered."""
    for _ in range(2):
        for n in range(1, 150):
            x, out = arrays(n)
            np.testing.assert_array_equal(op(x, out=out), 1.5 * x + 1)


def test_forget_and_the_number_of_threads(
    op: Operator, slow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, out = arrays(8)
    op(x, out=out)
    slow.clear()
    op(x, out=out)
    assert slow == []
    forget(op)
    op(x, out=out)
    assert len(slow) == 1
    monkeypatch.setenv("OPWRIGHT_THREADS", "1")
    op(x, out=out)
    assert len(slow) == 2
    monkeypatch.setenv("OPWRIGHT_THREADS", "none")
    op(x, out=out)
    assert len(slow) == 3
    monkeypatch.delenv("OPWRIGHT_THREADS")
    op(x, out=out)
    assert len(slow) == 3


def test_what_a_kernel_throws(tmp_path: Path, slow: list[str]) -> None:
    body = RIGHT + 'if (scale == -777) throw std::runtime_error("no such scale");'
    op = operator(tmp_path, body)
    x, out = arrays(8)
    scale = -777.0
    for _ in range(2):
        with pytest.raises(OpwrightError, match="cpu_right threw std::runtime_error: no such"):
            op(x, scale, out=out)
    switching = "static int calls = 0; if (scale == -777 && ++calls > 2) throw 7;" + RIGHT
    op = operator(tmp_path / "switching", switching)
    op(x, scale, out=out)
    op(x, scale, out=out)
    before = len(slow)
    references = sys.getrefcount(out)
    for _ in range(10):
        with pytest.raises(OpwrightError, match="cpu_right threw int"):
            op(x, scale, out=out)
        with pytest.raises(OpwrightError, match="cpu_right threw int"):
            op(x, scale)
    assert len(slow) == before
    assert sys.getrefcount(out) == references


def test_other_threads_run_meanwhile(tmp_path: Path, slow: list[str]) -> None:
    """The kernel waits until another thread of Python has written into its input."""
    waits = (
        "if (scale == -777) { volatile const T* told = x;"
        "  for (int64_t i = 0; i < 20000 && float(told[0]) == 0; ++i)"
        "    std::this_thread::sleep_for(std::chrono::milliseconds(1)); }"
    )
    op = operator(tmp_path, waits + RIGHT)
    x, out = np.zeros(8, F32), np.zeros(8, F32)
    scale = -777.0
    x[0] = 1
    op(x, scale, out=out)
    slow.clear()
    x[0] = 0
    thread = threading.Thread(target=lambda: op(x, scale, out=out))
    thread.start()
    x[0] = 2
    thread.join()
    assert out[0] == 1 - 2 * 777 and slow == []


def test_references_are_kept_in_balance(op: Operator) -> None:
    x, out = arrays(8)
    op(x, out=out)
    scale = 2.5
    op(x, scale)

    def counts() -> list[int]:
        return [sys.getrefcount(o) for o in (x, out, x.dtype, scale, np.empty, np.ndarray, None)]

    before = counts()
    for _ in range(1000):
        op(x, out=out)
        made = op(x, scale)
        assert sys.getrefcount(made) == 2  # this name, and the call's argument
    del made
    now = counts()
    assert now[:-1] == before[:-1]
    assert abs(now[-1] - before[-1]) < 100  # others use None


def test_strided_inputs_of_strided_rows(tmp_path: Path, slow: list[str]) -> None:
    op = product(tmp_path, {"right": STRIDED_RIGHT}).spec
    assert isinstance(op, Operator)
    wide = np.arange(400, dtype=F32).reshape(20, 20)
    out = np.empty((5, 4), F32)
    for a, b in ((wide[:10:2, :3], wide[:3, 4:8]), (wide[:3, 10:15].T, wide[9:12, 1:13:3])):
        op(a, b, out=out)
        slow.clear()
        np.testing.assert_array_equal(op(a, b, out=out), 2 * (a @ b))
        assert slow == []
    op(wide[4::-1, :3], wide[:3, 4:8], out=out)
    op(wide[4::-1, :3], wide[:3, 4:8], out=out)  # negative strides are copied each time
    assert len(slow) == 2


def test_a_child_of_fork(tmp_path: Path) -> None:
    body = RIGHT.replace(
        "for (int64_t i = 0; i < n; ++i) ",
        "opw::parallel_for(n, 1, [&](int64_t b, int64_t e) { for (int64_t i = b; i < e; ++i) ",
    )
    source = '#include "opwright/parallel.h"\n' + (
        'extern "C" void affine(const T* x, T* out, int64_t n, double scale) {' + body + " });}"
    )
    op = operator(tmp_path, source, ", threads=True")
    x, out = arrays(1000)
    for _ in range(3):
        op(x, out=out)
    child = os.fork()
    if child == 0:
        out[...] = 0
        op(x, out=out)
        os._exit(0 if (out == 1.5 * x + 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(op(x, out=out), 1.5 * x + 1)


def test_calls_that_leave_operands_out(tmp_path: Path, slow: list[str]) -> None:
    """By None, by ending before it, or by name; what is left out is never taken from another."""
    rows = {"strided": ", strided=True"}
    op = moved(tmp_path, {"strided": optional_source(strided=True)}, rows).spec
    assert isinstance(op, Operator)
    x = arrays(3, 4)[0]
    scale, shift = np.arange(1, 4, dtype=F32), np.arange(4, dtype=F32) - 2
    scaled = x * scale[:, None]
    calls: list[tuple[tuple[Any, ...], dict[str, Any], np.ndarray]] = [
        ((x,), {}, x),
        ((x, None), {}, x),
        ((x, None, None), {}, x),
        ((x,), {"shift": None}, x),
        ((x,), {"times": 3}, 3 * x),
        ((x, scale), {}, scaled),
        ((x, scale, None), {}, scaled),
        ((x, None, shift), {}, x + shift),
        ((x, scale, shift), {}, scaled + shift),
        ((x, None, None, 2), {}, 2 * x),
    ]
    for args, named, expected in calls:
        np.testing.assert_array_equal(op(*args, **named), expected)
        np.testing.assert_array_equal(op(*args, **named, out=np.empty_like(x)), expected)
    slow.clear()
    for _ in range(2):
        for args, named, expected in calls:
            np.testing.assert_array_equal(op(*args, **named), expected)
            np.testing.assert_array_equal(op(*args, **named, out=np.empty_like(x)), expected)
    assert slow == []
    # An array by name goes the slow way, and is not taken for one that is left out.
    np.testing.assert_array_equal(op(x, shift=shift), x + shift)
    np.testing.assert_array_equal(op(x), x)
    assert len(slow) == 1


def test_what_is_left_out_is_not_taken_for_what_is_not(tmp_path: Path) -> None:
    op = moved(tmp_path, {"right": optional_source()}).spec
    assert isinstance(op, Operator)
    x = arrays(3, 4)[0]
    with pytest.raises(UsageError, match="the tensor x is not given"):
        op()
    with pytest.raises(DTypeError, match="x is a NoneType"):
        op(None)
    with pytest.raises(ShapeError, match="n is 4 in x and 3 in shift"):
        op(x, None, x[0, :3])
    with pytest.raises(DTypeError, match="x is float32 and shift is float64"):
        op(x, shift=np.ones(4))
    with pytest.raises(UsageError, match="shift is given twice"):
        op(x, None, x[0], shift=None)
    big = np.zeros((2, 4), F32)
    with pytest.raises(UsageError, match="out overlaps shift"):
        op(x[:2], None, big[1], out=big)
