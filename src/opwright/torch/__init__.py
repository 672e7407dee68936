"""Opwright within PyTorch: ``import opwright.torch as owt``."""

from __future__ import annotations

from opwright.torch.auditing import Audit, audit
from opwright.torch.models import load_model
from opwright.torch.plugins import Plugin, plugins
from opwright.torch.registration import register

__all__ = ["Audit", "Plugin", "audit", "load_model", "plugins", "register"]
