"""Platforms, each behind the one interface in ``base``."""
