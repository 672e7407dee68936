"""The numbers promised of the PyTorch face, measured beside torch: prints, never fails for speed.

Run as ``python benchmarks/torch_bars.py``. Each ratio is measured side by side in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import opwright.torch as owt
from opwright.bench.stats import noise_floor, paired_ratio
from opwright.torch.checking import dispatch_cost
from opwright_ops import matmul, threshold_activation

Bar = tuple[str, str, str]
STEPS = 20


class Activation(nn.Module):
    """torch's own way to compute threshold_activation with its defaults."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0.5, x, torch.tanh(x))


class Linear(nn.Module):
    """A layer whose product is Opwright's; the weight lies as [inputs, outputs], row by row."""

    def __init__(self, old: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(old.weight.detach().T.contiguous())
        self.bias = nn.Parameter(old.bias.detach().clone())
        self.product = owt.register(matmul)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, self.weight) + self.bias


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 4096), Activation(), nn.Linear(4096, 1024))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(256, 1024), torch.randn(256, 1024)


class Training:
    """One network in training, step by step."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.x, self.y = batch()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self) -> None:
        started = time.perf_counter()
        self.optimizer.zero_grad()
        loss = (self.net(self.x) - self.y).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.times.append(time.perf_counter() - started)


def trained() -> Iterator[Bar]:
    ours = owt.swap(network(), {nn.Linear: Linear, Activation: threshold_activation})
    runs = {"torch": Training(network()), "ours": Training(ours), "again": Training(network())}
    for run in runs.values():  # kernels are verified and chosen on the first call
        run.net(run.x).sum().backward()
    for number in range(STEPS):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            runs[name].step()
    apart = max(abs(a - b) for a, b in zip(runs["torch"].losses, runs["ours"].losses, strict=True))
    ratio = paired_ratio(runs["ours"].times, runs["torch"].times)
    noise = noise_floor(runs["torch"].times, runs["again"].times)
    what = f"two layers, 256 x 1024-4096-1024, {STEPS} steps, {torch.get_num_threads()} threads"
    yield f"{what}: loss curves apart", "at most 1e-4", f"{apart:.1e}"
    yield (
        f"{what}: time over torch's",
        "at most 1.10",
        f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}], noise {100 * noise:.0f} %",
    )


def swapped() -> Iterator[Bar]:
    net = owt.swap(network(), {Activation: threshold_activation})
    found = owt.compare(net, batch()[0], budget=15)
    yield (
        "its activation swapped, forward: output",
        "reported",
        f"differs by {found.difference:.1e}, noise {found.output_noise:.1e}; from float64: "
        f"torch {found.original_error:.1e}, ours {found.swapped_error:.1e}",
    )
    yield (
        "its activation swapped, forward: time over torch's",
        "reported",
        f"{found.time.median:.2f} [{found.time.low:.2f}, {found.time.high:.2f}], noise "
        f"{100 * found.time_noise:.0f} %: {found.faster}",
    )


def audited() -> Bar:
    run = Training(network())
    run.step()

    def watched() -> None:
        with owt.audit():
            run.step()

    times: dict[str, list[float]] = {"plain": [], "audited": []}
    choices: dict[str, Callable[[], Any]] = {"plain": run.step, "audited": watched}
    for number in range(12):
        for name in list(choices)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            choices[name]()
            times[name].append(time.perf_counter() - started)
    ratio = paired_ratio(times["audited"][1:], times["plain"][1:])
    shown = f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    return "audit of a training step of it, time over its own", "under 2", shown


def bars() -> Iterator[Bar]:
    own, bare = dispatch_cost(threshold_activation)
    yield (
        "threshold_activation of one element, over torch.tanh of one",
        "at most 5 us",
        f"{own - bare:.1f} us ({own:.1f} - {bare:.1f})",
    )
    yield from trained()
    yield from swapped()
    yield audited()


def main() -> None:
    print(f"{'what':75} {'bar':14} measured")
    for what, bar, measured in bars():
        print(f"{what:75} {bar:14} {measured}", flush=True)


if __name__ == "__main__":
    main()
