"""The operator library: declared operators with ladders of kernels for each."""

from opwright_ops.linear.op import linear
from opwright_ops.linear_int8.op import linear_int8
from opwright_ops.matmul.op import matmul
from opwright_ops.threshold_activation.op import threshold_activation
from opwright_ops.threshold_activation_grad.op import threshold_activation_grad

__all__ = ["linear", "linear_int8", "matmul", "threshold_activation", "threshold_activation_grad"]
