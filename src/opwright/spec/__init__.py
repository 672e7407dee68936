"""Operators, signatures, element types, cases, tolerances and cost: pure Python, no I/O."""
