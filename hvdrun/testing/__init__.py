"""Tests that run on several ranks: the pytest plugin, and the part that runs on the ranks."""
