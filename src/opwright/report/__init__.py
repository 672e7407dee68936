"""Findings and the formats they are given in."""
