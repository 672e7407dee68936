"""How near a minute of tuning comes to the best that an exhaustive search finds: prints a table.

Run as ``python benchmarks/tuner_bars.py [BUDGET]``, the budget in seconds. The kernel is that of
``benchmarks/tuner``: 276 configurations, and defaults meant for another CPU. The tunings come
first, with nothing built or verified before; the exhaustive search then takes many minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from opwright.backends.registry import backend_named
from opwright.bench.measure import Setup
from opwright.catalog.find import find
from opwright.history.store import History
from opwright.spec.cases import selected_case
from opwright.tune.kernel import Laboratory, Tuned, tune
from opwright.tune.search import Search, text
from opwright.tune.strategies import Params

BAR = 0.95
ROUNDS = 60  # of the winners side by side

target = find(str(Path(__file__).parent / "tuner"))
spec, kernel = target.spec, target.kernels[0]
setup = Setup(selected_case(spec, spec.signature.choices()[0], spec.bench[0]), 1, "warm")
backend = backend_named("cpu")


def tuned(history: History, budget: float, strategy: str, seed: int) -> Tuned:
    run = history.start_run("tuner_bars", backend.probe().fingerprint, {})
    started = time.perf_counter()
    found = tune(
        *(spec, kernel, target.reference, setup, budget, history, run),
        strategy=strategy,
        seed=seed,
    )
    winner = found.found.winner
    print(
        f"{strategy:10} {time.perf_counter() - started:5.0f} s, {len(found.found.trials):3} tried: "
        f"{text(winner) if winner else 'none'}, {found.gain or 0:.2f} times as fast as the default",
        flush=True,
    )
    return found


def relative(history: History, reached: Params, best: Params) -> float:
    """The best's time over the reached one's, side by side."""
    with Laboratory(spec, kernel, target.reference, setup, backend, history, 0, 60) as laboratory:
        search = Search([best, reached], laboratory, 600)
        search.measure([best, reached], ROUNDS, time.monotonic() + 600)
        return 1 / search.trials[reached].score


def main() -> None:
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print(f"{backend.probe().device}: {sum(1 for _ in kernel.space())} configurations", flush=True)
    with tempfile.TemporaryDirectory(prefix="opwright-bars-") as home:
        os.environ["OPWRIGHT_HOME"] = home
        with History.open() as history:
            first = tuned(history, budget, "auto", 0).found.winner
            again = tuned(history, budget, "auto", 1).found.winner
            best = tuned(history, 3600, "exhaustive", 0).found.winner
            if first is None or best is None:
                return
            share = relative(history, first, best)
            met = "met" if share >= BAR else "not met"
            print(f"{share:.3f} of the best's speed after {budget:g} s  at least {BAR}: {met}")
            same = "met" if first == again else "not met"
            print(f"two tunings in a row name the same winner: {same}")


if __name__ == "__main__":
    main()
