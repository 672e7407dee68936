"""Tuning results as other tuners read them: T4, the results format of Kernel Tuner and BAT.

A T4 file has one JSON object, ``{"schema_version": ..., "metadata": ..., "results": [...]}``, and
each result a ``configuration``, its ``times``, its ``invalidity`` and ``measurements``. What our
records have beyond that, their key above all, stands in each result under ``opwright``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from opwright.bench.stats import summary
from opwright.history.records import Configuration, Times
from opwright.spec.errors import UsageError

VERSION = "1.0.0"

# How T4 names what we found; every other kind is a result that is not right.
_INVALIDITY = {
    "held": "correct",
    "does-not-compile": "compile",
    "missing-function": "compile",
    "hang": "timeout",
    "crash": "runtime",
    "abort": "runtime",
    "exception": "runtime",
    "exit": "runtime",
}
_OUTCOME = {
    "correct": "held",
    "compile": "does-not-compile",
    "timeout": "hang",
    "runtime": "crash",
    "correctness": "wrong-values",
}
# The rest of a record: what its times are good for.
_KEY = (
    *("operator", "kernel", "backend", "machine", "dtype", "shape", "threads", "source_hash"),
    *("artifact_key", "compiler", "flags", "isa", "cache"),
)
_TEXTS = ("operator", "kernel", "backend", "machine", "dtype", "source_hash", "artifact_key")


def export(found: Sequence[Configuration]) -> str:
    """``found`` as the text of a T4 file; times are in milliseconds, as Kernel Tuner has them."""
    return json.dumps(
        {
            "schema_version": VERSION,
            "metadata": {"tuner": "opwright", "time_unit": "milliseconds"},
            "results": [_result(one) for one in found],
        },
        indent=1,
    )


def _result(one: Configuration) -> dict[str, Any]:
    invalidity = _INVALIDITY.get(one.outcome, "correctness")
    measured: dict[str, Any] = {}
    if one.times is not None:
        measured = {
            "measurements": [
                {"name": "time", "value": one.times.median_ns * 1e-6, "unit": "ms"},
            ]
        }
    return {
        "timestamp": one.recorded,
        "configuration": dict(one.params),
        "objectives": ["time"],
        "times": {
            "compilation_time": one.build_seconds * 1e3,
            "runtimes": [ns * 1e-6 for ns in one.times.samples] if one.times else [],
        },
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        **measured,
        "opwright": {
            **{name: getattr(one, name) for name in _KEY},
            **{"outcome": one.outcome, "message": one.message, "place": one.place},
            **{"cases": one.cases, "noise": one.noise},
            "first_ms": one.times.first_ns * 1e-6 if one.times else None,
            "calls": one.times.calls if one.times else None,
        },
    }


def load(text: str, where: str) -> list[Configuration]:
    """The configurations of a T4 file that ``export`` wrote; ``where`` names it in errors.

    Raises ``UsageError`` for what is no T4, and for results that do not say which kernel, build,
    machine, shape and threads they are of: nothing could be done with those.
    """
    try:
        content = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{where}: no JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("results"), list):
        raise UsageError(f"{where}: no T4 file: it has no list of results")
    version = str(content.get("schema_version", ""))
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise UsageError(f"{where}: T4 of version {version or '(none)'}; this reads {VERSION}")
    found = []
    for number, result in enumerate(content["results"]):
        try:
            found.append(_configuration(result))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{where}: result {number} cannot be used: {reason}") from None
    return found


def _configuration(result: Mapping[str, Any]) -> Configuration:
    own = result.get("opwright")
    if not isinstance(own, Mapping):
        raise ValueError("it does not say which operator, build and machine it is of")
    for name in _TEXTS:
        if not isinstance(own[name], str):
            raise ValueError(f"{name} is {own[name]!r}, no text")
    outcome = own.get("outcome") or _OUTCOME[result["invalidity"]]
    if _INVALIDITY.get(outcome, "correctness") != result["invalidity"]:
        raise ValueError(f"it is both {result['invalidity']} and {outcome}")
    times: Times | None = None
    samples = tuple(float(ms) * 1e6 for ms in result["times"]["runtimes"])
    if samples:
        if not all(math.isfinite(ns) and ns > 0 for ns in samples):
            raise ValueError("its runtimes are no times")
        brief = summary(samples)
        first = _number("first_ms", own.get("first_ms") or 0.0) * 1e6
        calls = _whole("calls", own.get("calls") or 1)
        times = Times(first, brief.median, brief.low, brief.high, samples, calls)
    place = own.get("place", "")
    build = _number("compilation_time", result["times"].get("compilation_time", 0.0))
    if place not in ("", "tied", "won") or (place and times is None):
        raise ValueError(f"place is {place!r}")
    cache = own.get("cache", "warm")
    if cache not in ("warm", "cold"):
        raise ValueError(f"cache is {cache!r}, neither warm nor cold")
    return Configuration(
        **{name: own[name] for name in _TEXTS},
        shape=_integers(own["shape"]),
        threads=_whole("threads", own["threads"]),
        params=_integers(result["configuration"]),
        outcome=outcome,
        message=str(own.get("message", "")),
        compiler=str(own["compiler"]),
        flags=tuple(map(str, own["flags"])),
        isa=str(own["isa"]),
        cases=_whole("cases", own.get("cases", 0)),
        build_seconds=build * 1e-3,
        place=cast(Literal["", "tied", "won"], place),
        times=times,
        noise=_number("noise", own.get("noise", 0.0)),
        cache=cache,
    )


def _number(name: str, given: Any) -> float:
    number = float(given)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {given!r}, not finite and from 0 up")
    return number


def _whole(name: str, given: Any) -> int:
    if type(given) is not int or not 0 <= given < 2**63:
        raise ValueError(f"{name} is {given!r}, no whole number from 0 up that fits int64")
    return given


def _integers(given: Any) -> dict[str, int]:
    if not all(type(value) is int for value in given.values()):
        raise ValueError(f"{dict(given)} are no integers")
    return dict(given)
