"""A GPU in the head: runs CUDA-dialect programs on the host and says what they do wrong."""
