"""Findings as text, JSON, SARIF 2.1.0, JUnit XML or GitHub workflow annotations.

Messages may carry whatever a kernel printed, so every text passes ``clean``: nothing in it can
break the format around it or steer a terminal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import numpy as np

from opwright.report.findings import Finding
from opwright.spec.errors import UnknownNameError

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

# What each kind means, for viewers that show a rule beside the finding. A kind that is not here
# (a plugin's check, say) is shown under its own name.
KINDS: Mapping[str, str] = {
    "wrong-values": "The result is further from the float64 oracle than the tolerance allows.",
    "nan-mismatch": "NaN or an infinity is not where the oracle has it.",
    "unwritten": "Elements of the output were never written.",
    "out-of-bounds": "The kernel touched memory beyond the end or before the start of an array.",
    "writes-input": "The kernel wrote into an input.",
    "beside-output": "The kernel wrote into memory beside its output.",
    "crash": "The kernel ended its process with a signal.",
    "hang": "The kernel did not come back within the time limit.",
    "abort": "The kernel called abort.",
    "exception": "A C++ exception left the kernel.",
    "exit": "The kernel ended its process.",
    "changes-fp-environment": "The kernel left other rounding or flushing to its caller.",
    "late-write": "The output still changed after the kernel had returned.",
    "not-repeatable": "The same inputs gave different results.",
    "does-not-compile": "The compiler refused the kernel.",
    "missing-function": "The source does not define the operator's function.",
    "fallback": "An operator of a model was not computed on the device asked for.",
    "copy": "A model moves elements from one device to another.",
    "torch": "The operator does not behave in torch as torch's own do.",
    "tolerance": "The operator's tolerance lets a known-wrong variant pass.",
    # What the emulator finds, first in device code, then in how the host uses the device.
    "use-after-free": "Memory was touched, copied or freed after it had been freed.",
    "null-pointer": "Device code went through a null pointer.",
    "misaligned": "An access of several bytes at an address that is no multiple of its size.",
    "write-to-constant": "Device code wrote to a __constant__ variable.",
    "host-memory": "Device code touched memory that only the host reaches.",
    "uninitialized-read": "Memory was read that nobody had written.",
    "race-shared": "Threads of a block touched shared memory with no barrier between; one wrote.",
    "race-global": "Threads of a block touched global memory with no barrier between; one wrote.",
    "race-between-blocks": "Threads of two blocks touched the same memory unordered; one wrote.",
    "race-between-launches": "Work in two streams touched the same memory unordered; one wrote.",
    "race-with-host": "The host touched memory that work it did not wait for uses; one wrote.",
    "barrier-divergence": "Threads of one block waited at different barriers.",
    "barrier-not-reached": "Threads ended although others of their block wait at a barrier.",
    "grid-barrier-not-reached": "Blocks ended although others wait at the grid's barrier.",
    "invalid-grid-sync": "A grid-wide barrier in a kernel that was not launched cooperatively.",
    "lane-not-in-mask": "A lane called a warp function whose mask does not name it.",
    "lanes-missing": "Lanes that a mask names never came to the warp function.",
    "inactive-source-lane": "A shuffle read from a lane that takes no part.",
    "assertion": "An assert() in device code failed.",
    "trap": "Device code called __trap().",
    "livelock": "A kernel did not end within the time limit: it spins or waits for ever.",
    "stack-overflow": "A device thread used up its local memory.",
    "shared-memory-limit": "A kernel declares more shared memory than the device has.",
    "invalid-launch": "A launch that the device refuses.",
    "unchecked-launch-error": "A launch failed and the program never asked for the error.",
    "invalid-copy": "A copy with a null pointer, a wrong direction, or outside device memory.",
    "invalid-free": "A free of an address that no allocation gave.",
    "double-free": "Memory was freed twice.",
    "invalid-stream": "A stream was used that had been destroyed, or was never created.",
    "host-access": "Host code touched device memory.",
    "leak": "Device memory was never freed.",
    "time-limit": "The program did not end within the time limit.",
    "host-memory-limit": "The host had too little memory for what the device would have held.",
    "memory-limit": "The program was ended for the memory that it used.",
    "output-limit": "The program printed more than is kept.",
    "unsupported": "The program uses something that is not emulated.",
}


def clean(text: str) -> str:
    r"""``text`` with what XML, JSON parsers or terminals cannot take written as ``\x1b``.

    Line feeds and tabs stay; ``\r\n`` becomes a line feed.
    """
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    # Cc: control characters, C1 included; Cs: lone surrogates, which no encoding can write;
    # U+FFFE and U+FFFF are in no XML document.
    if unicodedata.category(character) in ("Cc", "Cs") or code in (0xFFFE, 0xFFFF):
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character


def jsonable(value: object) -> Any:
    """``value`` in JSON's own types; numbers that JSON has not (NaN, infinities) become strings."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return clean(value.decode("utf-8", "backslashreplace"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {clean(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [jsonable(item) for item in value]
    return clean(str(value))


def to_json(finding: Finding) -> dict[str, Any]:
    """The finding as a JSON object with the same names; ``file`` is relative where it can be."""
    return {
        "kind": clean(finding.kind),
        "operator": clean(finding.operator),
        "kernel": clean(finding.kernel),
        "message": clean(finding.message),
        "file": clean(_relative(finding.file)),
        "line": finding.line,
        "case": clean(finding.case),
        "command": clean(finding.command),
        "details": jsonable(finding.details),
        "count": finding.count,
    }


def _relative(file: str) -> str:
    """``file`` relative to the current folder when it lies below it, else as it is."""
    if not file:
        return ""
    here = Path.cwd()
    path = Path(os.path.normpath(here / file))
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_posix()


def _place(finding: Finding) -> str:
    file = clean(_relative(finding.file))
    return f"{file}:{finding.line}" if file and finding.line else file


def _lines(name: str, value: object) -> list[str]:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" not in shown:
        return [f"    {name}: {shown}"]
    return [f"    {name}:", *(f"        {line}".rstrip() for line in shown.rstrip().split("\n"))]


def _one_text(finding: Finding) -> str:
    place = _place(finding)
    first, *rest = clean(finding.message).split("\n")
    head = f"{clean(finding.name)}: {clean(finding.kind)}: {first}"
    lines = [f"{place}: {head}" if place else head]
    lines += [f"    {line}".rstrip() for line in rest]
    if finding.count > 1:
        lines.append(f"    seen in {finding.count} cases, the first of them:")
    if finding.case:
        lines += _lines("case", clean(finding.case))
    for name, value in jsonable(finding.details).items():
        lines += _lines(name, value)
    if finding.command:
        lines += _lines("show again", clean(finding.command))
    return "\n".join(lines)


def _text(findings: Sequence[Finding], checked: Sequence[str]) -> str:
    return "".join(f"{_one_text(finding)}\n" for finding in findings)


def _json(findings: Sequence[Finding], checked: Sequence[str]) -> str:
    return json.dumps([to_json(finding) for finding in findings], indent=2) + "\n"


def _sarif_location(finding: Finding) -> dict[str, Any]:
    name = clean(finding.name)
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "function"}]
    }
    if file := _relative(finding.file):
        # A URI has no raw bytes: percent-encoding covers spaces, colons and names beyond ASCII.
        try:
            path = quote(os.fsencode(file), safe="/")
        except UnicodeEncodeError:  # a lone surrogate, which names no file
            path = quote(clean(file), safe="/")
        artifact = (
            {"uri": f"file://{path}"}
            if file.startswith("/")
            else {"uri": path, "uriBaseId": "%SRCROOT%"}
        )
        physical: dict[str, Any] = {"artifactLocation": artifact}
        if finding.line > 0:
            physical["region"] = {"startLine": finding.line}
        location["physicalLocation"] = physical
    return location


def _sarif_result(finding: Finding, rules: Sequence[str]) -> dict[str, Any]:
    kind = clean(finding.kind)
    said = [clean(finding.message)]
    said += [f"Case: {clean(finding.case)}"] if finding.case else []
    said += [f"Show again: {clean(finding.command)}"] if finding.command else []
    # The same fault in the next run gets the same fingerprint, so that viewers can match the two;
    # lines move with every edit and are left out.
    identity = "\0".join((kind, finding.operator, finding.kernel))
    return {
        "ruleId": kind,
        "ruleIndex": rules.index(kind),
        "level": "error",
        "message": {"text": "\n".join(said)},
        "locations": [_sarif_location(finding)],
        "occurrenceCount": finding.count,
        "partialFingerprints": {
            "opwright/v1": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        },
        "properties": to_json(finding),
    }


def _sarif(findings: Sequence[Finding], checked: Sequence[str]) -> str:
    rules = list(dict.fromkeys(clean(finding.kind) for finding in findings))
    # A URI base has to end with a slash, or the last folder would be dropped on joining.
    root = f"file://{quote(os.fsencode(Path.cwd()), safe='/').rstrip('/')}/"
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "Opwright",
                        "rules": [
                            {"id": rule, "shortDescription": {"text": KINDS.get(rule, rule)}}
                            for rule in rules
                        ],
                    }
                },
                "originalUriBaseIds": {"%SRCROOT%": {"uri": root}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(finding, rules) for finding in findings],
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def _junit(findings: Sequence[Finding], checked: Sequence[str]) -> str:
    cases: dict[str, list[Finding]] = {clean(name): [] for name in checked}
    for finding in findings:
        cases.setdefault(clean(finding.name), []).append(finding)
    suites: dict[str, list[str]] = {}
    for name in cases:
        suites.setdefault(name.partition("/")[0], []).append(name)
    failed = [name for name, found in cases.items() if found]
    root = ET.Element("testsuites", tests=str(len(cases)), failures=str(len(failed)))
    for operator, names in suites.items():
        failures = sum(bool(cases[name]) for name in names)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=operator,
            tests=str(len(names)),
            failures=str(failures),
            errors="0",
            skipped="0",
        )
        for name in names:
            kernel = name.partition("/")[2] or "declaration"
            case = ET.SubElement(suite, "testcase", classname=operator, name=kernel)
            if found := cases[name]:
                # One failure element a test case: most readers take only the first.
                failure = ET.SubElement(
                    case,
                    "failure",
                    type=" ".join(dict.fromkeys(clean(f.kind) for f in found)),
                    message=clean(found[0].message),
                )
                failure.text = "\n".join(map(_one_text, found))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _escaped(text: str) -> str:
    # \r cannot occur: clean() has made it visible.
    return text.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _one_annotation(finding: Finding) -> str:
    properties: dict[str, str] = {}
    if file := clean(_relative(finding.file)):
        properties["file"] = file
        if finding.line > 0:
            properties["line"] = str(finding.line)
    properties["title"] = clean(f"{finding.name}: {finding.kind}")
    said = [clean(finding.message)]
    said += [f"case: {clean(finding.case)}"] if finding.case else []
    said += [f"seen in {finding.count} cases"] if finding.count > 1 else []
    said += [f"show again: {clean(finding.command)}"] if finding.command else []
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::error {listed}::{_escaped(chr(10).join(said))}\n"


def _github(findings: Sequence[Finding], checked: Sequence[str]) -> str:
    return "".join(map(_one_annotation, findings))


FORMATS: Mapping[str, Callable[[Sequence[Finding], Sequence[str]], str]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "junit": _junit,
    "github": _github,
}


def render(findings: Iterable[Finding], format: str, checked: Sequence[str] = ()) -> str:
    """The findings in ``format``, one of ``FORMATS``; raises ``UnknownNameError`` for another.

    ``checked`` names what was looked at (``matmul/cpu_v3_tiled``), so that JUnit also shows what
    passed. Files are given relative to the current folder where they lie below it.
    """
    try:
        renderer = FORMATS[format]
    except KeyError:
        raise UnknownNameError("format", format, FORMATS) from None
    return renderer(list(findings), checked)
