"""Operators as a shared library that stands on its own: built, packaged and checked."""
