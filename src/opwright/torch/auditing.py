"""Where a model's time really goes: every operator it calls, and the device that computed it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._python_dispatch import TorchDispatchMode

from opwright.catalog.shapes import FORMAT
from opwright.report.findings import Finding
from opwright.spec.errors import UsageError
from opwright.torch.cost import ceilings_here, cost, is_view, least_seconds, tensors_in

# Rows that print() shows.
SHOWN = 20

# What moves elements from one device to another.
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")


@dataclass
class Row:
    """Calls of one operator with the same shapes, element types and devices.

    ``device`` is the one its tensors are on, ``ran`` where it was computed; where they differ, or
    the tensors had left the device that the model was to run on, ``reason`` says how that is known.
    ``seconds`` is time within the operator alone, over all calls. ``least_seconds`` is the
    roofline's time of one call and ``gain`` the share of the whole time that an operator at the
    roofline would save; None where this machine's ceilings were not measured or say nothing.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    ran: str
    reason: str = ""
    calls: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: int = 0
    share: float = 0.0
    least_seconds: float | None = None
    gain: float | None = None


@dataclass
class Copy:
    """Elements moved from one device to another, over all calls."""

    source: str
    target: str
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class _Seen:
    row: Row
    dtype: torch.dtype
    computes: bool


class _Inside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches what an operator's own kernel calls, for signs of work on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # Single numbers, sizes and seeds say, are on the host everywhere.
        if any(t.device.type == "cpu" and t.numel() > 1 for t in tensors_in((*args, out))):
            self.names.append(func.name())
        return out


class Audit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What ran between ``with owt.audit() as audit`` and its end. Print it, or use its fields.

    ``rows`` are the operators, those first that would gain most from an own kernel: share of the
    time times distance from the roofline. ``copies`` are transfers between devices, ``seconds`` is
    the whole time, ``device`` the device that the model was to run on: the one given, else the
    accelerator that most calls were on, else the CPU.
    """

    def __init__(self, device: str | None = None, trace: bool = False) -> None:
        _import_what_modes_need()
        super().__init__()  # type: ignore[no-untyped-call]
        self._asked = None if device is None else torch.device(device).type
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        self._copies: dict[tuple[str, str], Copy] = {}
        self._events: list[tuple[str, int, int]] | None = [] if trace else None
        self._synchronize: dict[str, Callable[[], None] | None] = {"cpu": None, "meta": None}
        self._started = self._own = 0
        self.device = self._asked or "cpu"
        self.seconds = 0.0
        self.rows: list[Row] = []
        self.copies: list[Copy] = []

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._started = time.perf_counter_ns()
        self._own = 0
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.seconds += (time.perf_counter_ns() - self._started - self._own) * 1e-9
        self._finish()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operands = tensors_in((*args, *kwargs.values()) if kwargs else args)
        key = (func, *[(t.shape, t.dtype, t.device) for t in operands])
        # Taken now: an operator that changes its input may change these too.
        device = next((t.device.type for t in operands if t.device.type != "cpu"), "cpu")
        if device == "cpu" and not operands and "device" in kwargs:
            device = torch.device(kwargs["device"] or "cpu").type
            key = (*key, device)
        if device == "cpu":
            started = time.perf_counter_ns()
            out = func(*args, **kwargs)
            ended = time.perf_counter_ns()
            inside: list[str] = []
        else:
            started, out, ended, inside = self._on_device(device, func, operands, args, kwargs)
        if inside:
            key = (*key, "fell back")
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _first(func, operands, args, kwargs, out, device, inside)
            self._own += time.perf_counter_ns() - ended
        seen.row.calls += 1
        seen.row.seconds += (ended - started) * 1e-9
        if self._events is not None:
            self._events.append((seen.row.operator, started, ended))
        if seen.row.operator in _COPIES:
            self._copied(func, operands, out, (ended - started) * 1e-9)
        return out

    def _on_device(
        self,
        device: str,
        func: Any,
        operands: Sequence[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[int, Any, int, list[str]]:
        if device not in self._synchronize:
            module = getattr(torch, device, None)
            self._synchronize[device] = getattr(module, "synchronize", None)
        wait = self._synchronize[device]
        copies = func.name() in _COPIES or len({t.device.type for t in operands}) > 1
        # Numbers beside tensors without dimensions decide on the type of the result; leave them be.
        plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in operands)
        plain = plain and all(t.ndim > 0 for t in operands)
        inside = _Inside()
        started = time.perf_counter_ns()
        # Straight to the device's own kernel, so that the mode sees what that calls and not this
        # call again.
        keys = _device_keys(operands) if operands and plain and not copies else None
        if keys is not None and not is_view(func):
            args = _numbers_as_tensors(func, operands, args)
            with inside:
                out = func.redispatch(keys, *args, **kwargs)
        else:
            out = func(*args, **kwargs)
        if wait is not None:
            wait()
        return started, out, time.perf_counter_ns(), inside.names

    def _copied(self, func: Any, operands: list[torch.Tensor], out: Any, seconds: float) -> None:
        results = tensors_in(out)
        if not operands or not results:
            return
        # copy_ changes its first argument and reads its second.
        source = operands[1] if func._schema.is_mutable and len(operands) > 1 else operands[0]
        target = results[0]
        if source.device.type == target.device.type:
            return
        pair = (str(source.device), str(target.device))
        copy = self._copies.setdefault(pair, Copy(*pair))
        copy.calls += 1
        copy.bytes += source.numel() * source.element_size()
        copy.seconds += seconds

    def _finish(self) -> None:
        rows = [seen.row for seen in self._seen.values()]
        calls: Counter[str] = Counter()
        for row in rows:
            calls[row.device] += row.calls
        elsewhere = [d for d, _ in calls.most_common() if d not in ("cpu", "none")]
        self.device = self._asked or (elsewhere[0] if elsewhere else "cpu")
        ceilings = ceilings_here()
        threads = torch.get_num_threads()
        for seen in self._seen.values():
            row = seen.row
            row.share = row.seconds / self.seconds if self.seconds else 0.0
            if row.device == "cpu" != self.device and not row.reason and seen.computes:
                row.reason = f"its tensors are on the host, not on {self.device}"
            if row.ran == "cpu":
                row.least_seconds = least_seconds(
                    row.flops, row.bytes, seen.dtype, ceilings, threads
                )
            if row.least_seconds is not None:
                mean = row.seconds / row.calls
                row.gain = row.share * max(0.0, 1 - row.least_seconds / mean)
        self.rows = sorted(
            rows, key=lambda r: (-(r.share if r.gain is None else r.gain), -r.seconds)
        )
        self.copies = sorted(self._copies.values(), key=lambda c: -c.seconds)

    @property
    def fallbacks(self) -> list[Row]:
        """The rows that did not run on the device asked for."""
        return [row for row in self.rows if row.reason]

    def findings(self) -> list[Finding]:
        """A ``fallback`` for each operator that left the device, a ``copy`` for each transfer."""
        found = [
            Finding(
                kind="fallback",
                operator=row.operator,
                kernel="",
                message=(
                    f"asked to run on {self.device}, ran on {row.ran} ({row.calls} calls, "
                    f"{100 * row.share:.1f} % of the time): {row.reason}"
                ),
                case=_shapes(row),
                details={"calls": row.calls, "seconds": row.seconds},
                count=row.calls,
            )
            for row in self.fallbacks
        ]
        found += [
            Finding(
                kind="copy",
                operator="copy",
                kernel="",
                message=(
                    f"{copy.bytes} bytes from {copy.source} to {copy.target} in {copy.calls} "
                    f"calls, {copy.seconds * 1e3:.3g} ms"
                ),
                count=copy.calls,
            )
            for copy in self.copies
        ]
        return found

    def save(self, path: str | Path) -> None:
        """Write everything as JSON, for ``opwright bench`` and ``verify --shapes-from``."""
        content = {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": self.device,
            "seconds": self.seconds,
            "operators": [asdict(row) for row in self.rows],
            "copies": [asdict(copy) for copy in self.copies],
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n")

    def save_trace(self, path: str | Path) -> None:
        """Write every call with its time for chrome://tracing or Perfetto.

        Raises ``UsageError`` where the audit was not started with ``trace=True``.
        """
        if self._events is None:
            raise UsageError("no times of single calls were kept: owt.audit(trace=True) keeps them")
        events = [
            {
                "name": name,
                "ph": "X",
                "ts": (start - self._started) / 1e3,
                "dur": (end - start) / 1e3,
                "pid": 0,
                "tid": 0,
            }
            for name, start, end in self._events
        ]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")

    def __str__(self) -> str:
        inside = sum(row.seconds for row in self.rows)
        lines = [
            f"{sum(r.calls for r in self.rows)} calls of operators on {self.device} in "
            f"{self.seconds * 1e3:.3g} ms; {_percent(1 - inside / self.seconds)} of it between them"
            if self.seconds
            else "nothing ran"
        ]
        table = [("operator", "calls", "time", "share", "gain", "device", "ran on", "shapes")]
        for row in self.rows[:SHOWN]:
            gain = "-" if row.gain is None else _percent(row.gain)
            time_ms = f"{row.seconds * 1e3:.3f} ms"
            ran = row.ran + (" !" if row.reason else "")
            table.append(
                (
                    row.operator,
                    str(row.calls),
                    time_ms,
                    _percent(row.share),
                    gain,
                    row.device,
                    ran,
                    _shapes(row),
                )
            )
        widths = [max(len(line[i]) for line in table) for i in range(7)]
        for line in table:
            cells = [
                word.ljust(width) if i in (0, 5, 6) else word.rjust(width)
                for i, (word, width) in enumerate(zip(line, widths, strict=False))
            ]
            lines.append("  ".join([*cells, line[7]]).rstrip())
        if len(self.rows) > SHOWN:
            rest = sum(row.share for row in self.rows[SHOWN:])
            lines.append(f"... and {len(self.rows) - SHOWN} more, {_percent(rest)} of the time")
        if self.rows and all(row.gain is None for row in self.rows):
            lines.append(
                "no gain is shown: this machine's ceilings are not measured; "
                "'opwright doctor --measure' does"
            )
        lines += [f"{f.kind}: {f.operator}: {f.message}" for f in self.findings()]
        return "\n".join(lines)


def audit(device: str | None = None, *, trace: bool = False) -> Audit:
    """Watch every operator within ``with owt.audit() as audit``; ``print(audit)`` afterwards.

    ``device`` is where the model is to run ("cuda", say); with ``trace`` the times of single calls
    are kept for ``save_trace``. Whatever is called counts, with or without Opwright's operators,
    backward passes included. Work on an accelerator is waited for call by call.
    """
    return Audit(device, trace)


def _numbers_as_tensors(
    func: Any, operands: Sequence[torch.Tensor], args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The arguments with numbers in place of tensors (``x + 1``) as tensors of no dimension.

    A call takes them as they are; a call of one device's kernel does not. Beside tensors of some
    dimension they leave the type of the result alone, as a number does.
    """
    dtype = next((t.dtype for t in operands if t.is_floating_point()), torch.get_default_dtype())
    converted = list(args)
    for index, (argument, value) in enumerate(zip(func._schema.arguments, args, strict=False)):
        if str(argument.type) == "Tensor" and isinstance(value, int | float):
            converted[index] = torch.tensor(value, dtype=dtype if type(value) is float else None)
    return tuple(converted)


def _device_keys(operands: Sequence[torch.Tensor]) -> DispatchKeySet | None:
    """The keys of the tensors' devices alone; None where more than a device's kernel is to run."""
    keys = torch._C._dispatch_keys(operands[0])
    for other in operands[1:]:
        keys = keys | torch._C._dispatch_keys(other)
    keys = (keys & torch._C._after_autograd_keyset).remove(DispatchKey.ADInplaceOrView)
    lazy = (DispatchKey.Conjugate, DispatchKey.Negative, DispatchKey.ZeroTensor)
    return None if any(keys.has(key) for key in lazy) else keys


@cache
def _import_what_modes_need() -> None:
    """The first mode in a process imports torch's compiler: seconds that are not the model's."""
    with _Inside():
        torch.nn.functional.linear(torch.ones(1, 1, requires_grad=True), torch.ones(1, 1)).sum()


def _first(
    func: Any,
    operands: Sequence[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    device: str,
    inside: list[str],
) -> _Seen:
    flops, moved = cost(func, args, kwargs, out)
    described = list(operands) or tensors_in(out)
    reason = ""
    if inside:
        names = ", ".join(dict.fromkeys(inside))
        reason = f"its kernel for {device} worked on the host: {names}"
    row = Row(
        operator=func.name().removesuffix(".default"),
        shapes=tuple(tuple(int(n) for n in t.shape) for t in described),
        dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in described),
        device=device,
        ran="cpu" if inside else device,
        reason=reason,
        flops=flops,
        bytes=moved,
    )
    dtype = next((t.dtype for t in described if t.is_floating_point()), torch.float32)
    # Single numbers live on the host whatever the device; what is made there is seen when copied.
    computes = row.operator not in _COPIES and any(t.numel() > 1 for t in operands)
    return _Seen(row, dtype, computes)


def _shapes(row: Row) -> str:
    words = [
        f"{dtype}[{','.join(map(str, shape))}]"
        for dtype, shape in zip(row.dtypes, row.shapes, strict=True)
    ]
    return " ".join(words)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
