"""What was verified and measured on this machine, with the sources it was done with."""

from opwright.history.records import Result, Run, Source, Times, Verdict, Version
from opwright.history.restore import Restored, restore
from opwright.history.store import History

__all__ = [
    "History",
    "Restored",
    "Result",
    "Run",
    "Source",
    "Times",
    "Verdict",
    "Version",
    "restore",
]
