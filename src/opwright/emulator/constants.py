"""Which loops and array indices of a device function are known to a compiler that unrolls.

A device's registers have no addresses: an array is kept in them when each of its indices is known
once loops whose bounds are known have been unrolled, and in local memory otherwise. This is read
from the source, because the host's compiler unrolls other loops than a device's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# What stands at the beginning of a statement that declares, up to its first variable.
_DECLARES = re.compile(
    r"(?:(?:const|constexpr|volatile|static|register|unsigned|signed|long|short|struct)\s+)*"
    r"[A-Za-z_:][\w:]*(?:\s*<[^;=]*>)?(?:\s+const)?(?:\s*[*&]+\s*|\s+)(?:(?:const|__restrict__)\s+)*"
    r"([A-Za-z_]\w*)\s*(?:[=;,\[({:]|$)"
)
_NO_TYPE = re.compile(r"(?:return|goto|delete|throw|case|else|using|typedef|break|continue|new)\b")
_LOOP = re.compile(
    r"(?:const )?[A-Za-z_][\w: ]* (?P<name>[A-Za-z_]\w*) ?= ?(?P<first>[^,;]*);"
    r"(?P<condition>[^;]*);(?P<step>[^;,]*)"
)
_STEP = r"(?:(?:\+\+|--) ?{0}|{0} ?(?:\+\+|--|(?:[-+*/]|<<|>>)= ?(?P<by>.*)))"
_NAME = re.compile(r"[A-Za-z_]\w*(?:\s*::\s*\w+)*(?:\s*\()?")
# Numbers of a thread, which no compiler knows.
_NUMBERS = {"threadIdx", "blockIdx", "blockDim", "gridDim", "this"}


@dataclass
class Known:
    """What was found about one function: ``loops`` by the token of their ``for``."""

    loops: set[int] = field(default_factory=set)
    arrays: dict[str, bool] = field(default_factory=dict)  # whether an index is not known
    dynamic: set[int] = field(default_factory=set)  # pointer parameters indexed by what is not


def analyse(
    code: Sequence[str],
    tokens: Sequence[int],
    parameters: Sequence[str],
    functions: dict[str, set[int]],
) -> Known:
    """Look at a function's body: ``code`` without spaces and comments, and each word's token.

    ``parameters`` are the names of its parameters in order; ``functions`` says of those already
    seen which of their parameters they index by what is not known.
    """
    return _Body(code, tokens, parameters, functions).run()


class _Body:
    """A loop unrolls when one of its limits is known; all threads leave it alike when all are."""

    def __init__(
        self,
        code: Sequence[str],
        tokens: Sequence[int],
        parameters: Sequence[str],
        functions: dict[str, set[int]],
    ) -> None:
        self.code, self.tokens = code, tokens
        self.parameters, self.functions = parameters, functions
        self.known = dict.fromkeys(parameters, False)  # by variable in scope: is its value known
        self.found = Known()

    def run(self) -> Known:
        names = set(self.parameters)
        start = True
        for i, word in enumerate(self.code):
            if start:
                names |= self._declared(i)
            if word == "for" and self._is_constant_loop(i):
                self.found.loops.add(self.tokens[i])
            elif word in names and self._before(i) not in (".", "->", "::"):
                self._use(i)
            start = word in (";", "{", "}", ")")
        self.found.dynamic = {
            k for k, name in enumerate(self.parameters) if self.found.arrays.get(name)
        }
        return self.found

    def _before(self, i: int) -> str:
        return self.code[i - 1] if i else ""

    def _until(self, i: int, *ends: str) -> int:
        """The first of ``ends`` from ``i`` on that is in no brackets."""
        depth = 0
        while i < len(self.code):
            if depth == 0 and self.code[i] in ends:
                return i
            depth += (self.code[i] in "([{") - (self.code[i] in ")]}")
            i += 1
        return i

    def _is_known(self, text: str) -> bool:
        """Whether an expression is made of what a compiler knows."""
        for match in _NAME.finditer(re.sub(r"sizeof ?\([^()]*\)|[0-9][\w.]*", " ", text)):
            name = match[0]
            if name.endswith("(") or name in _NUMBERS or not self.known.get(name, True):
                return False
        return True

    def _declared(self, i: int) -> set[str]:
        """The variables that a statement declares, and whether their values are known."""
        end = self._until(i, ";", "{", "}", ":")
        statement = self.code[i:end]
        text = " ".join(statement).replace(" :: ", "::")
        match = _DECLARES.match(text)
        if match is None or _NO_TYPE.match(text):
            return set()
        first = next(k for k, word in enumerate(statement) if word == match[1])
        fixed = bool({"const", "constexpr"} & set(statement[:first]))
        found = set()
        at = i + first
        while at < end:
            stop = min(self._until(at, ",", ";", "{", "}", ")"), end)
            while at < stop and self.code[at] in ("*", "&", "const", "__restrict__"):
                at += 1
            name, rest = self.code[at] if at < stop else "", self.code[at + 1 : stop]
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                found.add(name)
                value = " ".join(rest[1:]) if rest[:1] == ["="] else ""
                self.known[name] = fixed and bool(value) and self._is_known(value)
            at = stop + 1
        return found

    def _is_constant_loop(self, i: int) -> bool:
        if self.code[i + 1 : i + 2] != ["("]:
            return False
        if self._before(i) == "unroll-1":
            return False
        text = " ".join(self.code[i + 2 : self._until(i + 2, ")")])
        match = _LOOP.fullmatch(text)
        if match is None:
            return False
        name = match["name"]
        step = re.fullmatch(_STEP.format(re.escape(name)), match["step"].strip())
        if step is None or not self._is_known(match["first"]):
            return False
        self.known[name] = True
        limits = [self._is_known(part) and name in part for part in match["condition"].split("&&")]
        if not any(limits) or not self._is_known(step["by"] or ""):
            self.known[name] = False
        return self.known[name] and all(limits)

    def _use(self, i: int) -> None:
        """One use of a name: as an array that is indexed, or handed on."""
        name, j, unknown = self.code[i], i + 1, False
        if self.code[j : j + 1] != ["["]:
            caller = self._handed_to(i)
            if caller is not None and name in self.found.arrays | dict.fromkeys(self.parameters):
                function, place = caller
                dynamic = self.functions.get(function)
                self._note(name, dynamic is None or place in dynamic)
            return
        while self.code[j : j + 1] == ["["]:
            end = self._until(j + 1, "]")
            unknown |= not self._is_known(" ".join(self.code[j + 1 : end]))
            j = end + 1
        self._note(name, unknown)

    def _note(self, name: str, unknown: bool) -> None:
        self.found.arrays[name] = self.found.arrays.get(name, False) or unknown

    def _handed_to(self, i: int) -> tuple[str, int] | None:
        """The function that a name is an argument of, and which; None for other uses."""
        if self._before(i) not in ("(", ",", "&") or self.code[i + 1 : i + 2] not in ([")"], [","]):
            return None
        place = depth = 0
        for j in range(i - 1, -1, -1):
            word = self.code[j]
            depth += (word in ")]}") - (word in "([{")
            if depth < 0:
                function = self.code[j - 1] if j else ""
                called = word == "(" and re.fullmatch(r"[A-Za-z_]\w*", function)
                return (function, place) if called and function != "sizeof" else None
            place += depth == 0 and word == ","
        return None


def parameter_names(text: str) -> list[str]:
    """The names of a parameter list, empty for those without."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    names = []
    for written in parts:
        part = re.sub(r"=.*|\[.*", "", written)
        array = re.search(r"\(\s*[&*]\s*(\w+)\s*\)", part)
        match = array or re.search(r"(\w+)\s*$", part)
        names.append(match[1] if match else "")
    return names
