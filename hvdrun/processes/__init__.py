"""Processes on this machine, for launcher and agent: children, process trees, watchdog, binding and suspension."""
