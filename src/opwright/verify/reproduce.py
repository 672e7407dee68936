"""The one-line command that shows a finding again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from opwright.spec.cases import Case
from opwright.spec.dtypes import DType, short_dtypes
from opwright.spec.operator import OperatorSpec


def verify_command(
    spec: OperatorSpec,
    name: str,
    what: Case | Mapping[str, DType],
    *,
    params: Mapping[str, int] | None = None,
    threads: int = 0,
    time_limit: float = 0.0,
    backend: str = "",
) -> str:
    """``opwright verify`` for one case, or for all the cases of an assignment of element types.

    ``name`` is how a command line names the operator or the kernel. ``params`` are the tunables
    that are not at their default, ``threads`` and ``time_limit`` (seconds) are left out at 0, and
    so is ``backend`` where nothing but the kernel chose it.
    """
    words = [shlex.join(["opwright", "verify", name])]
    if isinstance(what, Case):
        words.append(what.options(spec.signature))
    elif what:
        words.append(f"--dtype {short_dtypes(what)}")
    words += [f"--param {tunable}={value}" for tunable, value in (params or {}).items()]
    if threads:
        words.append(f"--threads {threads}")
    if backend:
        words.append(f"--backend {backend}")
    if time_limit:
        words.append(f"--timeout {time_limit:g}")
    return " ".join(words)
