"""The terminal output of a job."""

from hvdrun.console.console import Console
from hvdrun.console.marks import Marks
from hvdrun.console.output import OutputPrinter
from hvdrun.console.page import Page
from hvdrun.console.writer import is_passing

__all__ = ["Console", "Marks", "OutputPrinter", "Page", "is_passing"]
