"""The operator library: declared operators with ladders of kernels for each."""

from opwright_ops.matmul.op import matmul
from opwright_ops.threshold_activation.op import threshold_activation

__all__ = ["matmul", "threshold_activation"]
