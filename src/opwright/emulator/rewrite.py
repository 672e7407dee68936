"""CUDA's additions to C++, turned into C++ for a host compiler: token by token, line for line.

What changes: launches ``k<<<grid, block>>>(a)``, ``__shared__`` arrays, the announcement of device
variables, and the few library functions that must know a device thread. Nothing moves to another
line, and ``#line`` names the user's file, so compilers and debuggers show the source as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opwright.emulator.constants import Known, analyse, parameter_names
from opwright.spec.errors import OpwrightError

_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\f\v\r\n]|\\\r?\n)+)
  | (?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
  | (?P<string>(?:u8|u|U|L)?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"
      |(?:u8|u|U|L)?"(?:[^"\\\n]|\\.|\\\n)*")
  | (?P<char>(?:u8|u|U|L)?'(?:[^'\\\n]|\\.)*')
  | (?P<number>\.?\d(?:[eEpP][+-]|['\w.])*)
  | (?P<name>[A-Za-z_$][\w$]*)
  | (?P<mark><<<|>>>|::|->\*?|\+\+|--|<<=|>>=|&&|\|\||[-+*/%&|^!=<>]=|\#\#|\.\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN = {"(": ")", "[": "]", "{": "}"}
_UNSUPPORTED = re.compile(
    r"tex[123]D\w*|texCubemap\w*|surf[123]D(?:read|write)\w*|textureReference|cudaGraph\w*"
    r"|cuda(?:Create|Destroy|Bind|Unbind)?(?:Texture|Surface)\w*|cuda(?:Malloc|Free)Array|cudaArray_t"
)
_LIBRARIES = re.compile(
    r"(thrust|cub|cuda|nv|cute|cutlass)/|(cublas|cudnn|cufft|cusparse|cusolver|mma|nvrtc|npp|nvml)"
)
_DEVICE_FUNCTIONS = {
    "malloc": "::opw::device_malloc",
    "free": "::opw::device_free",
    "memcpy": "::opw::copy_bytes",
    "memmove": "::opw::move_bytes",
    "memset": "::opw::set_bytes",
    # The library's own write what they are given pointers to without being traced.
    **{
        f"{name}{suffix}": f"::opw::{name}"
        for name in ("sincos", "modf", "frexp", "remquo")
        for suffix in ("", "f")
    },
}
_ATTRIBUTES = {
    "__align__",
    "alignas",
    "__attribute__",
    "__launch_bounds__",
    "decltype",
    "__builtin_align__",
    "__declspec",
    "__cluster_dims__",
    "sizeof",
}
_VARIABLE_KINDS = {"__constant__": "constant", "__managed__": "managed", "__device__": "device"}


# A type, then names of which one at least has brackets, and nothing given to any of them.
_LOCAL_ARRAY = re.compile(r"[A-Za-z_][\w:<>, ]*[\w>][ *]+[A-Za-z_]\w* ?\[[^=;]*")
_NO_DECLARATION = re.compile(
    r"\b(?:return|goto|delete|typedef|using|static|extern|__shared__|case|throw|const|constexpr|else|do)\b"
)


_WRITTEN_ARRAY = re.compile(r"[A-Za-z_][\w:<>, ]*[\w>][ *]+[A-Za-z_]\w* ?\[[^=;{]*[={]")
# The same without brackets: at least two words, of which none names a class that is yet to come.
_LOCAL_SCALARS = re.compile(
    r"(?!(?:struct|class|union|enum) \w+$)"
    r"[A-Za-z_](?:[\w<>, ]|::)*(?:[\w>] |[\w>] ?[*][* ]*)[A-Za-z_]\w*(?:[ ,=].*)?"
)
_ALIGNED = re.compile(r"\b(?:alignas|__align__|__builtin_align__|aligned) ?\(")
_PLAIN_FIELDS = re.compile(
    r"(?:(?!(?:static|using|typedef|const|struct|union|enum)\b)[\w:<>,* ]+;)+"
)
_SHUFFLE = re.compile(r"(?:__)?shfl(?:_\w+)?")
_DECLARED_CONDITION = re.compile(r"(?:const )?[A-Za-z_][\w:<>]*[ *&]+[A-Za-z_]\w* ?(?:=[^=]|\{)")


class UnsupportedError(OpwrightError):
    """The program uses what the emulator does not have; the message starts with file and line."""

    exit_code = 3

    def __init__(self, path: Path, line: int, feature: str) -> None:
        super().__init__(f"{path}:{line}: {feature}")
        self.path, self.line, self.feature = path, line, feature


@dataclass
class Token:
    """A piece of source: ``text`` as written, ``out`` as it will be compiled."""

    kind: str
    text: str
    line: int
    out: str


@dataclass
class _Scope:
    kind: str  # namespace, class, function, block, or value: the braces of an initialiser
    device: bool = False
    brace: int = -1  # the token that opens it
    watched: list[str] = field(default_factory=list)  # scalars that begin without a value


@dataclass
class _Rewriter:
    path: Path
    tokens: list[Token]
    include: Callable[[Path, str, bool], str | None]
    scopes: list[_Scope] = field(default_factory=list)
    globals: dict[str, str] = field(default_factory=dict)  # namespace-scope shared arrays
    injected: dict[int, set[str]] = field(default_factory=dict)
    functions: dict[str, set[int]] = field(default_factory=dict)  # see constants.analyse
    known: Known = field(default_factory=Known)  # of the function

    def run(self) -> str:
        i = 0
        statement = 0  # first token of the statement
        while i < len(self.tokens):
            t = self.tokens[i]
            if t.text == "#" and self._starts_line(i):
                i = self._directive(i)
                statement = i
                continue
            if t.kind == "name":
                i = self._name(i, statement)
            elif t.text == "<<<":
                i = self._launch(i)
                continue
            elif t.text == "{":
                before = self._text(self._previous(i))
                inside = bool(self.scopes) and self.scopes[-1].kind == "value"
                if before in ("=", ",", "return") or (inside and before == "{"):
                    self.scopes.append(_Scope("value"))  # no statement begins or ends here
                else:
                    self._open(i, statement)
                    statement = i + 1
            elif t.text == "}":
                if not self.scopes or self.scopes.pop().kind != "value":
                    statement = i + 1
            elif t.text == ";":
                self._locals(i, statement)
                statement = i + 1
            i += 1
        return f'#line 1 "{self.path}"\n' + "".join(t.out for t in self.tokens)

    # ---- moving about ---------------------------------------------------------------------------

    def _is_code(self, i: int) -> bool:
        return self.tokens[i].kind not in ("space", "comment")

    def _next(self, i: int) -> int:
        i += 1
        while i < len(self.tokens) and not self._is_code(i):
            i += 1
        return i

    def _previous(self, i: int) -> int:
        i -= 1
        while i >= 0 and not self._is_code(i):
            i -= 1
        return i

    def _text(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def _starts_line(self, i: int) -> bool:
        before = i - 1
        while before >= 0 and self.tokens[before].kind == "comment":
            before -= 1
        if before < 0:
            return True
        gap = self.tokens[before]
        return gap.kind == "space" and ("\n" in gap.text.replace("\\\n", "") or before == 0)

    def _close(self, i: int) -> int:
        """The token that closes the bracket at ``i``."""
        depth = 0
        for j in range(i, len(self.tokens)):
            if self.tokens[j].kind != "mark":
                continue
            text = self.tokens[j].text
            if text in _OPEN:
                depth += 1
            elif text in ")]}":
                depth -= 1
                if depth == 0:
                    return j
        raise UnsupportedError(self.path, self.tokens[i].line, f"'{self._text(i)}' is never closed")

    def _opening(self, i: int) -> int:
        """The token that opens the bracket closed at ``i``."""
        depth = 0
        for j in range(i, -1, -1):
            if self.tokens[j].kind != "mark":
                continue
            depth += (self._text(j) in (")", "]", "}")) - (self._text(j) in _OPEN)
            if depth == 0:
                return j
        raise UnsupportedError(self.path, self.tokens[i].line, f"'{self._text(i)}' is never opened")

    def _out(self, first: int, last: int) -> str:
        return "".join(t.out for t in self.tokens[first:last])

    def _code(self, first: int, last: int) -> str:
        """Tokens as one line of text, comments left out."""
        parts = [" " if t.kind in ("space", "comment") else t.text for t in self.tokens[first:last]]
        return re.sub(r"\s+", " ", "".join(parts)).strip()

    def _replace(self, first: int, last: int, text: str) -> None:
        """Put ``text`` in place of tokens, and keep the number of lines."""
        lines = sum(t.out.count("\n") for t in self.tokens[first:last])
        for t in self.tokens[first:last]:
            t.out = ""
        self.tokens[first].out = text + "\n" * (lines - text.count("\n"))

    @property
    def _in_device(self) -> bool:
        return any(s.device for s in self.scopes)

    @property
    def _at_namespace(self) -> bool:
        return all(s.kind == "namespace" for s in self.scopes)

    # ---- what is rewritten ----------------------------------------------------------------------

    def _directive(self, i: int) -> int:
        word = self._next(i)
        name = self._text(word)
        end = i
        while end < len(self.tokens):
            t = self.tokens[end]
            if t.kind == "space" and "\n" in t.text.replace("\\\n", ""):
                break
            end += 1
        if name == "include":
            spelled = self._code(word + 1, end)
            if len(spelled) > 2 and spelled[0] in '"<':
                target = spelled[1:-1]
                found = self.include(self.path, target, spelled[0] == '"')
                if found:
                    self._replace(self._next(word), end, f'"{found}"')
                elif _LIBRARIES.match(target):
                    raise UnsupportedError(
                        self.path,
                        self.tokens[i].line,
                        f"the library behind <{target}> is not emulated",
                    )
            return end
        if name == "define":
            return word + 1  # the body is rewritten like any other text
        return end

    def _name(self, i: int, statement: int) -> int:
        t = self.tokens[i]
        if _UNSUPPORTED.fullmatch(t.text):
            what = "graphs" if "Graph" in t.text else "textures and surfaces"
            raise UnsupportedError(self.path, t.line, f"{what} ({t.text}) are not emulated")
        if t.text == "__shared__":
            return self._shared(i, statement)
        if t.text in _VARIABLE_KINDS and self._at_namespace:
            self._variable(i, statement)
        elif t.text == "__noinline__":
            t.out = "__attribute__((noinline))"
        elif t.text == "printf" and self._text(self._previous(i)) not in (".", "->"):
            before = self._previous(i)
            if self._text(before) == "::":
                if self._text(self._previous(before)) == "std":
                    self.tokens[self._previous(before)].out = ""
                self.tokens[before].out = ""
            if self._text(self._next(i)) == "(":
                t.out = "::opw::print"
        elif t.text in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel"):
            self._strip_cast(i)
        elif self._in_device:
            if t.text in ("if", "while", "for"):
                self._branch(i)
            self._device_name(i)
        return i

    def _branch(self, i: int) -> None:
        """Let a condition tell which way each thread goes, unless all go the same way."""
        opening = self._next(i)
        watched = self._watched_in_loop() if self.tokens[i].text != "if" else []
        known = i in self.known.loops
        if self._text(opening) != "(" or (known and not watched):
            return  # also "if constexpr"
        close = self._close(opening)
        stops = [opening]
        depth = 0
        for j in range(opening + 1, close):
            depth += (self._text(j) in _OPEN) - (self._text(j) in (")", "]", "}"))
            if self._text(j) == ";" and depth == 0:
                stops.append(j)
        first = stops[1] if self.tokens[i].text == "for" and len(stops) == 3 else stops[-1]
        last = stops[2] if self.tokens[i].text == "for" and len(stops) == 3 else close
        if self.tokens[i].text == "for" and len(stops) != 3:
            return  # over a range
        code = self._code(first + 1, last)
        if (not code and not watched) or _DECLARED_CONDITION.match(code):
            return
        self.tokens[first].out += " (" if known or not code else " OPW_BRANCH("
        if watched:
            # The compiler would read them once before the loop, whether the loop does or not.
            self.tokens[first].out += f"::opw::keep({', '.join(watched)}), "
            if not code:
                self.tokens[first].out += "true"
        self.tokens[last].out = ")" + self.tokens[last].out

    def _watched_in_loop(self) -> list[str]:
        """Watched scalars that the block around a loop mentions."""
        names = {name for scope in self.scopes for name in scope.watched}
        brace = self.scopes[-1].brace
        if not names or brace < 0:
            return []
        texts = {t.text for t in self.tokens[brace : self._close(brace)] if t.kind == "name"}
        return sorted(names & texts)

    def _device_name(self, i: int) -> None:
        t = self.tokens[i]
        before = self._previous(i)
        if t.text in ("asm", "__asm__", "__asm"):
            raise UnsupportedError(self.path, t.line, "inline PTX (asm) is not emulated")
        if t.text in ("try", "throw"):
            raise UnsupportedError(self.path, t.line, "device code has no exceptions")
        if self._text(before) in (".", "->"):
            if _SHUFFLE.fullmatch(t.text):
                self._shuffled(i)
            return
        if t.text in _DEVICE_FUNCTIONS and self._text(self._next(i)) == "(":
            if self._text(before) == "::":
                if self._text(self._previous(before)) == "std":
                    self.tokens[self._previous(before)].out = ""
                self.tokens[before].out = ""
            t.out = _DEVICE_FUNCTIONS[t.text]
        elif _SHUFFLE.fullmatch(t.text):
            self._shuffled(i)
        elif t.text in self.globals:
            function = next(s for s in self.scopes if s.device)
            used = self.injected.setdefault(function.brace, set())
            if t.text not in used:
                used.add(t.text)
                self.tokens[function.brace].out += " " + self.globals[t.text]

    def _shuffled(self, i: int) -> None:
        """Lanes from which nobody takes a value may hand over one that was never written."""
        opening = self._next(i)
        if self._text(opening) != "(":
            return
        names = {name for scope in self.scopes for name in scope.watched}
        for j in range(opening + 1, self._close(opening)):
            alone = (
                self._text(self._previous(j)) in ("(", ",") and self._text(self._next(j)) in ",)"
            )
            if self.tokens[j].kind == "name" and self.tokens[j].text in names and alone:
                self.tokens[j].out = f"::opw::unread({self.tokens[j].text})"

    def _strip_cast(self, i: int) -> None:
        """``cudaLaunchKernel((void*)k, ...)``: the cast would hide the parameters' types."""
        opening = self._next(i)
        if self._text(opening) != "(":
            return
        first = self._next(opening)
        if self._text(first) == "(" and self._text(self._previous(self._close(first))) == "*":
            self._replace(first, self._close(first) + 1, "")
        elif self._text(first) in ("reinterpret_cast", "static_cast"):
            inner = first
            while self._text(inner) != "(":
                inner = self._next(inner)
            self._replace(first, inner, "")

    def _open(self, i: int, statement: int) -> None:
        words = [t.text for t in self.tokens[statement:i] if t.kind in ("name", "string")]
        code = self._code(statement, i)
        device = "__global__" in words or "__device__" in words
        if not self._at_namespace and not (self.scopes and self.scopes[-1].kind == "class"):
            self.scopes.append(_Scope("block", device and "]" in code, i))
        elif "namespace" in words or (
            words[:1] == ["extern"] and len(words) == 2 and "(" not in code
        ):
            self.scopes.append(_Scope("namespace"))
        elif "(" in re.sub(
            r"(__align__|alignas|__attribute__|__launch_bounds__)\s*"
            r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)",
            "",
            code,
        ):
            self.scopes.append(_Scope("function", device, i))
            if device:
                self._analyse(i, statement)
            if "__global__" in words:
                self.tokens[i].out += " ::opw::enter_kernel();"
        elif {"class", "struct", "union", "enum"} & set(words):
            self.scopes.append(_Scope("class"))
            if _ALIGNED.search(code) and "struct" in words:
                self._moved_whole(i, statement)
        else:
            self.scopes.append(_Scope("block"))

    def _moved_whole(self, i: int, statement: int) -> None:
        """Let a structure of declared alignment, with plain members only, be copied as one access.

        A device moves it so, where g++ would move its members. With a copy of its own it is no
        aggregate any more, so it also gets the constructors that its braces then mean.
        """
        end = self._close(i)
        body = self._code(i + 1, end).replace("; ", ";")
        header = re.sub(
            r"\w+ ?\((?:[^()]|\([^()]*\))*\)|\b__attribute__ ?\(\(.*?\)\)",
            "",
            self._code(statement, i),
        )
        named = re.search(r"\bstruct (\w+)$", re.sub(r"\s+", " ", header).strip())
        if not named or not _PLAIN_FIELDS.fullmatch(body):
            return
        fields: list[tuple[str, str]] = []
        first = i + 1
        for j in range(i + 1, end):
            if self._text(j) == ";":
                declared = self._declaration(first, j)
                if declared is None:
                    return
                fields += [(f"{declared[1]} {pointer}", name) for pointer, name, _ in declared[2]]
                first = j + 1
        if len(fields) < 2:
            return
        name = named[1]
        made = f"{name}() = default; "
        for count in range(1, len(fields) + 1):
            one = "::opw::detail::One<{}>" if count == 1 else "{}"
            given = ", ".join(
                f"{one.format(kind)} opw_{k}" for k, (kind, _) in enumerate(fields[:count])
            )
            values = [f"opw_{k}" for k in range(count)] if count > 1 else ["opw_0.value"]
            values += [""] * (len(fields) - count)
            members = ", ".join(f"{f}({v})" for (_, f), v in zip(fields, values, strict=True))
            made += f"constexpr {name}({given}) : {members} {{}} "
        self.tokens[i].out += f" OPW_IF_COUNTED({made}OPW_COPIED_WHOLE({name}))"

    def _analyse(self, i: int, statement: int) -> None:
        """What is known when compiled, in the function whose body begins at ``i``."""
        where = range(i + 1, self._close(i))
        words = [j for j in where if self._is_code(j)]
        texts = [self._text(j) for j in words]
        for k, text in enumerate(texts):
            if text == "unroll" and texts[k + 1 : k + 2] == ["1"]:
                texts[k + 1] = "unroll-1"
        opening = next((j for j in range(statement, i) if self._text(j) == "("), i)
        while self._text(self._previous(opening)) in _ATTRIBUTES:
            opening = self._next(self._close(opening))
            while opening < i and self._text(opening) != "(":
                opening = self._next(opening)
        if opening >= i:
            return
        parameters = parameter_names(self._code(opening + 1, self._close(opening)))
        self.known = analyse(texts, words, parameters, self.functions)
        self.functions[self._text(self._previous(opening))] = self.known.dynamic

    def _launch(self, i: int) -> int:
        line = self.tokens[i].line
        if self._in_device:
            raise UnsupportedError(
                self.path, line, "a launch from device code (dynamic parallelism) is not emulated"
            )
        first = self._callee(i)
        closing = i + 1
        depth = 0
        while self._text(closing) != ">>>" or depth:
            text = self._text(closing)
            depth += (text in _OPEN) - (text in (")", "]", "}"))
            closing += 1
            if closing >= len(self.tokens):
                raise UnsupportedError(self.path, line, "'<<<' without '>>>'")
        opening = self._next(closing)
        if self._text(opening) != "(":
            raise UnsupportedError(self.path, line, "'>>>' is not followed by arguments")
        end = self._close(opening)
        for j in range(opening + 1, end):
            if self.tokens[j].kind == "name":
                self._name(j, j)
        callee = self._out(first, i).strip()
        name = self._code(first, i).replace('"', "'")
        arguments = [
            "::opw::Zero()" if text.strip() in ("0", "NULL") else text
            for text in self._split(opening + 1, end)
        ]
        configuration = self._out(i + 1, closing)
        # A braced list has no type until a parameter gives it one: it goes straight to the kernel.
        braced = [text.strip().startswith("{") for text in arguments]
        if any(braced):
            names = [f"opw_{k}" for k in range(len(arguments))]
            parameters = ", ".join(
                f"auto& {each}" for each, brace in zip(names, braced, strict=True) if not brace
            )
            passed = ", ".join(
                text if brace else each
                for each, text, brace in zip(names, arguments, braced, strict=True)
            )
        else:  # one pack, which also takes what a macro's __VA_ARGS__ stands for
            parameters, passed = "auto&... opw_values", "opw_values..."
        call = (
            f'::opw::Launch(__FILE__, __LINE__, "{name}", {configuration}).run('
            f"[&]({parameters}) OPW_UNTRACED {{ {callee}({passed}); }}"
            + "".join(
                f", {text}" for text, brace in zip(arguments, braced, strict=True) if not brace
            )
            + ")"
        )
        self._replace(first, end + 1, call)
        return end + 1

    def _callee(self, i: int) -> int:
        """The first token of the expression that is launched."""
        j = self._previous(i)
        if self._text(j) == ")":
            return self._opening(j)
        if self._text(j) in (">", ">>", ">>>"):
            depth = 0
            while j >= 0:
                text = self._text(j)
                if text in (")", "]", "}"):  # what is bracketed may compare
                    j = self._opening(j)
                elif set(text) == {">"}:
                    depth += len(text)
                elif set(text) == {"<"}:
                    depth -= len(text)
                if depth == 0:
                    break
                j -= 1
            j = self._previous(j)
        while self._text(self._previous(j)) in ("::", "template", ".", "->"):
            before = self._previous(j)
            further = self._previous(before)
            if self._text(before) == "::" and not (
                further >= 0 and self.tokens[further].kind == "name"
            ):
                return before
            if self._text(before) == "::" and self._text(further) in ("return", "else", "do"):
                return before
            j = before if self._text(before) == "template" else further
        return j

    def _split(self, first: int, last: int) -> list[str]:
        """The arguments between two tokens, as they will be compiled."""
        parts: list[str] = []
        depth, start, angles = 0, first, 0
        for j in range(first, last):
            text = self.tokens[j].text
            if self.tokens[j].kind != "mark":
                continue
            depth += (text in _OPEN) - (text in (")", "]", "}"))
            if text == "<" and depth == 0 and self._template_ahead(j, last):
                angles += 1
            elif angles and depth == 0 and set(text) == {">"}:
                angles = max(0, angles - len(text))
            if text == "," and depth == 0 and angles == 0:
                parts.append(self._out(start, j))
                start = j + 1
        if self._code(start, last):
            parts.append(self._out(start, last))
        return parts

    def _template_ahead(self, i: int, last: int) -> bool:
        """Whether ``<`` opens template arguments: it closes before anything else can."""
        depth = 0
        for j in range(i, last):
            text = self._text(j)
            if text == "<":
                depth += 1
            elif text in (">", ">>"):
                depth -= len(text)
                if depth <= 0:
                    return self._text(self._next(j)) in ("(", "::", "{")
            elif text in ("&&", "||", ";", ")", "+", "-", "?"):
                return False
        return False

    def _shared(self, i: int, statement: int) -> int:
        first = i
        for j in range(i - 1, statement - 1, -1):
            if self._is_code(j):
                if (
                    self.tokens[j].kind != "name"
                    and self._text(j) not in ("(", ")")
                    and self.tokens[j].kind != "number"
                ):
                    break
                first = j
        end = i
        depth = 0
        while self._text(end) != ";" or depth:
            depth += (self._text(end) in _OPEN) - (self._text(end) in (")", "]", "}"))
            end += 1
            if end >= len(self.tokens):
                raise UnsupportedError(self.path, self.tokens[i].line, "__shared__ without ';'")
        dynamic = any(self._text(j) == "extern" for j in range(first, end))
        declared = self._declaration(first, end)
        if declared is None:
            raise UnsupportedError(
                self.path, self.tokens[i].line, "this __shared__ declaration is not understood"
            )
        alignment, kind, declarators = declared
        text = ""
        for pointer, name, suffix in declarators:
            made = self._shared_text(dynamic, alignment, f"{kind} {pointer}", name, suffix)
            if self._at_namespace:
                self.globals[name] = made
            else:
                text += made + " "
        self._replace(first, end + 1, text)
        return end

    @staticmethod
    def _shared_text(dynamic: bool, alignment: str, kind: str, name: str, suffix: str) -> str:
        if dynamic:
            rest = re.sub(r"^\s*\[\s*\]", "", suffix)
            return (
                f"typedef {kind} opw_type_{name}{rest}; opw_type_{name}* const {name} = "
                f"static_cast<opw_type_{name}*>(::opw::dynamic_shared());"
            )
        align = alignment or f"alignof(opw_type_{name})"
        return (
            f"typedef {kind} opw_type_{name}{suffix}; static ::opw::SharedSlot opw_slot_{name}"
            f'{{"{name}", sizeof(opw_type_{name}), {align}, __FILE__, __LINE__, 0}}; '
            f"opw_type_{name}& {name} = "
            f"*static_cast<opw_type_{name}*>(::opw::shared(&opw_slot_{name}));"
        )

    def _locals(self, end: int, statement: int) -> None:
        """Announce the variables that a statement in device code declares without a value.

        Those are arrays, scalars that are not surely assigned before anything else is done with
        them, and arrays with a value that lie in local memory, whose traffic is counted.
        """
        if not self._in_device or self.scopes[-1].kind == "class":
            return
        code = self._code(statement, end)
        if _NO_DECLARATION.search(code):
            return
        written = not _LOCAL_ARRAY.fullmatch(code)
        array = not written or bool(_WRITTEN_ARRAY.match(code))
        if not array and not _LOCAL_SCALARS.fullmatch(code):
            return
        first = statement
        while not self._is_code(first):
            first += 1
        declared = self._declaration(first, end)
        for _, name, suffix in declared[2] if declared else ():
            at = next(j for j in range(first, end) if self._text(j) == name)
            if "[" in suffix:
                indexed = self.known.arrays.get(name, False)
                if not indexed and written:
                    continue
                facts = f"{str(indexed).lower()}, {str(written).lower()}"
                made = f'LocalArray opw_local_{name}({name}, sizeof({name}), "{name}", {facts})'
            elif self._text(self._next(at)) in (",", ";") and not self._assigned(name, end):
                made = f'LocalScalar opw_local_{name}({name}, "{name}")'
            else:
                continue
            if self._jumped_over():
                return
            if "[" not in suffix:
                self.scopes[-1].watched.append(name)
            self.tokens[at].out = f"OPW_ARRAY({name})"
            self.tokens[end].out += f" OPW_HIDDEN({name}) ::opw::{made};"

    def _jumped_over(self) -> bool:
        """Whether labels stand in this block, past which nothing with a constructor may be."""
        before = self._previous(self.scopes[-1].brace)
        if self._text(before) == ")":
            before = self._previous(self._opening(before))
        function = next(s for s in self.scopes if s.device)
        body = range(function.brace, self._close(function.brace))
        return self._text(before) == "switch" or any(self._text(j) == "goto" for j in body)

    def _assigned(self, name: str, end: int) -> bool:
        """Whether a variable, declared up to ``end``, gets its value before it is mentioned."""
        brackets: list[int] = []
        j = self._next(end)
        while j < len(self.tokens):
            text = self._text(j)
            if self.tokens[j].kind == "mark" and text in _OPEN:
                brackets.append(j)
            elif self.tokens[j].kind == "mark" and text in (")", "]", "}"):
                if not brackets:
                    return True  # never mentioned
                brackets.pop()
            elif text == name and self._text(self._previous(j)) not in (".", "->"):
                break
            j = self._next(j)
        if self._text(self._next(j)) != "=":
            return False
        before = self._previous(j)
        while self._text(before) == "=" and self.tokens[self._previous(before)].kind == "name":
            before = self._previous(self._previous(before))  # x = y = 0
        if brackets:
            begins = self._text(self._previous(brackets[-1])) == "for" and before == brackets[-1]
            if len(brackets) > 1 or not begins:
                return False
        elif self._text(before) not in (";", "{", "}"):
            return False  # perhaps what an if or a loop does
        j = self._next(j)
        while self._text(j) != ";":
            if self._text(j) == name:
                return False
            j = self._next(j)
        return True

    def _declaration(
        self, first: int, end: int
    ) -> tuple[str, str, list[tuple[str, str, str]]] | None:
        """Alignment, type, and per variable what stands before and after its name."""
        kept: list[int] = []
        alignment = ""
        j = first
        while j < end:
            text = self._text(j)
            if text in ("extern", "static", "__shared__", *_VARIABLE_KINDS, "inline"):
                pass
            elif text in ("__align__", "alignas", "__builtin_align__", "__attribute__"):
                opening = self._next(j)
                close = self._close(opening)
                inside = self._code(opening + 1, close)
                if text == "__attribute__":
                    found = re.search(r"aligned\s*\((.*?)\)", inside)
                    inside = found[1] if found else ""
                alignment = inside or alignment
                j = close
            elif self._is_code(j):
                kept.append(j)
            j += 1
        angles = depth = 0
        for k, j in enumerate(kept):
            text = self._text(j)
            after = self._text(kept[k + 1]) if k + 1 < len(kept) else ";"
            if text == "<":
                angles += 1
            elif text in (">", ">>", ">>>"):
                angles -= len(text)
            depth += (text in _OPEN) - (text in (")", "]", "}"))
            if (
                angles
                or depth
                or self.tokens[j].kind != "name"
                or after not in ("[", ";", ",", "=", "{")
            ):
                continue
            tagged = ("class", "struct", "union", "enum")
            if text in tagged or (after == "{" and k and self._text(kept[k - 1]) in tagged):
                continue  # a type defined on the spot
            kind_end = k
            while kind_end and self._text(kept[kind_end - 1]) in ("*", "&"):
                kind_end -= 1
            if kind_end == 0:
                return None
            kind = " ".join(self.tokens[x].out for x in kept[:kind_end])
            return alignment, kind, self._declarators(kept[kind_end:])
        return None

    def _declarators(self, kept: Sequence[int]) -> list[tuple[str, str, str]]:
        groups: list[list[int]] = [[]]
        depth = 0
        for j in kept:
            text = self._text(j)
            depth += (text in _OPEN) - (text in (")", "]", "}"))
            if text == "," and depth == 0:
                groups.append([])
            else:
                groups[-1].append(j)
        found = []
        for group in groups:
            at = next((k for k, j in enumerate(group) if self.tokens[j].kind == "name"), None)
            if at is None:
                continue
            pointer = "".join(self._text(j) for j in group[:at])
            suffix = []
            for j in group[at + 1 :]:
                if self._text(j) in ("=", "{"):
                    break
                suffix.append(self.tokens[j].out)
            found.append((pointer, self._text(group[at]), " ".join(suffix)))
        return found

    def _variable(self, i: int, statement: int) -> None:
        """Announce a device variable behind its declaration; functions are left alone."""
        words = {t.text for t in self.tokens[statement:i]}
        j = i
        while j < len(self.tokens):
            text = self._text(j)
            words.add(text)
            if text in ("__shared__", "operator"):
                return
            if text in _ATTRIBUTES:
                j = self._close(self._next(j)) + 1
                continue
            if text in ("(", "{") and text != "=":
                if text == "(" or {"class", "struct", "union", "enum", "namespace"} & words:
                    return
                break
            if text in (";", "=", "["):
                break
            j += 1
        if "extern" in words or "template" in words or "using" in words or "typedef" in words:
            return
        end = j
        while end < len(self.tokens) and self._text(end) != ";":
            end = self._close(end) + 1 if self._text(end) in _OPEN else end + 1
        first = statement
        while not self._is_code(first):
            first += 1
        declared = self._declaration(first, end)
        if declared is None or end >= len(self.tokens):
            return
        kind = next(k for word, k in _VARIABLE_KINDS.items() if word in words)
        for word in _VARIABLE_KINDS:  # one announcement, however many words
            for k in range(first, end):
                if self._text(k) == word:
                    self.tokens[k].kind, self.tokens[k].out = "done", ""
        gaps = self._gaps(i, end, declared[1], declared[2])
        for _, name, _ in declared[2]:
            gap = f"opw_gap_{name}, sizeof(opw_gap_{name})" if gaps else "nullptr, 0"
            self.tokens[end].out += (
                f" static const ::opw::Variable opw_variable_{name}(&{name}, sizeof({name}), "
                f'{gap}, "{name}", ::opw::VariableKind::{kind}, __FILE__, {self.tokens[i].line});'
            )

    def _gaps(
        self, word: int, end: int, kind: str, declarators: Sequence[tuple[str, str, str]]
    ) -> bool:
        """Put device variables into a section of their own, with a gap behind each.

        A gap is one more variable of the same declaration, so that it goes where the others go.
        """
        if "auto" in kind.split() or any("&" in pointer for pointer, _, _ in declarators):
            return False  # what a gap would be made of cannot be told
        commas, depth, valued = [], 0, False
        for j in range(word, end):
            text = self._text(j)
            valued |= depth == 0 and text in ("=", "{")
            depth += (text in _OPEN) - (text in (")", "]", "}"))
            if text == "," and depth == 0:
                commas.append(j)
        # Commas of template arguments come before those between variables.
        stops = [*commas[len(commas) + 1 - len(declarators) :], end]
        constant = {"const", "constexpr"} & set(kind.split())
        place = ".rodata" if constant else ".data" if valued else ".bss"
        self.tokens[word].out = f'OPW_IN_ORDER("{place}.opw")'
        for stop, (_, name, _) in zip(stops, declarators, strict=True):
            gap = f"opw_gap_{name}[OPW_GAP(sizeof({name}), sizeof({kind}))]"
            self.tokens[stop].out = f", {gap}{' = {}' if valued else ''}{self.tokens[stop].out}"
        return True


def tokenize(text: str) -> list[Token]:
    """Every character of ``text``, in tokens with their lines (from 1)."""
    tokens: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if kind == "fence":
            kind = "string"
        piece = match[0]
        tokens.append(Token(kind, piece, line, piece))
        line += piece.count("\n")
    return tokens


def rewrite(sources: Sequence[Path], include: Sequence[Path], folder: Path) -> list[Path]:
    """Rewrite ``sources`` and the user's headers they include into ``folder``.

    A header is the user's when it lies beside a file that includes it by quotes, or in one of the
    ``include`` folders; all others are left to the compiler. Returns the new paths, in order.
    Raises ``UnsupportedError`` for what the emulator lacks, ``OpwrightError`` for unreadable files.
    """
    done: dict[Path, Path] = {}
    functions: dict[str, set[int]] = {}

    def target(path: Path) -> Path:
        path = path.absolute()
        if path not in done:
            suffix = "" if path.suffix in (".h", ".hpp", ".cuh") else ".cpp"
            done[path] = folder / f"{len(done)}_{path.name}{suffix}"
            try:
                text = path.read_text(encoding="utf-8", errors="surrogateescape")
            except OSError as error:
                raise OpwrightError(f"{path}: cannot be read: {error.strerror}") from error
            made = _Rewriter(path, tokenize(text), header, functions=functions).run()
            done[path].write_text(made, encoding="utf-8", errors="surrogateescape")
        return done[path]

    def header(origin: Path, name: str, quoted: bool) -> str | None:
        places = [origin.parent, *include] if quoted else list(include)
        for place in places:
            candidate = place / name
            if candidate.is_file():
                return str(target(candidate))
        return None

    return [target(source) for source in sources]
