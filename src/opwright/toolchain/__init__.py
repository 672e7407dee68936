"""Compilers and the build cache: a source file and flags in, a loadable binary out."""
