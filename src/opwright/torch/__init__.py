"""Opwright within PyTorch: ``import opwright.torch as owt``."""

from __future__ import annotations

from opwright.torch.registration import register

__all__ = ["register"]
