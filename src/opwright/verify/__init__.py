"""Verification: kernels against the float64 oracle, beside the framework's own operator."""
