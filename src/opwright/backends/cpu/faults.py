"""From a signal, an exit status or changed bytes to a fault in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from opwright.backends.base import Fault
from opwright.backends.cpu.protocol import Access, Reply, Stage

NEAR = 16 << 20  # inaccessible bytes that every array has at least on either side

_SI_KERNEL = 128
_FPE_INTDIV = 1
_PAGE = 4096
_WORDS = {Access.READ: "read", Access.WRITE: "write", Access.UNKNOWN: "access"}
_WHEN = {
    Stage.IDLE: " between launches",
    Stage.LOADING: " while its library was being loaded",
    Stage.RUNNING: "",
    Stage.WATCHING: " after it had returned",
}


@dataclass(frozen=True)
class Placed:
    """An array as the kernel saw it."""

    name: str
    address: int
    nbytes: int
    output: bool


def of_signal(reply: Reply, arrays: Sequence[Placed], printed: str) -> Fault:
    """The fault behind a signal that the worker's handler caught."""
    kind, message = _signal(reply, arrays)
    return Fault(kind, message + _WHEN[reply.stage], printed)


def of_exception(reply: Reply, printed: str) -> Fault:
    """The fault for a C++ exception that left the kernel."""
    return Fault("exception", f"it threw {reply.text}{_WHEN[reply.stage]}", printed)


def of_environment(reply: Reply, printed: str) -> Fault:
    """The fault for a kernel after which the calling thread computes otherwise than before."""
    message = (
        f"it returned with other floating point than it was called with: {reply.text}; what it "
        "sets, it has to set back"
    )
    return Fault("changes-fp-environment", message, printed)


def of_ending(status: int | None, printed: str) -> Fault:
    """The fault for a worker that ended without a word; ``status`` as in ``Ended``."""
    if status is None or status == -signal.SIGPIPE:
        message = "it closed a file descriptor that is not its own: the worker lost its connection"
        return Fault("crash", message, printed)
    if status >= 0:
        return Fault("exit", f"it ended the process with exit code {status}", printed)
    if status == -signal.SIGABRT:
        return Fault("abort", "abort() was called", printed)
    if status == -signal.SIGKILL:
        message = (
            "the process was killed from outside (SIGKILL), which the system does when memory "
            "runs out"
        )
        return Fault("crash", message, printed)
    message = (
        f"{_signal_name(-status)} ended the process past the worker's handler: the kernel replaced "
        "the handler, blocked the signal, or a thread of its own ran out of stack"
    )
    return Fault("crash", message, printed)


def garbage(printed: str) -> Fault:
    """The fault for bytes on the connection that the worker did not write."""
    message = "it wrote to a file descriptor that is not its own: the worker's connection"
    return Fault("crash", message, printed)


def beside_output(name: str, before: Sequence[int], after: Sequence[int]) -> Fault:
    """The fault for canaries that changed, given how many bytes away each was, from 1 up."""
    parts = [
        f"{_bytes(len(places))} {side} of {name} changed, {min(places)} to {max(places)} bytes away"
        for places, side in ((before, "before the start"), (after, "past the end"))
        if places
    ]
    return Fault("beside-output", "; ".join(parts))


def _bytes(count: int) -> str:
    return f"{count} byte{'s' if count != 1 else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal(reply: Reply, arrays: Sequence[Placed]) -> tuple[str, str]:
    name = _signal_name(reply.signal)
    if reply.signal == signal.SIGABRT:
        return "abort", "abort() was called"
    if reply.signal == signal.SIGFPE:
        division = reply.code == _FPE_INTDIV
        return "crash", f"{name}: {'integer division by zero' if division else 'arithmetic trap'}"
    if reply.signal == signal.SIGILL:
        return "crash", (
            f"{name}: an instruction that this CPU does not have, or the trap that a compiler puts "
            "where behaviour is undefined"
        )
    if reply.signal not in (signal.SIGSEGV, signal.SIGBUS):
        return "crash", name
    access = _WORDS[reply.access]
    if reply.code == _SI_KERNEL and reply.address == 0:
        return "crash", (
            f"{name}: a misaligned address for an instruction that needs an aligned one, or an "
            "address that cannot exist"
        )
    absent = [a.name for a in arrays if not a.address]
    if reply.address < (NEAR if absent else _PAGE):
        said = f"; left out of this call, and null: {', '.join(absent)}" * bool(absent)
        return (
            "crash",
            f"{name}: {access} through a null pointer (address {reply.address:#x}){said}",
        )
    if near := _nearest(reply.address, [a for a in arrays if a.address]):
        return _array_fault(reply, access, *near)
    if _overflowed(reply):
        return "crash", (
            f"{name}: stack overflow: endless recursion, or local arrays that do not fit the stack"
        )
    return "crash", f"{name}: {access} at address {reply.address:#x}, far from every array"


def _nearest(address: int, arrays: Sequence[Placed]) -> tuple[Placed, int] | None:
    """The array and how far beside it: negative before, 0 inside, from 1 past its end."""

    def distance(array: Placed) -> int:
        end = array.address + array.nbytes
        return min(0, address - array.address) or max(0, address - end + 1)

    reach = NEAR + max((array.nbytes for array in arrays), default=0)
    found = [(array, distance(array)) for array in arrays]
    return min((f for f in found if abs(f[1]) <= reach), key=lambda f: abs(f[1]), default=None)


def _array_fault(reply: Reply, access: str, array: Placed, distance: int) -> tuple[str, str]:
    if distance == 0:
        place = f"byte {reply.address - array.address} of {array.name}"
        if array.output or reply.access is Access.READ:
            return "crash", f"{_signal_name(reply.signal)}: {access} at {place}"
        return "writes-input", f"write into the input {array.name}, at {place}"
    side = "past the end" if distance > 0 else "before the start"
    return "out-of-bounds", (
        f"{access} {_bytes(abs(distance))} {side} of {array.name} "
        f"(which is {_bytes(array.nbytes)} long)"
    )


def _overflowed(reply: Reply) -> bool:
    # Large frames move the stack pointer first and touch far below it later, so either the
    # pointer has left the stack or the address is close to it.
    if reply.stack_low and reply.stack_pointer < reply.stack_low + (64 << 10):
        return True
    return abs(reply.address - reply.stack_pointer) < (64 << 10)
