"""What to change next: each rule asks the model what the kernel would gain by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from opwright.emulator.driver import Counter
from opwright.emulator.profiles import Profile
from opwright.inspect.model import ARITHMETIC, ON_CHIP, Estimate, Work, estimate, passes
from opwright.inspect.occupancy import Occupancy

_WORTH = 0.03  # of the time: less is not worth a line
_TILE = 32  # uses of each element that the proposals count with
_REGISTER_TILE = 4


@dataclass(frozen=True)
class Advice:
    """One thing to change, at a line (0: the launch); ``gain`` is the share of the time saved.

    It is None where the profile gives no times, or they do not tell.
    """

    file: str
    line: int
    text: str
    gain: float | None


@dataclass(frozen=True)
class Situation:
    """All that the rules know. ``array_bytes`` are the sizes of the operands by name."""

    profile: Profile
    work: Work
    counters: Sequence[Counter]
    array_bytes: Mapping[str, int]
    occupancy: Occupancy | None
    estimate: Estimate | None


def advise(now: Situation) -> list[Advice]:
    """Advice in order of what it would gain; empty where nothing stands out."""
    found = [advice for rule in _RULES for advice in rule(now)]
    kept = [a for a in found if a.gain is None or a.gain >= _WORTH]
    return sorted(kept, key=lambda a: -1.0 if a.gain is None else a.gain, reverse=True)


def _gain(now: Situation, changed: Mapping[int, Sequence[Counter]]) -> float | None:
    """What is saved of the time when rows, by their index, are replaced by others."""
    if now.estimate is None:
        return None
    rows = [r for i, row in enumerate(now.counters) for r in changed.get(i, (row,))]
    after = estimate(now.profile, now.work, rows)
    assert after is not None
    # Halfway between what caches catch at best and at worst.
    before = now.estimate.best + now.estimate.worst
    return 1 - (after.best + after.worst) / before if before else 0.0


def _scattered(now: Situation) -> Iterator[Advice]:
    for i, row in enumerate(now.counters):
        if row.space != "global" or row.sectors <= 1.25 * row.ideal:
            continue
        least = row.ideal / row.requests
        gain = _gain(now, {i: [replace(row, sectors=row.ideal)]})
        yield Advice(
            row.file,
            row.line,
            f"{row.operation}s of {row.array} move {row.sectors_per_request:.1f} sectors a request "
            f"where {least:.1f} would do: let neighbouring lanes take neighbouring elements "
            "(threadIdx.x along the rows of memory), or go through shared memory",
            gain,
        )


def _conflicts(now: Situation) -> Iterator[Advice]:
    for i, row in enumerate(now.counters):
        if row.space != "shared" or row.wavefronts <= 1.1 * row.ideal:
            continue
        gain = _gain(now, {i: [replace(row, wavefronts=row.ideal)]})
        yield Advice(
            row.file,
            row.line,
            f"{row.operation}s of {row.array} are in {row.conflict:.1f}-way bank conflict: pad its "
            "rows by one element, or swap its indices",
            gain,
        )


def _reloaded(now: Situation) -> Iterator[Advice]:
    changed: dict[int, Sequence[Counter]] = {}
    words = []
    first: Counter | None = None
    for i, row in enumerate(now.counters):
        size = now.array_bytes.get(row.array, 0)
        if row.space != "global" or row.operation != "load" or not size:
            continue
        times = row.bytes_used / size
        if times < 2 * _TILE:
            continue
        fewer = replace(row, requests=row.requests // _TILE, sectors=row.sectors // _TILE, ideal=0)
        from_tile = replace(row, space="shared", sectors=0, wavefronts=row.requests)
        changed[i] = [fewer, from_tile]
        words.append(f"{row.array} {times:,.0f} times")
        first = first or row
    if first is not None:
        yield Advice(
            first.file,
            first.line,
            f"global memory is read again and again ({', '.join(words)} over): copy tiles to "
            f"shared memory, so that {_TILE} x {_TILE} threads use each element {_TILE} times",
            _gain(now, changed),
        )


def _few_operations(now: Situation) -> Iterator[Advice]:
    """Where the way to shared memory is the bound, results in registers need it less."""
    if now.estimate is None or now.estimate.bound != ON_CHIP:
        return
    rows = {
        i: r for i, r in enumerate(now.counters) if r.space == "shared" and r.operation == "load"
    }
    total = sum(passes(r) for r in now.counters)
    top = max(rows.values(), key=passes, default=None)
    cycles = sum(passes(r) for r in rows.values())
    if top is None or cycles < total / 2:
        return
    element = 8 if now.work.double else 4  # bytes, in the type that is computed in
    narrow = {i: r for i, r in rows.items() if r.bytes_used <= element * r.requests}
    four = {
        i: [replace(r, requests=r.requests // 4, wavefronts=r.wavefronts // 4)]
        for i, r in narrow.items()
    }
    if narrow:
        line = max(narrow.values(), key=passes)
        yield Advice(
            line.file,
            line.line,
            f"all lanes read the same {line.bytes_used / line.requests:.0f} bytes of {line.array}: "
            "unroll by four and read the next four in one request (float4)",
            _gain(now, four),
        )
    # Each thread then reads n + n elements for n * n results, where it read 1 + 1 for one.
    fewer = {
        i: [replace(r, requests=r.requests // 4, wavefronts=r.wavefronts // _REGISTER_TILE)]
        for i, r in rows.items()
    }
    operations = now.work.flops / 2 / 32 / total if total else 0.0
    yield Advice(
        top.file,
        top.line,
        f"a pass through shared memory feeds {operations:.2g} multiply-adds a lane: keep "
        f"{_REGISTER_TILE} x {_REGISTER_TILE} times as many results a thread in registers",
        _gain(now, fewer),
    )


def _local_memory(now: Situation) -> Iterator[Advice]:
    for i, row in enumerate(now.counters):
        if row.space == "local":
            yield Advice(
                row.file,
                row.line,
                f"{row.array} is indexed by what is not known when compiled, so it lies in local "
                f"memory ({row.operation}s of {row.sectors_per_request:.1f} sectors a request): "
                "unroll the loops over it, or keep it in shared memory",
                _gain(now, {i: []}),
            )


def _contention(now: Situation) -> Iterator[Advice]:
    for i, row in enumerate(now.counters):
        if row.operation != "atomic" or row.contention <= 2 * row.requests:
            continue
        yield Advice(
            row.file,
            row.line,
            f"{row.contention / row.requests:.1f} lanes meet at one address of {row.array}: "
            "combine them in the warp first (__reduce_add_sync), then one atomic a warp",
            _gain(now, {i: [replace(row, contention=row.requests)]}),
        )


def _idle_lanes(now: Situation) -> Iterator[Advice]:
    total = sum(map(passes, now.counters))
    if not any(row.divergent for row in now.counters):
        return
    for row in now.counters:
        if row.lanes_per_request >= 24 or not passes(row) or passes(row) < total / 10:
            continue
        yield Advice(
            row.file,
            row.line,
            f"{row.lanes_per_request:.1f} of 32 lanes take part: let whole warps branch alike",
            None,
        )


def _small_grid(now: Situation) -> Iterator[Advice]:
    sms = now.profile.get("sms")
    if isinstance(sms, float) and 0 < now.work.blocks < sms:
        busy = now.work.blocks / sms
        bound = now.estimate is not None and now.estimate.bound in (ARITHMETIC, ON_CHIP)
        yield Advice(
            "",
            0,
            f"{now.work.blocks} blocks leave {sms - now.work.blocks:.0f} of {sms:.0f} SMs idle: "
            "smaller tiles, or several blocks for one result",
            1 - busy if bound else None,
        )


def _occupied(now: Situation) -> Iterator[Advice]:
    held = now.occupancy
    if held is not None and held.share < 0.5 and held.limiters != ("warps",):
        yield Advice(
            "",
            0,
            f"an SM holds {held.warps} of {held.most} warps, limited by "
            f"{' and '.join(held.limiters)}: little is there to hide latency with",
            None,
        )


_RULES: tuple[Callable[[Situation], Iterator[Advice]], ...] = (
    _scattered,
    _conflicts,
    _reloaded,
    _few_operations,
    _local_memory,
    _contention,
    _idle_lanes,
    _small_grid,
    _occupied,
)
