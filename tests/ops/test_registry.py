"""Every operator that is installed, every kernel, every element type, the whole matrix of cases."""

from __future__ import annotations

import pytest

from opwright.backends.registry import backend_named
from opwright.bench.measure import untimed_on
from opwright.catalog.find import find, operator_names
from opwright.dispatch.choose import why_not
from opwright.verify.engine import Options, verify


@pytest.mark.parametrize("name", operator_names())
def test_every_kernel_of_the_library_holds(name: str) -> None:
    target = find(name)
    emulated = untimed_on(target.kernels)
    fast = [k for k in target.kernels if k.name not in emulated]
    report = verify(target.spec, fast, target.reference)
    assert not report.findings, [(f.name, f.message, f.command) for f in report.findings]
    for kernel in report.kernels:
        # A kernel that did not run has to say what this machine lacks, and only that is accepted.
        assert kernel.verdict == "held" or (kernel.verdict == "not-run" and kernel.reason), kernel
    assert {k.kernel.name for k in report.kernels} == {k.name for k in fast}
    ran = {d for k in report.kernels if k.cases for d in k.dtypes.values()}
    declared = {d for options in target.spec.signature.variables.values() for d in options}
    assert ran == declared, "an element type was declared but no kernel of it ran"
    for kernel in fast:
        for dtypes in target.spec.signature.choices():
            if why_not(target.spec, kernel, dtypes):
                continue
            backend = backend_named(kernel.backend)
            built = backend.build(target.spec.signature, kernel, dtypes, kernel.defaults)
            assert built.cached and not built.warnings, (kernel.name, built.warnings)


@pytest.mark.parametrize("name", operator_names())
def test_every_emulated_kernel_holds_and_has_no_finding(name: str) -> None:
    target = find(name)
    emulated = untimed_on(target.kernels)
    slow = [k for k in target.kernels if k.name in emulated]
    if not slow:
        pytest.skip(f"{name} has no kernel that is emulated")
    # Every access is watched, 20 times as slow: one element type and a third of the matrix.
    options = Options(target.spec.signature.choices()[:1], quick=True)
    report = verify(target.spec, slow, target.reference, options)
    assert not report.findings, [(f.name, f.message, f.command) for f in report.findings]
    assert {k.verdict for k in report.kernels} == {"held"}


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_has_a_contract_and_known_wrong_variants(name: str) -> None:
    spec = find(name).spec
    assert spec.__doc__
    assert (spec.folder / "README.md").is_file()
    assert len(spec.wrong) >= 4
    assert all(row.change for row in spec.rows)
