"""From a kernel row to a shared library."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from opwright.backends.base import Artifact
from opwright.spec.dtypes import DType
from opwright.spec.errors import BuildError, MissingFunctionError
from opwright.spec.isa import isa_named
from opwright.spec.kernel import Kernel
from opwright.spec.signature import Signature
from opwright.toolchain.build import MissingSymbolError, build
from opwright.toolchain.compilers import pick_compiler

# Flags under which a compiler may take any test for NaN or infinity to be false.
_FINITE_ONLY = frozenset({"-Ofast", "-ffast-math", "-ffinite-math-only"})
_NOT_FINITE = re.compile(
    r"\b(?:__builtin_)?(?:is(?:nan|inf|finite|normal|unordered)|NAN|INFINITY|HUGE_VALF?|nanf?|inff?"
    r"|quiet_NaN|signaling_NaN|infinity|fpclassify)\b"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# How g++ and clang++ say that the source declares the function otherwise than the prelude did.
# Where only the result differs, clang++ names the function in the line of source below.
_CONFLICT = (
    r"(?:conflicting|ambiguating)[^\n]*\b{name}\b"
    r"|differ only in their return type[^\n]*\n[^\n]*\b{name}\b"
)


def build_kernel(
    signature: Signature,
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    params: Mapping[str, int],
) -> Artifact:
    """See ``Backend.build``."""
    compiler = pick_compiler()
    flags = (
        *isa_named(kernel.isa).flags,
        *(f"-D{variable}={dtype.c}" for variable, dtype in dtypes.items()),
        *(f"-D{tunable}={value}" for tunable, value in params.items()),
        *kernel.flags,
    )
    try:
        built = build(
            compiler,
            source=kernel.path,
            prelude=signature.c_prelude(dtypes, kernel),
            flags=("-pthread", *flags),
            # The kernel's own functions, where another library has one of the same name.
            link=("-Wl,-Bsymbolic",),
        )
    except MissingSymbolError as error:
        functions = signature.c_functions(None, kernel)
        missing = next((name for name in functions if name in error.symbols), "")
        if not missing:
            raise
        said = f"defines no function {missing} with C linkage"
        raise _other_signature(signature, kernel, dtypes, said, error) from None
    except BuildError as error:
        said = ""
        for name in signature.c_functions(None, kernel):
            if re.search(_CONFLICT.format(name=re.escape(name)), error.diagnostics):
                said = said or f"defines {name} with another signature"
        if not said:
            raise
        raise _other_signature(signature, kernel, dtypes, said, error) from None
    source = kernel.path.read_bytes()
    return Artifact(
        path=built.path,
        key=built.key,
        kernel=kernel.name,
        source=kernel.path,
        source_hash=hashlib.sha256(source).hexdigest(),
        compiler=compiler.name,
        flags=flags,
        isa=kernel.isa,
        fast_math=kernel.fast_math,
        cached=built.cached,
        seconds=built.seconds,
        warnings=built.warnings + _fast_math_warning(kernel, source.decode(errors="replace")),
    )


def _other_signature(
    signature: Signature,
    kernel: Kernel,
    dtypes: Mapping[str, DType],
    said: str,
    error: BuildError,
) -> MissingFunctionError:
    types = ", ".join(f"{variable}={dtype.name}" for variable, dtype in dtypes.items())
    functions = signature.c_functions(None, kernel).values()
    return MissingFunctionError(
        f"{kernel.path} {said}; Opwright calls{f' (here with {types})' if types else ''}"
        + "".join(f'\n    extern "C" {function};' for function in functions),
        error.diagnostics,
        error.line,
    )


def _fast_math_warning(kernel: Kernel, source: str) -> str:
    flags = sorted(_FINITE_ONLY.intersection(kernel.flags))
    code = _COMMENT.sub(" ", source)
    words = dict.fromkeys(match[0] for match in _NOT_FINITE.finditer(code))
    if not flags or not words:
        return ""
    return (
        f"{kernel.path}: warning: {' '.join(flags)} lets the compiler assume that NaN and infinity "
        f"do not occur, and the source uses {', '.join(words)}\n"
    )
