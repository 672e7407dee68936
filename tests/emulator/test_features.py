"""What programs may use: one program that checks its own results, with no finding on it."""

from __future__ import annotations

import pytest
from emulated import Program


@pytest.mark.parametrize(("seed", "workers"), [(0, 2), (0, 1), (5, 2), (6, 1), (7, 2)])
def test_a_program_that_uses_everything(features: Program, seed: int, workers: int) -> None:
    run = features.run(seed=seed, workers=workers)
    printed = run.stdout.splitlines()
    assert printed[-1] == "ok", run.stdout + run.stderr
    greetings = [f"block {b} thread {t}" for b in range(2) for t in range(2)]
    assert (sorted(printed[:-1]) if seed else printed[:-1]) == greetings
    assert run.exit_code == 0
    assert run.findings == (), [(f.kind, f.line, f.message) for f in run.findings]
