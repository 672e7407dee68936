"""Opwright within PyTorch: ``import opwright.torch as owt``."""

from __future__ import annotations

from opwright.torch.auditing import Audit, audit
from opwright.torch.checking import Verdict, check
from opwright.torch.models import load_model
from opwright.torch.registration import register
from opwright.torch.vendors import Plugin, plugins

__all__ = ["Audit", "Plugin", "Verdict", "audit", "check", "load_model", "plugins", "register"]
