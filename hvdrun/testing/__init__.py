"""Tests that run on several ranks: the pytest plugin, and what it has the ranks do."""
