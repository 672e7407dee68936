import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwright.report.findings import Finding
from opwright.report.formats import FORMATS, clean, jsonable, render, to_json
from opwright.spec.errors import UnknownNameError

WRONG = Finding(
    "wrong-values",
    "matmul",
    "cpu_v1",
    "out[0, 3] is 7, the oracle has 4",
    file="ops/matmul/cpu_v1.cpp",
    line=12,
    case="T=f32 m=1 n=4 k=1",
    command="opwright verify matmul/cpu_v1 --shape m=1,n=4,k=1",
    details={"max_error": 3.0},
    count=5,
)
CRASH = Finding("crash", "matmul", "cpu_v2", "SIGSEGV")
DECLARED = Finding("tolerance", "softmax", "", "the variant 'no max' passes")

# What a broken kernel may print: escape sequences, NUL, markup, ends of CDATA and comments, lone
# surrogates (undecodable bytes), non-characters, C1 controls, directional text.
NASTY = (
    "\x1b[31m\x00\x07 <a & 'b\"> ]]> --> ::error::x %0A \r\n\r\x85\x9b \udc80 \ufffe\uffff é 😀\t"
)


def nasty(text: str = NASTY) -> Finding:
    return Finding(
        text, text, text, text, text.replace("\0", ""), 3, text, text, {text: [text, b"\xff\0"]}
    )


def test_unknown_format_offers_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean sarif"):
        render([], "sarfi")


@pytest.mark.parametrize("format", FORMATS)
@given(st.text(st.characters()))
def test_no_text_breaks_a_format(format: str, text: str) -> None:
    for finding in (nasty(text), nasty(text + NASTY)):
        shown = render([finding, finding], format, checked=[text])
        shown.encode("utf-8")  # raises for a lone surrogate
        assert not {c for c in shown if ord(c) < 32} - {"\n", "\t"}
        if format in ("json", "sarif"):
            json.loads(shown)
        elif format == "junit":
            ET.fromstring(shown.encode())
        elif format == "github":
            assert shown.count("\n") == 2
            assert all(line.startswith("::error ") for line in shown.split("\n")[:2])


def test_clean_shows_what_it_replaces() -> None:
    assert clean("a\x1b[0m\r\nb\x00\udc80\uffff\té😀") == "a\\x1b[0m\nb\\x00\\udc80\\uffff\té😀"


def test_jsonable_turns_everything_into_json() -> None:
    given_ = {
        "f": np.float32(0.5),
        "i": np.int64(3),
        "a": np.array([[1, 2]]),
        "n": math.nan,
        "d": [math.inf, -math.inf],
        "t": (True, None),
        "p": Path("x"),
        4: b"\xff",
    }
    expected = {
        "f": 0.5,
        "i": 3,
        "a": [[1, 2]],
        "n": "nan",
        "d": ["inf", "-inf"],
        "t": [True, None],
        "p": "x",
        "4": "\\xff",
    }
    assert jsonable(given_) == expected
    assert json.loads(json.dumps(jsonable(given_), allow_nan=False)) == expected


def test_json_has_every_field_and_a_relative_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = replace(WRONG, file=str(tmp_path / WRONG.file))
    assert json.loads(render([absolute], "json")) == [to_json(absolute)]
    assert to_json(absolute) == {
        "kind": "wrong-values",
        "operator": "matmul",
        "kernel": "cpu_v1",
        "message": "out[0, 3] is 7, the oracle has 4",
        "file": "ops/matmul/cpu_v1.cpp",
        "line": 12,
        "case": "T=f32 m=1 n=4 k=1",
        "command": "opwright verify matmul/cpu_v1 --shape m=1,n=4,k=1",
        "details": {"max_error": 3.0},
        "count": 5,
    }
    assert to_json(replace(WRONG, file="/elsewhere/k.cpp"))["file"] == "/elsewhere/k.cpp"
    assert to_json(replace(WRONG, file="../k.cpp"))["file"] == f"{tmp_path.parent}/k.cpp"
    assert to_json(CRASH)["file"] == ""


def test_text_says_where_what_and_how_to_see_it_again() -> None:
    compiler = "k.cpp:3: error: no\n  int x = y;"
    broken = Finding(
        "does-not-compile", "matmul", "cpu_v2", "g++ refused it", details={"compiler": compiler}
    )
    assert render([WRONG, broken], "text") == (
        "ops/matmul/cpu_v1.cpp:12: matmul/cpu_v1: wrong-values: out[0, 3] is 7, the oracle has 4\n"
        "    seen in 5 cases, the first of them:\n"
        "    case: T=f32 m=1 n=4 k=1\n"
        "    max_error: 3.0\n"
        "    show again: opwright verify matmul/cpu_v1 --shape m=1,n=4,k=1\n"
        "matmul/cpu_v2: does-not-compile: g++ refused it\n"
        "    compiler:\n"
        "        k.cpp:3: error: no\n"
        "          int x = y;\n"
    )


@pytest.mark.parametrize("format", ["text", "github"])
def test_nothing_found_is_nothing_said(format: str) -> None:
    assert render([], format, checked=["matmul/cpu_v1"]) == ""


# The parts of the SARIF 2.1.0 schema that this writer uses: required properties, and which are
# known at all (the schema forbids others everywhere but in a property bag).
SARIF: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results", "originalUriBaseIds", "columnKind"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"rules"}),
    "rule": ({"id"}, {"shortDescription"}),
    "result": (
        {"message"},
        {"ruleId", "ruleIndex", "level", "locations", "occurrenceCount", "partialFingerprints"}
        | {"properties"},
    ),
    "location": (set(), {"physicalLocation", "logicalLocations"}),
    "physical": ({"artifactLocation"}, {"region"}),
    "artifact": ({"uri"}, {"uriBaseId"}),
    "region": (set(), {"startLine"}),
    "logical": (set(), {"fullyQualifiedName", "kind"}),
}


def shaped(part: dict[str, Any], kind: str) -> dict[str, Any]:
    required, optional = SARIF[kind]
    assert required <= part.keys() <= required | optional, kind
    return part


def checked_sarif(text: str) -> dict[str, Any]:
    log = shaped(json.loads(text), "log")
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    shaped(run, "run")
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = shaped(shaped(run["tool"], "tool")["driver"], "driver")
    rules = [shaped(rule, "rule") for rule in driver["rules"]]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rule["shortDescription"]["text"] for rule in rules)
    assert all(base["uri"].endswith("/") for base in run["originalUriBaseIds"].values())
    for result in run["results"]:
        shaped(result, "result")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        assert result["occurrenceCount"] >= 1
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
        for location in result["locations"]:
            shaped(location, "location")
            for logical in location["logicalLocations"]:
                shaped(logical, "logical")
            if "physicalLocation" in location:
                physical = shaped(location["physicalLocation"], "physical")
                artifact = shaped(physical["artifactLocation"], "artifact")
                assert artifact["uri"].isascii()
                assert artifact.get("uriBaseId", "%SRCROOT%") in run["originalUriBaseIds"]
                assert shaped(physical.get("region", {"startLine": 1}), "region")["startLine"] >= 1
    return log


def test_sarif_has_the_required_structure() -> None:
    run = checked_sarif(render([WRONG, CRASH, DECLARED, WRONG, nasty()], "sarif"))["runs"][0]
    assert [r["id"] for r in run["tool"]["driver"]["rules"]][:3] == [
        "wrong-values",
        "crash",
        "tolerance",
    ]
    first, crash, declared, again, _ = run["results"]
    assert first["message"]["text"].startswith(WRONG.message)
    assert WRONG.command in first["message"]["text"]
    assert first["occurrenceCount"] == 5
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "ops/matmul/cpu_v1.cpp", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert "physicalLocation" not in crash["locations"][0]
    assert declared["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "softmax"
    assert first["partialFingerprints"] == again["partialFingerprints"]
    assert first["partialFingerprints"] != crash["partialFingerprints"]


def test_sarif_without_findings_is_still_a_log() -> None:
    assert checked_sarif(render([], "sarif"))["runs"][0]["results"] == []


@pytest.mark.parametrize("name", ["a b.cpp", "c:d.cpp", "é%20#?.cpp", "sub/x.cpp"])
def test_sarif_uris_lead_back_to_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "my ops"
    here.mkdir()
    monkeypatch.chdir(here)
    for file, expected in ((name, here / name), (str(tmp_path / name), tmp_path / name)):
        run = checked_sarif(render([replace(WRONG, file=file, line=0)], "sarif"))["runs"][0]
        physical = run["results"][0]["locations"][0]["physicalLocation"]
        assert "region" not in physical
        base = run["originalUriBaseIds"]["%SRCROOT%"]["uri"]
        joined = urljoin(base, physical["artifactLocation"]["uri"])
        assert unquote(joined) == f"file://{expected}"


def test_junit_shows_what_passed_and_what_failed() -> None:
    hang = replace(WRONG, kind="hang", message="no answer in 5 s")
    shown = render(
        [WRONG, hang, DECLARED], "junit", checked=["matmul/cpu_v1", "matmul/cpu_v3", "softmax/cpu"]
    )
    root = ET.fromstring(shown.encode())
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures")) == ("4", "2")
    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    assert {n: (s.get("tests"), s.get("failures")) for n, s in suites.items()} == {
        "matmul": ("2", "1"),
        "softmax": ("2", "1"),
    }
    cases = {(c.get("classname"), c.get("name")): c for c in root.iter("testcase")}
    assert set(cases) == {
        ("matmul", "cpu_v1"),
        ("matmul", "cpu_v3"),
        ("softmax", "cpu"),
        ("softmax", "declaration"),
    }
    assert cases["matmul", "cpu_v3"].find("failure") is None
    [failure] = cases["matmul", "cpu_v1"].findall("failure")
    assert failure.get("type") == "wrong-values hang"
    assert failure.get("message") == WRONG.message
    assert failure.text
    assert WRONG.command in failure.text
    assert "no answer in 5 s" in failure.text


def test_github_escapes_data_and_properties() -> None:
    finding = Finding(
        "wrong-values",
        "matmul",
        "cpu_v1",
        "100% wrong: a, b\nsecond line",
        file="a,b:c%.cpp",
        line=7,
    )
    assert render([finding], "github") == (
        "::error file=a%2Cb%3Ac%25.cpp,line=7,title=matmul/cpu_v1%3A wrong-values"
        "::100%25 wrong: a, b%0Asecond line\n"
    )


def test_github_without_a_place_has_no_file() -> None:
    assert render([CRASH], "github") == "::error title=matmul/cpu_v2%3A crash::SIGSEGV\n"
    assert render([replace(CRASH, file="k.cpp")], "github").startswith("::error file=k.cpp,title=")
