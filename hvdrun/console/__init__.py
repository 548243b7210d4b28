"""What a person sees of a job."""

from hvdrun.console.console import Console
from hvdrun.console.output import OutputPrinter
from hvdrun.console.page import Page

__all__ = ["Console", "OutputPrinter", "Page"]
