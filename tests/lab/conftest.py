"""The lab is a fixture of its own tests."""

from tests.lab.fixtures import lab, labs

__all__ = ["lab", "labs"]
