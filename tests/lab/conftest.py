"""The lab is a fixture of its own tests."""

from tests.lab import fixtures

lab = fixtures.lab
