"""Finding operators and kernels: by name, by folder, or by source file."""
